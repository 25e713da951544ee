//! Coalesced duplicates: what a fault costs on a page that another fault has brought already. Of
//! the cores that touch a page at once, one is served, and each of the others costs this.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::MIN_FRAMES;
use gmm::{Access, Gmm, HostXpu, PAGE_SIZE, Unified};
use gmm_core::{Processor, Resolved, Space, VirtAddr};

use super::distribution::Distribution;
use super::options::{Output, Repeats};
use super::record::Record;
use super::session::Session;

/// What is asked for: 2 µs.
const TARGET_NS: f64 = 2000.0;

/// What `gmm bench coalesce` takes.
#[derive(Debug, Args)]
pub(super) struct CoalesceArgs {
    /// How many faults each thread makes in one repeat
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    faults: u32,
    #[command(flatten)]
    repeats: Repeats,
    /// How many threads fault on one page at once, at most: cases are 1, 2 and 4
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &CoalesceArgs, session: &mut Session) -> anyhow::Result<()> {
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

    session.begin("coalesce", 6 * u64::from(args.repeats.repeats + 1));
    for threads in [1, 2, 4].into_iter().filter(|&n| n <= args.threads as usize) {
        for (name, processor, addr) in
            [("cpu", space.cpu(), addresses[0]), ("xpu", processor, addresses[1])]
        {
            let case = format!("{name}-{threads}");
            session.doing(format!("{threads} threads fault on one page"));
            session.put(measure(space, processor, addr, threads, args, case, session)?)?;
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
    session: &Session,
) -> anyhow::Result<Record> {
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
    for repeat in 0..=args.repeats.repeats {
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
        session.step();
    }
    let ratios = samples.iter().map(|ns| TARGET_NS / ns).collect();
    let ns = Distribution::new(samples);
    Ok(Record::new("coalesce", case, format!("threads={threads}"), "a fault of 2 µs", ratios)
        .seconds(ns.median() * 1e-9)
        .with("threads", threads)
        .with("faults", faults)
        // What one thread sees.
        .with("ns_per_fault", ns.median())
        .with("ns_per_fault_min", ns.min())
        .with("ns_per_fault_max", ns.max()))
}
