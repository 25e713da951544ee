//! Locks and waiting, behind one facade: `std` in production, shuttle (`--cfg shuttle`) when
//! schedules are explored. Locks carry a rank, and debug builds check that every thread takes
//! them in rank order.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

#[cfg(not(shuttle))]
use std::sync as imp;
#[cfg(not(shuttle))]
pub use std::sync::atomic;

#[cfg(shuttle)]
use shuttle::sync as imp;
#[cfg(shuttle)]
pub use shuttle::sync::atomic;

use crate::{Batch, Clock};

mod counter;
mod shards;
#[cfg(all(debug_assertions, not(shuttle)))]
pub mod traffic;

pub use counter::Counter;
pub(crate) use shards::of_this_thread;
pub use shards::{Shards, Shared};

/// A read-modify-write of what lies at `at`, for who counts them.
fn note_rmw<T: ?Sized>(at: &T) {
    #[cfg(all(debug_assertions, not(shuttle)))]
    traffic::note(core::ptr::from_ref(at).addr());
    #[cfg(not(all(debug_assertions, not(shuttle))))]
    let _ = at;
}

/// Runs `work`, which is no part of the core though it uses its locks: what it writes is not
/// counted.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(all(debug_assertions, not(shuttle)))]
    return traffic::uncounted(work);
    #[cfg(not(all(debug_assertions, not(shuttle))))]
    work()
}

/// The lock order: a thread that holds a lock may only take locks of a higher rank. `Entry` may
/// be taken by try-lock while another entry is held, and several at once in the order of their
/// addresses ([`Mutex::lock_all`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// Who may join, leave, or change the set of regions.
    Setup = 0,
    /// The region table.
    Regions = 1,
    /// One page's entry.
    Entry = 2,
    /// A node's frame lists.
    Frames = 3,
}

/// A mutex of rank `R` (a [`Rank`] as `u8`). A holder that panicked does not poison it. The core
/// does not panic on any input; threads that serve faults abort the process should it ever, and
/// other threads unwind, which can leave what the mutex guards half changed.
#[derive(Debug, Default)]
pub struct Mutex<T, const R: u8>(imp::Mutex<T>);

/// The right to use what a [`Mutex`] guards.
pub struct MutexGuard<'a, T, const R: u8> {
    inner: Option<imp::MutexGuard<'a, T>>,
    #[cfg(shuttle)]
    mutex: &'a imp::Mutex<T>,
    _held: held::Held<R>,
}

impl<T, const R: u8> Mutex<T, R> {
    /// A new mutex.
    pub const fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    /// Takes the lock, waiting for it.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a higher rank.
    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        held::check::<R>();
        let inner = self.0.lock().unwrap_or_else(|e| e.into_inner());
        self.guard(inner)
    }

    /// Takes up to `N` locks of one rank, in the order of their addresses: of threads that do so
    /// none waits for one that waits for it. `None` in place of none.
    ///
    /// # Panics
    /// As [`Mutex::lock`]; if there are more than `N`.
    pub fn lock_all<'a, K, const N: usize>(
        locks: impl Iterator<Item = (K, &'a Self)>,
    ) -> Batch<(K, Option<MutexGuard<'a, T, R>>), N>
    where
        T: 'a,
    {
        held::check::<R>();
        let mut sorted: [Option<(K, &Self)>; N] = [const { None }; N];
        for (place, lock) in sorted.iter_mut().zip(locks) {
            *place = Some(lock);
        }
        sorted.sort_unstable_by_key(|lock| lock.as_ref().map(|&(_, m)| core::ptr::from_ref(m)));
        let lock = |(key, mutex): (K, &'a Self)| {
            let inner = mutex.0.lock().unwrap_or_else(|e| e.into_inner());
            (key, Some(mutex.guard(inner)))
        };
        sorted.into_iter().flatten().map(lock).collect()
    }

    /// Takes the lock if that needs no waiting; allowed at any rank up to its own.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        let inner = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(imp::TryLockError::Poisoned(e)) => e.into_inner(),
            Err(imp::TryLockError::WouldBlock) => return None,
        };
        Some(self.guard(inner))
    }

    fn guard<'a>(&'a self, inner: imp::MutexGuard<'a, T>) -> MutexGuard<'a, T, R> {
        note_rmw(&self.0);
        MutexGuard {
            inner: Some(inner),
            #[cfg(shuttle)]
            mutex: &self.0,
            _held: held::Held::new(&self.0),
        }
    }
}

impl<T, const R: u8> Deref for MutexGuard<'_, T, R> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("guard is only empty inside Condvar::wait_timeout")
    }
}

impl<T, const R: u8> DerefMut for MutexGuard<'_, T, R> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("guard is only empty inside Condvar::wait_timeout")
    }
}

/// Where threads wait for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub struct Condvar(imp::Condvar);

impl Condvar {
    /// A new condition variable.
    pub const fn new() -> Self {
        Self(imp::Condvar::new())
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification; wakes spuriously too.
    pub fn wait<T, const R: u8>(&self, guard: &mut MutexGuard<'_, T, R>) {
        let inner = guard.inner.take().expect("a guard that is not waiting");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(|e| e.into_inner()));
    }

    /// Waits for a notification, at most `timeout`; wakes spuriously too.
    pub fn wait_timeout<T, const R: u8>(
        &self,
        guard: &mut MutexGuard<'_, T, R>,
        timeout: Duration,
    ) {
        let inner = guard.inner.take().expect("a guard that is not waiting");
        #[cfg(not(shuttle))]
        let inner = self.0.wait_timeout(inner, timeout).unwrap_or_else(|e| e.into_inner()).0;
        // Shuttle has no time: a wait is a chance for the others to run, and then wakes.
        #[cfg(shuttle)]
        let inner = {
            let _ = timeout;
            drop(inner);
            shuttle::thread::yield_now();
            guard.mutex.lock().unwrap_or_else(|e| e.into_inner())
        };
        guard.inner = Some(inner);
    }
}

/// A read-write lock for what changes rarely; taken last and held for a moment only.
#[derive(Debug, Default)]
pub struct RwLock<T>(imp::RwLock<T>);

impl<T> RwLock<T> {
    /// A new lock.
    pub const fn new(value: T) -> Self {
        Self(imp::RwLock::new(value))
    }

    /// Reads through `f`.
    pub fn with<U>(&self, f: impl FnOnce(&T) -> U) -> U {
        // Once to take it, once to let go.
        note_rmw(&self.0);
        note_rmw(&self.0);
        f(&self.0.read().unwrap_or_else(|e| e.into_inner()))
    }

    /// Changes through `f`.
    pub fn with_mut<U>(&self, f: impl FnOnce(&mut T) -> U) -> U {
        f(&mut self.0.write().unwrap_or_else(|e| e.into_inner()))
    }
}

/// A point of time by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    pub(crate) fn after(clock: &dyn Clock, timeout: Duration) -> Self {
        // A timeout too long to be reached is one that never ends.
        Self(clock.now().saturating_add(timeout))
    }

    /// What is left, `None` when it has passed.
    pub(crate) fn left(self, clock: &dyn Clock) -> Option<Duration> {
        self.0.checked_sub(clock.now()).filter(|left| !left.is_zero())
    }
}

#[cfg(debug_assertions)]
mod held {
    use core::cell::Cell;

    #[cfg(shuttle)]
    use shuttle::thread_local;
    #[cfg(not(shuttle))]
    use std::thread_local;

    thread_local! {
        /// How many locks of each rank this thread holds.
        static HELD: [Cell<u8>; 4] = const { [const { Cell::new(0) }; 4] };
    }

    pub(super) struct Held<const R: u8> {
        #[cfg(not(shuttle))]
        mutex: usize,
    }

    impl<const R: u8> Held<R> {
        pub(super) fn new<T>(_mutex: &T) -> Self {
            HELD.with(|h| h[R as usize].set(h[R as usize].get() + 1));
            Self {
                #[cfg(not(shuttle))]
                mutex: core::ptr::from_ref(_mutex).addr(),
            }
        }
    }

    impl<const R: u8> Drop for Held<R> {
        fn drop(&mut self) {
            #[cfg(not(shuttle))]
            super::traffic::note(self.mutex);
            // Guards may be dropped while the thread's locals are torn down.
            let _ = HELD.try_with(|h| h[R as usize].set(h[R as usize].get() - 1));
        }
    }

    pub(super) fn check<const R: u8>() {
        HELD.with(|h| {
            if let Some(rank) = (R as usize..4).find(|&r| h[r].get() > 0) {
                panic!("lock order: a lock of rank {R} taken while one of rank {rank} is held");
            }
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) struct Held<const R: u8>;

    impl<const R: u8> Held<R> {
        pub(super) fn new<T>(_mutex: &T) -> Self {
            Self
        }
    }

    pub(super) fn check<const R: u8>() {}
}

#[cfg(all(test, debug_assertions, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "lock order")]
    fn lock_order_is_checked() {
        let (frames, entry) = (Mutex::<(), 3>::new(()), Mutex::<(), 2>::new(()));
        let _frames = frames.lock();
        let _entry = entry.lock();
    }

    #[test]
    fn entries_nest_by_try_lock_only() {
        let (a, b) = (Mutex::<(), 2>::new(()), Mutex::<(), 2>::new(()));
        let _a = a.lock();
        assert!(b.try_lock().is_some());
        assert!(a.try_lock().is_none());
        let nested = std::panic::catch_unwind(|| drop(b.lock()));
        assert!(nested.is_err());
    }
}
