//! The reference model: unified memory as a flat map from pages to words, and the random
//! operations that are done to it and to a real space alike.

mod access;
mod advice;
mod bulk;
mod launch;
mod machine;
mod op;
mod policy;
mod regions;

use std::collections::{BTreeMap, BTreeSet};

use advice::Advice;
use gmm_core::driver::{Access, Protection};
use gmm_core::{Error, Hold, NodeId, PageNr, PageRange, Prefetch};
use gmm_driver_tests::World;
use gmm_driver_tests::array::FRAME_WORDS;
pub(crate) use machine::{Faults, Machine, machine};
pub(crate) use op::{Op, op};

#[derive(Clone, Copy)]
struct Page {
    words: [u64; FRAME_WORDS],
    /// The bits of them that may be anything, after a copy to them that failed.
    unknown: [u64; FRAME_WORDS],
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
    advice: Advice,
    /// Prefetches that have begun, and where to.
    prefetches: Vec<(Prefetch, PageRange, NodeId)>,
}

type Done = Result<(), String>;

impl Model {
    /// A model of a new world.
    pub(crate) fn new(machine: &Machine) -> Self {
        let world = machine.build();
        let life = vec![Life::Attached; world.processors.len()];
        let (pages, holds, failed) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let (advice, prefetches) = (Advice::default(), Vec::new());
        Self { world, pages, life, holds, failed, advice, prefetches }
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Done {
        let before = self.watched_frames();
        match *op {
            Op::Load { who, page, word } => self.access(who, page, word, Access::Read, |w| w)?,
            Op::Store { who, page, word, value } => {
                self.access(who, page, word, Access::Write, |_| value)?;
            }
            Op::Add { who, page, word } => {
                self.access(who, page, word, Access::Write, |w| w.wrapping_add(1))?;
            }
            Op::Mmap { nr_pages, read_only } => self.mmap(nr_pages, protection(read_only))?,
            Op::Munmap { page, nr_pages } => self.munmap(page, nr_pages)?,
            Op::Protect { page, nr_pages, read_only } => {
                self.protect(page, nr_pages, protection(read_only))?;
            }
            Op::Sweep { who, page, nr_pages, write } => {
                if let Some(range) = self.run(page, nr_pages) {
                    self.use_all(who, range, write)?;
                }
            }
            Op::Prefetch { page, nr_pages, node } => self.prefetch(page, nr_pages, node)?,
            Op::BeginPrefetch { page, nr_pages, node } => {
                self.begin_prefetch(page, nr_pages, node)?;
            }
            Op::EndPrefetch { cancel } => self.end_prefetch(cancel)?,
            Op::Memcpy { dst, src, len, node } => self.memcpy(dst, src, len, node)?,
            Op::Discard { page, offset, len } => self.discard(page, offset, len)?,
            Op::DiscardBehindTheCore { page } => self.discard_behind_the_core(page),
            Op::Attach { xpu, node } => self.attach(xpu, node)?,
            Op::Detach { who } => self.detach(who),
            Op::Kill { who, detach } => self.kill(who, detach),
            Op::Launch { who, page, nr_pages, write } => self.launch(who, page, nr_pages, write)?,
            Op::Hold { who, page, nr_pages, write } => self.hold(who, page, nr_pages, write)?,
            Op::Unhold => drop(self.holds.pop()),
            Op::Withdraw { node, nr_frames } => self.withdraw(node, nr_frames)?,
            Op::Evict { node, nr_pages } => self.evict(node, nr_pages)?,
            Op::SetPolicy { node, choice } => {
                let node = NodeId(node as u8);
                let given = self.world.space.set_policy(node, |n| choice.make(n));
                given.map_err(|e| format!("a policy for {node}: {e}"))?;
            }
            Op::Pin { page, nr_pages, node } => self.pin(page, nr_pages, node)?,
            Op::Unpin { page, nr_pages, node } => self.unpin(page, nr_pages, node)?,
            Op::SetPinLimit { node, nr_frames } => self.set_pin_limit(node, nr_frames)?,
            Op::Advise { page, nr_pages, attribute } => self.advise(page, nr_pages, attribute)?,
            Op::Watch { page, nr_pages, keeps } => self.watch(page, nr_pages, keeps)?,
            Op::Unwatch => self.unwatch(),
            Op::Reclaim { node } => self.reclaim(node)?,
            Op::Launder { node } => self.launder(node)?,
            Op::Wild { who } => self.wild(who)?,
        }
        self.world.check()?;
        self.check_holds()?;
        self.check_advice(&before)
    }

    /// Everything at rest: each word of each page, as every processor in turn sees it.
    pub(crate) fn finish(mut self) -> Done {
        self.holds.clear();
        self.advice.end(&self.world.space)?;
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

    /// What is held is mapped by the processor that holds it, as long as there is one; and nothing
    /// else is pinned.
    fn check_holds(&self) -> Done {
        for (_, who, range) in self.holds.iter().filter(|h| self.life[h.1] == Life::Attached) {
            let context = &self.world.processors[*who].context;
            if let Some(page) = range.pages().find(|&page| !context.maps(page)) {
                return Err(format!("{page:?} is held for {who}, which does not map it"));
            }
        }
        for node in self.world.space.snapshot().nodes {
            let held = self.held_on(node.node);
            if node.pinned_frames as usize != held {
                let (node, pinned) = (node.node, node.pinned_frames);
                return Err(format!("{pinned} frames of node {node} are pinned, {held} held"));
            }
        }
        Ok(())
    }

    /// How many pages launches hold on a node, or are pinned there.
    fn held_on(&self, node: NodeId) -> usize {
        let here = self.holds.iter().filter(|(_, who, _)| self.world.node(*who) == node);
        let held = here.flat_map(|(_, _, range)| range.pages());
        let pins = self.advice.pins.iter().filter(|(_, pin)| pin.frame.node == node);
        held.chain(pins.map(|(&page, _)| page)).collect::<BTreeSet<_>>().len()
    }

    /// How many more someone keeps, at most.
    fn kept_on(&self, node: NodeId) -> usize {
        let kept = self.pages.keys().filter(|&&page| self.advice.is_kept(page));
        kept.filter(|&&page| self.copy_on(page, node).is_some()).count()
    }

    /// Whether a hold, a pin or a subscriber may be the cause of this error.
    fn excused(&self, error: Error) -> bool {
        match error {
            Error::PageHeld { addr, .. } => self.is_held(addr.page()),
            Error::PagePinned { addr, node } => {
                self.advice.pins.get(&addr.page()).is_some_and(|pin| pin.frame.node == node)
            }
            Error::PageKept { addr, .. } => self.advice.is_kept(addr.page()),
            Error::OutOfMemory(what) => self.held_on(what.node) + self.kept_on(what.node) > 0,
            _ => false,
        }
    }
}

fn protection(read_only: bool) -> Protection {
    if read_only { Protection::ReadOnly } else { Protection::ReadWrite }
}
