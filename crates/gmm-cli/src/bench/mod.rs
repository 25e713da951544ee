//! `gmm bench`: how fast the manager is, against what the machine can do at best.

mod bulk;
mod distribution;
mod faults;
mod raw;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

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
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    kernels: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
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

/// Runs what was asked for.
///
/// # Errors
/// What the machine or the manager said.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.suite {
        Suite::Faults(args) => faults::run(&args),
        Suite::Prefetch(args) => bulk::prefetch(&args),
        Suite::Memcpy(args) => bulk::memcpy(&args),
    }
}
