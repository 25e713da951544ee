//! Which faults can belong to a run at all, found without a lock: where a program jumps about, its
//! faults only store their page here, and threads that serve them do not wait for each other.
//!
//! Loads and stores, no read-modify-writes; what is lost when two threads store at once costs a run
//! one fault more before it is found.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::PageNr;

/// So many pages are remembered; a line of memory.
const NR_LONERS: usize = 8;

/// Pages that faulted lately and were no run's.
#[derive(Debug)]
pub(super) struct Loners {
    pages: [AtomicU64; NR_LONERS],
    count: AtomicUsize,
}

/// How many loners there were when something happened. What is so many back that others have taken
/// its place in a table is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age(usize);

/// Where a run's faults may be: page numbers from the first to the second.
#[derive(Debug)]
pub(super) struct Reach {
    from: AtomicU64,
    to: AtomicU64,
    /// As of then.
    age: AtomicUsize,
}

impl Default for Loners {
    fn default() -> Self {
        Self { pages: [const { AtomicU64::new(u64::MAX) }; NR_LONERS], count: AtomicUsize::new(0) }
    }
}

impl Default for Reach {
    /// Nowhere.
    fn default() -> Self {
        Self { from: AtomicU64::new(u64::MAX), to: AtomicU64::new(0), age: AtomicUsize::new(0) }
    }
}

impl Loners {
    /// The page next to `page` that faulted before it, if there is one. Else `page` is remembered.
    pub(super) fn neighbour(&self, page: PageNr) -> Option<PageNr> {
        let known = || self.pages.iter().map(|known| known.load(Relaxed));
        let before = known().find(|&known| known != u64::MAX && known.abs_diff(page.0) == 1);
        if before.is_none() {
            self.remember(page);
        }
        before.map(PageNr)
    }

    /// The page of a fault that belongs to no run.
    pub(super) fn remember(&self, page: PageNr) {
        if !self.pages.iter().any(|known| known.load(Relaxed) == page.0) {
            let count = self.count.load(Relaxed);
            self.pages[count % NR_LONERS].store(page.0, Relaxed);
            self.count.store(count.wrapping_add(1), Relaxed);
        }
    }

    pub(super) fn age(&self) -> Age {
        Age(self.count.load(Relaxed))
    }
}

impl Age {
    /// Whether there were too many loners since `then` for a run of that time to go on.
    pub(super) fn is_past(self, then: Age) -> bool {
        self.0.wrapping_sub(then.0) >= NR_LONERS
    }
}

impl Reach {
    pub(super) fn contains(&self, page: PageNr, now: Age) -> bool {
        (self.from.load(Relaxed)..=self.to.load(Relaxed)).contains(&page.0)
            && !now.is_past(Age(self.age.load(Relaxed)))
    }

    pub(super) fn set(&self, (from, to): (PageNr, PageNr), age: Age) {
        self.from.store(from.0, Relaxed);
        self.to.store(to.0, Relaxed);
        self.age.store(age.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_meets_the_one_before_or_after_it() {
        let loners = Loners::default();
        assert_eq!(loners.neighbour(PageNr(10)), None);
        assert_eq!(loners.neighbour(PageNr(10)), None);
        assert_eq!(loners.neighbour(PageNr(12)), None);
        assert_eq!(loners.neighbour(PageNr(13)), Some(PageNr(12)));
        assert_eq!(loners.neighbour(PageNr(9)), Some(PageNr(10)));
        (0..8).for_each(|n| assert_eq!(loners.neighbour(PageNr(100 + 2 * n)), None));
        assert_eq!(loners.neighbour(PageNr(9)), None, "the oldest are forgotten");
        assert_eq!(loners.neighbour(PageNr(0)), None);
    }
}
