//! Looking for something for a while before going to sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the waits for one thing have taken lately, so that it is looked for as long as it is
/// likely to come soon, and no longer.
#[derive(Debug)]
pub struct Waits {
    /// An average in which the last wait counts a fourth.
    typical_ns: AtomicU64,
}

impl Default for Waits {
    /// At first everything is worth a look.
    fn default() -> Self {
        Self { typical_ns: AtomicU64::new(100_000) }
    }
}

impl Waits {
    /// Longer ones count as this long, so that a pause is soon forgotten.
    const LONGEST: Duration = Duration::from_millis(4);

    /// Looks for `ready` for twice as long as it took lately, at most for `budget`: and hardly at
    /// all if even that would most likely be too short.
    pub fn look(&self, budget: Duration, ready: impl FnMut() -> bool) -> bool {
        const LEAST: Duration = Duration::from_micros(20);
        let typical = Duration::from_nanos(self.typical_ns.load(Ordering::Relaxed));
        let wanted = if typical > budget { LEAST } else { 2 * typical + LEAST };
        spin(wanted.min(budget), ready)
    }

    /// One more wait has ended, looked or slept through.
    pub fn note(&self, took: Duration) {
        let took = took.min(Self::LONGEST).as_nanos() as u64;
        let before = self.typical_ns.load(Ordering::Relaxed);
        // One that is lost to another thread does no harm.
        self.typical_ns.store(before - before / 4 + took / 4, Ordering::Relaxed);
    }
}

/// Looks for `ready` for up to `budget`, giving the processor to others now and then so that
/// whoever is waited for can run even where processors are few.
fn spin(budget: Duration, mut ready: impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if budget.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..24 {
            core::hint::spin_loop();
            if ready() {
                return true;
            }
        }
        rustix::thread::sched_yield();
        if start.elapsed() >= budget {
            return ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often something that never comes is looked for.
    fn looks(waits: &Waits, budget: Duration) -> u32 {
        let mut looks = 0;
        waits.look(budget, || {
            looks += 1;
            false
        });
        looks
    }

    #[test]
    fn what_takes_too_long_is_hardly_looked_for() {
        let waits = Waits::default();
        let typical = || waits.typical_ns.load(Ordering::Relaxed);
        assert_eq!(looks(&waits, Duration::ZERO), 1);
        (0..20).for_each(|_| waits.note(Duration::from_micros(300)));
        assert!((290_000..=300_000).contains(&typical()), "{}", typical());
        let begun = Instant::now();
        assert!(looks(&waits, Duration::from_millis(1)) > 1);
        assert!(begun.elapsed() >= Duration::from_micros(600));
        // An hour's pause is forgotten after a few.
        waits.note(Duration::from_secs(3600));
        assert!(typical() > 1_000_000 && typical() < 1_300_000);
        (0..4).for_each(|_| waits.note(Duration::from_micros(300)));
        assert!(typical() < 700_000);
    }
}
