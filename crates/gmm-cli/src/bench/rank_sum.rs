//! The rank-sum test: are two samples of the same thing? (H. B. Mann and D. R. Whitney, *On a test of
//! whether one of two random variables is stochastically larger than the other*, Annals of
//! Mathematical Statistics 18, 1947.)

/// Up to so many values in both samples together the distribution is counted out; beyond, it is
/// close to normal.
const MOST_COUNTED: usize = 80;

/// How likely samples of one distribution are to differ in rank by as much as these do, or by more,
/// in either direction: 1 for samples that are alike, and for an empty one.
pub(super) fn p_value(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    // How many pairs `b` wins; an equal pair is half won.
    let won = |x: &f64, y: &f64| match x.total_cmp(y) {
        std::cmp::Ordering::Less => 1.0,
        std::cmp::Ordering::Equal => 0.5,
        std::cmp::Ordering::Greater => 0.0,
    };
    let u: f64 = a.iter().flat_map(|x| b.iter().map(move |y| won(x, y))).sum();
    let pairs = (a.len() * b.len()) as f64;
    // The smaller tail; half a win is rounded towards the middle.
    let u = u.min(pairs - u).ceil();
    let both_tails = if a.len() + b.len() <= MOST_COUNTED {
        2.0 * tail(a.len(), b.len(), u as usize)
    } else {
        approximate_tails(a.len(), b.len(), u)
    };
    both_tails.min(1.0)
}

/// The probability that the first of two samples wins at most `u` pairs: of all ways to choose the
/// ranks of `n` values among `n + m`, those whose sum is at most that much above the least.
fn tail(n: usize, m: usize, u: usize) -> f64 {
    let least = n * (n + 1) / 2;
    let most = least + n * m;
    // ways[k][s]: of the ranks so far, choices of k that add up to s.
    let mut ways = vec![vec![0.0_f64; most + 1]; n + 1];
    ways[0][0] = 1.0;
    for rank in 1..=n + m {
        for k in (1..=n.min(rank)).rev() {
            for sum in (rank..=most).rev() {
                ways[k][sum] += ways[k - 1][sum - rank];
            }
        }
    }
    let (all, within): (f64, f64) = (ways[n].iter().sum(), ways[n][..=least + u].iter().sum());
    within / all
}

/// Both tails where `u` is the lower, by the normal distribution, corrected for continuity.
fn approximate_tails(n: usize, m: usize, u: f64) -> f64 {
    let pairs = (n * m) as f64;
    let deviation = (pairs * (n + m + 1) as f64 / 12.0).sqrt();
    normal_tails(((pairs / 2.0 - u - 0.5) / deviation).max(0.0))
}

/// The probability that a standard normal variable is at least `z` away from 0 (M. Abramowitz and
/// I. A. Stegun, *Handbook of Mathematical Functions*, 7.1.26; off by at most 1.5e-7).
fn normal_tails(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let coefficients =
        [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    coefficients.iter().fold(0.0, |sum, c| (sum + c) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_samples_are_counted_out() {
        // Of the 252 ways to deal ten ranks to two samples of five, one is this extreme on each side.
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p_value(&low, &high) - 2.0 / 252.0).abs() < 1e-12);
        assert!((p_value(&high, &low) - 2.0 / 252.0).abs() < 1e-12);
        // From the tables for samples of 8: U = 13 is the last below 5%, two-sided.
        assert!(2.0 * tail(8, 8, 13) <= 0.05 && 2.0 * tail(8, 8, 14) > 0.05);
        // And 9: U = 17.
        assert!(2.0 * tail(9, 9, 17) <= 0.05 && 2.0 * tail(9, 9, 18) > 0.05);
    }

    #[test]
    fn equal_samples_do_not_differ() {
        let values = [0.9, 0.8, 0.85, 0.87, 0.95];
        assert_eq!(p_value(&values, &values), 1.0);
        assert_eq!(p_value(&[1.0; 9], &[1.0; 9]), 1.0);
        assert_eq!(p_value(&[], &values), 1.0);
    }

    #[test]
    fn the_approximation_of_large_samples_meets_the_counted_one() {
        // From 39% down to 1%, both tails.
        for u in [710_u32, 640, 600, 540] {
            let (counted, approximate) =
                (2.0 * tail(40, 40, u as usize), approximate_tails(40, 40, u.into()));
            assert!((counted / approximate - 1.0).abs() < 0.05, "{counted} {approximate}");
        }
        assert!((normal_tails(1.959_964) - 0.05).abs() < 1e-6);
    }

    #[test]
    fn large_samples_are_told_apart() {
        let a: Vec<f64> = (0..60).map(f64::from).collect();
        assert!(p_value(&a, &a) > 0.99);
        let b: Vec<f64> = a.iter().map(|value| value + 25.5).collect();
        assert!(p_value(&a, &b) < 0.001);
    }
}
