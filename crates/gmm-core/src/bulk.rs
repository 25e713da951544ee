//! Pages moved in batches: what prefetch and `gmemcpy` have in common.
//!
//! A [`Flight`] is a batch of pages on its way to one node. It is *started*: mappings that are in
//! the way are removed, with one call a processor, and the copies submitted, with one call a
//! device. Later it *lands*: the copies are waited for, the pages entered, with one call a
//! processor, and recorded. Between the two the next one is prepared, so that the copy engines
//! never run dry.
//!
//! # Locks
//! A flight holds its entries locked until it has landed, so a fault on one of its pages waits and
//! then finds it usable. Whoever prepares a flight may hold those of another: entries are taken by
//! try-lock, frames without waiting. Pages that could not be had so are done one by one, with no
//! flight under way.
//!
//! # Failure
//! A page whose copy or mapping fails keeps what it had; the others of its batch go on.

use core::ops::Range;

use crate::batch::Records;
use crate::coherence::{mmu_error, transfer_error};
use crate::driver::{
    Clear, DriverError, Enter, Fence, MappingKind, Op, Partial, Place, Protection,
};
use crate::entry::EntryGuard;
use crate::fault::Cause;
use crate::node::{Node, TransitFrame};
use crate::space::Space;
use crate::sync::Shared;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::trace::{Begun, TraceEvent};
use crate::transfer::{direct, give_up};
use crate::{
    Arrival, Batch, Error, Frame, FrameNr, HostAddr, MovedBy, NodeId, PAGE_SIZE, PageNr, Processor,
    ProcessorId, ProcessorSet, Result,
};

/// The most pages on their way at a time in one thread, and the most elements of one call to a
/// driver.
pub(crate) const BATCH: usize = 16;

/// The most entries that a flight holds: the pages that arrive, and those their bytes come from,
/// of which each adjoining two may share one.
pub(crate) const MAX_LOCKED: usize = 2 * BATCH + 1;

/// How many threads are expected to share work at most, for the size of their shares.
const SHARERS: u64 = 4;

/// Work that several threads take shares of: large ones first and ever smaller ones, so that all
/// end at about the same time (guided self-scheduling, Polychronopoulos and Kuck 1987).
#[derive(Debug)]
pub(crate) struct Shares {
    len: u64,
    most: u64,
    taken: AtomicU64,
}

impl Shares {
    /// Of `len` pages on their way to a node with so many frames.
    pub(crate) fn new(len: u64, capacity: u32) -> Self {
        // Several threads with two batches each leave faults some frames.
        let most = u64::from(capacity / 16).clamp(1, BATCH as u64);
        Self { len, most, taken: AtomicU64::new(0) }
    }

    /// The next share.
    pub(crate) fn take(&self) -> Option<Range<u64>> {
        let share = |taken: u64| ((self.len - taken) / (2 * SHARERS)).clamp(1, self.most);
        let more = |taken| (taken < self.len).then(|| taken + share(taken));
        let order = Ordering::SeqCst;
        let taken = self.taken.fetch_update(order, order, more).ok()?;
        Some(taken..taken + share(taken))
    }
}

pub(crate) type Pages<'a> = Batch<Locked<'a>, MAX_LOCKED>;

/// A page of a flight, locked.
pub(crate) struct Locked<'a> {
    pub(crate) page: PageNr,
    pub(crate) m: EntryGuard<'a>,
    /// Mappings to remove, and to make read-only, before the copies start.
    pub(crate) clear: ProcessorSet,
    pub(crate) protect: ProcessorSet,
    /// Of these, what is to be mapped again afterwards, as it was.
    pub(crate) restore: ProcessorSet,
    pub(crate) restore_writable: ProcessorSet,
    /// The frame that becomes its copy on the node.
    pub(crate) incoming: Option<TransitFrame<'a>>,
    /// Its copy on the node, to be mapped.
    pub(crate) here: Option<Frame>,
    /// Whether that is its only copy then.
    pub(crate) alone: bool,
    /// Whether `incoming` has become its copy.
    pub(crate) arrived: bool,
    is_recorded: bool,
    /// Why it stays as it is.
    pub(crate) failed: Option<Error>,
    /// What to think of the frame of a page that failed.
    cause: Option<DriverError>,
    gone: bool,
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Bytes {
    Frame(Frame),
    /// Memory that is not the manager's.
    Plain(HostAddr),
}

/// Where a copy goes.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// The page of that number in the flight.
    Page(usize),
    /// Memory that is not the manager's.
    Plain(HostAddr),
}

/// Bytes of a flight.
pub(crate) struct Copy<'a> {
    /// `None`: zero bytes.
    pub(crate) from: Option<Bytes>,
    pub(crate) from_offset: u64,
    pub(crate) to: To,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
    /// A host frame on the way, where the bytes can't go straight.
    pub(crate) bounce: Option<TransitFrame<'a>>,
    /// Which of the flight's fences it waits for.
    fence: Option<usize>,
}

/// The way to the target, or to the frame on the way and on from there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leg {
    First,
    Second,
}

/// Where a flight goes, and why.
#[derive(Clone, Copy)]
pub(crate) struct Aim<'a> {
    pub(crate) node: &'a Node,
    /// Who is to map the pages.
    pub(crate) mappers: &'a [Shared<Processor>],
    pub(crate) cause: Cause,
    /// Whose faults are the cause, if they are.
    pub(crate) on_behalf_of: Option<ProcessorId>,
}

/// A batch of pages on its way.
pub(crate) struct Flight<'a> {
    pub(crate) aim: Aim<'a>,
    pub(crate) pages: Pages<'a>,
    pub(crate) copies: Batch<Copy<'a>, { 2 * BATCH }>,
    /// The node whose device does it, and how that ended.
    fences: Batch<(NodeId, Result<Fence, DriverError>), { 2 * BATCH }>,
    /// A copy to memory that is not the manager's failed.
    pub(crate) failed: Option<DriverError>,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(page: PageNr, m: EntryGuard<'a>) -> Self {
        Self {
            page,
            m,
            clear: ProcessorSet::EMPTY,
            protect: ProcessorSet::EMPTY,
            restore: ProcessorSet::EMPTY,
            restore_writable: ProcessorSet::EMPTY,
            incoming: None,
            here: None,
            alone: false,
            arrived: false,
            is_recorded: false,
            failed: None,
            cause: None,
            gone: false,
        }
    }

    /// The frame of the node that the page will have, or has.
    pub(crate) fn target(&self) -> Option<Frame> {
        self.incoming.as_ref().map(TransitFrame::frame).or(self.here)
    }

    fn fail(&mut self, error: Error, cause: DriverError) {
        self.failed = Some(error);
        // After a timeout nothing is certain any more.
        if self.cause != Some(DriverError::Timeout) {
            self.cause = Some(cause);
        }
    }

    /// How it is mapped by those who are to map it.
    fn arrival(&self) -> Option<(Frame, Protection)> {
        let frame = self.target().filter(|_| self.failed.is_none())?;
        Some((frame, if self.alone { self.m.protection } else { Protection::ReadOnly }))
    }
}

impl<'a> Copy<'a> {
    pub(crate) fn new(
        from: Option<Bytes>,
        from_offset: u64,
        to: To,
        to_offset: u64,
        len: u64,
    ) -> Self {
        Self { from, from_offset, to, to_offset, len, bounce: None, fence: None }
    }
}

impl<'a> Flight<'a> {
    pub(crate) fn new(aim: Aim<'a>) -> Self {
        let (pages, copies, fences) = (Batch::new(), Batch::new(), Batch::new());
        Self { aim, pages, copies, fences, failed: None }
    }
}

impl Space {
    /// Removes what is in the way of the copies. A page of which something stays has failed.
    pub(crate) fn quiesce(&self, pages: &mut Pages<'_>) {
        for p in self.those(pages, |l| l.protect).iter() {
            let as_reader = |l: &Locked<'_>| {
                let frame = l.m.frame_seen_from(p.node).filter(|_| l.protect.contains(p.id));
                frame.map(|frame| (frame, Protection::ReadOnly))
            };
            self.enter_batch(p, pages, as_reader, |l, result| {
                // What can't be made read-only has to go.
                if result.is_err() {
                    l.clear.insert(p.id);
                }
            });
        }
        for p in self.those(pages, |l| l.clear).iter() {
            self.clear_batch(p, pages);
        }
        for l in pages.iter_mut().filter(|l| l.gone && l.m.mapped().is_empty()) {
            self.lose_contents(&mut l.m, l.page);
        }
    }

    /// The processors that `which` names for any of the pages.
    fn those(
        &self,
        pages: &Pages<'_>,
        which: impl Fn(&Locked<'_>) -> ProcessorSet,
    ) -> Batch<Shared<Processor>, { crate::MAX_PROCESSORS }> {
        let all = pages.iter().fold(ProcessorSet::EMPTY, |all, l| all.union(which(l)));
        all.iter().filter_map(|id| self.processor(id)).collect()
    }

    fn clear_batch(&self, p: &Processor, pages: &mut Pages<'_>) {
        let frame = Frame { node: p.node, nr: FrameNr(0) };
        let filler = Clear { page: PageNr(0), frame, was_empty: false };
        for group in (0..pages.len()).step_by(BATCH) {
            let mut clears = Records::<Clear, BATCH>::new(filler);
            for l in pages.iter().skip(group).take(BATCH) {
                if l.clear.contains(p.id) && l.m.mapped().contains(p.id) {
                    let frame = l.m.frame_seen_from(p.node).expect("a mapped page has a frame");
                    clears.push(Clear { page: l.page, frame, was_empty: false });
                }
            }
            if clears.is_empty() {
                continue;
            }
            let (done, error) = outcome(self.pmap_clear(p, &mut clears), clears.len());
            let pages = pages.iter_mut().skip(group).take(BATCH);
            let pages = pages.filter(|l| clears.iter().any(|c| c.page == l.page));
            for (i, l) in pages.enumerate() {
                match error.filter(|_| i >= done) {
                    Some(error) => {
                        let was_unsure = l.m.is_unsure();
                        l.m.set_unsure(was_unsure || error == DriverError::Timeout);
                        l.failed = Some(mmu_error(p, "unmap", l.page, error));
                    }
                    None => {
                        l.m.set_unmapped(p.id);
                        l.gone |= clears[i].was_empty;
                    }
                }
            }
        }
    }

    /// Makes the mappings that `which` gives, and tells `then` of each what became of it.
    fn enter_batch(
        &self,
        p: &Processor,
        pages: &mut Pages<'_>,
        which: impl Fn(&Locked<'_>) -> Option<(Frame, Protection)>,
        mut then: impl FnMut(&mut Locked<'_>, Result<(), (Error, DriverError)>),
    ) {
        let frame = Frame { node: p.node, nr: FrameNr(0) };
        let (protection, kind) = (Protection::ReadOnly, MappingKind::Local);
        let filler = Enter { page: PageNr(0), frame, protection, kind };
        for group in (0..pages.len()).step_by(BATCH) {
            let mut enters = Records::<Enter, BATCH>::new(filler);
            for l in pages.iter().skip(group).take(BATCH) {
                if let Some((frame, protection)) = which(l) {
                    let kind = self.kind_of(&l.m, p, frame);
                    enters.push(Enter { page: l.page, frame, protection, kind });
                }
            }
            if enters.is_empty() {
                continue;
            }
            let (done, error) = outcome(self.pmap_enter(p, &enters), enters.len());
            let pages = pages.iter_mut().skip(group).take(BATCH);
            let pages = pages.filter(|l| enters.iter().any(|e| e.page == l.page));
            for (i, l) in pages.enumerate() {
                let error = error.filter(|_| i >= done);
                let noted = self.note_entered(&mut l.m, enters[i], p, error);
                then(l, noted.map_err(|e| (e, error.unwrap_or(DriverError::Unsupported))));
            }
        }
    }

    /// Submits the copies of a flight whose pages are within reach.
    pub(crate) fn start(&self, flight: &mut Flight<'_>) {
        self.submit_leg(flight, Leg::First);
    }

    /// Waits for a flight's copies, has its pages mapped and records them.
    pub(crate) fn land(&self, flight: &mut Flight<'_>) {
        let begun = self.begin();
        self.wait_for_leg(flight);
        if flight.copies.iter().any(|copy| copy.bounce.is_some()) {
            self.submit_leg(flight, Leg::Second);
            self.wait_for_leg(flight);
        }
        let aim = flight.aim;
        self.tell_of_copies(flight, begun);
        self.count_copies(flight);
        for l in flight.pages.iter_mut().filter(|l| l.failed.is_some()) {
            self.give_up_target(l);
        }
        for l in flight.pages.iter_mut().filter(|l| l.arrival().is_some()) {
            self.unpoison(&mut l.m, l.page);
            if let Some(here) = l.here.filter(|_| l.alone) {
                self.drop_copies(&mut l.m, l.page, |c| c != here);
            }
        }
        for p in aim.mappers.iter().filter(|p| !p.is_detached()) {
            let arrival = |l: &Locked<'_>| {
                let is_mapped = l.m.mapped().contains(p.id) && !l.m.is_unsure();
                l.arrival().filter(|_| !is_mapped)
            };
            self.enter_batch(p, &mut flight.pages, arrival, |l, entered| match entered {
                Ok(()) => self.record(l, &aim),
                // It has no use for the page; the others have.
                Err((_, DriverError::Dead)) => {}
                Err((error, cause)) => {
                    l.fail(error, cause);
                    self.give_up_target(l);
                }
            });
        }
        for l in flight.pages.iter_mut().filter(|l| l.arrival().is_some()) {
            // Nobody is there to map it.
            self.record(l, &aim);
        }
        for p in self.those(&flight.pages, |l| l.restore).iter() {
            let as_before = |l: &Locked<'_>| {
                let frame = l.m.frame_seen_from(p.node).filter(|_| l.restore.contains(p.id))?;
                let writable = l.restore_writable.contains(p.id) && l.m.nr_copies() == 1;
                Some((frame, if writable { l.m.protection } else { Protection::ReadOnly }))
            };
            // Otherwise the next touch faults.
            self.enter_batch(p, &mut flight.pages, as_before, |_, _| {});
        }
    }

    /// For the trace: the whole pages that came, from each node in one event. The time is what was
    /// waited for them.
    fn tell_of_copies(&self, flight: &Flight<'_>, begun: Begun) {
        let (to, cause) = (flight.aim.node.id, flight.aim.cause);
        let arriving = || {
            flight.copies.iter().filter(|copy| copy.len == PAGE_SIZE).filter_map(|copy| match copy
                .to
            {
                To::Page(nr) => Some((copy.from, &flight.pages[nr])),
                To::Plain(_) => None,
            })
        };
        for from in self.nodes().map(|node| node.id) {
            for ok in [true, false] {
                let of_node = || {
                    arriving().filter(move |(source, l)| {
                        let is_from = matches!(source, Some(Bytes::Frame(f)) if f.node == from);
                        is_from && l.failed.is_none() == ok
                    })
                };
                let Some((_, first)) = of_node().next() else { continue };
                let (page, nr_pages) = (first.page, of_node().count() as u32);
                self.end(begun, || TraceEvent::Copy { from, to, cause, page, nr_pages, ok });
            }
        }
        for (_, l) in arriving().filter(|(source, _)| source.is_none()) {
            let (page, ok) = (l.page, l.failed.is_none());
            self.end(begun, || TraceEvent::Zero { node: to, page, ok });
        }
    }

    /// Counts the whole pages that a `gmemcpy` has copied.
    fn count_copies(&self, flight: &Flight<'_>) {
        let of_memcpy = |_: &&Copy<'_>| flight.aim.cause == Cause::Copy;
        for copy in flight.copies.iter().filter(of_memcpy) {
            if let (Some(Bytes::Frame(from)), To::Page(nr), PAGE_SIZE) =
                (copy.from, copy.to, copy.len)
                && flight.pages[nr].failed.is_none()
            {
                self.stats.count_memcpy(from.node, flight.aim.node.id);
            }
        }
    }

    /// The page's data is in its frame of the node, and valid.
    fn record(&self, l: &mut Locked<'_>, aim: &Aim<'_>) {
        let cause = aim.cause;
        if core::mem::replace(&mut l.is_recorded, true) {
            return;
        }
        if let Some(frame) = l.incoming.take() {
            let from = l.m.source();
            let to = frame.frame();
            if l.alone {
                self.drop_copies(&mut l.m, l.page, |_| true);
            }
            let moved_by = MovedBy::new(cause, aim.on_behalf_of);
            let is_ahead = cause == Cause::LookAhead;
            let why = if is_ahead { Arrival::LookAhead } else { Arrival::Prefetch };
            let from = from.map(|from| from.node);
            let count = || self.stats.count_arrival_locked(from, to.node, cause);
            l.m.add_copy(frame.activate(l.page, why, moved_by, count));
            if !l.alone {
                self.note_spare(&l.m);
            }
            (l.here, l.arrived) = (Some(to), true);
            if is_ahead {
                self.known_node(to.node).expect_use(to.nr);
            }
        } else if let Some(frame) = l.here {
            let is_used = cause == Cause::LookAhead;
            let why = if is_used { Arrival::Fault } else { Arrival::Hint };
            self.known_node(frame.node).touch(frame.nr, why, || ());
        }
    }

    /// A page fails: its new frame is free again, unless something may still be going on there.
    fn give_up_target(&self, l: &mut Locked<'_>) {
        let cause = l.cause.unwrap_or(DriverError::Unsupported);
        if let Some(frame) = l.incoming.take() {
            give_up(frame, cause);
        } else if let Some(frame) = l.here.filter(|_| cause == DriverError::Timeout) {
            self.known_node(frame.node).distrust(frame.nr);
        }
    }

    fn submit_leg(&self, flight: &mut Flight<'_>, leg: Leg) {
        flight.fences = Batch::new();
        flight.copies.iter_mut().for_each(|copy| copy.fence = None);
        for node in self.nodes() {
            let mut ops =
                Records::<Op, BATCH>::new(Op::Zero(Frame { node: node.id, nr: FrameNr(0) }));
            let nr_copies = flight.copies.len();
            for i in 0..nr_copies {
                let op = self.op(&flight.pages, &flight.copies[i], leg);
                if let Some((_, op)) = op.filter(|&(by, _)| by == node.id) {
                    ops.push(op);
                    flight.copies[i].fence = Some(flight.fences.len());
                }
                if ops.len() == BATCH || i + 1 == nr_copies && !ops.is_empty() {
                    flight.fences.push((node.id, node.device.submit(&ops)));
                    ops = Records::new(Op::Zero(Frame { node: node.id, nr: FrameNr(0) }));
                }
            }
        }
    }

    fn wait_for_leg(&self, flight: &mut Flight<'_>) {
        let mut failed = Batch::<_, { 2 * BATCH }>::new();
        for (node, fence) in flight.fences.iter() {
            let device = &self.known_node(*node).device;
            failed.push(fence.and_then(|fence| device.wait(fence, self.config.copy_timeout)).err());
        }
        // Only now: another batch may have been writing the same frame.
        for copy in flight.copies.iter_mut() {
            let Some(cause) = copy.fence.take().and_then(|nr| failed[nr]) else { continue };
            if let Some(bounce) = copy.bounce.take() {
                give_up(bounce, cause);
            }
            match copy.to {
                To::Plain(_) => flight.failed = Some(cause),
                To::Page(nr) => {
                    let l = &mut flight.pages[nr];
                    let from = match copy.from {
                        Some(Bytes::Frame(frame)) => frame.node,
                        Some(Bytes::Plain(_)) => NodeId::HOST,
                        None => flight.aim.node.id,
                    };
                    l.fail(transfer_error(l.page, from, flight.aim.node, cause), cause);
                }
            }
        }
    }

    /// The operation that a copy is on one leg of its way, and the node whose device does it.
    fn op(&self, pages: &Pages<'_>, copy: &Copy<'_>, leg: Leg) -> Option<(NodeId, Op)> {
        let (to, is_new) = match copy.to {
            To::Plain(addr) => (Bytes::Plain(addr), false),
            To::Page(nr) => {
                let l = pages[nr].failed.is_none().then_some(&pages[nr])?;
                (Bytes::Frame(l.target()?), l.incoming.is_some())
            }
        };
        let is_whole = copy.len == PAGE_SIZE;
        let bounce = copy.bounce.as_ref().map(TransitFrame::frame);
        let (to_offset, len) = (copy.to_offset, copy.len);
        match (leg, bounce, copy.from, to) {
            (Leg::First, Some(bounce), None, _) => Some((bounce.node, Op::Zero(bounce))),
            (Leg::First, Some(bounce), Some(from), _) => {
                self.leg((from, copy.from_offset), (Bytes::Frame(bounce), to_offset), len, is_whole)
            }
            (Leg::First, None, None, Bytes::Frame(to)) => Some((to.node, Op::Zero(to))),
            (Leg::First, None, Some(from), to) => {
                self.leg((from, copy.from_offset), (to, to_offset), len, is_whole && is_new)
            }
            (Leg::Second, Some(bounce), _, to) => self.leg(
                (Bytes::Frame(bounce), to_offset),
                (to, to_offset),
                len,
                is_whole && is_new,
            ),
            (Leg::First, None, None, Bytes::Plain(_)) | (Leg::Second, None, ..) => None,
        }
    }

    fn leg(
        &self,
        (from, from_offset): (Bytes, u64),
        (to, to_offset): (Bytes, u64),
        len: u64,
        is_whole: bool,
    ) -> Option<(NodeId, Op)> {
        let part = |from, to| Op::CopyPart { from, from_offset, to, to_offset, len };
        match (from, to) {
            (Bytes::Plain(addr), Bytes::Frame(to)) => {
                Some((to.node, part(Place::Host(addr), Place::Frame(to))))
            }
            (Bytes::Frame(from), Bytes::Plain(addr)) => {
                Some((from.node, part(Place::Frame(from), Place::Host(addr))))
            }
            (Bytes::Frame(from), Bytes::Frame(to)) => {
                let nodes = (self.known_node(from.node), self.known_node(to.node));
                let (node, op) = direct(nodes.0, from, nodes.1, to)?;
                let op = match op {
                    Op::Copy { from, to } if !is_whole => part(from, to),
                    op => op,
                };
                Some((node.id, op))
            }
            (Bytes::Plain(_), Bytes::Plain(_)) => None,
        }
    }
}

/// How many elements of a batch were done, and why not the others.
fn outcome(result: Result<(), Partial>, len: usize) -> (usize, Option<DriverError>) {
    match result {
        Ok(()) => (len, None),
        Err(Partial { done, error }) => (done.min(len), Some(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_once_and_get_smaller() {
        for (len, capacity) in [(0, 64), (1, 1), (7, 1024), (128, 1024), (1000, 100), (1000, 3)] {
            let shares = Shares::new(len, capacity);
            let all: Vec<_> = core::iter::from_fn(|| shares.take()).collect();
            let mut next = 0;
            for share in &all {
                assert_eq!(share.start, next);
                next = share.end;
            }
            assert_eq!(next, len);
            let sizes: Vec<u64> = all.iter().map(|share| share.end - share.start).collect();
            assert!(sizes.iter().all(|&n| (1..=BATCH as u64).contains(&n)), "{sizes:?}");
            assert!(sizes.windows(2).all(|w| w[0] >= w[1]), "{sizes:?}");
            assert!(sizes.iter().rev().take(4).all(|&n| n == 1), "{sizes:?}");
        }
    }
}
