//! The smallest device on which something runs.

use gmm_core::PAGE_SIZE;

/// The smallest capacity, in bytes, on which `runs` says yes, to within one frame of 2 MiB.
///
/// It halves the range between `from_bytes`, rounded up to frames, and the first of its doublings
/// on which `runs`, so it takes for granted that what runs on a device runs on every larger one.
/// An allocator need not behave so: then the answer is a capacity on which it runs while with one
/// frame less it does not. None if it does not run on `up_to_bytes`.
pub fn smallest_capacity(
    from_bytes: u64,
    up_to_bytes: u64,
    mut runs: impl FnMut(u64) -> bool,
) -> Option<u64> {
    let up_to = up_to_bytes / PAGE_SIZE;
    let mut enough = from_bytes.div_ceil(PAGE_SIZE).max(1);
    let mut too_small = enough - 1;
    let mut step = enough.div_ceil(16);
    while enough > up_to || !runs(enough * PAGE_SIZE) {
        if enough >= up_to {
            return None;
        }
        too_small = enough;
        enough = enough.saturating_add(step).min(up_to);
        step = step.saturating_mul(2);
    }
    while too_small + 1 < enough {
        let middle = too_small + (enough - too_small) / 2;
        if runs(middle * PAGE_SIZE) { enough = middle } else { too_small = middle }
    }
    Some(enough * PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_smallest_that_runs_is_found_to_the_frame() {
        for least in [1, 7, 100, 101, 102, 150, 999] {
            let found = smallest_capacity(100 * MIB, 1000 * MIB, |c| c >= least * MIB);
            assert_eq!(found, Some((least.max(100) * MIB).next_multiple_of(PAGE_SIZE)));
        }
    }

    #[test]
    fn what_runs_nowhere_is_said() {
        assert_eq!(smallest_capacity(100 * MIB, 1000 * MIB, |_| false), None);
        assert_eq!(smallest_capacity(100 * MIB, 1000 * MIB, |c| c > 1000 * MIB), None);
        assert_eq!(smallest_capacity(100 * MIB, 50 * MIB, |_| true), None);
    }
}
