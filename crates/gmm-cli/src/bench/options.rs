//! Options that suites share, and how sizes and other words are read.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// How results are given. Every suite takes it.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Output {
    /// One JSON object a line
    #[arg(long)]
    pub(super) json: bool,
    /// Also write the results to this folder, one CSV file a suite
    #[arg(long, value_name = "DIR")]
    pub(super) csv: Option<PathBuf>,
}

/// How often things are measured.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Repeats {
    /// How often each measurement is repeated, at least 5 (plus one round to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pub(super) repeats: u32,
}

/// Where kernels are.
#[derive(Clone, Debug, Args)]
pub(super) struct Kernels {
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    pub(super) kernels: PathBuf,
}

/// In which order pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    /// By address.
    Sequential,
    /// Each once, in an order that is the same in each run.
    Random,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

pub(super) fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.0..=64.0).contains(factor));
    factor.ok_or_else(|| "a number from 1 to 64".into())
}

pub(super) fn parse_policy(name: &str) -> Result<gmm_core::EvictionPolicy, String> {
    name.parse().map_err(|error: gmm_core::UnknownPolicy| error.to_string())
}

/// How many processors this process may use.
pub(super) fn nr_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
