//! Waiting for what passes by itself: sleeps that grow, and end.

use std::time::Duration;

/// How long a page that is pinned is waited for.
const PIN_WAIT: Duration = Duration::from_millis(300);

/// What is left of a wait.
pub(crate) struct Patience {
    next: Duration,
    left: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { next: Duration::from_micros(20), left: PIN_WAIT }
    }

    /// Waits a little; `false` if there has been enough of it.
    pub(crate) fn wait(&mut self) -> bool {
        if self.left.is_zero() {
            return false;
        }
        let pause = self.next.min(self.left);
        std::thread::sleep(pause);
        self.left -= pause;
        self.next = (self.next * 2).min(Duration::from_millis(20));
        true
    }
}
