//! Changing what processors may do with a region.

use crate::driver::{DriverError, Enter, MappingKind, Protection};
use crate::entry::Mapping;
use crate::space::Space;
use crate::{Error, Frame, NodeId, PageNr, PageRange, Processor, Result, VirtAddr};

impl Space {
    /// Changes the protection of the pages that hold `addr .. addr + len_bytes`, for every
    /// processor. When it returns no access beyond the new protection goes through (but on
    /// devices that have no read-only mappings).
    ///
    /// # Errors
    /// Before anything is changed: [`Error::ZeroLength`],
    /// [`Error::AddressOverflow`],
    /// [`Error::NotMapped`]. If a processor's mapping could not be
    /// changed, its [`Error::Mmu`], and the protection is as it was.
    pub fn protect(&self, addr: VirtAddr, len_bytes: u64, protection: Protection) -> Result<()> {
        let range = PageRange::covering(addr, len_bytes)?;
        // The region table and the entries change together.
        let _setup = self.set_up();
        let old: Vec<_> = {
            let mut regions = self.regions.lock();
            let old = regions.covering(range)?.iter().map(|r| (r.range, r.protection)).collect();
            regions.set_protection(range, protection);
            old
        };
        for (done, (page, entry)) in self.table.entries(range).enumerate() {
            let mut m = entry.lock();
            if let Err(error) = self.protect_page(&mut m, page, protection) {
                drop(m);
                self.undo_protect(range, done as u64 + 1, &old);
                return Err(error);
            }
        }
        Ok(())
    }

    fn protect_page(&self, m: &mut Mapping, page: PageNr, protection: Protection) -> Result<()> {
        if !m.is_open() {
            return Ok(());
        }
        m.protection = protection;
        if m.has_replica() {
            // A write through it would fault even where it has become an error: it is made anew,
            // at the next access, or now if a launch holds the page.
            let frame = m.copy_on(NodeId::HOST).expect("a replica is of the host's copy");
            self.clear_one(m, page, self.cpu())?;
            if self.known_node(NodeId::HOST).is_held(frame.nr) {
                let kind = MappingKind::Replica;
                self.enter_as(m, Enter { page, frame, protection, kind }, self.cpu())?;
            }
        }
        for id in m.mapped().iter() {
            let Some(processor) = self.processor(id) else { continue };
            let Some(frame) = self.stale_mapping(m, &processor, protection) else { continue };
            match self.enter(m, page, &processor, frame, protection) {
                // A dead context's mapping is as good as cleared.
                Err(Error::Mmu { cause: DriverError::Dead, .. }) => {
                    self.clear_one(m, page, &processor)?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// The frame of a mapping that has to be entered anew. A read-only mapping of a page that
    /// has just become writable is left alone where the first write will fault.
    fn stale_mapping(
        &self,
        m: &Mapping,
        processor: &Processor,
        protection: Protection,
    ) -> Option<Frame> {
        let writable = m.writable().contains(processor.id);
        let stale = match protection {
            Protection::ReadOnly => writable,
            Protection::ReadWrite => !processor.maps_read_only(),
        };
        m.frame_seen_from(processor.node).filter(|_| stale)
    }

    /// Puts back what the first `nr_pages` pages of `range` allowed before. A mapping that can't
    /// be changed back is one that can't be changed at all: the next fault on it says so.
    fn undo_protect(&self, range: PageRange, nr_pages: u64, old: &[(PageRange, Protection)]) {
        for &(old_range, protection) in old {
            let start = old_range.start.max(range.start);
            let end = old_range.end().min(range.end());
            let part = PageRange { start, nr_pages: end.0 - start.0 };
            self.regions.lock().set_protection(part, protection);
            let touched = range.start.plus(nr_pages);
            for (page, entry) in self.table.entries(part).filter(|&(page, _)| page < touched) {
                let _ = self.protect_page(&mut entry.lock(), page, protection);
            }
        }
    }
}
