//! Half precision (IEEE 754 binary16): a number as its bits, to and from single precision. In plain
//! integer and float operations, so that every machine gives the same bits and compilers can work on
//! many at once.

/// A number of half precision: a sign bit, five bits of exponent, ten of fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct F16(pub u16);

const SIGN: u16 = 0x8000;

/// The greatest exponent: infinities and what is no number.
const EXPONENT: u16 = 0x7C00;

/// What a half's exponent and fraction mean too little, read as a single's: the biases are 15 and 127.
const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);

impl From<F16> for f32 {
    /// Exact.
    #[inline(always)]
    fn from(half: F16) -> Self {
        let size = u32::from(half.0 & !SIGN);
        // A subnormal half is a subnormal single here, and the product with a power of two is exact.
        let number = Self::from_bits(size << 13) * REBIAS;
        let special = if size >= u32::from(EXPONENT) { 0x7F80_0000 } else { 0 };
        Self::from_bits(number.to_bits() | special | u32::from(half.0 & SIGN) << 16)
    }
}

impl From<f32> for F16 {
    /// The nearest, of two equally near the one with an even fraction; infinity beyond the greatest.
    #[inline]
    fn from(single: f32) -> Self {
        // Half a last place beyond the greatest half, 65504.
        const INFINITY_FROM: f32 = 65520.0;
        // The least normal half: two to the power -14.
        const NORMAL_FROM: f32 = f32::from_bits((127 - 14) << 23);
        let sign = (single.to_bits() >> 16) as u16 & SIGN;
        let size = single.abs();
        let bits = if size.is_nan() {
            EXPONENT | 0x200
        } else if size >= INFINITY_FROM {
            EXPONENT
        } else if size < NORMAL_FROM {
            // The last place of singles from 0.5 to 1 is that of subnormal halves: adding rounds.
            ((size + 0.5).to_bits() - 0.5f32.to_bits()) as u16
        } else {
            let bits = size.to_bits() - ((127 - 15) << 23);
            // Half a last place less one, and one more if the fraction is odd: ties go to even.
            let rounded = bits + 0xFFF + (bits >> 13 & 1);
            (rounded >> 13) as u16
        };
        Self(sign | bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the standard says that the bits mean.
    fn meaning(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3FF));
        let size = match exponent {
            0 => fraction / 1024.0 * 2f64.powi(-14),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        if bits & SIGN == 0 { size } else { -size }
    }

    #[test]
    fn every_half_is_the_single_that_the_standard_says_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (single, meant) = (f32::from(F16(bits)), meaning(bits));
            if meant.is_nan() {
                assert!(single.is_nan() && f32::from(F16::from(single)).is_nan(), "{bits:#x}");
                continue;
            }
            assert_eq!(f64::from(single).to_bits(), meant.to_bits(), "{bits:#x}");
            assert_eq!(F16::from(single), F16(bits));
        }
    }

    #[test]
    fn singles_between_two_halves_go_to_the_nearer_and_ties_to_even() {
        for low in 0..EXPONENT - 1 {
            let (below, above) = (f32::from(F16(low)), f32::from(F16(low + 1)));
            let middle = f32::midpoint(below, above);
            let (under, over) = (f32::next_down, f32::next_up);
            let even = if low & 1 == 0 { low } else { low + 1 };
            for sign in [0, SIGN] {
                let of = |x: f32| F16::from(if sign == 0 { x } else { -x }).0;
                assert_eq!(of(under(middle)), sign | low);
                assert_eq!(of(middle), sign | even);
                assert_eq!(of(over(middle)), sign | (low + 1));
            }
        }
        assert_eq!(F16::from(65519.99f32), F16(EXPONENT - 1));
        assert_eq!(F16::from(65520.0f32), F16(EXPONENT));
        assert_eq!(F16::from(f32::MIN_POSITIVE / 2.0), F16(0));
    }
}
