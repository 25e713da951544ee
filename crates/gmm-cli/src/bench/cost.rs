//! What the manager costs in processor time: for a GiB that faults migrate, everything it does and
//! its spinning included, against raw copies of as much; and when nothing happens, where no thread may
//! wake up.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{GIB, Gmm, HostXpu, MIB, PAGE_SIZE};

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Output, Repeats};
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use super::threads::Threads;
use super::touched::Touched;

/// What is asked for: at most 1.5 times the time of raw copies.
const TARGET: f64 = 1.0 / 1.5;

/// The cores of an XPU: while they wait in a fault they would be idle on an XPU of its own, and so
/// would they while they compute.
const CORES: &str = "gmm-core-";

/// How long an idle process is looked at, and how often.
const WINDOW: Duration = Duration::from_secs(1);
const NR_WINDOWS: u32 = 5;

/// What `gmm bench cost` takes.
#[derive(Debug, Args)]
pub(super) struct CostArgs {
    /// How much memory migrates each way in one repeat, at least 8MiB; rounded up to 2 MiB pages
    #[arg(long, default_value = "256MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &CostArgs, session: &mut Session) -> anyhow::Result<()> {
    let least = MIN_FRAMES * PAGE_SIZE;
    ensure!(args.bytes >= least, "--bytes is {}; it must be at least {least}", args.bytes);
    // Host frames and XPU frames of the raw copies; data and XPU of the manager.
    room::check(args.bytes.saturating_mul(4), "--bytes")?;
    let nr_pages = args.bytes.div_ceil(PAGE_SIZE);
    let bytes = nr_pages * PAGE_SIZE;
    session.begin("cost", u64::from(args.repeats.repeats + 1 + NR_WINDOWS));
    session.doing("setting up");
    let configure = |config: HostXpuConfig| config.cores(1).copy_engines(1);
    let raw = RawCopies::new(nr_pages, configure(HostXpuConfig::new(bytes)))?;
    let xpu = HostXpu::with_memory(bytes + 8 * MIB).config(configure);
    let gmm = Gmm::builder().xpu(xpu).build()?;
    let mut touched = Touched::new(&gmm, nr_pages as usize, &args.kernels)?;
    let (mut to_xpu, mut to_cpu) = (Pairs::default(), Pairs::default());
    let gib = bytes as f64 / GIB as f64;
    session.doing("faults and raw copies in turn");
    for round in 0..=args.repeats.repeats {
        let raw_in = cpu_seconds(|| raw.to_xpu().map(drop))?;
        let faults_in = cpu_seconds(|| touched.on_xpu(Duration::ZERO).map(drop))?;
        let raw_out = cpu_seconds(|| raw.to_cpu().map(drop))?;
        let faults_out = cpu_seconds(|| touched.on_cpu(Duration::ZERO).map(drop))?;
        // The touches themselves are the program's.
        let touches = cpu_seconds(|| touched.on_cpu(Duration::ZERO).map(drop))?;
        if round > 0 {
            to_xpu.push_seconds(faults_in / gib, raw_in / gib);
            to_cpu.push_seconds((faults_out - touches) / gib, raw_out / gib);
        }
        session.step();
    }
    for (case, pairs) in [("to-xpu", to_xpu), ("to-cpu", to_cpu)] {
        let baseline = "the processor time of raw copies, a GiB";
        let record = pairs.record("cost", case, "sequential", baseline);
        session.put(record.with("bytes", bytes).with("target_ratio", TARGET))?;
    }
    session.doing("idle");
    session.put(idle(session)?)?;
    touched.check()
}

/// How long all threads but the XPU's cores were on a processor, in seconds.
fn cpu_seconds(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let before = Threads::at_rest()?;
    work()?;
    Ok(Threads::at_rest()?.cpu_seconds_since(&before, CORES))
}

/// How often any thread wakes up while nothing happens.
fn idle(session: &Session) -> anyhow::Result<Record> {
    let (mut switches, mut nr_threads) = (Vec::new(), 0);
    for _ in 0..NR_WINDOWS {
        let before = Threads::at_rest()?;
        std::thread::sleep(WINDOW);
        let after = Threads::at_rest()?;
        switches.push(after.switches_since(&before) as f64);
        nr_threads = after.len();
        session.step();
    }
    let ratios = switches.iter().map(|switches| 1.0 / (1.0 + switches)).collect();
    let switches = Distribution::new(switches);
    Ok(Record::new("cost", "idle", "one second", "a process that sleeps", ratios)
        .with("threads", nr_threads)
        .with("context_switches", switches.median())
        .with("context_switches_min", switches.min())
        .with("context_switches_max", switches.max()))
}
