//! A program's sizes, all divided by one number, so that what lives fits in a given memory.

use anyhow::{Result, bail};
use gmm::display_bytes;

use super::program::Program;

/// The stitching allocator hands memory out in multiples of it; a block has at least one.
const GRANULARITY_BYTES: u64 = 512;

/// How a program's sizes are made smaller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scale {
    /// Sizes are divided by it, and rounded up to 512 bytes.
    pub(super) divisor: u64,
    /// The largest sum of sizes that live at once, made smaller.
    pub(super) peak_live_bytes: u64,
}

impl Scale {
    /// The least with which all that lives at once fits in `memory_bytes`.
    ///
    /// # Errors
    /// If it does not with any: too many blocks live at once.
    pub(super) fn fitting(program: &Program<'_>, memory_bytes: u64) -> Result<Self> {
        let by = |divisor| Self {
            divisor,
            peak_live_bytes: program.peak_live_bytes_by(|size| scaled(size, divisor)),
        };
        let exact = program.recording.peak_live_bytes();
        let mut least = exact.div_ceil(memory_bytes.max(1)).max(1);
        let largest = program.recording.blocks().iter().map(|block| block.size_bytes).max();
        // With that, no block has more than the least that there is.
        let mut enough = largest.unwrap_or(0).div_ceil(GRANULARITY_BYTES).max(least);
        let smallest_peak = by(enough).peak_live_bytes;
        if smallest_peak > memory_bytes {
            bail!(
                "so many blocks live at once that they have {} even with {GRANULARITY_BYTES} bytes \
                 each, more than the {} that they may: give --execute-memory {}MiB",
                display_bytes(smallest_peak),
                display_bytes(memory_bytes),
                smallest_peak.div_ceil(gmm::MIB)
            );
        }
        // A larger divisor makes no sum larger.
        while least < enough {
            let middle = least + (enough - least) / 2;
            if by(middle).peak_live_bytes <= memory_bytes {
                enough = middle;
            } else {
                least = middle + 1;
            }
        }
        Ok(by(enough))
    }

    /// What a block of that size has.
    pub(super) fn size_bytes(self, size_bytes: u64) -> u64 {
        scaled(size_bytes, self.divisor)
    }
}

fn scaled(size_bytes: u64, divisor: u64) -> u64 {
    size_bytes.div_ceil(divisor).max(1).next_multiple_of(GRANULARITY_BYTES)
}

#[cfg(test)]
mod tests {
    use gmm_trace::{Recording, RecordingBuilder, Stamp};

    use super::super::program::Failed;
    use super::*;

    /// Blocks of these sizes that live one after the other, if `alone`, else all at once.
    fn recording(sizes: &[u64], alone: bool) -> Recording {
        let mut builder = RecordingBuilder::new(0, false);
        for (id, &size_bytes) in (0..).zip(sizes) {
            builder.allocate(id, size_bytes, 0, Stamp::default());
            if alone {
                builder.free(id, 0, 0, Stamp::default());
            }
        }
        builder.finish(Vec::new())
    }

    fn fitting(recording: &Recording, memory_bytes: u64) -> Result<Scale> {
        Scale::fitting(&Program::new(recording, Failed::LeftOut), memory_bytes)
    }

    #[test]
    fn what_fits_keeps_its_sizes() {
        let together = recording(&[5000, 1, 0], false);
        let whole = fitting(&together, 6144).unwrap();
        assert_eq!(whole, Scale { divisor: 1, peak_live_bytes: 5120 + 512 + 512 });
        assert_eq!(whole.size_bytes(5000), 5120);
        let alone = fitting(&recording(&[5000, 5000, 5000], true), 5120).unwrap();
        assert_eq!(alone, Scale { divisor: 1, peak_live_bytes: 5120 });
    }

    #[test]
    fn the_divisor_is_the_least_that_fits() {
        let sizes: Vec<u64> = (1..200).map(|i| i * i * 977 % 1_000_003).collect();
        let recording = recording(&sizes, false);
        for memory_bytes in [200 * 512, 1 << 17, 1 << 20, 5 << 20, 1 << 30] {
            let Scale { divisor, peak_live_bytes } = fitting(&recording, memory_bytes).unwrap();
            let sum = |by: u64| sizes.iter().map(|size| scaled(*size, by)).sum::<u64>();
            assert_eq!(peak_live_bytes, sum(divisor));
            assert!(peak_live_bytes <= memory_bytes);
            assert!(divisor == 1 || sum(divisor - 1) > memory_bytes, "{memory_bytes}: {divisor}");
        }
    }

    #[test]
    fn too_many_blocks_are_refused_with_what_they_need() {
        let error = fitting(&recording(&[3 << 20; 5000], false), 1 << 20).unwrap_err().to_string();
        assert!(error.contains("2.4 MiB") && error.contains("--execute-memory 3MiB"), "{error}");
    }

    #[test]
    fn a_program_that_does_nothing_fits() {
        let nothing = fitting(&recording(&[], true), 1 << 20).unwrap();
        assert_eq!(nothing, Scale { divisor: 1, peak_live_bytes: 0 });
    }
}
