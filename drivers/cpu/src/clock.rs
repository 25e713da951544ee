//! The machine's monotonic clock.

use std::time::{Duration, Instant};

use gmm_core::Clock;

/// Time by `CLOCK_MONOTONIC`, since the value was made. Reads the clock without a system call.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = MonotonicClock::new();
        let times: Vec<_> = (0..1000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
        assert!(times[999] > Duration::ZERO);
    }
}
