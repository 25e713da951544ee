//! The settings of the caching allocator, and the sizes of its policy.

const MIB: u64 = 1 << 20;

/// What requests are rounded up to.
pub(super) const MIN_BLOCK_BYTES: u64 = 512;
/// The largest request that is served from the small pools.
pub(super) const SMALL_BYTES: u64 = MIB;
/// A segment of a small pool.
pub(super) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// A segment of a large pool for requests below [`MIN_LARGE_BYTES`].
pub(super) const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// From this size on a request gets a segment of its own size,
pub(super) const MIN_LARGE_BYTES: u64 = 10 * MIB;
/// rounded up to this.
pub(super) const ROUND_LARGE_BYTES: u64 = 2 * MIB;

/// What users set in `PYTORCH_CUDA_ALLOC_CONF`. The default is PyTorch's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CachingConfig {
    /// `max_split_size_mb`, in bytes: larger blocks are not split, and serve only requests that
    /// are larger too or at most 20 MiB smaller. PyTorch takes no less than 20 MiB.
    pub max_split_size_bytes: Option<u64>,
    /// `garbage_collection_threshold`: above this share of the capacity, segments that have not
    /// been used for long are given back before new ones are taken.
    pub garbage_collection_threshold: Option<f64>,
    /// `roundup_power2_divisions`: requests are rounded up to one of this many sizes between each
    /// power of two and the next. A power of two.
    pub roundup_power2_divisions: Option<u64>,
}

impl CachingConfig {
    pub(super) fn max_split(&self) -> u64 {
        self.max_split_size_bytes.unwrap_or(u64::MAX)
    }

    /// What a request is rounded up to.
    pub(super) fn rounded(&self, size_bytes: u64) -> u64 {
        if size_bytes <= MIN_BLOCK_BYTES {
            return MIN_BLOCK_BYTES;
        }
        match self.roundup_power2_divisions {
            Some(divisions) if divisions > 1 && size_bytes > MIN_BLOCK_BYTES * divisions => {
                let step = (1 << size_bytes.ilog2()) / divisions;
                crate::memory::rounded_up(size_bytes, step)
            }
            _ => crate::memory::rounded_up(size_bytes, MIN_BLOCK_BYTES),
        }
    }
}

/// How large a segment is made for a (rounded) request.
pub(super) fn segment_bytes(needed_bytes: u64) -> u64 {
    if needed_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if needed_bytes < MIN_LARGE_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        crate::memory::rounded_up(needed_bytes, ROUND_LARGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_of_powers_of_two() {
        // PyTorch's documentation: 1200 with 4 divisions lies between 1024 and 2048 and becomes
        // 1280. That small a request is left alone, so the same a thousand times larger.
        let config = CachingConfig { roundup_power2_divisions: Some(4), ..Default::default() };
        assert_eq!(config.rounded(1200 << 10), 1280 << 10);
        assert_eq!(config.rounded(1280 << 10), 1280 << 10);
        assert_eq!(config.rounded(1536), 1536);
        assert_eq!(CachingConfig::default().rounded(1200 << 10), 1200 << 10);
    }
}
