//! Repeated measurements: median, extremes, percentiles, and pairs of them.

use std::time::Duration;

use super::record::Record;

/// A set of measurements, in order.
pub(super) struct Distribution(Vec<f64>);

impl Distribution {
    /// At least one measurement; none is a NaN.
    pub(super) fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "a distribution has at least one value");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value below which `p` (0 to 1) of the measurements lie, by the nearest rank.
    pub(super) fn percentile(&self, p: f64) -> f64 {
        let rank = (p * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    /// The middle one; of an even number the mean of the middle two.
    pub(super) fn median(&self) -> f64 {
        let (n, v) = (self.0.len(), &self.0);
        if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 }
    }

    pub(super) fn min(&self) -> f64 {
        self.0[0]
    }

    pub(super) fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The measurements, in ascending order.
    pub(super) fn into_values(self) -> Vec<f64> {
        self.0
    }

    /// An interval that holds the median of what was sampled with a probability of at least 95%,
    /// whatever its distribution, if the measurements are independent: from the `k`-th least to the
    /// `k`-th greatest, where a binomial variable of as many tosses of a fair coin is below `k` with
    /// at most 2.5% (W. J. Conover, *Practical Nonparametric Statistics*, section 3.2). `None` for
    /// fewer than six, which can't say.
    pub(super) fn median_interval_95(&self) -> Option<(f64, f64)> {
        let n = self.0.len();
        // P(X = i) for i = 0, 1, ..., from logarithms, so that a large n does not underflow.
        let mut ln_p = -(n as f64) * std::f64::consts::LN_2;
        let (mut below, mut k) = (0.0, 0);
        loop {
            below += ln_p.exp();
            if below > 0.025 {
                break;
            }
            ln_p += ((n - k) as f64).ln() - ((k + 1) as f64).ln();
            k += 1;
        }
        (k > 0).then(|| (self.0[k - 1], self.0[n - k]))
    }
}

/// Runs subject and baseline one after the other, each first as often as the other.
pub(super) fn in_turn<T>(
    round: u32,
    subject: impl FnOnce() -> T,
    baseline: impl FnOnce() -> T,
) -> (T, T) {
    if round.is_multiple_of(2) {
        let subject = subject();
        (subject, baseline())
    } else {
        let baseline = baseline();
        (subject(), baseline)
    }
}

/// Times of subject and baseline, in seconds, pair by pair, in turn.
#[derive(Default)]
pub(super) struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    pub(super) fn push(&mut self, subject: Duration, baseline: Duration) {
        self.push_seconds(subject.as_secs_f64(), baseline.as_secs_f64());
    }

    pub(super) fn push_seconds(&mut self, subject: f64, baseline: f64) {
        self.0.push((subject, baseline));
    }

    /// Baseline time over subject time of each pair: how many times as fast the subject was.
    pub(super) fn ratios(&self) -> Vec<f64> {
        self.0.iter().map(|(subject, baseline)| baseline / subject).collect()
    }

    /// The median times of subject and baseline.
    pub(super) fn seconds(&self) -> (f64, f64) {
        let median = |pick: fn(&(f64, f64)) -> f64| {
            Distribution::new(self.0.iter().map(pick).collect()).median()
        };
        (median(|pair| pair.0), median(|pair| pair.1))
    }

    /// The record of these pairs, with the times of both.
    pub(super) fn record(
        &self,
        suite: &str,
        case: impl Into<String>,
        parameter: impl Into<String>,
        baseline: &str,
    ) -> Record {
        let (subject_s, baseline_s) = self.seconds();
        Record::new(suite, case, parameter, baseline, self.ratios())
            .seconds(subject_s)
            .with("baseline_seconds", baseline_s)
    }

    /// As [`Pairs::record`], where both moved so many bytes.
    pub(super) fn record_of_bytes(
        &self,
        suite: &str,
        case: impl Into<String>,
        parameter: impl Into<String>,
        baseline: &str,
        bytes: u64,
    ) -> Record {
        let (subject_s, baseline_s) = self.seconds();
        self.record(suite, case, parameter, baseline)
            .bytes_per_s(bytes as f64 / subject_s)
            .with("bytes", bytes)
            .with("baseline_bytes_per_s", bytes as f64 / baseline_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let d = Distribution::new((1..=100).rev().map(f64::from).collect());
        assert_eq!((d.percentile(0.99), d.percentile(0.0), d.percentile(1.0)), (99.0, 1.0, 100.0));
        assert_eq!((d.median(), d.min(), d.max()), (50.5, 1.0, 100.0));
        assert_eq!(Distribution::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_the_tables() {
        let interval =
            |n: u32| Distribution::new((1..=n).map(f64::from).collect()).median_interval_95();
        // Ranks from the tables of the sign test.
        assert_eq!(interval(5), None);
        assert_eq!(interval(6), Some((1.0, 6.0)));
        assert_eq!(interval(9), Some((2.0, 8.0)));
        assert_eq!(interval(20), Some((6.0, 15.0)));
        assert_eq!(interval(25), Some((8.0, 18.0)));
        assert_eq!(interval(100), Some((40.0, 61.0)));
        assert!(interval(5000).is_some());
    }

    #[test]
    fn pairs_give_the_ratio_of_speeds() {
        let mut pairs = Pairs::default();
        for (subject, baseline) in [(2.0, 1.0), (1.0, 1.0), (4.0, 1.0)] {
            pairs.push_seconds(subject, baseline);
        }
        let record = pairs.record_of_bytes("s", "c", "p", "b", 100);
        assert_eq!((record.ratio, record.ratio_min, record.ratio_max), (0.5, 0.25, 1.0));
        assert_eq!((record.seconds, record.bytes_per_s), (Some(2.0), Some(50.0)));
        assert_eq!(record.more["baseline_bytes_per_s"], 100.0);
    }
}
