//! Repeated measurements: median, extremes, percentiles.

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
}
