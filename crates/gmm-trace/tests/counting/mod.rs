//! An allocator that counts what the thread that uses it holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gmm_trace::{Error, MEMORY_AT_LEAST, MEMORY_PER_BYTE, Trace, read};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    // Neither is dropped nor made when first used: the allocator may not allocate.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn add(bytes: i64) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: all is done by the system's allocator; counting touches no memory but two numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as above; the memory came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both may exist for a moment.
        add(new_size as i64);
        add(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// The most that `work` held at once, in bytes, and what it returned.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    ((PEAK.get() - before) as u64, result)
}

/// Reads a file, and fails if that takes more memory than is promised for its uncompressed bytes.
pub(crate) fn read_within_bound(file: &[u8], plain_bytes: usize) -> Result<Trace, Error> {
    let (peak, result) = peak(|| read(file, &mut |_| {}));
    let bound = MEMORY_PER_BYTE * plain_bytes as u64 + MEMORY_AT_LEAST;
    assert!(peak <= bound, "{peak} bytes for a file of {plain_bytes}, more than {bound}");
    result
}
