//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod bulk;
mod coalesce;
mod distribution;
mod faults;
mod options;
mod oversubscribe;
mod raw;
mod record;
mod session;

use clap::{Args as ClapArgs, Subcommand};

use options::Output;
use session::Session;

/// What `gmm bench` takes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    suite: Suite,
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

/// Runs what was asked for.
///
/// # Errors
/// What the machine or the manager said.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut session = Session::new(args.suite.output());
    args.suite.run(&mut session)?;
    session.finish()
}
