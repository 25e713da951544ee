//! Where frames come from: the free list, the device, and pages that are pushed out.
//!
//! Eviction works on a batch of pages whose entries it could lock without waiting, so no thread
//! ever holds one entry lock and waits for another. A page leaves without a copy if another node
//! has an equal one; otherwise it is copied to host memory and waits there, mapped by nobody. Of
//! host memory, only copies that another node duplicates can go.

use core::time::Duration;

use crate::batch::Records;
use crate::driver::{Clear, DriverError, Op, Partial};
use crate::entry::EntryGuard;
use crate::node::{Import, Node, Offer, TransitFrame};
use crate::remap::RemapCause;
use crate::space::Space;
use crate::stats::{Event, MoveCause};
use crate::sync::Deadline;
use crate::trace::TraceEvent;
use crate::transfer::{direct, give_up};
use crate::{
    Arrival, Batch, Departure, Frame, FrameNr, MAX_PROCESSORS, MovedBy, NodeId, OutOfMemory,
    PageNr, PageRange, Policy, Processor, ProcessorSet,
};

/// The most pages evicted at a time: what a thread's stack holds, and drivers are promised.
pub(crate) const MAX_VICTIMS: usize = 16;

/// How many pages are looked at to find them.
const MAX_CANDIDATES: usize = 64;

/// How many times [`Config::frame_wait`](crate::Config::frame_wait) a fault waits while frames
/// keep going to others: a minute, if that is not set otherwise. The node is at work then, and the
/// fault's turn comes.
const PATIENCE: u32 = 75;

/// How often a fault that waits looks for itself.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How often a fault waits for what background reclaim is about to free before it evicts.
const MAX_TURNS: u32 = 4;

/// The node evictions go to.
const HOST: NodeId = NodeId::HOST;

/// A page on its way out, locked.
pub(crate) struct Victim<'a> {
    pub(crate) page: PageNr,
    pub(crate) frame: Frame,
    pub(crate) entry: EntryGuard<'a>,
    /// Where its data goes, if no other node has it.
    pub(crate) refuge: Option<TransitFrame<'a>>,
    pub(crate) failed: bool,
}

impl Victim<'_> {
    /// Whether the processor maps the frame, on its own node or from another.
    fn is_mapped_by(&self, processor: &Processor) -> bool {
        let maps = self.entry.mapped().contains(processor.id);
        maps && self.entry.frame_seen_from(processor.node) == Some(self.frame)
    }
}

pub(crate) type Victims<'a> = Batch<Victim<'a>, MAX_VICTIMS>;

/// What a round of reclaim came to.
pub(crate) enum Round<'a> {
    /// A frame for the caller; those of the other pages that left went to the free list.
    Got { frame: TransitFrame<'a>, nr_pages: u32 },
    /// Pages could go, but not just now.
    Busy {
        /// Others are at work on some of them.
        locked: bool,
    },
    /// No page can go.
    Nothing {
        /// Some could, if host memory had room.
        host_full: bool,
    },
}

impl Space {
    /// A frame of `node`, free, from the device, or by eviction. Waits for frames that other
    /// faults hold, at most [`Config::frame_wait`](crate::Config::frame_wait) while nothing
    /// happens; gives up without one when it is no longer wanted. The caller holds no entry lock.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn take_frame<'a>(
        &'a self,
        node: &'a Node,
        still_wanted: impl Fn() -> bool,
    ) -> Result<Option<TransitFrame<'a>>, OutOfMemory> {
        let host = self.known_node(HOST);
        let mut patience: Option<Patience> = None;
        let mut turns = 0;
        loop {
            let (seen, host_seen) = (node.changes(), host.changes());
            let count = || self.stats.count_locked(node.id, Event::FrameFree);
            let (free, import) = self.free_or_imported(node, count);
            if free.is_some() {
                return Ok(free);
            }
            if import == Import::Underway {
                // Nothing need be evicted from a node that is about to get more frames. How long
                // that takes says nothing about how full it is.
                let end = Deadline::after(&*self.clock, self.config.copy_timeout);
                if !node.wait(seen, end, &*self.clock) {
                    return Err(node.out_of_memory(false));
                }
                if !still_wanted() {
                    return Ok(None);
                }
                continue;
            }
            if turns < MAX_TURNS && node.wait_for_reclaimer(seen, self.soon(), &*self.clock) {
                turns += 1;
                if !still_wanted() {
                    return Ok(None);
                }
                continue;
            }
            let (host_full, locked) = match self.reclaim(node, u32::MAX) {
                Round::Got { frame, .. } => {
                    self.stats.count(node.id, Event::FrameReclaimed);
                    return Ok(Some(frame));
                }
                Round::Busy { locked } => (false, locked),
                Round::Nothing { host_full }
                    if node.is_in_motion(seen) || host_full && host.is_in_motion(host_seen) =>
                {
                    (host_full, false)
                }
                Round::Nothing { host_full } => return Err(node.out_of_memory(host_full)),
            };
            let patience = patience.get_or_insert_with(|| self.patience(PATIENCE));
            // What keeps pages from leaving may end without a sign on this node: look again soon.
            if node.wait(seen, self.soon(), &*self.clock) {
                patience.quiet = self.patience(1).end;
            }
            if !still_wanted() {
                return Ok(None);
            }
            // A frame that is on its way arrives, or its copy runs out of time; so it is with what
            // keeps a page locked.
            let is_underway = locked || node.counts().in_transit > 0;
            let is_quiet = !is_underway && patience.quiet.left(&*self.clock).is_none();
            if is_quiet || patience.end.left(&*self.clock).is_none() {
                return Err(node.out_of_memory(host_full));
            }
        }
    }

    /// A device wants up to `nr_frames` frames of `node` back (a reset, a removal, a broker that
    /// lends them to others): free ones first, then by eviction. They are given back through
    /// [`Device::release`](crate::driver::Device::release); says how many. The device decides
    /// whether a later import gets them again.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn withdraw(&self, node: NodeId, nr_frames: u32) -> crate::Result<u32> {
        let node = self.node(node)?;
        // No more than it has, even if it keeps getting them again.
        let nr_frames = nr_frames.min(node.capacity());
        let mut withdrawn = 0;
        while withdrawn < nr_frames {
            let frame = node.pop_free().or_else(|| match self.reclaim(node, 1) {
                Round::Got { frame, .. } => Some(frame),
                Round::Busy { .. } | Round::Nothing { .. } => None,
            });
            let Some(frame) = frame else { break };
            frame.release();
            withdrawn += 1;
        }
        Ok(withdrawn)
    }

    /// Pushes pages out of `node` to host memory until `nr_pages` have left, the best victims first
    /// and a batch at a time; their frames are free then. Says how many left: fewer if the others
    /// are pinned or in use, or host memory is full. Waits as a fault does that finds no frame.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn evict(&self, node: NodeId, nr_pages: u32) -> crate::Result<u32> {
        let node = self.node(node)?;
        let mut evicted = 0;
        let mut quiet = self.patience(1).end;
        while evicted < nr_pages {
            let seen = node.changes();
            match self.reclaim(node, nr_pages - evicted) {
                Round::Got { nr_pages, .. } => {
                    evicted += nr_pages;
                    quiet = self.patience(1).end;
                }
                Round::Busy { .. } if quiet.left(&*self.clock).is_some() => {
                    node.wait(seen, self.soon(), &*self.clock);
                }
                Round::Busy { .. } | Round::Nothing { .. } => break,
            }
        }
        Ok(evicted)
    }

    /// Has another policy choose which pages leave `node` when it is full, instead of that of
    /// [`Config::policy`](crate::Config::policy). `make` is given how many frames the node can
    /// have, so that the policy need not allocate later.
    ///
    /// # Errors
    /// [`Error::UnknownNode`](crate::Error::UnknownNode).
    pub fn set_policy(
        &self,
        node: NodeId,
        make: impl FnOnce(u32) -> Box<dyn Policy>,
    ) -> crate::Result<()> {
        let node = self.node(node)?;
        node.set_policy(make(node.capacity()));
        Ok(())
    }

    /// When to look again without having been told of a change.
    pub(crate) fn soon(&self) -> Deadline {
        Deadline::after(&*self.clock, LOOK_AGAIN)
    }

    /// As [`Space::soon`], or `left` from now if that is sooner.
    pub(crate) fn soon_within(&self, left: Duration) -> Deadline {
        Deadline::after(&*self.clock, left.min(LOOK_AGAIN))
    }

    fn patience(&self, factor: u32) -> Patience {
        let wait = self.config.frame_wait;
        let after = |n| Deadline::after(&*self.clock, wait.saturating_mul(n));
        Patience { quiet: after(1), end: after(factor) }
    }

    /// As [`Space::take_frame`], for callers that hold entry locks: waits for nothing but an
    /// import that is under way, which needs none of them.
    pub(crate) fn try_take_frame<'a>(&'a self, node: &'a Node) -> Option<TransitFrame<'a>> {
        let mut end = None;
        loop {
            let seen = node.changes();
            match self.free_or_imported(node, || ()) {
                (Some(frame), _) => return Some(frame),
                (None, Import::Came | Import::Nothing) => break,
                (None, Import::Underway) => {
                    let end = *end.get_or_insert_with(|| self.patience(1).end);
                    if !node.wait(seen, end, &*self.clock) {
                        break;
                    }
                }
            }
        }
        match self.reclaim(node, u32::MAX) {
            Round::Got { frame, .. } => Some(frame),
            Round::Busy { .. } | Round::Nothing { .. } => None,
        }
    }

    /// A frame that is free, or that the device has. Without one, says whether more may come.
    pub(crate) fn free_or_imported<'a>(
        &self,
        node: &'a Node,
        count: impl Fn(),
    ) -> (Option<TransitFrame<'a>>, Import) {
        let pop = || node.pop_free_beyond(0, &count);
        loop {
            if let Some(frame) = pop() {
                return (Some(frame), Import::Came);
            }
            match node.import(self.config.import_batch.max(1)) {
                // It ends: the device has so many frames and no more.
                Import::Came => {}
                import => return (pop(), import),
            }
        }
    }

    /// One round of eviction, of `most` pages at most.
    pub(crate) fn reclaim<'a>(&'a self, node: &'a Node, most: u32) -> Round<'a> {
        self.reclaim_sparing(node, most, None)
    }

    /// One round of eviction, of `most` pages at most, none of them in a range.
    pub(crate) fn reclaim_sparing<'a>(
        &'a self,
        node: &'a Node,
        most: u32,
        spared: Option<PageRange>,
    ) -> Round<'a> {
        let mut outlook = Outlook { spared, ..Outlook::default() };
        let mut victims = self.choose(node, most, &mut outlook);
        // Adjacent pages are cleared in one go.
        victims.sort_by_key(|victim| victim.page);
        self.clear_victims(node, &mut victims);
        self.save_victims(node, &mut victims, MoveCause::Eviction);
        let (mut got, mut nr_pages) = (None, 0);
        for victim in victims {
            if victim.failed {
                outlook.busy = true;
            } else {
                match self.release_victim(node, victim) {
                    // All but the first frame go to the free list as they are dropped.
                    Some(frame) => {
                        nr_pages += 1;
                        got = got.or(Some(frame));
                    }
                    None => outlook.busy = true,
                }
            }
        }
        match got {
            Some(frame) => Round::Got { frame, nr_pages },
            None if outlook.busy => Round::Busy { locked: outlook.locked },
            None => Round::Nothing { host_full: outlook.host_full },
        }
    }

    /// Locks victims, the best first, and finds room for what has to be copied out.
    fn choose<'a>(&'a self, node: &'a Node, most: u32, outlook: &mut Outlook) -> Victims<'a> {
        let eighth = (node.capacity() / 8).max(1);
        let wanted = self.config.evict_batch.min(node.eviction_batch()).max(1);
        let limit = eighth.min(wanted).min(MAX_VICTIMS as u32).min(most) as usize;
        let mut victims = Batch::new();
        let offers = node.victims::<MAX_CANDIDATES>(node.id == HOST);
        // Pages that are about to be used go if there are no others.
        let expected = self.expected_on(node);
        let is_expected = |offer: &&Offer| offer.is_ahead && expected.contains(offer.page);
        let others = offers.iter().filter(|offer| !is_expected(offer));
        for &offer in others.chain(offers.iter().filter(is_expected)) {
            let is_enough = victims.len() == limit || outlook.host_full;
            if is_enough || !victims.is_empty() && is_expected(&&offer) {
                break;
            }
            if outlook.spared.is_some_and(|range| range.contains(offer.page)) {
                continue;
            }
            let locked = self.table.get(offer.page).map(|entry| entry.try_lock());
            outlook.locked |= matches!(locked, Some(None));
            let Some(entry) = locked.flatten() else {
                outlook.busy = true;
                continue;
            };
            match self.judge(node, offer, &entry, outlook) {
                Verdict::Spare => {}
                Verdict::Evict { refuge } => {
                    let Offer { nr, page, .. } = offer;
                    let frame = Frame { node: node.id, nr };
                    victims.push(Victim { page, frame, entry, refuge, failed: false });
                }
            }
        }
        victims
    }

    /// Whether a locked page can leave its frame.
    fn judge<'a>(
        &'a self,
        node: &Node,
        offer: Offer,
        entry: &EntryGuard<'a>,
        outlook: &mut Outlook,
    ) -> Verdict<'a> {
        // By now the frame may be another page's, used again, or held.
        let is_here = entry.copy_on(node.id).is_some_and(|c| c.nr == offer.nr);
        if !is_here || !entry.is_open() || !node.is_unused_since(offer) {
            outlook.busy |= !node.is_pinned(offer.nr);
            return Verdict::Spare;
        }
        let frame = Frame { node: node.id, nr: offer.nr };
        if self.mappers_of(entry, frame).any(|p| p.mmu.is_unused_since_entered(offer.page)) {
            outlook.busy = true;
            return Verdict::Spare;
        }
        let is_only = entry.nr_copies() == 1;
        let can_go = !is_only || node.id != HOST;
        if !can_go || self.ask(entry, offer.page, RemapCause::Eviction, |c| c == frame).is_err() {
            return Verdict::Spare;
        }
        if !is_only {
            return Verdict::Evict { refuge: None };
        }
        match self.try_take_frame(self.known_node(HOST)) {
            Some(refuge) => Verdict::Evict { refuge: Some(refuge) },
            None => {
                outlook.host_full = true;
                Verdict::Spare
            }
        }
    }

    /// Removes the mappings of the victims' frames, one batch a processor.
    fn clear_victims(&self, node: &Node, victims: &mut Victims<'_>) {
        let mappers =
            victims.iter().fold(ProcessorSet::EMPTY, |all, v| all.union(v.entry.mapped()));
        let mappers: Batch<_, MAX_PROCESSORS> =
            mappers.iter().filter_map(|id| self.processor(id)).collect();
        for processor in mappers.iter() {
            let maps = |v: &&mut Victim<'_>| v.is_mapped_by(processor);
            let filler = Clear {
                page: PageNr(0),
                frame: Frame { node: node.id, nr: FrameNr(0) },
                was_empty: false,
            };
            let mut clears = Records::<Clear, MAX_VICTIMS>::new(filler);
            for victim in victims.iter_mut().filter(maps) {
                clears.push(Clear { page: victim.page, frame: victim.frame, was_empty: false });
            }
            if clears.is_empty() {
                continue;
            }
            let (done, unsure) = match self.pmap_clear(processor, &mut clears) {
                Ok(()) => (clears.len(), false),
                Err(Partial { done, error }) => {
                    (done.min(clears.len()), error == DriverError::Timeout)
                }
            };
            for (i, victim) in victims.iter_mut().filter(maps).enumerate() {
                if i < done {
                    victim.entry.set_unmapped(processor.id);
                } else {
                    victim.failed = true;
                    let was_unsure = victim.entry.is_unsure();
                    victim.entry.set_unsure(was_unsure || unsure);
                }
            }
        }
    }

    /// Copies out, as one batch, what has no other valid copy. `cause` is why, for the trace.
    pub(crate) fn save_victims(&self, node: &Node, victims: &mut Victims<'_>, cause: MoveCause) {
        let host = self.known_node(HOST);
        let filler = Op::Zero(Frame { node: node.id, nr: FrameNr(0) });
        let mut ops = Records::<Op, MAX_VICTIMS>::new(filler);
        let mut unable = false;
        for victim in victims.iter().filter(|v| !v.failed) {
            let Some(refuge) = &victim.refuge else { continue };
            match direct(node, victim.frame, host, refuge.frame()) {
                Some((_, op)) => ops.push(op),
                None => unable = true,
            }
        }
        let begun = self.begin();
        let saved = match (ops.is_empty(), unable) {
            (_, true) => Err(DriverError::Broken("host memory has no address")),
            (true, false) => Ok(()),
            (false, false) => self.run(node, &ops),
        };
        if let Some(first) = victims.iter().find(|v| v.refuge.is_some() && !v.failed) {
            self.end(begun, || TraceEvent::Copy {
                from: node.id,
                to: HOST,
                cause,
                page: first.page,
                nr_pages: ops.len() as u32,
                ok: saved.is_ok(),
            });
        }
        if let Err(error) = saved {
            for victim in victims.iter_mut() {
                if let Some(refuge) = victim.refuge.take() {
                    victim.failed = true;
                    give_up(refuge, error);
                }
            }
        }
    }

    /// The victim's data is safe elsewhere: its frame is the caller's, unless it is lost.
    fn release_victim<'a>(
        &'a self,
        node: &'a Node,
        victim: Victim<'a>,
    ) -> Option<TransitFrame<'a>> {
        let Victim { page, frame, mut entry, refuge, .. } = victim;
        let clean = refuge.is_none();
        entry.remove_copy(node.id);
        let freed = node.take_back(frame.nr, page, Departure::Evicted);
        match refuge {
            Some(refuge) => {
                let moved_by = MovedBy::new(MoveCause::Eviction, None);
                let count =
                    || self.stats.count_arrival_locked(Some(node.id), HOST, MoveCause::Eviction);
                entry.add_copy(refuge.activate(page, Arrival::Evicted, moved_by, count));
            }
            None => self.stats.count(node.id, Event::EvictedClean),
        }
        self.note_spare(&entry);
        self.stats.count(node.id, Event::Evicted);
        self.end(self.begin(), || TraceEvent::Evict { node: node.id, page, clean });
        freed
    }
}

/// How long a fault waits for a frame.
struct Patience {
    /// Until then, if nothing happens on the node.
    quiet: Deadline,
    /// Until then, whatever happens.
    end: Deadline,
}

/// What became of the pages that were looked at but not taken.
#[derive(Default)]
struct Outlook {
    /// Pages that are not even looked at.
    spared: Option<PageRange>,
    busy: bool,
    /// Others had some of them locked.
    locked: bool,
    host_full: bool,
}

enum Verdict<'a> {
    Spare,
    Evict { refuge: Option<TransitFrame<'a>> },
}
