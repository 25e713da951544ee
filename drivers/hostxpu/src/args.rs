//! The arguments of a launch, as 64-bit words: an address as it is, an integer extended to 64
//! bits (by its sign, if it has one), a float as its bits.

use crate::ring::NR_ARGS;

/// The most words that a launch can take.
pub const MAX_ARGS: usize = NR_ARGS;

/// One argument.
pub trait KernelArg {
    /// Its word.
    fn word(&self) -> u64;
}

/// The arguments of a launch: a tuple of up to eight, one alone, or up to [`MAX_ARGS`] words.
pub trait KernelArgs {
    /// Their words, zero beyond the last.
    fn words(&self) -> [u64; MAX_ARGS];
}

macro_rules! integers {
    ($via:ty: $($t:ty)*) => {
        $(impl KernelArg for $t {
            fn word(&self) -> u64 {
                *self as $via as u64
            }
        })*
    };
}

integers!(u64: u8 u16 u32 u64 usize bool);
integers!(i64: i8 i16 i32 i64 isize);

impl KernelArg for f32 {
    fn word(&self) -> u64 {
        self.to_bits().into()
    }
}

impl KernelArg for f64 {
    fn word(&self) -> u64 {
        self.to_bits()
    }
}

impl<T> KernelArg for *const T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

impl<T> KernelArg for *mut T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

impl KernelArg for gmm_core::VirtAddr {
    fn word(&self) -> u64 {
        self.0
    }
}

impl<const N: usize> KernelArgs for [u64; N] {
    fn words(&self) -> [u64; MAX_ARGS] {
        const { assert!(N <= MAX_ARGS, "a launch takes at most 16 words") };
        core::array::from_fn(|i| self.get(i).copied().unwrap_or(0))
    }
}

impl<A: KernelArgs + ?Sized> KernelArgs for &A {
    fn words(&self) -> [u64; MAX_ARGS] {
        (**self).words()
    }
}

impl KernelArgs for () {
    fn words(&self) -> [u64; MAX_ARGS] {
        [0; MAX_ARGS]
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))*) => {
        $(impl<$($name: KernelArg),+> KernelArgs for ($($name,)+) {
            fn words(&self) -> [u64; MAX_ARGS] {
                #[expect(non_snake_case, reason = "values are named as their types")]
                let ($($name,)+) = self;
                [$($name.word()),+].words()
            }
        })*
    };
}

tuples! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_the_kernels_read_them() {
        let words = (0x1234_usize as *const u8, -1_i32, 7_u8, 1.5_f32, true).words();
        assert_eq!(words[..6], [0x1234, u64::MAX, 7, 0x3fc0_0000, 1, 0]);
        assert_eq!([5, 6].words()[..3], [5, 6, 0]);
        assert_eq!((2.0_f64,).words()[0], 2.0_f64.to_bits());
    }
}
