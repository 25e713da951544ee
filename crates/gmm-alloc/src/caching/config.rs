//! The settings of the caching allocator, and the sizes of its policy.

use crate::memory::rounded_up;

const MIB: u64 = 1 << 20;

/// What requests are rounded up to.
pub(super) const MIN_BLOCK_BYTES: u64 = 512;
/// The largest request that is served from the small pools.
pub(super) const SMALL_BYTES: u64 = MIB;
/// A segment of a small pool; what an expandable one grows by.
pub(super) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// A segment of a large pool for requests below [`MIN_LARGE_BYTES`]; what an expandable one grows
/// by.
pub(super) const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// From this size on a request gets a segment of its own size,
pub(super) const MIN_LARGE_BYTES: u64 = 10 * MIB;
/// rounded up to this.
pub(super) const ROUND_LARGE_BYTES: u64 = 2 * MIB;

/// What users set in `PYTORCH_CUDA_ALLOC_CONF`. The default is PyTorch's. It can be parsed from that
/// variable's text:
///
/// ```
/// use gmm_alloc::CachingConfig;
///
/// let config: CachingConfig = "max_split_size_mb:128,expandable_segments:True".parse()?;
/// assert_eq!(config.max_split_size_bytes, Some(128 << 20));
/// assert!(config.expandable_segments);
/// let error = "max_split_size_mb:5".parse::<CachingConfig>().unwrap_err();
/// assert!(error.to_string().contains("max_split_size_mb"));
/// # Ok::<(), gmm_alloc::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CachingConfig {
    /// `max_split_size_mb`, in bytes: blocks of this size or more are not split, and serve only
    /// requests of this size or more. None: all are split. PyTorch takes no less than 20 MiB.
    pub max_split_size_bytes: Option<u64>,
    /// `max_non_split_rounding_mb`, in bytes: a block that is not split serves only requests that
    /// it is larger than by less than this. None: 20 MiB.
    pub max_non_split_rounding_bytes: Option<u64>,
    /// `garbage_collection_threshold`: above this share of the capacity, segments that have not
    /// been used for long are given back before new ones are taken.
    pub garbage_collection_threshold: Option<f64>,
    /// `roundup_power2_divisions`.
    pub roundup_power2_divisions: Divisions,
    /// `expandable_segments`: each pool of each stream has one segment, which grows by pages of
    /// 2 MiB (small) or 20 MiB (large).
    pub expandable_segments: bool,
}

impl CachingConfig {
    pub(super) fn max_split(&self) -> u64 {
        self.max_split_size_bytes.unwrap_or(u64::MAX)
    }

    pub(super) fn max_non_split_rounding(&self) -> u64 {
        self.max_non_split_rounding_bytes.unwrap_or(LARGE_SEGMENT_BYTES)
    }

    /// What a request is rounded up to.
    pub(super) fn rounded(&self, size_bytes: u64) -> u64 {
        if size_bytes <= MIN_BLOCK_BYTES {
            return MIN_BLOCK_BYTES;
        }
        let divisions = self.roundup_power2_divisions.at(size_bytes);
        if divisions > 1 && size_bytes > MIN_BLOCK_BYTES * divisions {
            rounded_up(size_bytes, (1 << size_bytes.ilog2()) / divisions)
        } else {
            rounded_up(size_bytes, MIN_BLOCK_BYTES)
        }
    }
}

/// Between a power of two and the next, requests are rounded up to one of so many sizes: a number
/// for each power of two from 1 MiB to 32 GiB; 0 and 1 stand for no rounding. Smaller requests go
/// by the first, larger ones by the last. Requests of up to 512 bytes times the number are left
/// alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Divisions([u32; Self::INTERVALS]);

impl Divisions {
    const INTERVALS: usize = 16;

    /// The same number for all sizes. A power of two, or 0.
    ///
    /// # Panics
    ///
    /// If it is neither.
    pub fn everywhere(divisions: u32) -> Self {
        let mut all = Self::default();
        all.set_from(0, divisions);
        all
    }

    /// Sets the number for requests of `from_mib` MiB and more, below the next power of two.
    /// `from_mib` is a power of two; what lies beyond the table counts as its last entry.
    ///
    /// # Panics
    ///
    /// If `from_mib` is no power of two, or `divisions` neither that nor 0.
    #[must_use]
    pub fn with(mut self, from_mib: u64, divisions: u32) -> Self {
        assert!(from_mib.is_power_of_two(), "intervals begin at powers of two, not {from_mib} MiB");
        self.set(Self::interval(from_mib), divisions);
        self
    }

    /// The entry for sizes of `mib` MiB.
    pub(super) fn interval(mib: u64) -> usize {
        (mib.max(1).ilog2() as usize).min(Self::INTERVALS - 1)
    }

    pub(super) fn set(&mut self, interval: usize, divisions: u32) {
        assert!(divisions == 0 || divisions.is_power_of_two(), "{divisions} divisions");
        self.0[interval] = divisions;
    }

    /// Sets the entry and all after it.
    pub(super) fn set_from(&mut self, interval: usize, divisions: u32) {
        (interval..Self::INTERVALS).for_each(|interval| self.set(interval, divisions));
    }

    /// The number for requests of a size.
    fn at(&self, size_bytes: u64) -> u64 {
        u64::from(self.0[Self::interval(size_bytes / MIB)])
    }
}

/// How large a segment is made for a (rounded) request.
pub(super) fn segment_bytes(needed_bytes: u64) -> u64 {
    if needed_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if needed_bytes < MIN_LARGE_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        rounded_up(needed_bytes, ROUND_LARGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounding(divisions: Divisions) -> impl Fn(u64) -> u64 {
        let config =
            CachingConfig { roundup_power2_divisions: divisions, ..CachingConfig::default() };
        move |size_bytes| config.rounded(size_bytes)
    }

    #[test]
    fn requests_are_rounded_to_512_bytes() {
        let rounded = rounding(Divisions::default());
        for (size, expected) in [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)]
        {
            assert_eq!(rounded(size), expected, "{size}");
        }
    }

    #[test]
    fn divisions_of_powers_of_two() {
        // PyTorch's documentation: 1200 with 4 divisions lies between 1024 and 2048 and becomes
        // 1280. That small a request is left alone, so the same a thousand times larger.
        let rounded = rounding(Divisions::everywhere(4));
        assert_eq!(rounded(1200 << 10), 1280 << 10);
        assert_eq!(rounded(1280 << 10), 1280 << 10);
        assert_eq!(rounded((1280 << 10) + 1), 1536 << 10);
        assert_eq!(rounded(2048 << 10), 2048 << 10);
        assert_eq!(rounded(1536), 1536);
        assert_eq!(rounding(Divisions::default())(1200 << 10), 1200 << 10);
    }

    #[test]
    fn divisions_by_interval() {
        let rounded = rounding(Divisions::default().with(1, 8).with(4, 2).with(1 << 40, 4));
        let kib = 1 << 10;
        // Below 1 MiB the first entry counts.
        assert_eq!(rounded(520 * kib), 576 * kib);
        assert_eq!(rounded(1025 * kib), 1152 * kib);
        assert_eq!(rounded(2049 * kib), 2049 * kib);
        assert_eq!(rounded(4097 * kib), 6 * MIB);
        assert_eq!(rounded(8193 * kib), 8193 * kib);
        // Beyond 32 GiB the last.
        assert_eq!(rounded((64 << 30) + 1), 80 << 30);
    }

    #[test]
    fn segments_by_the_size_of_the_request() {
        let sizes = [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (11 * MIB, 12 * MIB),
        ];
        for (needed, expected) in sizes {
            assert_eq!(segment_bytes(needed), expected, "{needed}");
        }
    }
}
