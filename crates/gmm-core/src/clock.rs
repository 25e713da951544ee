//! Time as the core sees it: handed in, so that tests and simulations can own it.

use core::time::Duration;

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start that never changes. Called on the fault path: it must not
    /// block or allocate.
    fn now(&self) -> Duration;
}
