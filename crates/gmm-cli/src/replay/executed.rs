//! What became of a program that was run for real.

use anyhow::{Result, bail};
use serde::Serialize;

use super::record::Failure;

/// What became of it, as `--json` has it. Sizes are in bytes; frames have 2 MiB.
#[derive(Serialize)]
pub(super) struct Executed {
    /// What sizes were divided by.
    pub(super) scale: u64,
    /// The largest sum of the divided sizes.
    pub(super) peak_live_bytes: u64,
    pub(super) xpu_memory_bytes: u64,
    /// How many operations were executed.
    pub(super) operations: usize,
    /// From the first operation to the end of the last launch.
    pub(super) seconds: f64,
    pub(super) frames_mapped: u64,
    pub(super) frames_unmapped: u64,
    /// How often the allocator waited for the XPU.
    pub(super) host_waits: u64,
    /// How often it made one stream wait for another.
    pub(super) stream_orders: u64,
    pub(super) checked_words: u64,
    pub(super) wrong_words: u64,
    /// Where a block was first found damaged.
    pub(super) first_wrong: Option<Damage>,
    /// The operation that got no memory, counted from 1.
    pub(super) out_of_memory_at: Option<usize>,
    pub(super) out_of_memory: Option<Failure>,
}

/// A block that was not as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Damage {
    /// In the order in which blocks were allocated, from 0.
    pub(super) block: u32,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    /// The operation before which it was looked at, from 1; one more than there are at the end.
    pub(super) operation: usize,
    pub(super) wrong_words: u64,
    pub(super) checked_words: u64,
}

/// A line of `--json`.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    pub(super) file: &'a str,
    pub(super) device: u32,
    pub(super) execute: &'a Executed,
}

impl Executed {
    /// Was all memory as it was written?
    ///
    /// # Errors
    /// If it was not, with the first block that was found damaged.
    pub(super) fn intact(&self) -> Result<()> {
        let Some(first) = self.first_wrong else { return Ok(()) };
        bail!(
            "memory was lost, or given to two: {} of {} words were not as a kernel had written them; \
             the first in block {} ({} bytes on stream {}), {} of {} words, at operation {}. This is a \
             defect of GMM: please report it with this recording",
            self.wrong_words,
            self.checked_words,
            first.block,
            first.size_bytes,
            first.stream,
            first.wrong_words,
            first.checked_words,
            first.operation
        )
    }
}
