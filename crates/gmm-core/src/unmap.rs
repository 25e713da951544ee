//! The end of a region, or of part of one.

use crate::entry::Mapping;
use crate::remap::RemapCause;
use crate::space::Space;
use crate::trace::TraceEvent;
use crate::{Error, PageNr, PageRange, ProcessorSet, Result, VirtAddr};

impl Space {
    /// Unmaps the pages that hold `addr .. addr + len_bytes`, which may be part of a region, or
    /// parts of several. Their contents are lost, and so are their attributes and pins; accesses
    /// that wait in a fault on them fail.
    ///
    /// # Errors
    /// [`Error::Unaligned`] if `addr` does not start a page, [`Error::ZeroLength`],
    /// [`Error::AddressOverflow`], [`Error::NotMapped`] with the first address that is in no
    /// region (so unmapping twice is an error), [`Error::PageHeld`] if a launch holds a page.
    pub fn munmap(&self, addr: VirtAddr, len_bytes: u64) -> Result<()> {
        if !addr.is_page_start() {
            return Err(Error::Unaligned { addr });
        }
        let begun = self.begin();
        let range = PageRange::covering(addr, len_bytes)?;
        // A context that attaches meanwhile would miss the range if it came back.
        let _setup = self.set_up();
        let parts = self.regions.lock().carve(range)?;
        if let Err(error) = self.close(range) {
            self.regions.lock().restore(range, parts);
            return Err(error);
        }
        // Faults fail from here on. Contexts let go first: one call for the whole range.
        let refused_by = parts.iter().fold(ProcessorSet::EMPTY, |s, r| s.union(r.refused_by));
        for processor in self.processors() {
            if !refused_by.contains(processor.id) {
                processor.mmu.va_release(range);
            } else {
                for part in parts.iter().filter(|r| !r.refused_by.contains(processor.id)) {
                    processor.mmu.va_release(part.range);
                }
            }
        }
        self.take_out_of_window(range);
        self.cpu().mmu.va_release(range);
        self.free_copies(range);
        self.attributes.with_mut(|table| table.remove(range));
        self.end_subscriptions(range);
        self.regions.lock().free(range);
        self.trim_host();
        let (page, nr_pages) = (range.start, range.nr_pages);
        self.end(begun, || TraceEvent::Unmap { page, nr_pages });
        Ok(())
    }

    /// Closes every entry of the range, or none.
    fn close(&self, range: PageRange) -> Result<()> {
        // A look first, so that nobody finds pages closed for a while that stay after all.
        for (page, entry) in self.table.entries(range) {
            self.check_unheld(&entry.lock(), page)?;
        }
        for (page, entry) in self.table.entries(range) {
            let mut m = entry.lock();
            if let Err(error) = self.check_unheld(&m, page) {
                drop(m);
                let done = PageRange { start: range.start, nr_pages: page.0 - range.start.0 };
                for (_, entry) in self.table.entries(done) {
                    entry.lock().reopen();
                }
                return Err(error);
            }
            // It can't be stopped.
            let _ = self.ask(&m, page, RemapCause::Unmap, |_| true);
            m.close();
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::PageHeld`] if a launch holds the page.
    pub(crate) fn check_unheld(&self, m: &Mapping, page: PageNr) -> Result<()> {
        match m.copies().find(|c| self.known_node(c.node).is_held(c.nr)) {
            Some(held) => Err(Error::PageHeld { addr: page.start(), node: held.node }),
            None => Ok(()),
        }
    }

    /// Moves the frames that the CPU maps back to where they can be used again. One that is
    /// pinned by someone outside the manager stays, and goes with the mapping.
    fn take_out_of_window(&self, range: PageRange) {
        let cpu = self.cpu();
        for (page, entry) in self.table.entries(range) {
            let mut m = entry.lock();
            if m.mapped().contains(cpu.id) {
                let _ = self.clear_one(&mut m, page, cpu);
            }
        }
    }

    /// Nobody maps the range any more: every frame of it is free.
    fn free_copies(&self, range: PageRange) {
        for (page, entry) in self.table.entries(range) {
            let mut m = entry.lock();
            for id in m.mapped().iter() {
                self.forget_mapping(&mut m, id);
            }
            self.drop_pins(&m);
            self.drop_copies(&mut m, page, |_| true);
            m.set_poisoned(false);
        }
    }
}
