//! Live and reserved memory over the operations of a replay, in stretches of equal length.

use gmm_alloc::Stats;
use serde::Serialize;

/// How many stretches there are at most: more than a page or a terminal has columns.
const MAX_STRETCHES: usize = 480;

/// The most that there was in a stretch, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Stretch {
    pub(super) live_bytes: u64,
    pub(super) reserved_bytes: u64,
}

/// What a replay had over time. Time is counted in operations.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// Operations of the whole program; a replay that ran out has fewer stretches.
    nr_operations: usize,
    per_stretch: usize,
    nr_seen: usize,
    stretches: Vec<Stretch>,
    fragmentation_sum: f64,
    /// The largest share of reserved memory that was not live, by stretch.
    shares: Vec<f32>,
}

impl Timeline {
    pub(super) fn new(nr_operations: usize) -> Self {
        let per_stretch = nr_operations.div_ceil(MAX_STRETCHES).max(1);
        Self {
            nr_operations,
            per_stretch,
            nr_seen: 0,
            stretches: Vec::new(),
            fragmentation_sum: 0.0,
            shares: Vec::new(),
        }
    }

    /// How it is after one more operation.
    pub(super) fn add(&mut self, live_bytes: u64, reserved_bytes: u64) {
        if self.nr_seen.is_multiple_of(self.per_stretch) {
            self.stretches.push(Stretch::default());
            self.shares.push(0.0);
        }
        self.nr_seen += 1;
        let share = share_not_live(live_bytes, reserved_bytes);
        self.fragmentation_sum += share;
        if let (Some(stretch), Some(most)) = (self.stretches.last_mut(), self.shares.last_mut()) {
            stretch.live_bytes = stretch.live_bytes.max(live_bytes);
            stretch.reserved_bytes = stretch.reserved_bytes.max(reserved_bytes);
            *most = most.max(share as f32);
        }
    }

    pub(super) fn add_stats(&mut self, stats: &Stats) {
        self.add(stats.live_bytes, stats.reserved_bytes);
    }

    pub(super) fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// The largest share of reserved memory that was not live, of each stretch.
    pub(super) fn fragmentation(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.shares.iter().map(|&share| f64::from(share))
    }

    /// The mean over all operations of the share of reserved memory that was not live.
    pub(super) fn mean_fragmentation(&self) -> f64 {
        if self.nr_seen == 0 { 0.0 } else { self.fragmentation_sum / self.nr_seen as f64 }
    }

    /// How many stretches the whole program has.
    pub(super) fn nr_stretches(&self) -> usize {
        self.nr_operations.div_ceil(self.per_stretch)
    }

    /// How many operations the whole program has.
    pub(super) fn nr_operations(&self) -> usize {
        self.nr_operations
    }

    /// The last operation of a stretch, counted from 1.
    pub(super) fn last_operation(&self, stretch: usize) -> usize {
        ((stretch + 1) * self.per_stretch).min(self.nr_operations)
    }
}

/// The share of reserved memory that is not live: what rounding, holes and idle segments take.
pub(super) fn share_not_live(live_bytes: u64, reserved_bytes: u64) -> f64 {
    match reserved_bytes {
        0 => 0.0,
        reserved => reserved.saturating_sub(live_bytes) as f64 / reserved as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_keep_peaks() {
        let mut timeline = Timeline::new(4 * MAX_STRETCHES);
        for at in 0..4 * MAX_STRETCHES as u64 {
            timeline.add(if at == 5 { 90 } else { 50 }, 100);
        }
        assert_eq!(timeline.stretches().len(), MAX_STRETCHES);
        assert_eq!(timeline.stretches()[1], Stretch { live_bytes: 90, reserved_bytes: 100 });
        assert_eq!(timeline.stretches()[2].live_bytes, 50);
        assert_eq!(timeline.last_operation(1), 8);
        // All but one have half, that one a tenth.
        let nr = (4 * MAX_STRETCHES) as f64;
        let expected = (0.5 * (nr - 1.0) + 0.1) / nr;
        assert!((timeline.mean_fragmentation() - expected).abs() < 1e-9);
        assert!(timeline.fragmentation().all(|share| (share - 0.5).abs() < 1e-6));
    }

    #[test]
    fn a_short_program_has_a_stretch_an_operation() {
        let mut timeline = Timeline::new(2);
        timeline.add(0, 0);
        timeline.add(1, 4);
        assert_eq!(timeline.fragmentation().collect::<Vec<_>>(), [0.0, 0.75]);
        assert_eq!(timeline.mean_fragmentation(), 0.375);
        assert_eq!(timeline.last_operation(1), 2);
    }
}
