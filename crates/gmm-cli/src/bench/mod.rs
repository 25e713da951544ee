//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod bulk;
mod coalesce;
mod compare;
mod distribution;
mod faults;
mod options;
mod oversubscribe;
mod rank_sum;
mod raw;
mod record;
mod session;

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
    #[command(flatten)]
    Suite(Suite),
    /// What got slower, or faster, from one file of results to another.
    ///
    /// Compares the ratios to the baselines, case by case. The exit code is 1 if a case got slower: if
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
}

impl Suite {
    fn output(&self) -> &Output {
        match self {
            Self::Faults(args) => &args.output,
            Self::Prefetch(args) | Self::Memcpy(args) => &args.output,
            Self::Coalesce(args) => &args.output,
            Self::Oversubscribe(args) => &args.output,
        }
    }

    fn run(&self, session: &mut Session) -> anyhow::Result<()> {
        match self {
            Self::Faults(args) => faults::run(args, session),
            Self::Prefetch(args) => bulk::prefetch(args, session),
            Self::Memcpy(args) => bulk::memcpy(args, session),
            Self::Coalesce(args) => coalesce::run(args, session),
            Self::Oversubscribe(args) => oversubscribe::run(args, session),
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
        Command::Compare(args) => {
            Ok(if compare::run(&args)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Suite(suite) => {
            let mut session = Session::new(suite.output());
            suite.run(&mut session)?;
            session.finish()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
