//! Coalesced duplicates: what a fault costs on a page that another fault has brought already. Of
//! the cores that touch a page at once, one is served, and each of the others costs this.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::ensure;
use gmm::hostxpu::MIN_FRAMES;
use gmm::{Access, Gmm, HostXpu, PAGE_SIZE, Unified};
use gmm_core::{Processor, Resolved, Space, VirtAddr};
use serde::Serialize;

use super::CoalesceArgs;
use super::distribution::Distribution;

/// What is asked for: 2 µs.
const TARGET_NS: f64 = 2000.0;

/// One line of the result.
#[derive(Debug, Serialize)]
struct Line {
    suite: &'static str,
    case: String,
    threads: usize,
    faults: u64,
    repeats: u32,
    /// What one thread sees: median over the repeats, and extremes.
    ns_per_fault: f64,
    ns_per_fault_min: f64,
    ns_per_fault_max: f64,
    /// 2 µs over that: higher is better, and 1 is what is asked for.
    ratio: f64,
}

pub(super) fn run(args: &CoalesceArgs) -> anyhow::Result<()> {
    let gmm = Gmm::builder().xpu(HostXpu::with_memory(MIN_FRAMES * PAGE_SIZE)).build()?;
    let xpu = gmm.xpu(1)?;
    let mut data: Unified<u64> = gmm.mmap_named(2 * PAGE_SIZE as usize / 8, "bench data")?;
    // The first page is the CPU's, the second the XPU's.
    data[0] = 1;
    data[PAGE_SIZE as usize / 8] = 2;
    let space = space(&gmm);
    let addresses = [0, 1].map(|page| data.pages().start.plus(page).start());
    let processor = xpu.context().processor();
    space.fault(processor, addresses[1], Access::Write)?;

    for threads in [1, 2, 4].into_iter().filter(|&n| n <= args.threads) {
        for (name, processor, addr) in
            [("cpu", space.cpu(), addresses[0]), ("xpu", processor, addresses[1])]
        {
            let case = format!("{name}-{threads}");
            let line = measure(space, processor, addr, threads, args, case)?;
            if args.json {
                println!("{}", serde_json::to_string(&line)?);
            } else {
                println!(
                    "{}: {:.0} ns a duplicate fault ({:.0} to {:.0} over {} repeats), {threads} at \
                     a time on one page",
                    line.case,
                    line.ns_per_fault,
                    line.ns_per_fault_min,
                    line.ns_per_fault_max,
                    line.repeats,
                );
            }
        }
    }
    ensure!(data[0] == 1 && data[PAGE_SIZE as usize / 8] == 2, "the data is not what it was");
    Ok(())
}

#[expect(unsafe_code, reason = "faults are made by drivers; here by hand")]
fn space(gmm: &Gmm) -> &Space {
    // SAFETY: a fault on a page that is mapped changes nothing; no signal handler of this program
    // touches unified memory.
    unsafe { gmm.space() }
}

fn measure(
    space: &Space,
    processor: &Processor,
    addr: VirtAddr,
    threads: usize,
    args: &CoalesceArgs,
    case: String,
) -> anyhow::Result<Line> {
    let faults = u64::from(args.faults);
    let one_thread = |barrier: &Barrier| -> anyhow::Result<f64> {
        barrier.wait();
        let start = Instant::now();
        for _ in 0..faults {
            let resolved = space.fault(processor, addr, Access::Write)?;
            ensure!(resolved == Resolved::AlreadyUsable, "{resolved:?} is no duplicate");
        }
        Ok(start.elapsed().as_nanos() as f64 / faults as f64)
    };
    let mut samples = Vec::new();
    for repeat in 0..=args.repeats {
        let barrier = Barrier::new(threads);
        let of_round: anyhow::Result<Vec<f64>> = std::thread::scope(|scope| {
            let started: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| one_thread(&barrier))).collect();
            started.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        let of_round = Distribution::new(of_round?);
        // The first is to warm up.
        if repeat > 0 {
            samples.push(of_round.median());
        }
    }
    let ns = Distribution::new(samples);
    Ok(Line {
        suite: "coalesce",
        case,
        threads,
        faults,
        repeats: args.repeats,
        ns_per_fault: ns.median(),
        ns_per_fault_min: ns.min(),
        ns_per_fault_max: ns.max(),
        ratio: TARGET_NS / ns.median(),
    })
}
