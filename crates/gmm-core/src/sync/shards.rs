//! A table that rarely changes and that many threads read at once.

use core::ops::Deref;
use std::sync::Arc;

use super::{RwLock, note_rmw};

/// How many copies there are of a table.
const NR_SHARDS: usize = if cfg!(shuttle) { 1 } else { 32 };

/// A table of up to `N` values behind `Arc`s. There are several copies of it, each with lines and
/// reference counts of its own: who reads chooses one by what he works on, so that readers that
/// work on different things write different lines. (What reads without writing at all would need
/// `unsafe`, or allocate on the fault path.)
#[derive(Debug)]
pub struct Shards<T, const N: usize>(Box<[Table<T, N>]>);

type Table<T, const N: usize> = [RwLock<Option<Shared<T>>>; N];

/// A value of [`Shards`], which lives at least as long.
#[derive(Debug)]
#[expect(clippy::redundant_allocation, reason = "the outer count is the table's own")]
pub struct Shared<T>(Arc<Arc<T>>);

impl<T, const N: usize> Shards<T, N> {
    /// An empty table.
    pub fn new() -> Self {
        Self((0..NR_SHARDS).map(|_| [const { RwLock::new(None) }; N]).collect())
    }

    /// What is at `index`, from the copy that `by` chooses.
    pub fn get(&self, by: u64, index: usize) -> Option<Shared<T>> {
        self.0[shard_of(by, NR_SHARDS)][index].with(Clone::clone)
    }

    /// Puts `value` at `index`, in all copies.
    pub fn set(&self, index: usize, value: Option<&Arc<T>>) {
        for table in &self.0 {
            let value = value.map(|value| Shared(Arc::new(Arc::clone(value))));
            table[index].with_mut(|slot| *slot = value);
        }
    }
}

/// Which of so many copies work on `by` uses: spread over all whatever they are a multiple of
/// (Fibonacci hashing, Knuth, The Art of Computer Programming, 6.4).
pub(crate) fn shard_of(by: u64, nr_shards: usize) -> usize {
    let hash = by.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    ((hash * nr_shards as u64) >> 32) as usize
}

impl<T, const N: usize> Default for Shards<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Shared<T> {
    /// The value itself, to keep.
    pub fn to_arc(&self) -> Arc<T> {
        note_rmw(&**self.0);
        Arc::clone(&self.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        note_rmw(&*self.0);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        note_rmw(&*self.0);
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_is_far_apart_is_spread_too() {
        for step in [1, 8, 512, 1 << 14] {
            let used: HashSet<_> = (0..64).map(|n| shard_of(n * step, NR_SHARDS)).collect();
            assert!(used.len() > NR_SHARDS / 2, "{step}: {used:?}");
        }
    }

    #[test]
    fn what_is_taken_out_lives_until_its_last_reader_has_gone() {
        let table = Shards::<u32, 2>::new();
        let value = Arc::new(7);
        table.set(1, Some(&value));
        let reader = table.get(5, 1).expect("it is there");
        assert!(table.get(5, 0).is_none());
        table.set(1, None);
        assert!((0..100).all(|by| table.get(by, 1).is_none()));
        assert_eq!((*reader, Arc::strong_count(&value)), (7, 2));
        drop(reader);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
