//! Times, counted in buckets of bounded relative width.
//!
//! The buckets are log-linear, as in Gil Tene's HdrHistogram: each power of two is cut into eight
//! equal parts. So a bucket is at most an eighth as wide as its lower end, and a time that is told
//! by the middle of its bucket is off by at most 1/16 (6.25%); by at most 64 ns below 1 µs.

use core::time::Duration;

use crate::sync::Counter;

/// Times are counted in units of 128 ns.
const UNIT_BITS: u32 = 7;
/// Eight parts a power of two.
const PART_BITS: u32 = 3;
const NR_PARTS: usize = 1 << PART_BITS;
/// The last bucket begins at 15 / 16 of 2^36 ns, 64 s; what is longer is counted there.
const NR_BUCKETS: usize = (36 - UNIT_BITS - PART_BITS + 1) as usize * NR_PARTS;

/// Counts of times, read without a lock.
pub(crate) struct Times {
    buckets: [Counter; NR_BUCKETS],
    max_ns: Counter,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self { buckets: [const { Counter::new() }; NR_BUCKETS], max_ns: Counter::new() }
    }

    /// Counts one where everyone who does holds the same lock.
    pub(crate) fn count_locked(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].add_locked(1);
        self.max_ns.raise_locked(ns);
    }

    pub(crate) fn snapshot(&self) -> Histogram {
        let counts = self.buckets.iter().map(Counter::get);
        let buckets = counts.enumerate().filter(|&(_, count)| count > 0);
        Histogram {
            buckets: buckets
                .map(|(i, count)| Bucket { from_ns: start_of(i), to_ns: start_of(i + 1), count })
                .collect(),
            max_ns: self.max_ns.get(),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    let power = units.checked_ilog2().unwrap_or(0).max(PART_BITS) - PART_BITS;
    // Of a power of two the leading bit is one more row of parts.
    let bucket = ((power as usize) << PART_BITS) + (units >> power) as usize;
    bucket.min(NR_BUCKETS - 1)
}

/// The least time of a bucket, in nanoseconds.
fn start_of(bucket: usize) -> u64 {
    let power = (bucket >> PART_BITS).max(1) - 1;
    ((bucket - (power << PART_BITS)) as u64) << power << UNIT_BITS
}

/// How long something took, how often. What is read off it is within 6.25% of the truth (64 ns
/// below 1 µs), but for `max_ns` and counts, which are exact.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Histogram {
    /// The buckets with any times, by time.
    pub buckets: Vec<Bucket>,
    /// The longest time, in nanoseconds.
    pub max_ns: u64,
}

/// Times of at least `from_ns` and less than `to_ns` nanoseconds (in the last bucket that there
/// can be, of more, too).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// The least.
    pub from_ns: u64,
    /// One more than the most.
    pub to_ns: u64,
    /// How many times.
    pub count: u64,
}

impl Histogram {
    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.count).sum()
    }

    /// The time that `percent` of a hundred times are no longer than, by the nearest rank, in
    /// nanoseconds; 0 if there are none.
    pub fn percentile_ns(&self, percent: u32) -> u64 {
        let rank = (self.count() * u64::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|b| {
            seen += b.count;
            seen >= rank
        });
        found.map_or(0, |b| b.middle_ns().min(self.max_ns))
    }

    /// All times together, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, b| sum.saturating_add(b.middle_ns() * b.count))
    }
}

impl Bucket {
    fn middle_ns(&self) -> u64 {
        self.from_ns.midpoint(self.to_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_says_so() {
        for bucket in 0..NR_BUCKETS {
            let (start, end) = (start_of(bucket), start_of(bucket + 1));
            assert_eq!([bucket_of(start), bucket_of(end - 1)], [bucket; 2], "{start} to {end}");
            let error = (end - start).div_ceil(2);
            assert!(error <= (start / 16).max(64), "{start} to {end}");
        }
        assert_eq!(start_of(NR_BUCKETS), 1 << 36);
        assert_eq!(bucket_of(u64::MAX), NR_BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let times = Times::new();
        (1..=10_000).for_each(|us| times.count_locked(Duration::from_micros(us)));
        let seen = times.snapshot();
        for (percent, us) in [(0, 1), (50, 5_000), (99, 9_900), (100, 10_000)] {
            let (told, truth) = (seen.percentile_ns(percent), us * 1_000);
            assert!(told.abs_diff(truth) <= truth / 16, "p{percent}: {told} for {truth}");
        }
        assert_eq!((seen.count(), seen.max_ns), (10_000, 10_000_000));
        let sum = 10_000 * 10_001 / 2 * 1_000;
        assert!(seen.sum_ns().abs_diff(sum) <= sum / 16);
        assert_eq!(Times::new().snapshot().percentile_ns(99), 0);
    }
}
