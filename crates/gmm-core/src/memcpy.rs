//! `gmemcpy`: bytes are copied to where they will be used, and end mapped there.
//!
//! A [`Memcpy`] is a job that any number of threads may work on at once ([`Space::copy_on`]). It
//! is cut into *pieces*, one for each page of the destination. A page that a piece covers whole
//! goes into a new frame, so its old contents need not come; a piece of a page is copied into the
//! page, which is brought first. The source stays where it is: mappings that would let its bytes
//! change, or keep them out of reach, are taken away for the time of the copy.
//!
//! # Locks
//! Pieces go in flights (`bulk.rs`), whose entries are taken by try-lock. A piece that could not
//! be had so is done alone, with no other entry locked: its two or three entries are then locked
//! in the order of their addresses, all waiting for locks of others in that order only. So two
//! copies that cross, or a copy and reclaim, never wait for each other.

use core::ops::Range;

use crate::bulk::{Aim, BATCH, Bytes, Copy, Flight, Locked, Shares, To};
use crate::driver::{Access, Capabilities, DriverError, Protection};
use crate::entry::{Entry, EntryGuard, Mapping};
use crate::fault::{Cause, MAX_TRIES, Want};
use crate::node::TransitFrame;
use crate::remap::RemapCause;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Deadline, RwLock, Shared};
use crate::{
    Batch, Error, Frame, FrameNr, HostAddr, NodeId, PAGE_SIZE, PageNr, PageRange, Processor,
    ProcessorSet, Result, VirtAddr,
};

/// A copy that is under way: made by [`Space::begin_memcpy`].
pub struct Memcpy {
    dst: VirtAddr,
    src: VirtAddr,
    len: u64,
    /// Whether each end is unified memory.
    dst_is_unified: bool,
    src_is_unified: bool,
    node: NodeId,
    mappers: Vec<Shared<Processor>>,
    shares: Shares,
    is_stopped: AtomicBool,
    failed: RwLock<Option<Error>>,
}

/// The part of a copy that writes one page (or, to plain memory, reads one).
#[derive(Clone, Copy)]
struct Piece {
    dst: VirtAddr,
    src: VirtAddr,
    len: u64,
}

/// Bytes of a piece that lie in one page, or in memory that is not the manager's.
#[derive(Clone, Copy)]
struct Chunk {
    from: End,
    from_offset: u64,
    to_offset: u64,
    len: u64,
}

/// Where a chunk comes from.
#[derive(Clone, Copy)]
enum End {
    Page(PageNr),
    Plain(HostAddr),
}

/// A piece of a flight: which of its pages are whose.
struct Planned {
    nr: u64,
    dst: Option<usize>,
    chunks: Batch<Chunk, 2>,
    sources: [Option<usize>; 2],
}

/// A flight of pieces.
struct Copying<'a> {
    flight: Flight<'a>,
    planned: Batch<Planned, BATCH>,
    /// The pages of the flight that are written.
    written: Batch<PageNr, BATCH>,
}

/// Why a piece can't go now, with its entries locked.
#[derive(Clone, Copy)]
enum Hindrance {
    /// Someone else has an entry.
    Locked,
    /// It takes a frame of the node.
    Frame,
    /// It takes a host frame on the way.
    Bounce,
    /// The page is to be brought first.
    Absent,
    /// A launch holds that page, on that node.
    Held(PageNr, NodeId),
    Error(Error),
}

/// Frames taken before entries are locked.
#[derive(Default)]
struct Spares<'a> {
    frames: Batch<TransitFrame<'a>, BATCH>,
    bounces: Batch<TransitFrame<'a>, { 2 * BATCH }>,
}

impl From<Error> for Hindrance {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Piece {
    /// Whether it is a whole page of the destination.
    fn is_page(&self) -> bool {
        self.len == PAGE_SIZE && self.dst.is_page_start()
    }

    fn chunks(&self, job: &Memcpy) -> Batch<Chunk, 2> {
        let mut chunks = Batch::new();
        let to_offset = if job.dst_is_unified { offset(self.dst) } else { 0 };
        if !job.src_is_unified {
            let from = End::Plain(HostAddr(self.src.0));
            chunks.push(Chunk { from, from_offset: 0, to_offset, len: self.len });
            return chunks;
        }
        let mut done = 0;
        while done < self.len {
            let src = VirtAddr(self.src.0 + done);
            let from_offset = offset(src);
            let len = (self.len - done).min(PAGE_SIZE - from_offset);
            let from = End::Page(src.page());
            chunks.push(Chunk { from, from_offset, to_offset: to_offset + done, len });
            done += len;
        }
        chunks
    }
}

/// How far into its page an address is.
fn offset(addr: VirtAddr) -> u64 {
    addr.0 - addr.page().start().0
}

impl<'a> Copying<'a> {
    fn new(space: &'a Space, job: &'a Memcpy) -> Self {
        let node = space.known_node(job.node);
        let flight = Flight::new(Aim {
            node,
            mappers: &job.mappers,
            cause: Cause::Copy,
            on_behalf_of: None,
        });
        Self { flight, planned: Batch::new(), written: Batch::new() }
    }

    /// Which of the flight's pages this is, locked now if it was not. A page is not written by one
    /// piece and read by another of the same flight.
    fn locked(
        &mut self,
        page: PageNr,
        to_write: bool,
        lock: &mut impl FnMut(PageNr) -> Option<EntryGuard<'a>>,
    ) -> Result<usize, Hindrance> {
        let pages = &mut self.flight.pages;
        let known = pages.iter().position(|l| l.page == page);
        if let Some(nr) = known {
            let is_written = self.written.iter().any(|&w| w == page);
            return if is_written || to_write { Err(Hindrance::Locked) } else { Ok(nr) };
        }
        if pages.is_full() {
            return Err(Hindrance::Locked);
        }
        let m = lock(page).ok_or(Hindrance::Locked)?;
        pages.push(Locked::new(page, m));
        if to_write {
            self.written.push(page);
        }
        Ok(pages.len() - 1)
    }
}

impl Memcpy {
    /// Whether it succeeded, once nobody works on it any more.
    ///
    /// # Errors
    /// The first that occurred.
    pub fn outcome(&self) -> Result<()> {
        self.failed.with(|failed| failed.map_or(Ok(()), Err))
    }

    fn fail(&self, error: Error) {
        self.failed.with_mut(|failed| _ = failed.get_or_insert(error));
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// The next pieces to work on.
    fn take(&self) -> Option<Range<u64>> {
        if self.is_stopped.load(Ordering::SeqCst) {
            return None;
        }
        self.shares.take()
    }

    /// The end whose pages cut the copy into pieces.
    fn cut(&self) -> VirtAddr {
        if self.dst_is_unified { self.dst } else { self.src }
    }

    fn piece(&self, nr: u64) -> Piece {
        let start = self.cut();
        let page = start.page().plus(nr);
        let from = page.start().0.max(start.0) - start.0;
        let to = (page.start().0 + PAGE_SIZE - start.0).min(self.len);
        Piece { dst: VirtAddr(self.dst.0 + from), src: VirtAddr(self.src.0 + from), len: to - from }
    }
}

impl Space {
    /// `gmemcpy`: copies `len_bytes` from `src` to `dst`, at any alignment and wherever the bytes
    /// are; the destination ends resident on `node` and mapped by its processors, as far as it fits
    /// there. An address outside the window ([`Config::window`](crate::Config::window)) is
    /// ordinary memory of this process; it is the caller who answers for it, until this returns.
    /// Of both ends one at least is unified memory. No byte is a success that does nothing.
    ///
    /// # Errors
    /// Before anything is copied: [`Error::UnknownNode`], [`Error::AddressOverflow`],
    /// [`Error::NotMapped`], [`Error::Overlap`], [`Error::Protection`] if the destination is
    /// read-only. Later, the errors of [`Space::fault`] for a page of either end,
    /// [`Error::PageHeld`] if a launch holds one for longer than
    /// [`Config::hold_wait`](crate::Config::hold_wait), [`Error::PagePinned`] or
    /// [`Error::PageKept`] if a page of the destination can't leave another node. Then every byte of
    /// the destination means nothing, and no other byte has changed.
    pub fn memcpy(&self, dst: VirtAddr, src: VirtAddr, len_bytes: u64, node: NodeId) -> Result<()> {
        let job = self.begin_memcpy(dst, src, len_bytes, node)?;
        self.copy_on(&job);
        job.outcome()
    }

    /// A copy for [`Space::copy_on`].
    ///
    /// # Errors
    /// As [`Space::memcpy`] before anything is copied.
    pub fn begin_memcpy(
        &self,
        dst: VirtAddr,
        src: VirtAddr,
        len_bytes: u64,
        node: NodeId,
    ) -> Result<Memcpy> {
        let target = self.node(node)?;
        let len = len_bytes;
        let ends = [dst, src].map(|addr| self.unified_range(addr, len));
        let [dst_range, src_range] = [ends[0]?, ends[1]?];
        if len > 0 && dst.0 < src.0.saturating_add(len) && src.0 < dst.0.saturating_add(len) {
            return Err(Error::Overlap { dst, src, len });
        }
        let mut mappers = Vec::new();
        if let Some(range) = dst_range {
            self.check_writable(range, dst)?;
            mappers = self.mappers_to_be(range, node)?;
            // Of those that move frames only one can map a page.
            if mappers.iter().any(|p| p.moves_frames()) {
                mappers.truncate(1);
            }
        }
        if let Some(range) = src_range {
            self.check_mapped(range)?;
        }
        let pieces = dst_range.or(src_range);
        let pieces = pieces.or((len == 0).then_some(PageRange { start: PageNr(0), nr_pages: 0 }));
        let nr_pieces = pieces.ok_or(Error::NotMapped { addr: dst })?.nr_pages;
        Ok(Memcpy {
            dst,
            src,
            len,
            dst_is_unified: dst_range.is_some(),
            src_is_unified: src_range.is_some(),
            node,
            mappers,
            shares: Shares::new(nr_pieces, target.capacity()),
            is_stopped: AtomicBool::new(false),
            failed: RwLock::new(None),
        })
    }

    /// The pages of one end of a copy, `None` for ordinary memory or no byte.
    fn unified_range(&self, addr: VirtAddr, len: u64) -> Result<Option<PageRange>> {
        if len == 0 {
            return Ok(None);
        }
        let range = PageRange::covering(addr, len)?;
        let window = self.config.window;
        let is_outside = range.end() <= window.start || window.end() <= range.start;
        Ok(Some(range).filter(|_| !is_outside))
    }

    fn check_writable(&self, range: PageRange, dst: VirtAddr) -> Result<()> {
        let regions = self.regions.lock();
        let covering = regions.covering(range)?;
        let read_only = covering.iter().find(|r| r.protection == Protection::ReadOnly);
        match read_only.map(|r| VirtAddr(r.range.start.start().0.max(dst.0))) {
            Some(addr) => Err(Error::Protection { addr, access: Access::Write }),
            None => Ok(()),
        }
    }

    /// Does a part of a copy, until there is nothing left to begin. Others may do the same.
    pub fn copy_on(&self, job: &Memcpy) {
        let mut flying = None;
        while let Some(pieces) = job.take() {
            let mut left = Batch::<u64, BATCH>::new();
            let mut spares = self.spares_for(job, pieces.clone());
            let mut next = Copying::new(self, job);
            for nr in pieces {
                let lock = |page| self.table.get(page).and_then(Entry::try_lock);
                match self.join(&mut next, job, nr, &mut spares, lock) {
                    Ok(()) => {}
                    Err(Hindrance::Error(error)) => job.fail(error),
                    Err(_) => left.push(nr),
                }
            }
            self.take_off(&mut next, job, &mut spares, |nr, _| left.push(nr));
            drop(spares);
            self.touch_down(job, flying.replace(next));
            if !left.is_empty() {
                self.touch_down(job, flying.take());
                left.iter().for_each(|&nr| self.copy_alone(job, nr));
            }
        }
        self.touch_down(job, flying);
    }

    /// Frames for so many pieces, as far as they can be had without waiting.
    fn spares_for<'a>(&'a self, job: &Memcpy, pieces: Range<u64>) -> Spares<'a> {
        let (node, host) = (self.known_node(job.node), self.known_node(NodeId::HOST));
        let mut spares = Spares::default();
        for nr in pieces {
            let piece = job.piece(nr);
            let look = |page| self.table.get(page).and_then(Entry::try_lock);
            let is_here = |m: EntryGuard<'_>| m.copy_on(node.id).is_some();
            if job.dst_is_unified && piece.is_page() && !look(piece.dst.page()).is_some_and(is_here)
            {
                let Some(frame) = self.try_take_frame(node) else { break };
                spares.frames.push(frame);
            }
            let target = Frame { node: node.id, nr: FrameNr(0) };
            for chunk in piece.chunks(job).iter() {
                let End::Page(page) = chunk.from else { continue };
                let source = look(page).and_then(|m| source_for(&m, node.id));
                let goes_round = source.is_some_and(|from| self.needs_bounce(from, target));
                if job.dst_is_unified && goes_round {
                    spares.bounces.extend(self.try_take_frame(host));
                }
            }
        }
        spares
    }

    /// Locks what a piece needs and says what is to be done to it, unless something is in the way.
    fn join<'a>(
        &'a self,
        copying: &mut Copying<'a>,
        job: &Memcpy,
        nr: u64,
        spares: &mut Spares<'a>,
        mut lock: impl FnMut(PageNr) -> Option<EntryGuard<'a>>,
    ) -> Result<(), Hindrance> {
        let piece = job.piece(nr);
        let mut planned = Planned { nr, dst: None, chunks: piece.chunks(job), sources: [None; 2] };
        if job.dst_is_unified {
            planned.dst = Some(copying.locked(piece.dst.page(), true, &mut lock)?);
        }
        for (chunk, source) in planned.chunks.iter().zip(&mut planned.sources) {
            if let End::Page(page) = chunk.from {
                let own = planned.dst.filter(|_| page == piece.dst.page());
                *source = Some(match own {
                    Some(own) => own,
                    None => copying.locked(page, false, &mut lock)?,
                });
            }
        }
        let pages = &mut copying.flight.pages;
        let mut frame = None;
        if let Some(dst) = planned.dst {
            self.check_destination(&pages[dst], job, piece)?;
            if pages[dst].m.copy_on(job.node).is_none() {
                frame = Some(spares.frames.pop().ok_or(Hindrance::Frame)?);
            }
        }
        let sources = planned.sources.iter().flatten().filter(|&&nr| Some(nr) != planned.dst);
        for &source in sources.clone() {
            self.check_source(&pages[source], piece)?;
        }
        // Nothing is in the way.
        for &source in sources {
            let l = &mut pages[source];
            let (clear, protect) = self.in_the_way(&l.m);
            l.restore = clear.union(protect);
            l.restore_writable = l.m.writable();
            (l.clear, l.protect) = (clear, protect);
        }
        if let Some(dst) = planned.dst {
            let l = &mut pages[dst];
            l.here = l.m.copy_on(job.node);
            (l.incoming, l.alone, l.clear) = (frame, true, l.m.mapped());
        }
        copying.planned.push(planned);
        Ok(())
    }

    fn check_destination(
        &self,
        l: &Locked<'_>,
        job: &Memcpy,
        piece: Piece,
    ) -> Result<(), Hindrance> {
        let (m, page, addr) = (&l.m, l.page, piece.dst);
        if !m.is_open() {
            return Err(Error::NotMapped { addr }.into());
        }
        if m.protection == Protection::ReadOnly {
            return Err(Error::Protection { addr, access: Access::Write }.into());
        }
        let here = m.copy_on(job.node);
        let goes = |copy: Frame| Some(copy) != here;
        if let Some(held) = m.copies().find(|&c| goes(c) && self.known_node(c.node).is_held(c.nr)) {
            return Err(Hindrance::Held(page, held.node));
        }
        let comes_back = |p: &Processor| job.mappers.iter().any(|mapper| mapper.id == p.id);
        self.check_mapping_can_go(l, m.mapped(), comes_back)?;
        if here.is_none() && !piece.is_page() {
            return Err(Hindrance::Absent);
        }
        self.check_unpinned(m, page, here.map(|_| job.node))?;
        Ok(self.ask(m, page, RemapCause::Move, goes)?)
    }

    fn check_source(&self, l: &Locked<'_>, piece: Piece) -> Result<(), Hindrance> {
        if !l.m.is_open() {
            let addr = VirtAddr(l.page.start().0.max(piece.src.0));
            return Err(Error::NotMapped { addr }.into());
        }
        let (clear, protect) = self.in_the_way(&l.m);
        self.check_mapping_can_go(l, clear.union(protect), |_| true)
    }

    /// A launch that holds the page would miss its mapping: without replayable faults for the time
    /// of the copy, else if it does not come back. And where frames move, the page may turn out to
    /// have been discarded, which one that is held can't be.
    fn check_mapping_can_go(
        &self,
        l: &Locked<'_>,
        mappers: ProcessorSet,
        comes_back: impl Fn(&Processor) -> bool,
    ) -> Result<(), Hindrance> {
        let is_held = |c: &Frame| self.known_node(c.node).is_held(c.nr);
        let Some(held) = l.m.copies().find(is_held) else { return Ok(()) };
        let replays = |p: &Processor| p.capabilities.contains(Capabilities::REPLAYABLE_FAULTS);
        let mut mappers = mappers.iter().filter_map(|id| self.processor(id));
        match mappers.all(|p| replays(&p) && comes_back(&p) && !p.moves_frames()) {
            true => Ok(()),
            false => Err(Hindrance::Held(l.page, held.node)),
        }
    }

    /// The mappings of a source that are to be removed, and to be made read-only, while its bytes
    /// are copied.
    fn in_the_way(&self, m: &Mapping) -> (ProcessorSet, ProcessorSet) {
        let (mut clear, mut protect) = (ProcessorSet::EMPTY, ProcessorSet::EMPTY);
        for id in m.mapped().iter() {
            let Some(p) = self.processor(id) else { continue };
            let takes = m.frame_seen_from(p.node).is_some_and(|f| p.takes_frames_of(f.node));
            if m.is_unsure() || takes && !m.has_replica() {
                clear.insert(id);
            } else if m.writable().contains(id) {
                match p.maps_read_only() {
                    true => protect.insert(id),
                    false => clear.insert(id),
                }
            }
        }
        (clear, protect)
    }

    /// Starts the copies of the pieces that have joined. `left` is told of those that could not
    /// go after all.
    fn take_off<'a>(
        &'a self,
        copying: &mut Copying<'a>,
        job: &Memcpy,
        spares: &mut Spares<'a>,
        mut left: impl FnMut(u64, Hindrance),
    ) {
        self.quiesce(&mut copying.flight.pages);
        for planned in copying.planned.iter() {
            let flight = &mut copying.flight;
            if let Err(hindrance) = self.add_copies(flight, planned, job, spares) {
                if let Some(dst) = planned.dst {
                    (flight.pages[dst].incoming, flight.pages[dst].here) = (None, None);
                }
                match hindrance {
                    Hindrance::Error(error) => job.fail(error),
                    hindrance => left(planned.nr, hindrance),
                }
            }
        }
        self.start(&mut copying.flight);
    }

    fn add_copies<'a>(
        &'a self,
        flight: &mut Flight<'a>,
        planned: &Planned,
        job: &Memcpy,
        spares: &mut Spares<'a>,
    ) -> Result<(), Hindrance> {
        let of_piece = planned.dst.iter().chain(planned.sources.iter().flatten());
        if let Some(error) = of_piece.filter_map(|&nr| flight.pages[nr].failed).next() {
            return Err(error.into());
        }
        let (mut target, mut is_new) = (None, false);
        if let Some(dst) = planned.dst {
            // An application may have discarded the page.
            let l = &flight.pages[dst];
            if l.here.is_some() && l.m.copy_on(job.node) != l.here {
                return Err(Hindrance::Absent);
            }
            (target, is_new) = (l.target(), l.incoming.is_some());
        }
        let mut copies = Batch::<_, 2>::new();
        let mut is_zero = is_new;
        for (chunk, source) in planned.chunks.iter().zip(planned.sources) {
            let from = match (chunk.from, source) {
                (End::Plain(addr), _) => Some(Bytes::Plain(addr)),
                (End::Page(_), source) => {
                    let l = source.map(|nr| &flight.pages[nr]);
                    l.and_then(|l| source_for(&l.m, job.node)).map(Bytes::Frame)
                }
            };
            is_zero &= from.is_none();
            copies.push((chunk, from));
        }
        let to = match planned.dst {
            Some(dst) => To::Page(dst),
            None => To::Plain(HostAddr(job.piece(planned.nr).dst.0)),
        };
        if is_zero {
            flight.copies.push(Copy::new(None, 0, to, 0, PAGE_SIZE));
            return Ok(());
        }
        let goes_round = |from: Option<Bytes>| match (from, target) {
            (None, _) => true,
            (Some(Bytes::Frame(from)), Some(target)) => self.needs_bounce(from, target),
            (Some(_), _) => false,
        };
        let nr_bounces = copies.iter().filter(|&&(_, from)| goes_round(from)).count();
        if nr_bounces > spares.bounces.len() {
            return Err(Hindrance::Bounce);
        }
        for &(chunk, from) in copies.iter() {
            let mut copy = Copy::new(from, chunk.from_offset, to, chunk.to_offset, chunk.len);
            if goes_round(from) {
                copy.bounce = spares.bounces.pop();
            }
            flight.copies.push(copy);
        }
        Ok(())
    }

    /// Ends a flight of pieces.
    fn touch_down(&self, job: &Memcpy, copying: Option<Copying<'_>>) {
        let Some(Copying { mut flight, .. }) = copying else { return };
        self.land(&mut flight);
        for error in flight.pages.iter().filter_map(|l| l.failed) {
            job.fail(error);
        }
        if let Some(cause) = flight.failed {
            let (addr, from, to) = (job.src, job.node, NodeId::HOST);
            job.fail(Error::Transfer { addr, from, to, cause });
        }
    }

    /// Does one piece, waiting for whatever is in its way.
    fn copy_alone(&self, job: &Memcpy, nr: u64) {
        let (node, host) = (self.known_node(job.node), self.known_node(NodeId::HOST));
        let piece = job.piece(nr);
        let mut spares = Spares::default();
        let mut held_until = None;
        for _ in 0..MAX_TRIES {
            if job.is_stopped.load(Ordering::SeqCst) {
                return;
            }
            let hindrance = match self.try_alone(job, nr, &mut spares) {
                None => return,
                Some(hindrance) => hindrance,
            };
            let helped = match hindrance {
                Hindrance::Frame => self.take_frame(node, || true).map(|frame| {
                    spares.frames.extend(frame);
                }),
                Hindrance::Bounce => self.take_frame(host, || true).map(|frame| {
                    spares.bounces.extend(frame);
                }),
                _ => Ok(()),
            };
            let helped = match hindrance {
                Hindrance::Absent => self.bring_for_copy(job, piece),
                Hindrance::Error(error) => Err(error),
                Hindrance::Held(page, at) => {
                    let wait = || Deadline::after(&*self.clock, self.config.hold_wait);
                    let end = *held_until.get_or_insert_with(wait);
                    let holder = self.known_node(at);
                    holder.wait(holder.changes(), self.soon(), &*self.clock);
                    match end.left(&*self.clock) {
                        Some(_) => Ok(()),
                        None => Err(Error::PageHeld { addr: page.start(), node: at }),
                    }
                }
                _ => helped.map_err(Error::from),
            };
            if let Err(error) = helped {
                return job.fail(error);
            }
        }
        let addr = piece.dst.page().start();
        job.fail(Error::Thrashing { addr, node: job.node, tries: MAX_TRIES });
    }

    /// One try at a piece, with all its entries locked; says what was in the way.
    fn try_alone<'a>(
        &'a self,
        job: &'a Memcpy,
        nr: u64,
        spares: &mut Spares<'a>,
    ) -> Option<Hindrance> {
        let piece = job.piece(nr);
        let mut pages = Batch::<PageNr, 3>::new();
        let chunks = piece.chunks(job);
        let sources = chunks.iter().filter_map(|chunk| match chunk.from {
            End::Page(page) => Some(page),
            End::Plain(_) => None,
        });
        for page in job.dst_is_unified.then(|| piece.dst.page()).into_iter().chain(sources) {
            if !pages.iter().any(|&p| p == page) {
                pages.push(page);
            }
        }
        let entries = pages.iter().filter_map(|&page| Some((page, self.table.get(page)?)));
        let mut locked = Entry::lock_all::<PageNr, 3>(entries);
        let lock = |page| locked.iter_mut().find(|(p, _)| *p == page).and_then(|(_, m)| m.take());
        let mut copying = Copying::new(self, job);
        if let Err(hindrance) = self.join(&mut copying, job, nr, spares, lock) {
            return Some(hindrance);
        }
        let mut in_the_way = None;
        self.take_off(&mut copying, job, spares, |_, hindrance| in_the_way = Some(hindrance));
        self.touch_down(job, Some(copying));
        in_the_way
    }

    /// Makes the page that a piece is part of resident on the node, and its only copy.
    fn bring_for_copy(&self, job: &Memcpy, piece: Piece) -> Result<()> {
        let (page, addr, node) = (piece.dst.page(), piece.dst, self.known_node(job.node));
        let entry = self.table.get(page).ok_or(Error::NotMapped { addr })?;
        let (access, cause) = (Access::Write, Cause::Copy);
        let nobody = Want { page, addr, node, processor: None, access, cause, since: None };
        let mapper = job.mappers.iter().find(|p| !p.is_detached());
        if let Some(mapper) = mapper {
            match self.resolve(entry, &Want { processor: Some(mapper), ..nobody }) {
                Err(Error::Mmu { cause: DriverError::Dead, .. } | Error::NotAttached { .. }) => {}
                done => return done.map(drop),
            }
        }
        self.resolve(entry, &nobody).map(drop)
    }
}

/// The copy of a source to read from, for a copy to `node`.
fn source_for(m: &Mapping, node: NodeId) -> Option<Frame> {
    m.copy_on(node).or_else(|| m.source())
}
