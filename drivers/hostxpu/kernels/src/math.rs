//! The few functions the kernels need, written so that they give the same bits on every machine: plain
//! IEEE additions, multiplications, divisions and square roots in a fixed order.

/// How many partial sums a dot product keeps. Eight lanes are two SSE registers or one AVX register;
/// the number is part of the result, so it is the same everywhere.
pub const LANES: usize = 8;

/// e to the power `x`, relative error below 1e-15 for `x` in -708..=709, 0 below and infinity above.
pub fn exp(x: f64) -> f64 {
    // Adding and subtracting 1.5 * 2^52 rounds to the nearest integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts; the first has 32 significant bits, so that k * LN2_HIGH is exact.
    const LN2_HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // 1/n!, from n = 13 down; the first term left out is below 0.347^14 / 14!, or 5e-18.
    const TERMS: [f64; 14] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
        1.0,
        1.0,
    ];
    if x.is_nan() {
        return x;
    }
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let k = (x * core::f64::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    let sum = TERMS.iter().fold(0.0, |sum, term| sum * r + term);
    // k lies in -1022..=1023, so this is a normal number: two to the power k.
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// The error function, absolute error below 1e-12.
///
/// With t = (x - 2) / (x + 2), `(1 - erf(x)) * exp(x^2)` is a smooth function of t; the coefficients
/// interpolate it at the 15 Chebyshev nodes of x in 0..=6.
pub fn erf(x: f64) -> f64 {
    // From the 14th power of t down.
    const TERMS: [f64; 15] = [
        2.012_942_997_511_434_5e-7,
        -1.734_718_015_925_001e-6,
        -1.348_470_678_748_734_5e-5,
        -2.518_355_650_102_053_4e-5,
        2.841_005_348_863_128_7e-5,
        0.000_173_798_749_199_662_52,
        4.317_759_276_328_976e-5,
        -0.000_981_934_655_814_812_9,
        -0.000_847_083_035_080_299,
        0.006_997_462_893_633_577,
        0.003_732_888_213_808_846_2,
        -0.078_978_581_229_378_83,
        0.241_658_194_350_866_25,
        -0.427_185_847_410_064_1,
        0.255_395_676_310_034_7,
    ];
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    // 1 - erf(6) is 2e-17: the nearest number is 1.
    if size >= 6.0 {
        return 1f64.copysign(x);
    }
    let t = (size - 2.0) / (size + 2.0);
    let tail = TERMS.iter().fold(0.0, |sum, term| sum * t + term) * exp(-size * size);
    (1.0 - tail).copysign(x)
}

/// The exact GELU: x times the standard normal distribution function of x.
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * core::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// The sum of the lanes, always by the same tree.
pub fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_library_to_the_last_digits() {
        for i in -70_800..=70_900 {
            let x = f64::from(i) * 0.01;
            let error = (exp(x) - x.exp()).abs() / x.exp();
            assert!(error < 1e-15, "exp({x}): relative error {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(f64::INFINITY), f64::INFINITY);
        assert!(exp(f64::NAN).is_nan());
    }

    /// erf by its Taylor series, good where the terms stay small.
    fn series(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            let n = f64::from(n);
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * core::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn erf_agrees_with_its_series() {
        for i in -250..=250 {
            let x = f64::from(i) * 0.01;
            let error = (erf(x) - series(x)).abs();
            assert!(error < 2e-12, "erf({x}): error {error:e}");
        }
    }

    #[test]
    fn erf_agrees_with_tables_where_it_is_nearly_one() {
        for (x, tail) in [(3.0, 2.209_049_7e-5), (4.0, 1.541_725_8e-8), (5.0, 1.537_459_8e-12)] {
            assert!((1.0 - erf(x) - tail).abs() < 1e-12, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(7.0), 1.0);
        assert_eq!(erf(f64::NEG_INFINITY), -1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn gelu_has_its_known_values() {
        for (x, y) in [(0.0, 0.0), (1.0, 0.841_344_7), (-1.0, -0.158_655_25), (3.0, 2.995_950_2)] {
            assert!((gelu(x) - y).abs() < 1e-6, "gelu({x}) = {}", gelu(x));
        }
        assert!(gelu(-20.0).abs() < 1e-12);
        assert_eq!(gelu(20.0), 20.0);
    }
}
