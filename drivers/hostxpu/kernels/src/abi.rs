//! From the words of a launch to typed arguments.

use core::ops::Range;

/// The exported form of a kernel.
///
/// # Safety
/// `args` points at as many words as the kernel takes, and these keep the promises that the kernel's
/// typed function asks for.
pub type Entry = unsafe extern "C" fn(index: u64, count: u64, args: *const u64);

/// A kernel of this crate, for programs that call it on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The exported symbol.
    pub name: &'static str,
    /// The exported function.
    pub entry: Entry,
    /// The names of its arguments, in order; their number is the number of words it reads.
    pub args: &'static [&'static str],
}

/// One work item of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    index: u64,
    count: u64,
}

impl Item {
    /// Item `index` of `count`. A count of 0 is taken as 1.
    pub fn new(index: u64, count: u64) -> Self {
        Self { index, count: count.max(1) }
    }

    /// This item's place in the launch.
    pub fn index(self) -> u64 {
        self.index
    }

    /// The contiguous share of `0..n` that is this item's. The shares of all items cover `0..n` in the
    /// order of the items, without overlap, and differ by at most one in length; an index beyond the
    /// count has an empty share.
    pub fn share(self, n: usize) -> Range<usize> {
        let cut = |index: u64| {
            let index = u128::from(index.min(self.count));
            (n as u128 * index / u128::from(self.count)) as usize
        };
        cut(self.index)..cut(self.index.saturating_add(1))
    }
}

/// A type that travels as one 64-bit word.
pub trait Word: Copy {
    /// Packs the value.
    fn into_word(self) -> u64;
    /// Unpacks it.
    fn from_word(word: u64) -> Self;
}

macro_rules! integer_words {
    ($($ty:ty),*) => {$(
        impl Word for $ty {
            fn into_word(self) -> u64 {
                self as u64
            }
            fn from_word(word: u64) -> Self {
                word as Self
            }
        }
    )*};
}
integer_words!(u64, usize);

impl Word for u32 {
    fn into_word(self) -> u64 {
        u64::from(self)
    }
    fn from_word(word: u64) -> Self {
        word as Self
    }
}

impl Word for f32 {
    fn into_word(self) -> u64 {
        u64::from(self.to_bits())
    }
    fn from_word(word: u64) -> Self {
        Self::from_bits(word as u32)
    }
}

impl Word for bool {
    fn into_word(self) -> u64 {
        u64::from(self)
    }
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl<T> Word for *const T {
    fn into_word(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance(word as usize)
    }
}

impl<T> Word for *mut T {
    fn into_word(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(word as usize)
    }
}

/// Exports typed kernels: `module::name(arg, ...)` makes the symbol `name`, which unpacks one word for
/// each argument (the types are those of `module::name`) and calls it; and the table `KERNELS`.
macro_rules! export {
    ($($module:ident::$name:ident($($arg:ident),* $(,)?);)*) => {
        $(
            #[doc = concat!("The exported form of [`", stringify!($module), "::", stringify!($name), "`].")]
            ///
            /// # Safety
            /// As [`Entry`].
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(index: u64, count: u64, args: *const u64) {
                let mut next = args;
                $(
                    // SAFETY: the caller gives a word for each argument of the kernel.
                    let $arg = Word::from_word(unsafe { next.read() });
                    next = next.wrapping_add(1);
                )*
                let _ = next;
                // SAFETY: the caller keeps the promises of the typed kernel.
                unsafe { crate::$module::$name(Item::new(index, count), $($arg),*) }
            }
        )*

        /// Every kernel of this crate.
        pub const KERNELS: &[Kernel] = &[$(
            Kernel { name: stringify!($name), entry: $name, args: &[$(stringify!($arg)),*] }
        ),*];
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_range_once_and_in_order() {
        for n in [0, 1, 5, 16, 1000] {
            for count in [1, 2, 3, 7, 16, 1024] {
                let mut next = 0;
                for index in 0..count {
                    let share = Item::new(index, count).share(n);
                    assert_eq!(share.start, next, "item {index} of {count} over {n}");
                    next = share.end;
                }
                assert_eq!(next, n);
            }
        }
    }

    #[test]
    fn an_item_beyond_the_launch_has_nothing_to_do() {
        assert!(Item::new(4, 4).share(100).is_empty());
        assert!(Item::new(u64::MAX, 4).share(100).is_empty());
        assert_eq!(Item::new(0, 0).share(9), 0..9);
    }

    #[test]
    fn words_come_back_as_they_went() {
        assert_eq!(f32::from_word((-0.1f32).into_word()), -0.1);
        assert_eq!(u32::from_word(7u32.into_word()), 7);
        let x = 3u8;
        assert_eq!(<*const u8>::from_word((&raw const x).into_word()), &raw const x);
    }
}
