//! The fault: from "processor p touched address a" to "p maps the page", in five steps.
//!
//! 1. Find the entry. If the page is usable as it is, another fault was quicker.
//! 2. Decide where the page is to be (`placement.rs`), which most often is the processor's node.
//!    Take a free frame there (and one of host memory if the bytes have to go
//!    that way), holding no entry lock: this may evict and wait.
//! 3. Lock the entry and look again.
//! 4. Empty: zero the frame. Elsewhere: clear what conflicts, copy. Here: clear what conflicts.
//! 5. Enter the mapping, and record. A copy elsewhere is dropped when it is about to be out of
//!    date and there is a valid one here.
//!
//! If any step fails the entry is true and no data is lost: the only copy of a page is never
//! given up before the new one is valid and entered.

use core::time::Duration;

use crate::coherence::{Contents, transfer_error};
use crate::driver::{Access, Enter, MappingKind, Protection};
use crate::entry::{Entry, EntryGuard, Mapping};
use crate::node::{Node, TransitFrame};
use crate::placement::{Plan, Way};
use crate::remap::RemapCause;
use crate::space::Space;
use crate::stats::{Event, FaultOutcome, Served};
use crate::sync::Deadline;
use crate::trace::TraceEvent;
use crate::transfer::give_up;
use crate::{
    Arrival, Error, Frame, MovedBy, NodeId, PageNr, Processor, ProcessorId, Result, VirtAddr,
};

/// How a fault was resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The page was entered for the processor.
    Entered,
    /// The processor could use the page already: another fault was quicker.
    AlreadyUsable,
    /// A launch holds the page elsewhere for now, or it has come there only just now. Let the access fault again: it comes after the
    /// faults that wait already, and the thread that serves them is free for those.
    Again,
}

impl From<FaultOutcome> for Resolved {
    fn from(outcome: FaultOutcome) -> Self {
        match outcome {
            FaultOutcome::Copied | FaultOutcome::ZeroFilled | FaultOutcome::Mapped => Self::Entered,
            FaultOutcome::Coalesced => Self::AlreadyUsable,
            FaultOutcome::Throttled | FaultOutcome::Failed => Self::Again,
        }
    }
}

/// Why a page is wanted somewhere. One that is wanted for a `Hold` is pinned, too.
pub(crate) use crate::stats::MoveCause as Cause;

/// Who wants which page, where, for what.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) page: PageNr,
    pub(crate) addr: VirtAddr,
    pub(crate) node: &'a Node,
    /// Who is to map it; nobody for a prefetch to a node without processors.
    pub(crate) processor: Option<&'a Processor>,
    pub(crate) access: Access,
    pub(crate) cause: Cause,
    /// When the fault began.
    pub(crate) since: Option<Duration>,
}

/// The frames that a want has taken, before it locks the page's entry.
#[derive(Default)]
pub(crate) struct Spare<'a> {
    /// Where the page goes.
    target: Option<TransitFrame<'a>>,
    /// A host frame on the way, between two nodes that can't copy to each other.
    bounce: Option<TransitFrame<'a>>,
}

/// How often a want is tried again when the page changes hands between two steps.
pub(crate) const MAX_TRIES: u32 = 64;

impl Space {
    /// A processor touched an address that it does not map, or may not use so. Called by a
    /// driver from its fault interrupt, on any thread, with no lock held. When it returns `Ok`
    /// the access is to be tried again: it goes on, or after [`Resolved::Again`] (a launch holds
    /// the page, or it moves too often) faults once more. Does not allocate.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Protection`], [`Error::RegionRefused`] or
    /// [`Error::NotAttached`] for an access that may not be; [`Error::OutOfMemory`];
    /// [`Error::PageBusy`], [`Error::PagePinned`] or [`Error::PageKept`] if the page can't leave
    /// its node; [`Error::Mmu`] or [`Error::Transfer`] if a driver failed. After an error other than the first four the page
    /// is poisoned where the processor can be told so.
    pub fn fault(&self, processor: &Processor, addr: VirtAddr, access: Access) -> Result<Resolved> {
        let begun = self.clock.now();
        let node = self.known_node(processor.node);
        let page = addr.page();
        let (cause, since) = (Cause::Fault, Some(begun));
        let want = Want { page, addr, node, processor: Some(processor), access, cause, since };
        let entry = self.table.get(page);
        let before = entry.map(|entry| {
            let m = entry.lock();
            (m.generation(), m.is_open() && !self.is_usable(&m, &want), m.is_first())
        });
        let generation = before.map(|(generation, ..)| generation);
        // One that another was quicker to serve says nothing new of where the processor goes.
        let is_news = before.is_some_and(|(_, is_wanted, _)| is_wanted);
        let is_first = before.is_some_and(|(.., is_first)| is_first);
        let most = Some(self.config.look_ahead).filter(|&most| is_news && most > 0);
        let window = most
            .filter(|_| !is_first)
            .and_then(|most| processor.streams.note(page, access, most, || self.clock.now()));
        if most.is_some() && is_first {
            processor.streams.note_first(page);
        }
        if let Some(window) = window.filter(|window| !window.is_begun()) {
            self.bring_late(processor, window);
        }
        let was_ahead = window.is_some_and(|window| self.map_window(processor, window, page));
        let result = match entry {
            Some(_) if was_ahead => {
                let served = self.served(&want, FaultOutcome::Mapped);
                node.with_lists(|| self.count_served_locked(node, served));
                Ok(FaultOutcome::Mapped)
            }
            Some(entry) => self.resolve(entry, &want),
            None => Err(Error::NotMapped { addr }),
        };
        if let Err(error) = result {
            self.poison(processor, page, generation, error);
        } else if let Some(window) = window.filter(|_| !was_ahead) {
            // It was only just coming.
            self.map_window(processor, window, page);
        }
        let outcome = result.unwrap_or(FaultOutcome::Failed);
        if Resolved::from(outcome) != Resolved::Entered {
            self.stats.count_unserved(processor, access, outcome);
        }
        let processor = processor.id;
        self.tell(begun, || TraceEvent::Fault { processor, addr, access, outcome });
        result.map(Resolved::from)
    }

    /// What is counted of a fault that has been served but for locks to be let go, if the want is
    /// one.
    fn served(&self, want: &Want<'_>, outcome: FaultOutcome) -> Option<Served> {
        let (access, took) = (want.access, self.clock.now().saturating_sub(want.since?));
        Some(Served { processor: want.processor?.id, access, outcome, took })
    }

    fn count_served_locked(&self, node: &Node, served: Option<Served>) {
        if let Some(served) = served {
            self.stats.count_served_locked(node.id, served);
        }
    }

    /// Serves a want: steps 1 to 5.
    pub(crate) fn resolve(&self, entry: &Entry, want: &Want<'_>) -> Result<FaultOutcome> {
        let mut spare = Spare::default();
        let (mut held_until, mut throttled_until) = (None, None);
        let mut own_only = false;
        let mut tries = 0;
        while tries < MAX_TRIES {
            let mut m = self.lock_open(entry, want)?;
            if self.is_usable(&m, want) {
                return self.confirm(&mut m, want);
            }
            let plan = self.plan(&m, want, own_only);
            if let Some(left) = self.throttled_for(&m, want, &plan) {
                drop(m);
                let end: Deadline = *throttled_until.get_or_insert_with(|| {
                    self.stats.count(want.node.id, Event::Delayed);
                    self.soon()
                });
                if end.left(&*self.clock).is_none() {
                    return Ok(FaultOutcome::Throttled);
                }
                let until = self.soon_within(left);
                want.node.wait(want.node.changes(), until, &*self.clock);
                continue;
            }
            if let Some((node, lacking)) = self.lacking(&m, &plan, &mut spare) {
                drop(m);
                // While it waits for a frame, another may bring the page.
                let still_wanted = || {
                    let gone = want.processor.is_some_and(Processor::is_detached);
                    !gone && entry.lock().copy_on(plan.node.id).is_none()
                };
                match self.take_frame(node, still_wanted) {
                    // Then it is served as if nothing were preferred.
                    Err(_) if plan.way == Way::Remote => own_only = true,
                    taken => *lacking = taken?,
                }
                continue;
            }
            match self.serve(&mut m, want, &plan, core::mem::take(&mut spare)) {
                Err(error @ Error::PageHeld { node, .. }) => {
                    drop(m);
                    // A thread that serves faults has others to serve.
                    let patient = want.cause != Cause::Fault;
                    let deadline = *held_until.get_or_insert_with(|| match patient {
                        true => Deadline::after(&*self.clock, self.config.hold_wait),
                        false => self.soon(),
                    });
                    let holder = self.known_node(node);
                    holder.wait(holder.changes(), self.soon(), &*self.clock);
                    if deadline.left(&*self.clock).is_none() {
                        return if patient { Err(error) } else { Ok(FaultOutcome::Throttled) };
                    }
                }
                Err(Error::Thrashing { .. }) => tries += 1,
                done => return done,
            }
        }
        Err(self.thrashing(want))
    }

    /// Step 2: the frame without which the page can't be brought here now, and its node.
    fn lacking<'a, 's>(
        &'a self,
        m: &Mapping,
        plan: &Plan<'a>,
        spare: &'s mut Spare<'a>,
    ) -> Option<(&'a Node, &'s mut Option<TransitFrame<'a>>)> {
        if m.copy_on(plan.node.id).is_some() {
            return None;
        }
        // One of another node was taken for another plan.
        spare.target.take_if(|target| target.frame().node != plan.node.id);
        let Some(target) = &spare.target else { return Some((plan.node, &mut spare.target)) };
        m.source().filter(|&from| self.needs_bounce(from, target.frame()))?;
        let host = self.known_node(NodeId::HOST);
        spare.bounce.is_none().then_some((host, &mut spare.bounce))
    }

    /// Locks the entry if the processor may use the page at all.
    fn lock_open<'e>(&self, entry: &'e Entry, want: &Want<'_>) -> Result<EntryGuard<'e>> {
        let mut m = entry.lock();
        if m.is_open() && m.is_refused_by_some() {
            drop(m);
            if let Some(processor) = want.processor {
                self.check_refusal(want.addr, processor.id)?;
            }
            m = entry.lock();
        }
        if !m.is_open() {
            return Err(Error::NotMapped { addr: want.addr });
        }
        if !m.protection.allows(want.access) {
            return Err(Error::Protection { addr: want.addr, access: want.access });
        }
        match want.processor {
            Some(p) if p.is_detached() => Err(Error::NotAttached { processor: p.id }),
            _ => Ok(m),
        }
    }

    fn check_refusal(&self, addr: VirtAddr, processor: ProcessorId) -> Result<()> {
        let regions = self.regions.lock();
        match regions.get(addr.page()) {
            Some(region) if region.refused_by.contains(processor) => {
                Err(Error::RegionRefused { addr, processor })
            }
            _ => Ok(()),
        }
    }

    /// Step 1: nothing needs to be moved or mapped.
    fn is_usable(&self, m: &Mapping, want: &Want<'_>) -> bool {
        if want.cause != Cause::Fault && m.copy_on(want.node.id).is_none() {
            return false;
        }
        match (want.processor, want.access) {
            (None, _) => true,
            // Entering a page again does no harm.
            (Some(_), _) if m.is_unsure() => false,
            (Some(p), Access::Read) => m.mapped().contains(p.id),
            (Some(p), Access::Write) => m.writable().contains(p.id),
        }
    }

    /// Step 1, done: make sure that the processor sees what the entry says.
    fn confirm(&self, m: &mut Mapping, want: &Want<'_>) -> Result<FaultOutcome> {
        let page = want.page;
        let frame = m.frame_seen_from(want.node.id).expect("a usable page has a frame");
        match (want.cause, want.processor) {
            (Cause::Fault, Some(p)) => {
                let protection = self.mapping_protection(m, p);
                let mapping = Enter { page, frame, protection, kind: self.kind_of(m, p, frame) };
                p.mmu.revalidate(mapping, want.addr).map_err(|cause| Error::Mmu {
                    processor: p.id,
                    operation: "revalidate",
                    addr: page.start(),
                    cause,
                })?;
            }
            (Cause::Hold, _) => want.node.hold(frame.nr),
            _ => {
                // Who asks for the page may do so to end what a failed fault left behind.
                self.unpoison(m, page);
                want.node.touch(frame.nr, Arrival::Hint, || ());
            }
        }
        Ok(FaultOutcome::Coalesced)
    }

    /// Steps 4 and 5, on a locked entry that the processor can't use as it is. `spare` has what
    /// [`Space::lacking`] asks for.
    pub(crate) fn serve(
        &self,
        m: &mut Mapping,
        want: &Want<'_>,
        plan: &Plan<'_>,
        spare: Spare<'_>,
    ) -> Result<FaultOutcome> {
        let (page, at, exclusive) = (want.page, plan.node.id, plan.exclusive);
        // A replica is a copy that nobody maps itself.
        let reader = want.processor.filter(|_| plan.way != Way::Replica);
        if let Some(node) = self.holder(m, at, reader, exclusive) {
            return Err(Error::PageHeld { addr: page.start(), node });
        }
        if exclusive {
            self.check_unpinned(m, page, Some(at))?;
            self.ask(m, page, RemapCause::Move, |copy| copy.node != at)?;
        }
        let taken = self.takes_away(m, want, plan);
        let contents = self.clear_conflicts(m, page, at, reader, exclusive)?;
        if contents == Contents::Gone && plan.way == Way::Replica {
            // The application has discarded the page: there is nothing left to copy.
            return Err(self.thrashing(want));
        }
        let outcome = match m.copy_on(at) {
            Some(frame) => self.map_resident(m, want, plan, frame)?,
            None => self.bring(m, want, plan, spare)?,
        };
        self.note_arrival(want, plan, taken);
        if want.cause == Cause::Hold {
            let frame = m.copy_on(at).expect("the page was brought here");
            plan.node.hold(frame.nr);
        }
        Ok(outcome)
    }

    /// The page has a valid copy where it is to be: if it is to be exclusive drop the others, and
    /// map it.
    fn map_resident(
        &self,
        m: &mut Mapping,
        want: &Want<'_>,
        plan: &Plan<'_>,
        frame: Frame,
    ) -> Result<FaultOutcome> {
        if plan.exclusive {
            self.drop_copies(m, want.page, |c| c.node != plan.node.id);
        }
        self.unpoison(m, want.page);
        if let Some(p) = want.processor {
            let alone = m.nr_copies() == 1 && !m.has_replica();
            self.enter_as(m, self.enter_of(m, want.page, plan, frame, alone), p)?;
        }
        let why = if want.cause == Cause::Prefetch { Arrival::Hint } else { Arrival::Fault };
        let served = self.served(want, FaultOutcome::Mapped);
        plan.node.touch(frame.nr, why, || self.count_served_locked(plan.node, served));
        Ok(FaultOutcome::Mapped)
    }

    /// The page has no copy where it is to be: zero-fill or copy into the spare frame, map it,
    /// record it.
    fn bring(
        &self,
        m: &mut Mapping,
        want: &Want<'_>,
        plan: &Plan<'_>,
        spare: Spare<'_>,
    ) -> Result<FaultOutcome> {
        let (page, to) = (want.page, plan.node);
        let source = m.source();
        let from = source.map_or(to.id, |s| s.node);
        let frame = spare.target.ok_or_else(|| self.thrashing(want))?;
        let begun = self.begin();
        let filled = self.fill(source, frame, spare.bounce);
        self.end(begun, || {
            let (to, cause, ok) = (to.id, want.cause, filled.is_ok());
            match source {
                Some(_) => TraceEvent::Copy { from, to, cause, page, nr_pages: 1, ok },
                None => TraceEvent::Zero { node: to, page, ok },
            }
        });
        let frame = filled.map_err(|cause| transfer_error(page, from, to, cause))?;
        let target = frame.frame();
        let alone = plan.exclusive || source.is_none();
        if !alone {
            self.make_room_for_copy(m, page, to.id)?;
        }
        self.unpoison(m, page);
        if let Some(p) = want.processor {
            let entered = self.enter_as(m, self.enter_of(m, page, plan, target, alone), p);
            if let Err(error @ Error::Mmu { cause, .. }) = entered {
                give_up(frame, cause);
                return Err(error);
            }
            entered?;
        }
        if alone {
            self.drop_copies(m, page, |_| true);
        }
        let why = if want.cause == Cause::Prefetch { Arrival::Prefetch } else { Arrival::Fault };
        let moved_by = MovedBy::new(want.cause, want.processor.map(Processor::id));
        let outcome = source.map_or(FaultOutcome::ZeroFilled, |_| FaultOutcome::Copied);
        let served = self.served(want, outcome);
        m.add_copy(frame.activate(page, why, moved_by, || {
            self.stats.count_arrival_locked(source.map(|_| from), to.id, want.cause);
            self.count_served_locked(to, served);
        }));
        if !alone {
            self.note_spare(m);
        }
        Ok(outcome)
    }

    /// The mapping that a plan makes: for writing only where the page has no other copy.
    fn enter_of(
        &self,
        m: &Mapping,
        page: PageNr,
        plan: &Plan<'_>,
        frame: Frame,
        alone: bool,
    ) -> Enter {
        let remote = || plan.node.device.remote_handle(frame);
        let kind = match plan.way {
            Way::Local => MappingKind::Local,
            Way::Replica => MappingKind::Replica,
            Way::Remote => remote().map_or(MappingKind::Local, MappingKind::Remote),
        };
        let may_write = alone || kind == MappingKind::Replica;
        let protection = if may_write { m.protection } else { Protection::ReadOnly };
        Enter { page, frame, protection, kind }
    }

    pub(crate) fn thrashing(&self, want: &Want<'_>) -> Error {
        Error::Thrashing { addr: want.page.start(), node: want.node.id, tries: MAX_TRIES }
    }

    /// A fault failed: accesses to the page by this processor fail instead of waiting for ever,
    /// unless the page has become usable meanwhile or has been unmapped.
    fn poison(&self, processor: &Processor, page: PageNr, generation: Option<u8>, error: Error) {
        let is_wild = matches!(
            error,
            Error::NotMapped { .. }
                | Error::Protection { .. }
                | Error::RegionRefused { .. }
                | Error::NotAttached { .. }
        );
        let Some(entry) = self.table.get(page).filter(|_| !is_wild) else { return };
        let mut m = entry.lock();
        let is_same = m.is_open() && Some(m.generation()) == generation;
        if is_same && !m.mapped().contains(processor.id) && processor.mmu.poison(page) {
            m.set_poisoned(true);
        }
    }
}
