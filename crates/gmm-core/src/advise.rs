//! Hints: bring pages to a node before they are used, drop pages that are not needed any more.

use crate::driver::{Access, DriverError};
use crate::fault::{Cause, Want};
use crate::remap::RemapCause;
use crate::space::Space;
use crate::stats::Event;
use crate::trace::TraceEvent;
use crate::{Error, NodeId, PageNr, PageRange, Processor, ProcessorSet, Result, VirtAddr};

impl Space {
    /// `WILLNEED`: makes the pages that hold `addr .. addr + len_bytes` resident on `node` and
    /// maps them for its processors; pages that are there already become hot. Returns when done.
    ///
    /// # Errors
    /// Before anything is moved: [`Error::ZeroLength`], [`Error::AddressOverflow`],
    /// [`Error::UnknownNode`], [`Error::NotMapped`] with the first address in no region. Later,
    /// the errors of [`Space::fault`] for the page that failed, or [`Error::PageHeld`] if a launch
    /// holds it for longer than [`Config::hold_wait`](crate::Config::hold_wait); the pages before
    /// it have moved.
    pub fn prefetch(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<()> {
        let begun = self.begin();
        let range = PageRange::covering(addr, len_bytes)?;
        let target = self.node(node)?;
        let refused_by = {
            let regions = self.regions.lock();
            let covering = regions.covering(range)?;
            covering.iter().fold(ProcessorSet::EMPTY, |set, r| set.union(r.refused_by))
        };
        let may_map = |p: &Processor| p.node == node && !refused_by.contains(p.id);
        let cpu = Some(self.cpu().clone()).filter(|p| may_map(p));
        let mappers: Vec<_> =
            cpu.into_iter().chain(self.processors().filter(|p| may_map(p))).collect();
        for page in range.pages() {
            let addr = page.start();
            let entry = self.table.get(page).ok_or(Error::NotMapped { addr })?;
            let want = Want {
                page,
                addr,
                node: target,
                processor: None,
                access: Access::Read,
                cause: Cause::Prefetch,
            };
            let mut is_mapped = false;
            for processor in &mappers {
                match self.resolve(entry, &Want { processor: Some(processor), ..want }) {
                    // It has died or left: it has no use for the page, the others have.
                    Err(
                        Error::Mmu { cause: DriverError::Dead, .. }
                        | Error::NotAttached { .. }
                        | Error::RegionRefused { .. },
                    ) => {}
                    Err(error) => return Err(error),
                    Ok(_) => is_mapped = true,
                }
            }
            if !is_mapped {
                self.resolve(entry, &want)?;
            }
        }
        let (page, nr_pages) = (range.start, range.nr_pages);
        self.end(begun, || TraceEvent::Prefetch { node, page, nr_pages });
        Ok(())
    }

    /// `DONTNEED`: drops the contents of the pages that lie wholly in `addr .. addr + len_bytes`,
    /// on every node; they read as zero afterwards. A range without a whole page is a success
    /// that does nothing.
    ///
    /// # Errors
    /// Before anything is dropped: [`Error::ZeroLength`], [`Error::AddressOverflow`],
    /// [`Error::NotMapped`]. Later, [`Error::PageHeld`], [`Error::PagePinned`],
    /// [`Error::PageKept`], [`Error::PageBusy`] or [`Error::Mmu`] for the page that could not be
    /// dropped; the pages before it have been.
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
