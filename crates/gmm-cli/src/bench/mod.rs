//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod all;
mod bulk;
mod chunks;
mod coalesce;
mod compare;
mod cost;
mod cpu;
mod distribution;
mod faults;
mod latency;
mod options;
mod ordinary;
mod oversubscribe;
mod pager;
mod pagesize;
mod peers;
mod product;
mod programs;
mod rank_sum;
mod raw;
mod record;
mod report;
mod room;
mod scale;
mod session;
mod steady;
mod steal;
mod storms;
mod swap;
mod switch;
mod threads;
mod touched;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use options::Output;
use session::Session;

/// What `gmm bench` takes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every suite, in about five minutes; with `--report FILE` as one page, beside what the paper
    /// reports.
    #[command(after_help = "\
Examples:
  gmm bench all --report report.html
  gmm bench all --json > results.json")]
    All(all::AllArgs),
    #[command(flatten)]
    Suite(Suite),
    /// What got slower, or faster, from one file of results to another.
    ///
    /// Compares the ratios to the baselines, case by case. The exit code is 2 if the files can't be read or
    /// have no case in common, and 1 if a case got slower: if
    /// a difference like that is seen by chance in less than 1% of runs (by the rank-sum test of Mann
    /// and Whitney on the repeats), and the medians differ by more than the tolerance.
    #[command(after_help = "\
Examples:
  gmm bench faults --json > before.json
  gmm bench faults --json > after.json
  gmm bench compare before.json after.json")]
    Compare(compare::CompareArgs),
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// Fault-driven migration in both directions, against raw copies of as many pages.
    Faults(faults::FaultArgs),
    /// `WILLNEED` in both directions, and a launch over pages that are just being brought, against
    /// as many threads copying the same pages raw.
    Prefetch(bulk::BulkArgs),
    /// `gmemcpy` between host memory and an XPU, against as many threads copying the same pages raw.
    Memcpy(bulk::BulkArgs),
    /// Duplicate faults: what a fault costs that another has just served.
    Coalesce(coalesce::CoalesceArgs),
    /// Repeated sweeps over more than the XPU's memory, against raw copies of what moved.
    Oversubscribe(oversubscribe::OversubscribeArgs),
    /// CPU programs and storms of allocations in memory that XPUs can see, and first touches of it,
    /// against the kernel's own huge pages.
    Cpu(cpu::CpuArgs),
    /// What one fault takes beyond its copy, while faults keep arriving and from rest: percentiles.
    Latency(latency::LatencyArgs),
    /// The manager's processor time for a GiB that faults migrate, against raw copies of as much; and
    /// wake-ups of a process that does nothing.
    Cost(cost::CostArgs),
    /// CPU programs in memory mapped with 2 MiB pages against 4 KiB pages.
    Pagesize(pagesize::PagesizeArgs),
    /// Matrix products with growing k, end to end: operands on the CPU, the result zero-filled on the XPU.
    Product(product::ProductArgs),
    /// A training-like loop on the XPU when all fits, against the same loop over explicitly copied
    /// memory; the first iteration apart.
    Steady(steady::SteadyArgs),
    /// What grows with how much is mapped, and with how many fault at once.
    Scale(scale::ScaleArgs),
    /// Switches between two models that together exceed the XPU, to the first output: against the
    /// link's speed, and against loading and sleeping.
    Switch(switch::SwitchArgs),
}

impl Suite {
    fn output(&self) -> &Output {
        match self {
            Self::Faults(args) => &args.output,
            Self::Prefetch(args) | Self::Memcpy(args) => &args.output,
            Self::Coalesce(args) => &args.output,
            Self::Oversubscribe(args) => &args.output,
            Self::Cpu(args) => &args.output,
            Self::Latency(args) => &args.output,
            Self::Cost(args) => &args.output,
            Self::Pagesize(args) => &args.output,
            Self::Product(args) => &args.output,
            Self::Steady(args) => &args.output,
            Self::Scale(args) => &args.output,
            Self::Switch(args) => &args.output,
        }
    }

    fn run(&self, session: &mut Session) -> anyhow::Result<()> {
        self.measure(session).map_err(options::about_kernels)
    }

    fn measure(&self, session: &mut Session) -> anyhow::Result<()> {
        match self {
            Self::Faults(args) => faults::run(args, session),
            Self::Prefetch(args) => bulk::prefetch(args, session),
            Self::Memcpy(args) => bulk::memcpy(args, session),
            Self::Coalesce(args) => coalesce::run(args, session),
            Self::Oversubscribe(args) => oversubscribe::run(args, session),
            Self::Cpu(args) => cpu::run(args, session),
            Self::Latency(args) => latency::run(args, session),
            Self::Cost(args) => cost::run(args, session),
            Self::Pagesize(args) => pagesize::run(args, session),
            Self::Product(args) => product::run(args, session),
            Self::Steady(args) => steady::run(args, session),
            Self::Scale(args) => scale::run(args, session),
            Self::Switch(args) => switch::run(args, session),
        }
    }
}

/// Runs what was asked for. The code is that of a failure if a comparison says that something got
/// slower.
///
/// # Errors
/// What the machine or the manager said.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Compare(args) => return Ok(compare::run(&args)),
        Command::All(args) => in_session(&args.output, |session| all::run(&args, session))?,
        Command::Suite(suite) => in_session(suite.output(), |session| suite.run(session))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured before something failed is written all the same.
fn in_session(
    output: &Output,
    run: impl FnOnce(&mut Session) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    Session::try_output(output)?;
    let mut session = Session::new(output);
    let result = run(&mut session);
    let finished = session.finish();
    if session.reader_gone() { finished } else { result.and(finished) }
}
