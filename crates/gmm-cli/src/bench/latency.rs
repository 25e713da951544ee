//! How long one fault takes beyond its copy, as a distribution: while faults keep arriving, and from
//! rest, when whoever serves them has gone to sleep. The baseline is the raw copy of a page, one at a
//! time with the same pauses, in turn.

use std::time::Duration;

use clap::Args;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, MIB, PAGE_SIZE};

use super::distribution::Distribution;
use super::options::{Kernels, Output, Repeats};
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use super::steal::Ticks;
use super::touched::Touched;

/// What `gmm bench latency` takes.
#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    /// How many pages fault each way in one repeat, at least 4
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(4..=65536))]
    pages: u32,
    /// How long everything rests before a fault "from rest", in microseconds
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pause_us: u64,
    /// The longest window of look-ahead, in pages. Without one each page is a fault
    #[arg(long, default_value_t = 0)]
    look_ahead: u32,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The times of pages one way, in seconds.
#[derive(Default)]
struct Samples {
    faults: Vec<f64>,
    raw: Vec<f64>,
    /// Median raw copy over median fault of each repeat.
    ratios: Vec<f64>,
}

impl Samples {
    fn push(&mut self, raw: Vec<f64>, faults: Vec<f64>) {
        let median = |values: &[f64]| Distribution::new(values.to_vec()).median();
        self.ratios.push(median(&raw) / median(&faults));
        self.raw.extend(raw);
        self.faults.extend(faults);
    }

    fn record(self, case: &str, parameter: &str, stolen_percent: f64) -> Record {
        let raw = Distribution::new(self.raw).median();
        let nr_pages = self.faults.len();
        let overhead: Vec<_> = self.faults.iter().map(|fault| (fault - raw) * 1e6).collect();
        let (overhead, faults) = (Distribution::new(overhead), Distribution::new(self.faults));
        Record::new("latency", case, parameter, "raw copy of a page", self.ratios)
            .seconds(faults.median())
            .with("baseline_seconds", raw)
            .with("pages", nr_pages)
            .with("overhead_us_median", overhead.median())
            .with("overhead_us_p90", overhead.percentile(0.90))
            .with("overhead_us_p99", overhead.percentile(0.99))
            .with("overhead_us_max", overhead.max())
            .with("steal_percent", stolen_percent)
    }
}

pub(super) fn run(args: &LatencyArgs, session: &mut Session) -> anyhow::Result<()> {
    let nr_pages = u64::from(args.pages).max(MIN_FRAMES);
    let bytes = nr_pages * PAGE_SIZE;
    // Host frames and XPU frames of the raw copies; data and XPU of the manager.
    room::check(bytes.saturating_mul(4), "--pages")?;
    let rounds = args.repeats.repeats + 1;
    session.begin("latency", 2 * u64::from(rounds));
    session.doing("setting up");
    let configure = |config: HostXpuConfig| config.cores(1).copy_engines(1);
    let raw = RawCopies::new(nr_pages, configure(HostXpuConfig::new(bytes)))?;
    let xpu = HostXpu::with_memory(bytes + 8 * MIB).config(configure);
    let gmm = Gmm::builder().xpu(xpu).config(|c| c.look_ahead = args.look_ahead).build()?;
    let mut touched = Touched::new(&gmm, nr_pages as usize, &args.kernels)?;
    for (parameter, pause_us) in [("arriving", 0), ("from-rest", args.pause_us)] {
        session.doing(format!("faults {parameter}"));
        let pause = Duration::from_micros(pause_us);
        let (mut to_xpu, mut to_cpu) = (Samples::default(), Samples::default());
        let before = Ticks::now()?;
        for round in 0..rounds {
            let raw_in = raw.paced(true, pause)?;
            let faults_in = touched.on_xpu(pause)?;
            let raw_out = raw.paced(false, pause)?;
            let faults_out = touched.on_cpu(pause)?;
            if round > 0 {
                to_xpu.push(raw_in, faults_in);
                to_cpu.push(raw_out, faults_out);
            }
            session.step();
        }
        touched.check()?;
        let stolen = Ticks::now()?.stolen_percent_since(before);
        session.put(to_xpu.record("to-xpu", parameter, stolen))?;
        session.put(to_cpu.record("to-cpu", parameter, stolen))?;
    }
    Ok(())
}
