//! `WILLNEED`: pages are brought to a node before they are used.
//!
//! A [`Prefetch`] is a job that any number of threads may work on at once ([`Space::work_on`]):
//! each takes the next batch of pages until none is left, it is cancelled, or the node has no room
//! for more. What makes room is what was there before and is not the job's own; of that, the part
//! that was used last stays.

use crate::bulk::{Aim, BATCH, Flight, Locked, Shares};
use crate::driver::{Access, DriverError};
use crate::entry::Mapping;
use crate::fault::{Cause, Want};
use crate::node::{Import, Node, TransitFrame, highest_first};
use crate::reclaim::Round;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{RwLock, Shared};
use crate::trace::TraceEvent;
use crate::{
    Arrival, Batch, Error, NodeId, OutOfMemory, PageNr, PageRange, Processor, ProcessorSet, Result,
    VirtAddr,
};

/// What a prefetch has come to, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Prefetched {
    /// Brought by it, and mapped.
    pub brought: u64,
    /// There already: they have become hot.
    pub resident: u64,
    /// Not brought, for the reason in `stopped`.
    pub left: u64,
    /// Why it ended before the last page.
    pub stopped: Option<Stopped>,
}

/// Why a prefetch ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stopped {
    /// The node is full, of pages that can't go, were just used, or were brought by this prefetch.
    NoRoom(OutOfMemory),
    /// It was cancelled, or the range was unmapped meanwhile.
    Cancelled,
    /// A page could not be brought; others have been.
    Failed(Error),
}

/// A prefetch that is under way: made by [`Space::begin_prefetch`].
pub struct Prefetch {
    range: PageRange,
    node: NodeId,
    mappers: Vec<Shared<Processor>>,
    /// Pages are to have no copy elsewhere: a mapper can't be told of a later write.
    exclusive: bool,
    shares: Shares,
    /// How many frames it may still take,
    allowance: AtomicI64,
    /// and could when it began.
    first_allowance: i64,
    brought: AtomicU64,
    resident: AtomicU64,
    is_stopped: AtomicBool,
    stopped: RwLock<Option<Stopped>>,
}

/// A frame for a page that is to come.
enum Room<'a> {
    Frame(TransitFrame<'a>),
    /// There may be one soon.
    Busy,
    Full(OutOfMemory),
}

impl Prefetch {
    /// Has it end with the pages that are under way.
    pub fn cancel(&self) {
        self.stop(Stopped::Cancelled);
    }

    /// What it has come to so far.
    ///
    /// # Errors
    /// That of the page that could not be brought; [`Error::OutOfMemory`] if the node had no room
    /// for even one.
    pub fn outcome(&self) -> Result<Prefetched> {
        let stopped = self.stopped.with(|stopped| *stopped);
        if let Some(Stopped::Failed(error)) = stopped {
            return Err(error);
        }
        let (brought, resident) =
            (self.brought.load(Ordering::SeqCst), self.resident.load(Ordering::SeqCst));
        if let Some(Stopped::NoRoom(full)) = stopped.filter(|_| brought + resident == 0) {
            return Err(full.into());
        }
        let left = self.range.nr_pages - brought - resident;
        Ok(Prefetched { brought, resident, left, stopped: stopped.filter(|_| left > 0) })
    }

    /// Whether this thread is the first to bring a page, and none was there.
    fn begins(&self) -> bool {
        let (first, order) = (self.first_allowance, Ordering::SeqCst);
        let none_there = self.resident.load(order) == 0;
        none_there && self.allowance.compare_exchange(first, first - 1, order, order).is_ok()
    }

    fn fail(&self, error: Error) {
        match error {
            Error::NotMapped { .. } => self.cancel(),
            Error::OutOfMemory(full) => self.stop(Stopped::NoRoom(full)),
            error => self.stop(Stopped::Failed(error)),
        }
    }

    fn stop(&self, why: Stopped) {
        self.stopped.with_mut(|stopped| _ = stopped.get_or_insert(why));
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// The next pages to work on.
    fn take(&self) -> Option<PageRange> {
        if self.is_stopped.load(Ordering::SeqCst) {
            return None;
        }
        let share = self.shares.take()?;
        let nr_pages = share.end - share.start;
        Some(PageRange { start: self.range.start.plus(share.start), nr_pages })
    }
}

impl Space {
    /// `WILLNEED`: makes the pages that hold `addr .. addr + len_bytes` resident on `node` and
    /// maps them for its processors; pages that are there already become hot. Returns when done,
    /// and says how many came. Where not all fit, the first that do: that is a success if at least
    /// one had to come and did.
    ///
    /// # Errors
    /// Before anything is moved: [`Error::ZeroLength`], [`Error::AddressOverflow`],
    /// [`Error::UnknownNode`], [`Error::NotMapped`] with the first address in no region. Later,
    /// the errors of [`Space::fault`] for the page that failed, of these [`Error::OutOfMemory`]
    /// only if no page of the range is there then, or [`Error::PageHeld`] if a launch
    /// holds it for longer than [`Config::hold_wait`](crate::Config::hold_wait); others have moved.
    pub fn prefetch(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<Prefetched> {
        let job = self.begin_prefetch(addr, len_bytes, node)?;
        self.work_on(&job);
        job.outcome()
    }

    /// A prefetch for [`Space::work_on`].
    ///
    /// # Errors
    /// As [`Space::prefetch`] before anything is moved.
    pub fn begin_prefetch(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<Prefetch> {
        let range = PageRange::covering(addr, len_bytes)?;
        let target = self.node(node)?;
        let mappers = self.mappers_to_be(range, node)?;
        let counts = target.counts();
        // What was used last stays: an eighth, but no more than what is evicted at a time.
        let headroom = (target.capacity() / 8).min(BATCH as u32);
        let in_use = counts.active + counts.spare;
        let others = in_use + counts.pinned + counts.in_transit + counts.lost;
        // Of free frames, those that background reclaim would make free again.
        let kept = headroom.min(in_use).max(target.kept_free());
        let allowance = i64::from(in_use + target.capacity() - others) - i64::from(kept);
        let first_allowance = allowance.max(0);
        Ok(Prefetch {
            range,
            node,
            exclusive: mappers.iter().any(|p| !p.maps_read_only()),
            mappers,
            shares: Shares::new(range.nr_pages, target.capacity()),
            allowance: AtomicI64::new(first_allowance),
            first_allowance,
            brought: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            stopped: RwLock::new(None),
        })
    }

    /// The processors of `node` that can map all of `range`.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::AddressOverflow`].
    pub(crate) fn mappers_to_be(
        &self,
        range: PageRange,
        node: NodeId,
    ) -> Result<Vec<Shared<Processor>>> {
        let refused_by = {
            let regions = self.regions.lock();
            let covering = regions.covering(range)?;
            covering.iter().fold(ProcessorSet::EMPTY, |set, r| set.union(r.refused_by))
        };
        Ok(self.all_processors().filter(|p| p.node == node && !refused_by.contains(p.id)).collect())
    }

    /// Does a part of a prefetch, until there is nothing left to begin. Others may do the same.
    pub fn work_on(&self, job: &Prefetch) {
        let begun = self.begin();
        let mut flying = None;
        let mut part: Option<PageRange> = None;
        while let Some(pages) = job.take() {
            part.get_or_insert(PageRange { nr_pages: 0, ..pages }).nr_pages += pages.nr_pages;
            let mut left = Batch::<PageNr, BATCH>::new();
            let next = self.prepare(job, pages, &mut left);
            self.arrive(job, flying.take());
            flying = Some(next);
            if !left.is_empty() {
                self.arrive(job, flying.take());
                for &page in left.iter() {
                    self.prefetch_page(job, page);
                }
            }
        }
        self.arrive(job, flying.take());
        if let Some(PageRange { start: page, nr_pages }) = part {
            self.end(begun, || TraceEvent::Prefetch { node: job.node, page, nr_pages });
        }
    }

    /// Starts on a batch of pages. `left`: those that are to be done one by one.
    fn prepare<'a>(
        &'a self,
        job: &'a Prefetch,
        range: PageRange,
        left: &mut Batch<PageNr, BATCH>,
    ) -> Flight<'a> {
        let node = self.known_node(job.node);
        let mut flight = Flight::new(Aim {
            node,
            mappers: &job.mappers,
            cause: Cause::Prefetch,
            on_behalf_of: None,
        });
        // Frames first: while they are made free, no page of this batch is locked.
        let mut frames = self.frames_for(job, range);
        for (page, entry) in self.table.entries(range) {
            let Some(m) = entry.try_lock() else {
                left.push(page);
                continue;
            };
            if !m.is_open() {
                job.cancel();
                break;
            }
            let mut l = Locked::new(page, m);
            if self.is_there(&l.m, job) {
                // Who asks for the page may do so to end what a failed fault left behind.
                self.unpoison(&mut l.m, page);
                if let Some(frame) = l.m.copy_on(job.node) {
                    node.touch(frame.nr, Arrival::Hint, || ());
                }
                job.resident.fetch_add(1, Ordering::SeqCst);
            } else if self.is_plain(&l.m, job.node, &job.mappers, job.exclusive)
                && self.set_up_page(&mut l, job, &mut frames)
            {
                flight.pages.push(l);
            } else {
                left.push(page);
            }
        }
        job.allowance.fetch_add(frames.len() as i64, Ordering::SeqCst);
        drop(frames);
        self.depart(&mut flight);
        flight
    }

    /// Says what has to be done so that the page is on the node; `false` if that takes a frame and
    /// there is none, or it can't go straight.
    fn set_up_page<'a>(
        &'a self,
        l: &mut Locked<'a>,
        job: &Prefetch,
        frames: &mut Batch<TransitFrame<'a>, BATCH>,
    ) -> bool {
        if self.set_up_here(l, job.node, job.exclusive) {
            return true;
        }
        let Some(frame) = frames.pop() else { return false };
        let set_up = self.set_up_arrival(l, job.node, job.exclusive, frame);
        set_up.map_err(|frame| frames.push(frame)).is_ok()
    }

    fn arrive(&self, job: &Prefetch, flight: Option<Flight<'_>>) {
        let Some(mut flight) = flight else { return };
        self.land(&mut flight);
        for l in flight.pages.iter() {
            match l.failed {
                Some(error) => job.fail(error),
                None if l.arrived => _ = job.brought.fetch_add(1, Ordering::SeqCst),
                None => _ = job.resident.fetch_add(1, Ordering::SeqCst),
            }
        }
    }

    /// Whether nothing has to be done for the page.
    fn is_there(&self, m: &Mapping, job: &Prefetch) -> bool {
        let is_mapped = |p: &Processor| p.is_detached() || m.mapped().contains(p.id);
        let alone = !job.exclusive || m.nr_copies() == 1;
        m.copy_on(job.node).is_some()
            && !m.is_unsure()
            && alone
            && job.mappers.iter().all(|p| is_mapped(p))
    }

    /// Frames for those pages of `range` that have no copy on the node, or as many as there are.
    fn frames_for<'a>(
        &'a self,
        job: &Prefetch,
        range: PageRange,
    ) -> Batch<TransitFrame<'a>, BATCH> {
        let node = self.known_node(job.node);
        let mut frames = Batch::new();
        for (_, entry) in self.table.entries(range) {
            let is_here = entry.try_lock().is_some_and(|m| m.copy_on(job.node).is_some());
            if !is_here {
                let Room::Frame(frame) = self.room(job, node) else { break };
                frames.push(frame);
            }
        }
        highest_first(&mut frames);
        frames
    }

    /// A frame for one more page, if that pushes nothing out that should stay.
    fn room<'a>(&'a self, job: &Prefetch, node: &'a Node) -> Room<'a> {
        if job.allowance.fetch_sub(1, Ordering::SeqCst) <= 0 {
            job.allowance.fetch_add(1, Ordering::SeqCst);
            return Room::Full(node.out_of_memory(false));
        }
        let room = match self.free_or_imported(node, || ()) {
            (Some(frame), _) => Room::Frame(frame),
            (None, Import::Underway) => Room::Busy,
            (None, Import::Came | Import::Nothing) => {
                match self.reclaim_sparing(node, BATCH as u32, Some(job.range)) {
                    Round::Got { frame, .. } => Room::Frame(frame),
                    Round::Busy { .. } => Room::Busy,
                    Round::Nothing { host_full } => Room::Full(node.out_of_memory(host_full)),
                }
            }
        };
        if !matches!(room, Room::Frame(_)) {
            job.allowance.fetch_add(1, Ordering::SeqCst);
        }
        room
    }

    /// Does one page, waiting for whoever is at work on it.
    fn prefetch_page(&self, job: &Prefetch, page: PageNr) {
        if job.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        let addr = page.start();
        let node = self.known_node(job.node);
        let Some(entry) = self.table.get(page) else { return job.cancel() };
        let was_here = entry.lock().copy_on(job.node).is_some();
        if !was_here {
            match self.room(job, node) {
                Room::Frame(_) => {}
                Room::Busy => _ = job.allowance.fetch_sub(1, Ordering::SeqCst),
                // The first page waits for room as a fault does.
                Room::Full(_) if job.begins() => {}
                Room::Full(full) => return job.stop(Stopped::NoRoom(full)),
            }
        }
        let (processor, access, cause) = (None, Access::Read, Cause::Prefetch);
        let nobody = Want { page, addr, node, processor, access, cause, since: None };
        let mut is_mapped = false;
        for processor in &job.mappers {
            match self.resolve(entry, &Want { processor: Some(processor), ..nobody }) {
                // It has died or left: it has no use for the page, the others have.
                Err(
                    Error::Mmu { cause: DriverError::Dead, .. }
                    | Error::NotAttached { .. }
                    | Error::RegionRefused { .. },
                ) => {}
                Err(error) => return job.fail(error),
                Ok(_) => is_mapped = true,
            }
        }
        if !is_mapped && let Err(error) = self.resolve(entry, &nobody) {
            return job.fail(error);
        }
        let count = if was_here { &job.resident } else { &job.brought };
        count.fetch_add(1, Ordering::SeqCst);
    }
}
