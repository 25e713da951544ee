//! jemalloc (5.3) with extents on our frames, an arena for each stream: the general-purpose
//! allocator that is best known for little fragmentation, to be compared with.
//!
//! - Requests of up to 14 KiB get a size of jemalloc's classes, four between each power of two and
//!   the next; larger ones are rounded up to 4 KiB (`opt.disable_large_size_classes`, on by default
//!   in 5.3.1).
//! - jemalloc decides where in a window of addresses memory is needed, in units of 4 KiB; a frame is
//!   mapped where a byte of a page of 2 MiB is ([`arenas`]).
//! - Free extents keep their memory until the device has no more; then all are purged. jemalloc
//!   would let them decay within seconds, but a replay has no clock. So it holds much while there is
//!   room, and runs on little where there is not, at the price of mapping over and over.

mod arenas;

use std::collections::{BTreeMap, BTreeSet};

use gmm_core::{PAGE_SIZE, PageNr, VirtAddr};

use crate::block::Live;
use crate::error::Action;
use crate::fences::Fences;
use crate::memory::{Memory, Request, rounded_up};
use crate::pending::Pending;
use crate::pieces::{Index, Pieces};
use crate::{
    Allocation, Allocator, Backend, BackendError, BlockId, Error, Result, Stats, StreamId,
};
use arenas::{Arena, Arenas};

/// The window has addresses for so many times the device: arenas grow in steps that double...
const WINDOW_TIMES: u64 = 64;
/// ...up to this many bytes: a process has 128 TiB in all.
const MAX_WINDOW_BYTES: u64 = 32 << 40;

enum State {
    Live(Live),
    Pending { stream: StreamId },
}

/// The window as jemalloc and the device know it.
struct Window {
    arenas: Arenas,
    at: PageNr,
    streams: BTreeMap<StreamId, Arena>,
    /// Which stream uses a page, and whether it is mapped; by page.
    mapped: Vec<Option<StreamId>>,
    /// Pages that are mapped and not needed, or needed and not mapped.
    unsettled: BTreeSet<usize>,
}

/// jemalloc over frames.
pub struct Jemalloc<B> {
    memory: Memory<B>,
    window: Option<Window>,
    /// What is handed out: each a run of its own, at its address in the device's window.
    blocks: Pieces<State>,
    pending: Pending,
}

impl<B: Backend> Jemalloc<B> {
    /// Arenas are made as streams come.
    pub fn new(backend: B) -> Self {
        Self {
            memory: Memory::new(backend),
            window: None,
            blocks: Pieces::new(),
            pending: Pending::default(),
        }
    }

    /// What it stands on.
    pub fn backend(&self) -> &B {
        self.memory.backend()
    }

    /// What it stands on.
    pub fn backend_mut(&mut self) -> &mut B {
        self.memory.backend_mut()
    }

    fn open_window(&mut self) -> Result<&mut Window> {
        if self.window.is_none() {
            let capacity = self.memory.capacity_bytes();
            let len = (capacity.saturating_mul(WINDOW_TIMES)).min(MAX_WINDOW_BYTES);
            let nr_pages = len.max(PAGE_SIZE) / PAGE_SIZE;
            let at = self.memory.reserve(nr_pages)?;
            let Some(arenas) = Arenas::new(nr_pages, capacity / PAGE_SIZE) else {
                self.memory.unreserve(at, nr_pages);
                return Err(no_addresses(nr_pages));
            };
            self.window = Some(Window {
                arenas,
                at,
                streams: BTreeMap::new(),
                mapped: Vec::new(),
                unsettled: BTreeSet::new(),
            });
        }
        Ok(self.window.as_mut().expect("it was made"))
    }

    /// The arena of a stream.
    fn arena(&mut self, stream: StreamId) -> Result<Arena> {
        let window = self.open_window()?;
        if let Some(arena) = window.streams.get(&stream) {
            return Ok(*arena);
        }
        let arena = window.arenas.create().ok_or_else(|| no_addresses(1))?;
        window.streams.insert(stream, arena);
        Ok(arena)
    }

    /// Maps and unmaps what jemalloc's last decisions were about; false if there are not enough
    /// frames after all. `stream` is the one whose arena may have got new pages.
    fn settle(&mut self, stream: StreamId) -> Result<bool> {
        let Some(window) = &mut self.window else { return Ok(true) };
        for page in window.arenas.changed() {
            if window.mapped.len() <= page {
                window.mapped.resize(page + 1, None);
            }
            if window.arenas.is_needed(page) == window.mapped[page].is_some() {
                window.unsettled.remove(&page);
            } else {
                window.unsettled.insert(page);
            }
        }
        if window.unsettled.is_empty() {
            return Ok(true);
        }
        let settled = self.settle_pages(stream);
        if !matches!(settled, Ok(true)) {
            let _ = self.memory.drain_pool(0);
        }
        settled
    }

    fn settle_pages(&mut self, stream: StreamId) -> Result<bool> {
        let Some(window) = &mut self.window else { return Ok(true) };
        let is_mapped = |page: &usize| window.mapped[*page].is_some();
        let (old, new): (Vec<usize>, Vec<usize>) =
            window.unsettled.iter().copied().partition(is_mapped);
        for (first, nr_pages) in runs(&old, |page| window.mapped[page]) {
            let user = window.mapped[first].unwrap_or_default();
            Fences::of(&mut self.memory, [user]).wait(&mut self.memory)?;
            self.memory.unmap(PageNr(window.at.0 + first as u64), nr_pages as u64)?;
            for page in first..first + nr_pages {
                window.mapped[page] = None;
                window.unsettled.remove(&page);
            }
        }
        if !self.memory.fill_pool(new.len() as u64)? {
            return Ok(false);
        }
        for (first, nr_pages) in runs(&new, |_| ()) {
            self.memory.map(PageNr(window.at.0 + first as u64), nr_pages as u64)?;
            for page in first..first + nr_pages {
                window.mapped[page] = Some(stream);
                window.unsettled.remove(&page);
            }
        }
        self.memory.drain_pool(0)?;
        Ok(true)
    }

    /// Memory for a request: its offset in the window. None if there is not enough.
    fn try_allocate(&mut self, arena: Arena, request: Request) -> Result<Option<u64>> {
        let Some(window) = &mut self.window else { return Ok(None) };
        let Some(offset) = window.arenas.allocate(arena, request.needed_bytes) else {
            return Ok(None);
        };
        let settled = self.settle(request.stream);
        if !matches!(settled, Ok(true)) {
            self.give_back(arena, offset);
        }
        settled.map(|settled| settled.then_some(offset))
    }

    /// Frees what can't be handed out since it is not mapped: jemalloc is not to hand it out again.
    fn give_back(&mut self, arena: Arena, offset: u64) {
        if let Some(window) = &mut self.window {
            window.arenas.free(arena, offset);
            window.arenas.purge();
        }
    }

    fn release(&mut self, index: Index, stream: StreamId) {
        let start = self.blocks[index].start;
        if let Some(window) = &mut self.window
            && let Some(arena) = window.streams.get(&stream)
        {
            window.arenas.free(*arena, start - window.at.start().0);
        }
        self.blocks.remove(index);
    }

    fn release_ended(&mut self, ended: Vec<Index>) {
        for index in ended {
            if let State::Pending { stream } = self.blocks[index].data {
                self.release(index, stream);
            }
        }
    }

    /// Gives back what is free, once all work on it has ended.
    fn purge(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        let waited = self.pending.wait(&mut self.memory, &mut ended);
        self.release_ended(ended);
        waited?;
        if let Some(window) = &mut self.window {
            window.arenas.purge();
        }
        self.settle(StreamId::default())?;
        self.memory.drain_pool(0)
    }

    fn out_of_memory(&self, request: Request) -> Error {
        let unreserved = self.memory.unreserved_bytes();
        self.memory.out_of_memory(request, 0, unreserved)
    }

    fn count_segments(&mut self) {
        // One window holds all.
        self.memory.stats.segments = u64::from(self.memory.stats.reserved_bytes > 0);
    }

    fn find(&mut self, request: Request) -> Result<u64> {
        if request.needed_bytes > self.memory.capacity_bytes() {
            return Err(self.out_of_memory(request));
        }
        let arena = self.arena(request.stream)?;
        if let Some(found) = self.try_allocate(arena, request)? {
            return Ok(found);
        }
        self.purge()?;
        self.try_allocate(arena, request)?.ok_or_else(|| self.out_of_memory(request))
    }
}

/// Runs of pages, in ascending order, that are alike: first page and length.
fn runs<K: PartialEq>(pages: &[usize], key: impl Fn(usize) -> K) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == page && key(*first) == key(page) => *len += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}

fn no_addresses(nr_pages: u64) -> Error {
    Error::Backend {
        action: Action::Reserve(nr_pages),
        source: BackendError::NoAddresses { nr_pages },
    }
}

impl<B: Backend> Allocator for Jemalloc<B> {
    fn name(&self) -> &'static str {
        "jemalloc"
    }

    fn allocate(&mut self, size_bytes: u64, stream: StreamId) -> Result<Allocation> {
        let ended = self.pending.take_reached(&mut self.memory);
        self.release_ended(ended);
        let request =
            Request { size_bytes, needed_bytes: rounded_up(size_bytes.max(1), 256), stream };
        let found = self.find(request);
        self.count_segments();
        let offset = found?;
        let usable_bytes = Arenas::usable_bytes(request.needed_bytes);
        let start = self.open_window()?.at.start().0 + offset;
        let live = State::Live(Live::new(size_bytes, stream));
        let index = self.blocks.insert(start, usable_bytes, live);
        self.memory.stats.allocated(size_bytes);
        Ok(Allocation { block: self.blocks.block(index), addr: VirtAddr(start), usable_bytes })
    }

    fn record_use(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let index = self.blocks.find(block)?;
        match &mut self.blocks[index].data {
            State::Live(live) => live.record_use(stream),
            State::Pending { .. } => return Err(Error::NotLive { block }),
        }
        Ok(())
    }

    fn free(&mut self, block: BlockId, stream: StreamId) -> Result<()> {
        let index = self.blocks.find(block)?;
        let State::Live(live) = &self.blocks[index].data else {
            return Err(Error::NotLive { block });
        };
        self.memory.stats.freed(live.requested_bytes);
        let own = live.stream;
        let others: Vec<StreamId> = live.users(stream).filter(|user| *user != own).collect();
        self.blocks.retire(index);
        if others.is_empty() {
            self.release(index, own);
        } else {
            self.blocks[index].data = State::Pending { stream: own };
            self.pending.push(&mut self.memory, index, &others);
        }
        Ok(())
    }

    fn trim(&mut self) -> Result<u64> {
        let before = self.memory.stats.reserved_bytes;
        let purged = self.purge();
        self.count_segments();
        purged.map(|()| before - self.memory.stats.reserved_bytes)
    }

    fn stats(&self) -> Stats {
        self.memory.stats
    }
}
