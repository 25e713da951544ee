//! Development tasks: `cargo xtask demo`, `cargo xtask test`, and what else a developer types.
//!
//! What it does it does by running the commands a person would type, and it prints them.
#![forbid(unsafe_code)]

mod demo;
mod man;
mod model;
mod needs;
mod process;
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Development tasks of GMM")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build in release mode, fetch the model, run `gmm demo`.
    Demo(demo::Args),
    /// Everything that CI runs, step by step.
    Test(test::Args),
    /// Everything at once for minutes, and thousands of contexts: bytes, memory, stalls.
    Soak(soak::Args),
    /// Fetch the model all-MiniLM-L6-v2 into the target directory, if it is not there.
    FetchModel,
    /// Write the manual pages to the man folder of the target directory.
    Man,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::FetchModel => model::run(),
        Task::Man => man::run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
