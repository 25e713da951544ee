//! What `gmm replay` takes.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use gmm_core::PAGE_SIZE;

use super::allocators::{self, Entry, MAX_CAPACITY_BYTES};

/// Less than that, and a program is more frames than contents.
const MIN_EXECUTE_BYTES: u64 = 64 << 20;

/// What `gmm replay` takes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// PyTorch memory snapshots, RMM logs, event lists, interval tables; also compressed with gzip
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Allocators to replay with, separated by commas: pytorch, pytorch-expandable, bfc, jemalloc, best-fit, stitching,
    /// or all
    #[arg(long, short, value_name = "NAME,...", default_value = "all", value_delimiter = ',')]
    #[arg(value_parser = allocators::parse)]
    allocator: Vec<&'static [Entry]>,
    /// The device's memory, such as 24GiB: would it have run out, and when? [default: as much as it
    /// takes, at least 141 GiB]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_capacity)]
    pub(super) capacity: Option<u64>,
    /// Find the smallest device that each allocator runs on
    #[arg(long)]
    pub(super) find_capacity: bool,
    /// Show what the stitching allocator remaps on devices 0.5% to 10% larger than what lives, and how
    /// long a card would take for that
    #[arg(long)]
    pub(super) remaps: bool,
    /// Also write a page for a bug report: what went wrong, what to do, memory over time, the memory map
    /// at the worst moment, who held the most
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Also write the replay (of one file, with one allocator) as a PyTorch memory snapshot, for
    /// PyTorch's memory_viz
    #[arg(long, value_name = "FILE")]
    pub(super) export: Option<PathBuf>,
    /// Also run it, scaled down: the same allocations, by the stitching allocator, of memory of a host
    /// XPU (made for it), where kernels on as many streams write to each block, and see that it is as
    /// written when it is freed. It fails if anything is not
    #[arg(long)]
    pub(super) execute: bool,
    /// With --execute, the most memory that lives at once, 64MiB or more: sizes are divided by the
    /// least whole number with which it is enough
    #[arg(long, value_name = "SIZE", default_value = "1GiB", requires = "execute")]
    #[arg(value_parser = parse_execute_memory)]
    pub(super) execute_memory: u64,
    /// One JSON object a line, for each file, device and allocator; with --execute a further one for each
    /// file and device, with an object `execute`
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// The allocators that were asked for, each once, in the order in which they were.
    pub(super) fn allocators(&self) -> Vec<&'static Entry> {
        let mut asked: Vec<&'static Entry> = Vec::new();
        for entry in self.allocator.iter().copied().flatten() {
            if !asked.iter().any(|known| known.name == entry.name) {
                asked.push(entry);
            }
        }
        asked
    }
}

fn parse_capacity(text: &str) -> Result<u64> {
    let bytes = crate::demo::size::parse(text).map_err(anyhow::Error::msg)?;
    if !(PAGE_SIZE..=MAX_CAPACITY_BYTES).contains(&bytes) {
        bail!("a device of {bytes} bytes: replays have from 2MiB (one frame) to 16384GiB");
    }
    Ok(bytes)
}

fn parse_execute_memory(text: &str) -> Result<u64> {
    let bytes = crate::demo::size::parse(text).map_err(anyhow::Error::msg)?;
    if !(MIN_EXECUTE_BYTES..=MAX_CAPACITY_BYTES).contains(&bytes) {
        bail!(
            "{bytes} bytes are too few or too many to execute a program in: give from 64MiB to \
             16384GiB, no more than this machine has free"
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn names(words: &[&str]) -> Vec<&'static str> {
        let command = ["replay", "file"].iter().chain(words);
        let args = Command::try_parse_from(command).unwrap().args;
        args.allocators().iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn allocators_are_asked_for_by_name_once_each() {
        assert_eq!(names(&[]).len(), allocators::ALLOCATORS.len());
        assert_eq!(names(&["--allocator", "stitching, pytorch"]), ["stitching", "pytorch"]);
        let all = names(&["-a", "stitching,all"]);
        assert_eq!((all[0], all.len()), ("stitching", allocators::ALLOCATORS.len()));
    }

    #[test]
    fn a_capacity_is_one_that_a_device_can_have() {
        assert_eq!(parse_capacity("24GiB").unwrap(), 24 << 30);
        for text in ["1MiB", "0", "16385GiB", "24GB", "much"] {
            assert!(parse_capacity(text).is_err(), "{text}");
        }
    }
}
