//! Waiting for words in memory that another process may share: look for a while, then sleep.
//!
//! Every wait for an answer of a worker is bounded, and ends when the context dies, since the
//! watcher then changes the word. Threads that have nothing to do rest until they are woken: an
//! idle process makes no noise.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// When `timeout` from now is; one that is too long to be reached is as good as never.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + timeout.min(NEVER)
}

/// Sleeps while `word` holds `value`, at most `timeout`; may wake early.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = rustix::thread::Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // Changed meanwhile, interrupted, timed out: the caller looks again in each case.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&timeout));
}

/// As [`sleep_while`], for as long as nothing happens: for threads that have nothing to do.
pub(crate) fn rest_while(word: &AtomicU32, value: u32) {
    // As above.
    let _ = futex::wait(word, futex::Flags::empty(), value, None);
}

/// Wakes up to `n` sleepers on `word`.
pub(crate) fn wake(word: &AtomicU32, n: u32) {
    let _ = futex::wake(word, futex::Flags::empty(), n);
}

/// Changes `word` and wakes all who sleep on it.
pub(crate) fn bump(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    wake(word, i32::MAX as u32);
}

/// Lets time pass, more exactly than a sleep does. For the lab's knobs.
pub(crate) fn delay(time: Duration) {
    if !time.is_zero() {
        delay_until(Instant::now() + time);
    }
}

/// As [`delay`], to a point in time.
pub(crate) fn delay_until(end: Instant) {
    const TIMER_SLACK: Duration = Duration::from_micros(120);
    let left = end.saturating_duration_since(Instant::now());
    if left > TIMER_SLACK {
        std::thread::sleep(left - TIMER_SLACK);
    }
    while Instant::now() < end {
        core::hint::spin_loop();
    }
}
