//! `cargo xtask soak`: the soak tests in their long form, in release mode.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::{self, Show};
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long everything runs at once.
    #[arg(long, default_value_t = 10, value_name = "N")]
    minutes: u64,
    /// How many contexts attach and detach.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    cycles: u64,
}

/// How long the build, and 10,000 contexts, may take beyond the minutes asked for.
const BESIDES: Duration = Duration::from_secs(60 * 60);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let limit = Duration::from_secs(args.minutes * 60) + BESIDES;
    let kernels = ["build", "--release", "--package", "gmm-kernels"];
    let built = process::run(&mut workspace.cargo(&kernels), Show::All, limit)?;
    ensure!(built.success(), "the kernels: {}", built.how());
    let tests = [
        "test",
        "--release",
        "--package",
        "gmm-memory",
        "--test",
        "soak",
        "--",
        "--nocapture",
        "--test-threads=1",
    ];
    let mut command = workspace.cargo(&tests);
    command.env("GMM_SOAK_SECONDS", (args.minutes * 60).to_string());
    command.env("GMM_SOAK_CYCLES", args.cycles.to_string());
    let done = process::run(&mut command, Show::All, limit)?;
    ensure!(done.success(), "the soak: {}", done.how());
    Ok(ExitCode::SUCCESS)
}
