//! The reference model: unified memory as a flat map from pages to words, and the random
//! operations that are done to it and to a real space alike.

use std::collections::{BTreeMap, BTreeSet};

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Error, Hold, PAGE_SIZE, PageNr, PageRange, Resolved, VirtAddr};
use gmm_driver_tests::array::{AccessError, FRAME_WORDS};
use gmm_driver_tests::{World, word};
use proptest::prelude::*;

/// One operation. Indices are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Load { who: usize, page: usize, word: u64 },
    Store { who: usize, page: usize, word: u64, value: u64 },
    Add { who: usize, page: usize, word: u64 },
    Mmap { nr_pages: u64, read_only: bool },
    Munmap { page: usize, nr_pages: u64 },
    Protect { page: usize, nr_pages: u64, read_only: bool },
    Prefetch { page: usize, nr_pages: u64, node: usize },
    Discard { page: usize, offset: u64, len: u64 },
    DiscardBehindTheCore { page: usize },
    Attach { xpu: usize, node: usize },
    Detach { who: usize },
    Kill { who: usize, detach: bool },
    Hold { who: usize, page: usize, nr_pages: u64, write: bool },
    Unhold,
    Wild { who: usize },
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (who, page, words) = (0..8usize, 0..16usize, 0..FRAME_WORDS as u64);
    let at = (who.clone(), page.clone(), words);
    let run = 1..4u64;
    let offset = prop_oneof![Just(0), Just(8), Just(PAGE_SIZE - 8)];
    let length = prop_oneof![Just(2), Just(PAGE_SIZE), Just(2 * PAGE_SIZE + 16)];
    prop_oneof![
        30 => at.clone().prop_map(|(who, page, word)| Op::Load { who, page, word }),
        30 => (at.clone(), 1..u64::MAX >> 1)
            .prop_map(|((who, page, word), value)| Op::Store { who, page, word, value }),
        10 => at.prop_map(|(who, page, word)| Op::Add { who, page, word }),
        4 => (run.clone(), any::<bool>())
            .prop_map(|(nr_pages, read_only)| Op::Mmap { nr_pages, read_only }),
        3 => (page.clone(), run.clone()).prop_map(|(page, nr_pages)| Op::Munmap { page, nr_pages }),
        4 => (page.clone(), run.clone(), any::<bool>())
            .prop_map(|(page, nr_pages, read_only)| Op::Protect { page, nr_pages, read_only }),
        5 => (page.clone(), run.clone(), 0..4usize)
            .prop_map(|(page, nr_pages, node)| Op::Prefetch { page, nr_pages, node }),
        3 => (page.clone(), offset, length)
            .prop_map(|(page, offset, len)| Op::Discard { page, offset, len }),
        2 => page.clone().prop_map(|page| Op::DiscardBehindTheCore { page }),
        1 => prop_oneof![Just((0, 0)), Just((1, 0)), Just((1, 1)), Just((2, 0))]
            .prop_map(|(xpu, node)| Op::Attach { xpu, node }),
        1 => who.clone().prop_map(|who| Op::Detach { who }),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, detach)| Op::Kill { who, detach }),
        2 => (who.clone(), page, run, any::<bool>())
            .prop_map(|(who, page, nr_pages, write)| Op::Hold { who, page, nr_pages, write }),
        2 => Just(Op::Unhold),
        1 => who.prop_map(|who| Op::Wild { who }),
    ]
}

#[derive(Clone, Copy)]
struct Page {
    words: [u64; FRAME_WORDS],
    protection: Protection,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Attached,
    Dead,
    Detached,
}

/// A world and what its memory should hold.
pub(crate) struct Model {
    pub(crate) world: World,
    pages: BTreeMap<PageNr, Page>,
    life: Vec<Life>,
    /// Each with who holds what.
    holds: Vec<(Hold, usize, PageRange)>,
    /// Pages of which a fault failed, as only a hold may cause.
    failed: BTreeSet<PageNr>,
    max_pages: usize,
}

type Done = Result<(), String>;

impl Model {
    /// A model of a world in which `max_pages` pages fit whatever happens.
    pub(crate) fn new(world: World, max_pages: usize) -> Self {
        let life = vec![Life::Attached; world.processors.len()];
        let (pages, holds, failed) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Self { world, pages, life, holds, failed, max_pages }
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Done {
        match *op {
            Op::Load { who, page, word } => self.access(who, page, word, Access::Read, |w| w),
            Op::Store { who, page, word, value } => {
                self.access(who, page, word, Access::Write, |_| value)
            }
            Op::Add { who, page, word } => {
                self.access(who, page, word, Access::Write, |w| w.wrapping_add(1))
            }
            Op::Mmap { nr_pages, read_only } => self.mmap(nr_pages, protection(read_only)),
            Op::Munmap { page, nr_pages } => self.munmap(page, nr_pages),
            Op::Protect { page, nr_pages, read_only } => {
                self.protect(page, nr_pages, protection(read_only))
            }
            Op::Prefetch { page, nr_pages, node } => self.prefetch(page, nr_pages, node),
            Op::Discard { page, offset, len } => self.discard(page, offset, len),
            Op::DiscardBehindTheCore { page } => {
                self.discard_behind_the_core(page);
                Ok(())
            }
            Op::Attach { xpu, node } => self.attach(xpu, node),
            Op::Detach { who } => {
                self.detach(who);
                Ok(())
            }
            Op::Kill { who, detach } => {
                self.kill(who, detach);
                Ok(())
            }
            Op::Hold { who, page, nr_pages, write } => self.hold(who, page, nr_pages, write),
            Op::Unhold => {
                self.holds.pop();
                Ok(())
            }
            Op::Wild { who } => self.wild(who),
        }
    }

    /// Everything at rest: each word of each page, as every processor in turn sees it.
    pub(crate) fn finish(mut self) -> Done {
        self.holds.clear();
        (0..self.life.len()).filter(|&w| self.life[w] == Life::Dead).for_each(|w| {
            self.world.space.detach(&self.world.processors[w].processor);
        });
        self.life.iter_mut().for_each(|l| {
            if *l == Life::Dead {
                *l = Life::Detached;
            }
        });
        let pages: Vec<PageNr> = self.pages.keys().copied().collect();
        for (who, life) in self.life.clone().into_iter().enumerate().rev() {
            if life != Life::Attached {
                continue;
            }
            for index in 0..pages.len() {
                for word in 0..FRAME_WORDS as u64 {
                    self.access(who, index, word, Access::Read, |w| w)?;
                }
            }
            self.world.check()?;
        }
        Ok(())
    }

    fn page(&self, index: usize) -> Option<PageNr> {
        let n = self.pages.len();
        self.pages.keys().nth(if n == 0 { 0 } else { index % n }).copied()
    }

    /// Pages in a row from the `index`-th, as many as there are up to `nr_pages`.
    fn run(&self, index: usize, nr_pages: u64) -> Option<PageRange> {
        let start = self.page(index)?;
        let mapped = (0..nr_pages).take_while(|&i| self.pages.contains_key(&start.plus(i)));
        Some(PageRange { start, nr_pages: mapped.count() as u64 })
    }

    fn is_held(&self, page: PageNr) -> bool {
        self.holds.iter().any(|(_, _, range)| range.contains(page))
    }

    /// What is held is mapped by the processor that holds it, as long as there is one.
    pub(crate) fn check_holds(&self) -> Done {
        for (_, who, range) in self.holds.iter().filter(|h| self.life[h.1] == Life::Attached) {
            let context = &self.world.processors[*who].context;
            if let Some(page) = range.pages().find(|&page| !context.maps(page)) {
                return Err(format!("{page:?} is held for {who}, which does not map it"));
            }
        }
        Ok(())
    }

    /// Whether a hold may be the cause of this error.
    fn excused(&self, error: Error) -> bool {
        match error {
            Error::PageHeld { .. } | Error::OutOfMemory(_) => !self.holds.is_empty(),
            _ => false,
        }
    }

    fn access(
        &mut self,
        who: usize,
        page: usize,
        at: u64,
        access: Access,
        change: impl Fn(u64) -> u64,
    ) -> Done {
        let who = who % self.world.processors.len();
        let Some(page) = self.page(page) else { return Ok(()) };
        let expected = self.pages[&page];
        let read_only = expected.protection == Protection::ReadOnly;
        // A processor without read-only mappings can't be kept from writing what it may read.
        let access = if read_only && !self.maps_read_only(who) { Access::Read } else { access };
        let (processor, addr) = (self.world.processors[who].clone(), word(page, at));
        let old = expected.words[at as usize];
        let attempt = || match access {
            Access::Read => processor.load(addr),
            Access::Write => {
                // A load and a store are one access where nobody else is about.
                let new = change(old);
                processor.add(addr, new.wrapping_sub(old))
            }
        };
        let mut result = attempt();
        if result == Err(AccessError::Poisoned) && self.failed.contains(&page) {
            match self.world.heal(who, addr) {
                Ok(()) => result = attempt(),
                Err(error) if self.excused(error) => return Ok(()),
                Err(error) => return Err(format!("healing {page:?} for {who}: {error}")),
            }
        }
        let life = self.life[who];
        match result {
            Ok(_) if read_only && access == Access::Write => {
                Err(format!("processor {who} wrote to read-only {page:?}"))
            }
            Ok(_) if life != Life::Attached => Err(format!("{who} is gone and used {page:?}")),
            Ok(seen) if seen != old => {
                Err(format!("processor {who} saw {seen:#x} at {addr}, not {old:#x}"))
            }
            Ok(_) => {
                if access == Access::Write
                    && let Some(p) = self.pages.get_mut(&page)
                {
                    p.words[at as usize] = change(old);
                }
                Ok(())
            }
            Err(AccessError::Fault(Error::Protection { .. }))
                if read_only && access == Access::Write =>
            {
                Ok(())
            }
            Err(AccessError::Dead) if life == Life::Dead => Ok(()),
            Err(AccessError::Fault(Error::NotAttached { .. })) if life == Life::Detached => Ok(()),
            Err(AccessError::Unserved) if !self.can_replay(who) => Ok(()),
            Err(AccessError::Held) if !self.holds.is_empty() => Ok(()),
            Err(AccessError::Fault(error)) if self.excused(error) => {
                self.failed.insert(page);
                Ok(())
            }
            Err(error) => Err(format!("{access:?} of {page:?} by processor {who}: {error}")),
        }
    }

    fn capabilities(&self, who: usize) -> Capabilities {
        self.world.processors[who].context.capabilities()
    }

    fn maps_read_only(&self, who: usize) -> bool {
        self.capabilities(who).contains(Capabilities::READ_ONLY_MAPPINGS)
    }

    fn can_replay(&self, who: usize) -> bool {
        self.capabilities(who).contains(Capabilities::REPLAYABLE_FAULTS)
    }

    fn mmap(&mut self, nr_pages: u64, protection: Protection) -> Done {
        if self.pages.len() + nr_pages as usize > self.max_pages {
            return Ok(());
        }
        let range = self.world.space.mmap(nr_pages * PAGE_SIZE - 5, protection, "model");
        let range = range.map_err(|e| format!("mmap: {e}"))?;
        if range.nr_pages != nr_pages {
            return Err(format!("mmap of {nr_pages} pages gave {range}"));
        }
        for page in range.pages() {
            let fresh = Page { words: [0; FRAME_WORDS], protection };
            if self.pages.insert(page, fresh).is_some() {
                return Err(format!("mmap gave {page:?}, which is in use"));
            }
            self.failed.remove(&page);
        }
        Ok(())
    }

    fn munmap(&mut self, page: usize, nr_pages: u64) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let held = range.pages().find(|&p| self.is_held(p));
        let result = self.world.space.munmap(range.start.start(), range.len_bytes() - 100);
        match (result, held) {
            (Ok(()), None) => {
                self.pages.retain(|&p, _| !range.contains(p));
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

    fn protect(&mut self, page: usize, nr_pages: u64, protection: Protection) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let result = self.world.space.protect(range.start.start(), range.len_bytes(), protection);
        result.map_err(|e| format!("protect of {range}: {e}"))?;
        for page in range.pages() {
            self.pages.entry(page).and_modify(|p| p.protection = protection);
        }
        Ok(())
    }

    fn prefetch(&mut self, page: usize, nr_pages: u64, node: usize) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let node = gmm_core::NodeId(node as u8);
        match self.world.space.prefetch(range.start.start(), range.len_bytes(), node) {
            Ok(()) => Ok(()),
            Err(error) if self.excused(error) => Ok(()),
            Err(error) => Err(format!("prefetch of {range} to {node:?}: {error}")),
        }
    }

    fn discard(&mut self, page: usize, offset: u64, len: u64) -> Done {
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
        let held = whole.pages().find(|&p| self.is_held(p));
        match (result, held) {
            (Ok(()), None) | (Err(Error::PageHeld { .. }), Some(_)) => {}
            (result, _) => return Err(format!("discard of {whole}, {held:?} held: {result:?}")),
        }
        for page in whole.pages().take_while(|&p| Some(p) != held) {
            self.pages.entry(page).and_modify(|p| p.words.fill(0));
        }
        Ok(())
    }

    fn discard_behind_the_core(&mut self, page: usize) {
        let Some(page) = self.page(page) else { return };
        let context = &self.world.cpu().context;
        // Where the CPU maps a page for itself alone, as it always does without read-only maps.
        if context.maps(page) && !self.maps_read_only(0) {
            context.discard_behind_the_core(page);
            self.pages.entry(page).and_modify(|p| p.words.fill(0));
        }
    }

    fn attach(&mut self, xpu: usize, node: usize) -> Done {
        if self.life.len() < 8 {
            self.world.attach(xpu, node).map_err(|e| format!("attach: {e}"))?;
            self.life.push(Life::Attached);
        }
        Ok(())
    }

    fn detach(&mut self, who: usize) {
        let who = who % self.life.len();
        if who > 0 {
            let dead = self.life[who] == Life::Dead;
            self.world.space.detach(&self.world.processors[who].processor);
            self.life[who] = if dead { Life::Dead } else { Life::Detached };
        }
    }

    /// `detach`: what a driver's watcher then does, sooner or later.
    fn kill(&mut self, who: usize, detach: bool) {
        let who = who % self.life.len();
        if who > 0 && self.life[who] == Life::Attached {
            self.world.processors[who].context.kill();
            self.life[who] = Life::Dead;
            if detach {
                self.detach(who);
            }
        }
    }

    fn hold(&mut self, who: usize, page: usize, nr_pages: u64, write: bool) -> Done {
        let who = who % self.life.len();
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        if self.holds.len() == 2 {
            return Ok(());
        }
        let access = if write { Access::Write } else { Access::Read };
        let processor = self.world.processors[who].processor.clone();
        match self.world.space.hold(&processor, &[range], access) {
            Ok(_) if self.life[who] == Life::Detached => Err(format!("{who} is gone and holds")),
            Ok(hold) => {
                self.holds.push((hold, who, range));
                Ok(())
            }
            Err(_) if self.life[who] != Life::Attached => Ok(()),
            // More pages than the node has frames, or frames held already.
            Err(Error::OutOfMemory(_)) => Ok(()),
            Err(error) if self.excused(error) => Ok(()),
            Err(error) => Err(format!("hold of {range} by {who}: {error}")),
        }
    }

    fn wild(&mut self, who: usize) -> Done {
        let who = who % self.life.len();
        let end = self
            .pages
            .keys()
            .next_back()
            .map_or(self.world.space.config().window.start, |p| p.plus(3));
        let processor = &self.world.processors[who];
        for addr in [end.start(), VirtAddr(8), VirtAddr(u64::MAX - 7)] {
            let result = self.world.space.fault(&processor.processor, addr, Access::Write);
            match result {
                Err(Error::NotMapped { addr: a }) if a == addr => {}
                Err(Error::NotAttached { .. }) if self.life[who] != Life::Attached => {}
                Ok(Resolved::Entered | Resolved::AlreadyUsable | Resolved::Again) | Err(_) => {
                    return Err(format!("a wild access to {addr} by {who}: {result:?}"));
                }
            }
        }
        Ok(())
    }
}

fn protection(read_only: bool) -> Protection {
    if read_only { Protection::ReadOnly } else { Protection::ReadWrite }
}
