//! A table that rarely changes and that many threads read at once.

use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread_local;

use super::{RwLock, note_rmw};

/// How many copies there are of a table.
const NR_SHARDS: usize = if cfg!(shuttle) { 1 } else { 32 };

/// A table of up to `N` values behind `Arc`s. There are several copies of it, each with lines and
/// reference counts of its own: a thread always reads the same, and few others do, so that threads
/// that read at once write different lines. (What reads without writing at all would need `unsafe`,
/// or allocate on the fault path.)
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

    /// What is at `index`.
    pub fn get(&self, index: usize) -> Option<Shared<T>> {
        self.0[of_this_thread(NR_SHARDS)][index].with(Clone::clone)
    }

    /// Puts `value` at `index`, in all copies.
    pub fn set(&self, index: usize, value: Option<&Arc<T>>) {
        for table in &self.0 {
            let value = value.map(|value| Shared(Arc::new(Arc::clone(value))));
            table[index].with_mut(|slot| *slot = value);
        }
    }
}

thread_local! {
    /// This thread's, from 1; 0 until it is asked for.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Which of so many copies of something this thread uses: threads take turns.
#[inline]
pub(crate) fn of_this_thread(nr_copies: usize) -> usize {
    let number = NUMBER.get();
    let number = if number > 0 { number } else { number_thread() };
    number % nr_copies
}

#[cold]
fn number_thread() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
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
    use super::*;

    #[test]
    fn a_thread_keeps_its_copy_and_the_next_has_another() {
        let number = || of_this_thread(usize::MAX);
        let others = [(), ()].map(|()| std::thread::spawn(number).join().unwrap());
        assert_eq!(number(), number());
        assert_ne!(others[0], others[1]);
        assert!(!others.contains(&number()));
        assert_eq!(of_this_thread(4), number() % 4);
    }

    #[test]
    fn what_is_taken_out_lives_until_its_last_reader_has_gone() {
        let table = Shards::<u32, 2>::new();
        let value = Arc::new(7);
        table.set(1, Some(&value));
        let reader = table.get(1).expect("it is there");
        assert!(table.get(0).is_none());
        table.set(1, None);
        assert!(table.0.iter().all(|copy| copy[1].with(Option::is_none)));
        assert_eq!((*reader, Arc::strong_count(&value)), (7, 2));
        drop(reader);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
