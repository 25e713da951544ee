//! Replays event lists with every allocator: the smallest capacity on which each runs, and what
//! was mapped to get there.
//!
//! ```console
//! $ cargo run --release -p gmm-alloc --all-features --example traces
//! $ GMM_TRACES=FOLDER cargo run --release -p gmm-alloc --example traces -- stitching
//! ```

#[path = "../tests/common/trace.rs"]
mod trace;

use gmm_alloc::{Allocator, Caching, Heap, PureBackend, Stitching, smallest_capacity};
use gmm_core::PAGE_SIZE;
use trace::Trace;

const MIB: f64 = (1 << 20) as f64;

/// What the recordings' own card had: an H200.
const CARD_BYTES: u64 = 141 << 30;

type Make = fn(u64) -> Box<dyn Allocator>;

/// Each allocator by the name that it is asked for with.
const ALLOCATORS: &[(&str, Make)] = &[
    #[cfg(feature = "jemalloc")]
    ("jemalloc", |frames| Box::new(gmm_alloc::Jemalloc::new(PureBackend::new(frames)))),
    ("stitching", |frames| Box::new(Stitching::new(PureBackend::new(frames)))),
    ("pytorch", |frames| Box::new(Caching::new(PureBackend::new(frames)))),
    ("pytorch-expandable", |frames| Box::new(Caching::expandable(PureBackend::new(frames)))),
    ("best-fit", |frames| Box::new(Heap::best_fit(PureBackend::new(frames)))),
    ("bfc", |frames| Box::new(Heap::bfc(PureBackend::new(frames)))),
];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let traces = trace::real_traces();
    for (name, make) in ALLOCATORS.iter().filter(|(name, _)| is_asked(name)) {
        println!("\n{name}: peak live and reserved in MiB, smallest capacity by peak live;");
        println!("frames mapped/unmapped in runs at 1.005, 1.02, 1.05, 1.10 times peak live");
        let mut unmapped = 0;
        for trace in &traces {
            unmapped += report(trace, *make);
        }
        println!("unmapped at 1.05: {unmapped} frames in all");
    }
}

/// Prints a line; returns how many frames were unmapped at 1.05 times the peak.
fn report(trace: &Trace, make: Make) -> u64 {
    let peak = trace.peak_live_bytes();
    let mut large = make(CARD_BYTES / PAGE_SIZE);
    assert!(trace.fits(&mut *large), "{} does not fit on the card", trace.name);
    let fits = |capacity: u64| trace.fits(&mut *make(capacity / PAGE_SIZE));
    let least = smallest_capacity(peak, CARD_BYTES, fits);
    print!(
        "{:<29} {:>6.0} {:>6.0} {:.4}",
        trace.name,
        peak as f64 / MIB,
        large.stats().peak_reserved_bytes as f64 / MIB,
        least.map_or(f64::NAN, |least| least as f64 / peak as f64),
    );
    let goal = peak as f64 * 1.005 + 2.0 * PAGE_SIZE as f64;
    print!("{}", if least.is_some_and(|least| least as f64 <= goal) { "  " } else { "! " });
    let mut unmapped = 0;
    for times in [1.005, 1.02, 1.05, 1.10] {
        let mut allocator = make((peak as f64 * times) as u64 / PAGE_SIZE);
        if trace.fits(&mut *allocator) {
            let stats = allocator.stats();
            print!(" {}/{} in {};", stats.frames_mapped, stats.frames_unmapped, stats.map_runs);
            if times == 1.05 {
                unmapped = stats.frames_unmapped;
            }
        } else {
            print!(" -;");
        }
    }
    println!();
    unmapped
}
