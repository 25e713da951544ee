//! Kernels for tests and benchmarks of the memory manager itself.

use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Item;

/// The distance of the words that [`touch`] uses: the smallest page of the hardware.
pub const TOUCH_STRIDE_BYTES: usize = 4096;

/// The size of a page of unified memory.
const PAGE_BYTES: usize = 2 << 20;

/// Counts in a slot of its own in each of `nr_pages` pages: item `i` adds 1 to the `u64` in slot
/// `slot + i` (8 bytes each) of every page, `rounds` times in all for each page. The pages lie `stride`
/// bytes apart from `base` on, and are visited in an order that `seed`, the item and the round decide.
/// Afterwards the slot has grown by exactly `rounds` in each page, or memory was not coherent.
///
/// # Safety
/// The slots `slot .. slot + count` of each page are readable and writable, and nobody else writes to
/// them during the launch; `base` and `stride` are multiples of 8.
pub unsafe fn count_pages(
    item: Item,
    base: *mut u8,
    nr_pages: usize,
    stride: usize,
    rounds: u64,
    slot: usize,
    seed: u64,
) {
    if nr_pages == 0 {
        return;
    }
    let slot_offset = (slot + item.index() as usize) * size_of::<u64>();
    let mut random = Random::new(seed ^ item.index().wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..rounds {
        let mut page = random.below(nr_pages);
        let step = coprime_step(random.below(nr_pages), nr_pages);
        for _ in 0..nr_pages {
            let counter = base.wrapping_add(page * stride + slot_offset).cast::<u64>();
            // SAFETY: this item's slot of a page of the caller's. Volatile, so that each visit is one
            // load and one store.
            unsafe { counter.write_volatile(counter.read_volatile().wrapping_add(1)) };
            page = (page + step) % nr_pages;
        }
    }
}

/// A step that visits all of `0..n` before it comes back: the first number from `start` on without a
/// common divisor with `n`.
fn coprime_step(start: usize, n: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (start.max(1)..).find(|step| divisor(*step, n) == 1).unwrap_or(1)
}

/// A xorshift generator: repeatable, and good enough to shuffle visits.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Touches the first word of each 4 KiB of the `len_bytes` at `base`: reads it, or with `write` stores
/// the number of that 4 KiB piece, counted from `base`.
///
/// # Safety
/// The words are readable, and writable with `write`; with `write` nobody else uses them during the
/// launch; `base` is a multiple of 8.
pub unsafe fn touch(item: Item, base: *mut u8, len_bytes: usize, write: bool) {
    // SAFETY: the caller's promise.
    unsafe { touch_part(item, base, len_bytes, write, 0, usize::MAX) }
}

/// What [`touch`] does, to `nr_pieces` of the 4 KiB pieces, from piece `first` on: the rest need not
/// be resident.
///
/// # Safety
/// As [`touch`], for these pieces.
pub unsafe fn touch_part(
    item: Item,
    base: *mut u8,
    len_bytes: usize,
    write: bool,
    first: usize,
    nr_pieces: usize,
) {
    let left = len_bytes.div_ceil(TOUCH_STRIDE_BYTES).saturating_sub(first);
    for piece in item.share(left.min(nr_pieces)).map(|piece| first + piece) {
        let word = base.wrapping_add(piece * TOUCH_STRIDE_BYTES).cast::<u64>();
        // SAFETY: a word of the caller's range; volatile, so that it is not optimised away.
        unsafe {
            if write {
                word.write_volatile(piece as u64);
            } else {
                word.read_volatile();
            }
        }
    }
}

/// Stores to the first word of each 4 KiB of the `len_bytes` at `base`, and the nanoseconds that each
/// page of 2 MiB (counted from `base`) took at `times`. The items share the pages, which are touched in
/// the order that `order` lists them in, or in their own if it is null.
///
/// # Safety
/// The words are writable, as are `len_bytes` / 2 MiB (rounded up) words at `times`; nobody else uses
/// them during the launch. `order` is null, or readable, with as many words, each of them a different
/// page. All are multiples of 8.
pub unsafe fn touch_timed(
    item: Item,
    base: *mut u8,
    len_bytes: usize,
    times: *mut u64,
    order: *const u64,
) {
    // SAFETY: the caller's promise.
    unsafe { touch_paced(item, base, len_bytes, times, order, 0) }
}

/// What [`touch_timed`] does, with a sleep of that many microseconds before each page (none for 0),
/// which does not count: by then who serves faults is at rest.
///
/// # Safety
/// As [`touch_timed`].
pub unsafe fn touch_paced(
    item: Item,
    base: *mut u8,
    len_bytes: usize,
    times: *mut u64,
    order: *const u64,
    pause_us: u64,
) {
    for nth in item.share(len_bytes.div_ceil(PAGE_BYTES)) {
        // SAFETY: a word of the caller's list.
        let page = if order.is_null() { nth } else { unsafe { order.add(nth).read() as usize } };
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
        let begun = Instant::now();
        let end = len_bytes.min((page + 1) * PAGE_BYTES);
        for offset in (page * PAGE_BYTES..end).step_by(TOUCH_STRIDE_BYTES) {
            // SAFETY: a word of the caller's range; volatile, so that it is not optimised away.
            unsafe { base.wrapping_add(offset).cast::<u64>().write_volatile(offset as u64) };
        }
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: this page's word of the caller's.
        unsafe { times.add(page).write(nanoseconds) };
    }
}

/// How many words of a page [`sweep`] uses, evenly apart.
pub const SWEEP_WORDS: usize = 8;

/// Visits the `nr_pages` pages at `base` in order, eight words of each. With `value` 0 it stores the
/// wrapping sum of the words at `out`; else it stores `value` plus the number of the page in each of
/// them, and 0 at `out`. The first work item does all of it.
///
/// # Safety
/// The pages are readable, and writable unless `value` is 0, and so is `out`; nobody else uses them
/// during the launch; `base` is a multiple of 8.
pub unsafe fn sweep(item: Item, base: *mut u8, nr_pages: usize, value: u64, out: *mut u64) {
    if item.index() != 0 {
        return;
    }
    let mut sum = 0u64;
    for page in 0..nr_pages {
        for word in 0..SWEEP_WORDS {
            let offset = page * PAGE_BYTES + word * (PAGE_BYTES / SWEEP_WORDS);
            let word = base.wrapping_add(offset).cast::<u64>();
            // SAFETY: a word of the caller's pages; volatile, so that each is one access.
            unsafe {
                match value {
                    0 => sum = sum.wrapping_add(word.read_volatile()),
                    value => word.write_volatile(value.wrapping_add(page as u64)),
                }
            }
        }
    }
    // SAFETY: promised by the caller.
    unsafe { out.write(sum) };
}

/// Stores `value` at `address`, whatever that is; the first item does it. For tests of wild accesses.
///
/// # Safety
/// A store to `address` is harmless, or the fault that it causes is what the caller wants.
pub unsafe fn wild(item: Item, address: *mut u64, value: u64) {
    if item.index() == 0 {
        // SAFETY: promised by the caller.
        unsafe { address.write_volatile(value) };
    }
}

/// Waits until the word at `flag` is not 0, but looks no more than `max_spins` times; with a null
/// `flag` it spins that often. Then stores 1 (seen) or 0 (gave up) in word `index` of `out`, unless
/// `out` is null.
///
/// # Safety
/// `flag` is null, or readable and written by atomic stores only; `out` is null, or as many words as
/// the launch has items are writable there.
pub unsafe fn spin(item: Item, flag: *const u32, max_spins: u64, out: *mut u64) {
    let mut seen = false;
    for _ in 0..max_spins {
        // SAFETY: promised by the caller; checked for null.
        seen = !flag.is_null()
            && unsafe { AtomicU32::from_ptr(flag.cast_mut()) }.load(Ordering::Acquire) != 0;
        if seen {
            break;
        }
        core::hint::spin_loop();
    }
    if !out.is_null() {
        // SAFETY: promised by the caller.
        unsafe { out.add(item.index() as usize).write(u64::from(seen)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_counted_as_often_as_asked() {
        for nr_pages in [1, 2, 7, 12, 64] {
            let mut memory = vec![0u64; nr_pages * 8];
            for index in 0..3 {
                let base = memory.as_mut_ptr().cast();
                // SAFETY: pages of 64 bytes, slots 2 to 4 of 8.
                unsafe { count_pages(Item::new(index, 3), base, nr_pages, 64, 5, 2, 42) };
            }
            for page in memory.chunks(8) {
                assert_eq!(page, [0, 0, 5, 5, 5, 0, 0, 0]);
            }
        }
    }

    #[test]
    fn touch_writes_one_word_in_each_piece() {
        let mut memory = vec![u64::MAX; 4 * TOUCH_STRIDE_BYTES / 8];
        let len = memory.len() * 8 - 100;
        for index in 0..3 {
            // SAFETY: the vector is ours.
            unsafe { touch(Item::new(index, 3), memory.as_mut_ptr().cast(), len, false) };
        }
        assert!(memory.iter().all(|word| *word == u64::MAX));
        for index in 0..3 {
            // SAFETY: as above.
            unsafe { touch(Item::new(index, 3), memory.as_mut_ptr().cast(), len, true) };
        }
        for (piece, words) in memory.chunks(TOUCH_STRIDE_BYTES / 8).enumerate() {
            assert_eq!(words[0], piece as u64);
            assert!(words[1..].iter().all(|word| *word == u64::MAX));
        }
    }

    #[test]
    fn timed_touches_write_every_piece_and_a_time_for_each_page() {
        let len = PAGE_BYTES + TOUCH_STRIDE_BYTES + 8;
        let mut memory = vec![u64::MAX; len.div_ceil(8)];
        let mut times = [u64::MAX; 3];
        for index in 0..2 {
            let (base, times) = (memory.as_mut_ptr().cast(), times.as_mut_ptr());
            // SAFETY: the arrays are ours and as long as that.
            unsafe { touch_timed(Item::new(index, 2), base, len, times, core::ptr::null()) };
        }
        for (offset, word) in memory.iter().enumerate().map(|(i, word)| (i * 8, *word)) {
            let touched = offset % TOUCH_STRIDE_BYTES == 0;
            assert_eq!(word, if touched { offset as u64 } else { u64::MAX }, "offset {offset}");
        }
        assert!(times[0] != u64::MAX && times[1] != u64::MAX);
        assert_eq!(times[2], u64::MAX);
    }

    #[test]
    fn paced_touches_rest_before_each_page_and_do_not_count_it() {
        let mut memory = vec![u64::MAX; 2 * PAGE_BYTES / 8];
        let (mut times, order) = ([u64::MAX; 2], [1, 0]);
        let (base, times_at) = (memory.as_mut_ptr().cast(), times.as_mut_ptr());
        let begun = Instant::now();
        // SAFETY: the arrays are ours and as long as that.
        unsafe {
            let item = Item::new(0, 1);
            touch_paced(item, base, 2 * PAGE_BYTES, times_at, order.as_ptr(), 20_000);
        }
        let all = begun.elapsed().as_nanos() as u64;
        assert!(times.iter().all(|&time| time != u64::MAX));
        assert!(times.iter().sum::<u64>() + 40_000_000 <= all);
        assert_eq!(memory[PAGE_BYTES / 8], PAGE_BYTES as u64);
    }

    #[test]
    fn spin_sees_the_flag_and_gives_up_without_it() {
        let (mut out, mut flag) = ([9; 2], 0u32);
        // SAFETY: flag and out are ours.
        unsafe { spin(Item::new(0, 2), &raw const flag, 10, out.as_mut_ptr()) };
        flag = 1;
        // SAFETY: as above.
        unsafe { spin(Item::new(1, 2), &raw const flag, 10, out.as_mut_ptr()) };
        assert_eq!(out, [0, 1]);
        // SAFETY: nothing is touched.
        unsafe { spin(Item::new(0, 1), core::ptr::null(), 10, core::ptr::null_mut()) };
        let _ = flag;
    }

    #[test]
    fn a_sweep_writes_each_page_and_sums_what_it_wrote() {
        let mut pages = vec![0u64; 3 * PAGE_BYTES / 8];
        let (base, mut sum) = (pages.as_mut_ptr().cast::<u8>(), 9);
        // SAFETY: pages and sum are ours.
        unsafe {
            sweep(Item::new(0, 1), base, 3, 100, &raw mut sum);
            assert_eq!(sum, 0);
            sweep(Item::new(1, 2), base, 3, 0, &raw mut sum);
            assert_eq!(sum, 0, "the first item does it");
            sweep(Item::new(0, 2), base, 3, 0, &raw mut sum);
        }
        assert_eq!(sum, SWEEP_WORDS as u64 * (100 + 101 + 102));
        let written = pages.iter().filter(|&&word| word != 0).count();
        assert_eq!(written, 3 * SWEEP_WORDS);
    }

    #[test]
    fn wild_writes_where_it_is_told() {
        let mut word = 0;
        // SAFETY: the word is ours.
        unsafe {
            wild(Item::new(1, 2), &raw mut word, 1);
            assert_eq!(word, 0);
            wild(Item::new(0, 2), &raw mut word, 2);
        }
        assert_eq!(word, 2);
    }
}
