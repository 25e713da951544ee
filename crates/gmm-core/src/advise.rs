//! Hints: bring pages to a node before they are used, drop pages that are not needed any more.

use crate::remap::RemapCause;
use crate::space::Space;
use crate::stats::Event;
use crate::trace::TraceEvent;
use crate::{NodeId, PageNr, PageRange, Result, VirtAddr};

impl Space {
    /// `DONTNEED`: drops the contents of the pages that lie wholly in `addr .. addr + len_bytes`,
    /// on every node; they read as zero afterwards. A range without a whole page is a success
    /// that does nothing.
    ///
    /// # Errors
    /// Before anything is dropped: `ZeroLength`, `AddressOverflow`, `NotMapped` of
    /// [`Error`](crate::Error). Later, `PageHeld`, `PagePinned`, `PageKept`, `PageBusy` or `Mmu`
    /// for the page that could not be dropped; the pages before it have been.
    pub fn discard(&self, addr: VirtAddr, len_bytes: u64) -> Result<()> {
        let begun = self.begin();
        self.regions.lock().covering(PageRange::covering(addr, len_bytes)?)?;
        let range = PageRange::within(addr, len_bytes)?;
        for (page, entry) in self.table.entries(range) {
            let mut m = entry.lock();
            if m.is_open() {
                self.discard_page(&mut m, page)?;
            }
        }
        self.trim_host();
        let (page, nr_pages) = (range.start, range.nr_pages);
        self.end(begun, || TraceEvent::Discard { page, nr_pages });
        Ok(())
    }

    fn discard_page(&self, m: &mut crate::entry::Mapping, page: PageNr) -> Result<()> {
        self.check_unheld(m, page)?;
        self.check_unpinned(m, page, None)?;
        self.ask(m, page, RemapCause::Discard, |_| true)?;
        self.unpoison(m, page);
        self.clear(m, page, m.mapped())?;
        for copy in m.copies() {
            self.stats.count(copy.node, Event::Discarded);
        }
        self.drop_copies(m, page, |_| true);
        Ok(())
    }

    /// Gives host frames that nobody needs to keep warm back to the operating system.
    pub(crate) fn trim_host(&self) {
        self.known_node(NodeId::HOST).trim(self.config.warm_host_frames);
    }
}
