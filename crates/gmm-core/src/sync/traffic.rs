//! Which read-modify-writes of shared memory a piece of work does: what makes processors wait for
//! each other's cache lines. Counted in debug builds, by everything in [`sync`](crate::sync), for
//! a thread that asks; release builds have none of it.

use core::cell::RefCell;
use std::thread_local;

/// Read-modify-writes that one thread did, in order, by the 64-byte line in which what they
/// changed begins.
pub type Lines = Vec<usize>;

thread_local! {
    static LINES: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

/// Runs `work` and says which read-modify-writes it did on this thread: taking a lock is one,
/// and letting go of it another.
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Lines) {
    LINES.with(|lines| lines.replace(Some(Lines::new())));
    let done = work();
    (done, LINES.with(RefCell::take).unwrap_or_default())
}

pub(super) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let lines = LINES.with(RefCell::take);
    let done = work();
    LINES.with(|counted| counted.replace(lines));
    done
}

/// A read-modify-write of what lies at `address`.
pub(super) fn note(address: usize) {
    // Guards may be dropped while the thread's locals are torn down.
    let _ = LINES.try_with(|lines| {
        if let Some(lines) = lines.borrow_mut().as_mut() {
            lines.push(address / 64);
        }
    });
}
