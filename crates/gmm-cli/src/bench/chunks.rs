//! Moving memory a chunk a call, in turn with raw copies of all of it by as many threads: from which
//! size on a call costs nothing beside what it moves. A prefetch moves whole pages of 2 MiB: of calls for
//! less, the first on a page moves it.

use std::time::Instant;

use anyhow::ensure;
use gmm::{Gmm, PAGE_SIZE, Unified, display_bytes};

use super::bulk::{self, BulkArgs, PAGE_WORDS, RAW};
use super::distribution::Pairs;
use super::raw::{RawCopies, Way};
use super::session::Session;

/// What moves the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Prefetch,
    Memcpy,
}

/// Measures each size of `args`, to the XPU.
pub(super) fn run(
    args: &BulkArgs,
    by: By,
    nr_pages: u64,
    session: &mut Session,
) -> anyhow::Result<()> {
    let (suite, case) = match by {
        By::Prefetch => ("prefetch", "chunks-to-xpu"),
        By::Memcpy => ("memcpy", "chunks-host-to-xpu"),
    };
    session.begin(suite, args.chunks.len() as u64 * u64::from(args.repeats.repeats + 1));
    let (gmm, raw) = bulk::set_up(args, nr_pages)?;
    let bytes = nr_pages * PAGE_SIZE;
    let mut bench = Bench::new(gmm, raw, nr_pages)?;
    for &chunk in &args.chunks {
        if chunk > bytes {
            let (chunk, all) = (display_bytes(chunk), display_bytes(bytes));
            session.say(format!("{suite}: no chunks of {chunk}, more than the {all} of --bytes"));
            continue;
        }
        session.doing(format!("chunks of {}", display_bytes(chunk)));
        let mut pairs = Pairs::default();
        bulk::fill(&mut bench.source, chunk);
        for round in 0..=args.repeats.repeats {
            let baseline = bench.raw.with_workers(Way::ToXpu, bulk::nr_workers())?;
            let start = Instant::now();
            for offset in (0..bytes).step_by(usize::try_from(chunk)?) {
                bench.chunk(by, offset, chunk.min(bytes - offset))?;
            }
            let subject = start.elapsed();
            if round > 0 {
                pairs.push(subject, baseline);
            }
            bench.check(by, chunk)?;
            session.step();
        }
        let parameter = format!("chunk={}", display_bytes(chunk).replace(' ', ""));
        let record = pairs.record_of_bytes(suite, case, args.link.name(parameter), RAW, bytes);
        session.put(record.with("chunk_bytes", chunk).with("workers", bulk::nr_workers()))?;
    }
    Ok(())
}

struct Bench {
    source: Unified<u64>,
    target: Unified<u64>,
    raw: RawCopies,
    gmm: Gmm,
}

impl Bench {
    fn new(gmm: Gmm, raw: RawCopies, nr_pages: u64) -> anyhow::Result<Self> {
        let nr_words = nr_pages as usize * PAGE_WORDS;
        let source = gmm.mmap_named(nr_words, "bench source")?;
        let target = gmm.mmap_named(nr_words, "bench target")?;
        Ok(Self { source, target, raw, gmm })
    }

    #[expect(unsafe_code, reason = "gmemcpy takes addresses")]
    fn chunk(&mut self, by: By, offset: u64, len: u64) -> anyhow::Result<()> {
        let source = self.source.as_ptr().cast::<u8>().wrapping_add(offset as usize);
        match by {
            By::Prefetch => {
                self.gmm.prefetch(source, len, 1)?;
            }
            By::Memcpy => {
                let target = self.target.as_mut_ptr().cast::<u8>().wrapping_add(offset as usize);
                // SAFETY: within the two buffers, which nobody else uses.
                unsafe { self.gmm.gmemcpy(target, source, len, 1)? };
            }
        }
        Ok(())
    }

    /// What was moved is right, and the next round finds the source in host memory alone.
    fn check(&mut self, by: By, seed: u64) -> anyhow::Result<()> {
        match by {
            By::Prefetch => {
                let resident = self.gmm.snapshot().nodes[1].resident_frames;
                let nr_pages = (self.source.len() / PAGE_WORDS) as u32;
                ensure!(resident >= nr_pages, "{resident} of {nr_pages} pages are on the XPU");
                bulk::check(&self.source, seed)?;
                bulk::take_to_cpu(&mut self.source, seed);
            }
            By::Memcpy => {
                bulk::check(&self.target, seed)?;
                self.target.fill(0);
                self.target.will_need(1)?;
            }
        }
        Ok(())
    }
}
