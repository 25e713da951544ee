//! Faults on pages that a handler thread is bringing ahead: it answers them when it is done, and no
//! second thread has to wait for it and be woken.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gmm_core::{Batch, PageRange};

use crate::uffd::Event;

/// The most faults that wait for one thread; more are served as any other.
const MAX_WAITING: usize = 16;

/// Pages that are being brought, and who waits for them.
pub(crate) struct Coming(Mutex<State>);

struct State {
    pages: Option<PageRange>,
    waiting: Batch<Event, MAX_WAITING>,
}

impl Default for Coming {
    fn default() -> Self {
        Self(Mutex::new(State { pages: None, waiting: Batch::new() }))
    }
}

impl Coming {
    /// This thread brings `pages`, and then calls [`Coming::end`].
    pub(crate) fn begin(&self, pages: PageRange) {
        self.state().pages = Some(pages);
    }

    /// Whether the thread that brings its page answers `event`.
    pub(crate) fn takes(&self, event: Event) -> bool {
        let mut state = self.state();
        let page = event.waits_at().map(|addr| addr.page());
        let is_coming =
            page.is_some_and(|page| state.pages.is_some_and(|pages| pages.contains(page)));
        let takes = is_coming && !state.waiting.is_full();
        if takes {
            state.waiting.push(event);
        }
        takes
    }

    /// The pages have come, or won't: who waits is to be answered.
    pub(crate) fn end(&self) -> Batch<Event, MAX_WAITING> {
        let mut state = self.state();
        state.pages = None;
        std::mem::replace(&mut state.waiting, Batch::new())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use gmm_core::PageNr;
    use gmm_core::driver::Access;

    use super::*;

    #[test]
    fn faults_on_coming_pages_wait_for_who_brings_them() {
        let coming = Coming::default();
        let fault = |page| {
            let addr = PageNr(page).start();
            Event::Missing { addr, access: Access::Read }
        };
        assert!(!coming.takes(fault(10)), "nothing is coming");
        coming.begin(PageRange { start: PageNr(10), nr_pages: 2 });
        assert!(coming.takes(fault(10)) && coming.takes(fault(11)));
        assert!(!coming.takes(fault(9)) && !coming.takes(fault(12)));
        assert!(!coming.takes(Event::Remapped));
        let waiting: Vec<_> = coming.end().into_iter().collect();
        assert_eq!(waiting, [fault(10), fault(11)]);
        assert!(!coming.takes(fault(10)), "it has come");
        assert!(coming.end().is_empty());
    }

    #[test]
    fn more_than_can_wait_are_served_as_any_other() {
        let coming = Coming::default();
        coming.begin(PageRange { start: PageNr(1), nr_pages: 100 });
        let fault = |page| Event::WriteProtected { addr: PageNr(page).start() };
        let nr_taken = (1..=100).filter(|&page| coming.takes(fault(page))).count();
        assert_eq!(nr_taken, MAX_WAITING);
        assert_eq!(coming.end().len(), MAX_WAITING);
    }
}
