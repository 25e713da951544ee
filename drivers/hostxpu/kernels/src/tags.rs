//! Kernels that mark memory as somebody's, and see later that it still is: for tests of what hands
//! memory out.
//!
//! The first and the last 8 bytes of each 4 KiB of a range, counted from its start, and the last of the
//! range, hold its tag plus their offset: what lies in another place than it was written to is as wrong
//! as what another has written.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Item;

const PIECE_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<u64>();

/// How many words [`tag_words`] writes to a range of `len_bytes`, and [`count_tagged`] looks at.
pub const fn nr_tagged(len_bytes: usize) -> u64 {
    2 * len_bytes.div_ceil(PIECE_BYTES) as u64
}

/// The offsets of the words in this item's share.
fn offsets(item: Item, len_bytes: usize) -> impl Iterator<Item = usize> {
    item.share(len_bytes.div_ceil(PIECE_BYTES)).flat_map(move |piece| {
        let start = piece * PIECE_BYTES;
        [start, len_bytes.min(start + PIECE_BYTES) - WORD_BYTES]
    })
}

/// Writes the words of the `len_bytes` at `base`.
///
/// # Safety
/// The range is writable, and nobody else uses it during the launch; `base` and `len_bytes` are
/// multiples of 8.
pub unsafe fn tag_words(item: Item, base: *mut u8, len_bytes: usize, tag: u64) {
    for offset in offsets(item, len_bytes) {
        let word = base.wrapping_add(offset).cast::<u64>();
        // SAFETY: a word of the caller's range.
        unsafe { word.write_volatile(tag.wrapping_add(offset as u64)) };
    }
}

/// Adds to `count` how many words of the `len_bytes` at `base` are as [`tag_words`] wrote them: not how many
/// are wrong, so that a launch that never ran isn't taken for one that found nothing.
///
/// # Safety
/// The range is readable, and nobody writes to it during the launch; `count` is writable, and others use
/// it by atomic operations only; all are multiples of 8.
pub unsafe fn count_tagged(
    item: Item,
    base: *const u8,
    len_bytes: usize,
    tag: u64,
    count: *mut u64,
) {
    let is_right = |offset: &usize| {
        let word = base.wrapping_add(*offset).cast::<u64>();
        // SAFETY: a word of the caller's range.
        unsafe { word.read_volatile() == tag.wrapping_add(*offset as u64) }
    };
    let right = offsets(item, len_bytes).filter(is_right).count();
    // SAFETY: promised by the caller.
    unsafe { AtomicU64::from_ptr(count) }.fetch_add(right as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: u64 = 0xDEAD_BEEF_0000_0000;

    /// How many words of a range, which 3 items look at, are right.
    fn count(memory: &[u64], tag: u64) -> u64 {
        let mut right = 0;
        for index in 0..3 {
            let (base, len_bytes) = (memory.as_ptr().cast(), size_of_val(memory));
            // SAFETY: the range and the count are ours.
            unsafe { count_tagged(Item::new(index, 3), base, len_bytes, tag, &raw mut right) };
        }
        right
    }

    fn tagged(len_bytes: usize) -> Vec<u64> {
        let mut memory = vec![0; len_bytes / WORD_BYTES];
        for index in 0..2 {
            // SAFETY: the range is ours.
            unsafe { tag_words(Item::new(index, 2), memory.as_mut_ptr().cast(), len_bytes, TAG) };
        }
        memory
    }

    #[test]
    fn what_was_tagged_is_all_right() {
        for len_bytes in [8, 512, PIECE_BYTES, PIECE_BYTES + 8, 5 * PIECE_BYTES - 512] {
            let memory = tagged(len_bytes);
            assert_eq!(count(&memory, TAG), nr_tagged(len_bytes), "{len_bytes} bytes");
            let (first, last) = (memory[0], memory[memory.len() - 1]);
            assert_eq!((first, last), (TAG, TAG + len_bytes as u64 - 8), "{len_bytes} bytes");
        }
    }

    #[test]
    fn a_wrong_word_is_not_counted() {
        let len_bytes = 3 * PIECE_BYTES;
        let all = nr_tagged(len_bytes);
        assert_eq!(count(&tagged(len_bytes), TAG + 1), 0, "another's tag");
        assert_eq!(count(&vec![0; len_bytes / WORD_BYTES], TAG), 0, "lost memory");
        let mut memory = tagged(len_bytes);
        let places: Vec<_> = (0..memory.len()).filter(|&word| memory[word] != 0).collect();
        assert_eq!(places.len() as u64, all);
        for word in places {
            memory[word] ^= 1 << 17;
            assert_eq!(count(&memory, TAG), all - 1, "word {word}");
            memory[word] ^= 1 << 17;
        }
        // Frames that were mapped in another's place.
        let (first, rest) = memory.split_at_mut(PIECE_BYTES / WORD_BYTES);
        first.swap_with_slice(&mut rest[..PIECE_BYTES / WORD_BYTES]);
        assert_eq!(count(&memory, TAG), all - 4);
    }
}
