//! Regions, and discards.

use gmm_core::driver::Protection;
use gmm_core::{Error, NodeId, PAGE_SIZE, PageNr, PageRange, ProcessorId, ProcessorSet, VirtAddr};
use gmm_driver_tests::array::FRAME_WORDS;

use super::machine::MAX_PAGES;
use super::{Done, Model, Page};

impl Model {
    pub(super) fn mmap(&mut self, nr_pages: u64, protection: Protection) -> Done {
        if self.pages.len() + nr_pages as usize > MAX_PAGES {
            return Ok(());
        }
        let range = self.world.space.mmap(nr_pages * PAGE_SIZE - 5, protection, "model");
        let range = range.map_err(|e| format!("mmap: {e}"))?;
        if range.nr_pages != nr_pages {
            return Err(format!("mmap of {nr_pages} pages gave {range}"));
        }
        for page in range.pages() {
            let fresh = Page { words: [0; FRAME_WORDS], unknown: [0; FRAME_WORDS], protection };
            if self.pages.insert(page, fresh).is_some() {
                return Err(format!("mmap gave {page:?}, which is in use"));
            }
            self.failed.remove(&page);
        }
        Ok(())
    }

    pub(super) fn munmap(&mut self, page: usize, nr_pages: u64) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let held = range.pages().find(|&p| self.is_held(p));
        let result = self.world.space.munmap(range.start.start(), range.len_bytes() - 100);
        match (result, held) {
            (Ok(()), None) => {
                self.pages.retain(|&p, _| !range.contains(p));
                self.advice.forget(range);
                let again = self.world.space.munmap(range.start.start(), range.len_bytes());
                match again {
                    Err(Error::NotMapped { .. }) => Ok(()),
                    other => Err(format!("munmap twice: {other:?}")),
                }
            }
            (Err(Error::PageHeld { .. }), Some(_)) => Ok(()),
            (result, held) => Err(format!("munmap of {range} with {held:?} held: {result:?}")),
        }
    }

    pub(super) fn protect(&mut self, page: usize, nr_pages: u64, protection: Protection) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let result = self.world.space.protect(range.start.start(), range.len_bytes(), protection);
        result.map_err(|e| format!("protect of {range}: {e}"))?;
        for page in range.pages() {
            self.pages.entry(page).and_modify(|p| p.protection = protection);
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, page: usize, offset: u64, len: u64) -> Done {
        let Some(start) = self.page(page) else { return Ok(()) };
        let addr = VirtAddr(start.start().0 + offset);
        let all = PageRange::covering(addr, len).map_err(|e| e.to_string())?;
        let whole = PageRange::within(addr, len).map_err(|e| e.to_string())?;
        let result = self.world.space.discard(addr, len);
        if all.pages().any(|p| !self.pages.contains_key(&p)) {
            return match result {
                Err(Error::NotMapped { .. }) => Ok(()),
                other => Err(format!("discard beyond a region: {other:?}")),
            };
        }
        let stays = |&p: &PageNr| self.is_held(p) || self.advice.pins.contains_key(&p);
        let stop = match result {
            Ok(()) => whole.pages().find(stays),
            Err(
                Error::PageHeld { addr, .. }
                | Error::PagePinned { addr, .. }
                | Error::PageKept { addr, .. },
            ) => Some(addr.page()),
            Err(_) => None,
        };
        match (result, stop) {
            (Ok(()), None) => {}
            (Err(error), Some(_)) if self.excused(error) => {}
            (result, _) => return Err(format!("discard of {whole}, {stop:?} stays: {result:?}")),
        }
        for page in whole.pages().take_while(|&p| Some(p) != stop) {
            self.set_zero(page);
        }
        Ok(())
    }

    pub(super) fn discard_behind_the_core(&mut self, page: usize) {
        let Some(page) = self.page(page) else { return };
        let context = &self.world.cpu().context;
        let info = self.world.space.inspect(page.start()).expect("a page of the model");
        // Where the CPU maps the page's own frame, and for itself alone.
        let is_own = info.copies.iter().any(|c| c.node == NodeId::HOST);
        let alone = info.writable == ProcessorSet::only(ProcessorId::CPU);
        if context.maps(page) && is_own && alone && !self.maps_read_only(0) {
            context.discard_behind_the_core(page);
            self.set_zero(page);
        }
    }

    fn set_zero(&mut self, page: PageNr) {
        self.pages.entry(page).and_modify(|p| {
            p.words.fill(0);
            p.unknown.fill(0);
        });
    }
}
