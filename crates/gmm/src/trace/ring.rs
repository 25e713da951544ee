//! A ring of records with one producer and one consumer, neither of which ever waits.
//!
//! | word | who writes it | what it says |
//! |---|---|---|
//! | `head` | the producer | how many records were put in, ever |
//! | `tail` | the consumer | how many were taken out, ever |
//! | `slots` | the producer | record n in slot n modulo the length, while `tail <= n < head` |
//! | `dropped` | the producer | how many did not fit |
//!
//! A record's words are stored before `head` says so (release), and read after it has (acquire);
//! they are not stored again before `tail` says that they were read (release, acquire).
//! `tests/trace_ring.rs` tries every interleaving of the two threads' loads and stores.

use super::atomic::{AtomicU64, Ordering};

/// A ring of records of so many words. No two rings share a line of memory.
#[repr(align(128))]
pub(crate) struct Ring<const WORDS: usize> {
    head: AtomicU64,
    tail: AtomicU64,
    dropped: AtomicU64,
    slots: Box<[[AtomicU64; WORDS]]>,
}

impl<const WORDS: usize> Ring<WORDS> {
    /// A ring of `len` records, a power of two. Allocates; nothing else here does.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len.is_power_of_two(), "a ring of {len} records");
        let slot = |_| core::array::from_fn(|_| AtomicU64::new(0));
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            slots: (0..len).map(slot).collect(),
        }
    }

    /// Puts a record in, or counts it as dropped. Called by the producer only.
    pub(crate) fn push(&self, record: &[u64; WORDS]) {
        let head = self.head.load(Ordering::Relaxed);
        if head - self.tail.load(Ordering::Acquire) == self.slots.len() as u64 {
            let dropped = self.dropped.load(Ordering::Relaxed);
            self.dropped.store(dropped + 1, Ordering::Relaxed);
            return;
        }
        for (word, value) in self.slot(head).iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        self.head.store(head + 1, Ordering::Release);
    }

    /// Takes the oldest record out. Called by the consumer only.
    pub(crate) fn pop(&self) -> Option<[u64; WORDS]> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail == self.head.load(Ordering::Acquire) {
            return None;
        }
        let slot = self.slot(tail);
        let record = core::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
        self.tail.store(tail + 1, Ordering::Release);
        Some(record)
    }

    /// How many records did not fit, ever.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn slot(&self, nr: u64) -> &[AtomicU64; WORDS] {
        &self.slots[nr as usize & (self.slots.len() - 1)]
    }
}
