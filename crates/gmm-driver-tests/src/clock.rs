//! Clocks for tests.

use core::time::Duration;
use std::time::Instant;

use gmm_core::Clock;
use gmm_core::sync::atomic::{AtomicU64, Ordering};

/// A virtual clock. It goes on by a step each time it is read, so that every bounded wait ends,
/// and by what a hanging driver call was allowed.
#[derive(Debug)]
pub struct TestClock {
    now_ns: AtomicU64,
    step_ns: u64,
}

impl TestClock {
    /// A clock that goes on by `step` at each reading.
    pub fn new(step: Duration) -> Self {
        Self { now_ns: AtomicU64::new(0), step_ns: nanoseconds(step) }
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(nanoseconds(by), Ordering::SeqCst);
    }

    /// The time, without letting any pass.
    pub fn peek(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.fetch_add(self.step_ns, Ordering::SeqCst) + self.step_ns)
    }
}

fn nanoseconds(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// The machine's monotonic clock, for tests with real threads.
#[derive(Debug)]
pub struct WallClock(Instant);

impl Default for WallClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
