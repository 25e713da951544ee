//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod distribution;
mod faults;
mod raw;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde::Serialize;

/// What `gmm bench` takes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// Fault-driven migration in both directions, against raw copies of as many pages.
    Faults(FaultArgs),
}

/// What `gmm bench faults` takes.
#[derive(Debug, ClapArgs)]
pub struct FaultArgs {
    /// How much memory migrates each way in one repeat, at least 8MiB; rounded up to 2 MiB pages
    #[arg(long, default_value = "256MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    /// How often each measurement is repeated, at least 5 (plus one round to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    repeats: u32,
    /// How long each side looks for the other's answer before it sleeps, in microseconds
    /// [default: the driver's own]
    #[arg(long)]
    spin_us: Option<u64>,
    /// In which order the pages are touched
    #[arg(long, value_enum, default_value_t = Order::Sequential)]
    order: Order,
    /// The longest window of look-ahead, in pages; 0 is none. Several are measured in turn
    /// [default: the manager's own]
    #[arg(long, value_delimiter = ',')]
    look_ahead: Vec<u32>,
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    kernels: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// In which order pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// By address.
    Sequential,
    /// Each once, in an order that is the same in each run.
    Random,
}

/// Runs what was asked for.
///
/// # Errors
/// What the machine or the manager said.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.suite {
        Suite::Faults(args) => faults::run(&args),
    }
}
