//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod bulk;
mod coalesce;
mod distribution;
mod faults;
mod oversubscribe;
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
    /// `WILLNEED` in both directions, and a launch over pages that are just being brought, against
    /// as many threads copying the same pages raw.
    Prefetch(BulkArgs),
    /// `gmemcpy` between host memory and an XPU, against as many threads copying the same pages raw.
    Memcpy(BulkArgs),
    /// Duplicate faults: what a fault costs that another has just served.
    Coalesce(CoalesceArgs),
    /// Repeated sweeps over more than the XPU's memory, against raw copies of what moved.
    Oversubscribe(OversubscribeArgs),
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
    /// How long each side looks for the other's answer at most before it sleeps, in microseconds
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
    /// Make each repeat once more with the event trace written to this file, and compare
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
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

/// What `gmm bench prefetch` and `gmm bench memcpy` take.
#[derive(Debug, ClapArgs)]
pub struct BulkArgs {
    /// How much memory moves in one repeat, at least 16MiB; rounded up to 2 MiB pages [default:
    /// 512MiB for prefetch, 256MiB for memcpy]
    #[arg(long, value_parser = crate::demo::size::parse)]
    bytes: Option<u64>,
    /// How often each measurement is repeated, at least 5 (plus one round to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    repeats: u32,
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    kernels: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What `gmm bench coalesce` takes.
#[derive(Debug, ClapArgs)]
pub struct CoalesceArgs {
    /// How many faults each thread makes in one repeat
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    faults: u32,
    /// How often each measurement is repeated, at least 5 (plus one round to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    repeats: u32,
    /// How many threads fault on one page at once, at most: cases are 1, 2 and 4
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What `gmm bench oversubscribe` takes.
#[derive(Debug, ClapArgs)]
pub struct OversubscribeArgs {
    /// How much memory the XPU has, at least 8MiB; rounded down to 2 MiB pages
    #[arg(long, default_value = "128MiB", value_parser = crate::demo::size::parse)]
    xpu_memory: u64,
    /// How many times that is swept over
    #[arg(long, value_delimiter = ',', default_value = "1.25,1.5,2,4", value_parser = parse_factor)]
    factors: Vec<f64>,
    /// Under which eviction policies
    #[arg(long, value_delimiter = ',', default_value = "dip,lru,fifo16", value_parser = parse_policy)]
    policies: Vec<gmm_core::EvictionPolicy>,
    /// How many sweeps are measured, at least 5 (after three to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    sweeps: u32,
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    kernels: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.0..=64.0).contains(factor));
    factor.ok_or_else(|| "a number from 1 to 64".into())
}

fn parse_policy(name: &str) -> Result<gmm_core::EvictionPolicy, String> {
    name.parse().map_err(|error: gmm_core::UnknownPolicy| error.to_string())
}

/// Runs what was asked for.
///
/// # Errors
/// What the machine or the manager said.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.suite {
        Suite::Faults(args) => faults::run(&args),
        Suite::Prefetch(args) => bulk::prefetch(&args),
        Suite::Memcpy(args) => bulk::memcpy(&args),
        Suite::Coalesce(args) => coalesce::run(&args),
        Suite::Oversubscribe(args) => oversubscribe::run(&args),
    }
}
