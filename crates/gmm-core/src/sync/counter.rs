//! Counters that are read without a lock. Plain atomics under every scheduler: no schedule
//! depends on what was counted.

use core::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds to it: one read-modify-write.
    pub fn add(&self, n: u64) {
        super::note_rmw(&self.0);
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds to it where everyone who writes this counter holds the same lock: a load and a store.
    pub fn add_locked(&self, n: u64) {
        self.0.store(self.get() + n, Ordering::Relaxed);
    }

    /// Makes it `n` if it is less; as [`Counter::add_locked`].
    pub fn raise_locked(&self, n: u64) {
        if n > self.get() {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// Makes it 0.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
