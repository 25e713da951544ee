//! Counters: written with relaxed atomics, read without a lock.
//!
//! What a fault that is served counts (how long it took, how it was resolved, what it copied) is
//! written under the frame-list lock of the node that it was served from, which it holds for a
//! moment anyway: no read-modify-write is added. So each of these counters belongs to one node, and
//! is named `..._locked`; the caller holds that node's lock.

use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;

use crossbeam_utils::CachePadded;

use crate::driver::Access;
use crate::histogram::Times;
use crate::sync::{Counter, of_this_thread};
use crate::{MAX_NODES, MAX_PROCESSORS, NodeId, Processor, ProcessorId};

/// Why a page is moved, copied or dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MoveCause {
    /// A processor touched it.
    Fault,
    /// A processor was about to, going by its last faults.
    LookAhead,
    /// A program said that it will be used (`WILLNEED`).
    Prefetch,
    /// A `gmemcpy` wrote it.
    Copy,
    /// Its frame was wanted for another page.
    Eviction,
    /// It was copied out ahead of its eviction, in idle time.
    Laundering,
    /// A program said that its contents are not needed (`DONTNEED`).
    Discard,
    /// A launch holds it.
    Hold,
}

impl MoveCause {
    /// All causes, in order.
    pub const ALL: [Self; 8] = [
        Self::Fault,
        Self::LookAhead,
        Self::Prefetch,
        Self::Copy,
        Self::Eviction,
        Self::Laundering,
        Self::Discard,
        Self::Hold,
    ];

    /// Its name in reports, JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::LookAhead => "look-ahead",
            Self::Prefetch => "prefetch",
            Self::Copy => "copy",
            Self::Eviction => "eviction",
            Self::Laundering => "laundering",
            Self::Discard => "discard",
            Self::Hold => "hold",
        }
    }
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FaultOutcome {
    /// The page was copied to the node.
    Copied,
    /// The page was zero-filled on the node.
    ZeroFilled,
    /// No page was copied: only page tables changed.
    Mapped,
    /// The page was usable already.
    Coalesced,
    /// It has to be tried again.
    Throttled,
    /// It could not be.
    Failed,
}

impl FaultOutcome {
    /// All outcomes, in order.
    pub const ALL: [Self; 6] = [
        Self::Copied,
        Self::ZeroFilled,
        Self::Mapped,
        Self::Coalesced,
        Self::Throttled,
        Self::Failed,
    ];

    /// Its name in traces and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::ZeroFilled => "zero_filled",
            Self::Mapped => "upgraded",
            Self::Coalesced => "coalesced",
            Self::Throttled => "throttled",
            Self::Failed => "failed",
        }
    }
}

const NR_OUTCOMES: usize = FaultOutcome::ALL.len();

/// What is counted of one node, beside its faults.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Event {
    /// A fault of one of its processors found the page usable already.
    Coalesced,
    /// A fault of one of its processors has to be tried again.
    Throttled,
    /// A fault of one of its processors could not be served.
    Failed,
    /// A page was brought by a prefetch.
    Prefetched,
    /// A frame was zero-filled on first touch.
    Zeroed,
    /// A page was evicted from it.
    Evicted,
    /// Of these, without a copy: another node had an equal one.
    EvictedClean,
    /// A copy on it was dropped by `DONTNEED`.
    Discarded,
    /// Who needed a frame of it found one free (or its device had one).
    FrameFree,
    /// Who needed a frame of it had to evict a page first.
    FrameReclaimed,
    /// A fault of one of its processors had to wait, since the page had come elsewhere only just.
    Delayed,
    /// A fault of one of its processors made a page one that is thrashing.
    Thrashing,
    /// A processor of it mapped a page for the first time since the page's `mmap`.
    Touched,
}

const NR_EVENTS: usize = Event::Touched as usize + 1;

/// The counters of a space.
pub(crate) struct Stats {
    nodes: Box<[CachePadded<NodeCounters>]>,
    processors: Box<[CachePadded<ProcessorCounters>]>,
    /// By `[from][to]`.
    copied: Box<[[PairCounters; MAX_NODES]]>,
}

struct NodeCounters {
    /// In as many copies as [`ProcessorCounters::faults`]; most are in the first.
    events: [CachePadded<[Counter; NR_EVENTS]>; NR_SHARDS],
    /// Faults that were served from it.
    served: CachePadded<Times>,
    /// The same by processor, access and outcome.
    faults: Box<[CachePadded<Faults>]>,
}

/// By access and outcome.
type Faults = [[Counter; NR_OUTCOMES]; 2];

/// How many copies there are of what faults count that take no frame-list lock: those of different
/// threads write different lines.
const NR_SHARDS: usize = 16;

struct ProcessorCounters {
    /// Those that were not served. A thread counts in one of the copies.
    faults: [CachePadded<Faults>; NR_SHARDS],
    /// The node of who has this number, or [`NOBODY`].
    node: AtomicU8,
}

/// A fault that has been served, all but counted.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    pub(crate) processor: ProcessorId,
    pub(crate) access: Access,
    pub(crate) outcome: FaultOutcome,
    pub(crate) took: Duration,
}

const NOBODY: u8 = u8::MAX;

/// Pages copied from one node to another, by cause: one line a pair.
#[repr(align(64))]
struct PairCounters {
    pages: [Counter; MoveCause::ALL.len()],
}

impl Stats {
    pub(crate) fn new() -> Self {
        let node = |_| {
            CachePadded::new(NodeCounters {
                events: Default::default(),
                served: CachePadded::new(Times::new()),
                faults: (0..MAX_PROCESSORS).map(|_| CachePadded::default()).collect(),
            })
        };
        let processor = |_| {
            CachePadded::new(ProcessorCounters {
                faults: Default::default(),
                node: AtomicU8::new(NOBODY),
            })
        };
        let pair = |_| PairCounters { pages: [const { Counter::new() }; MoveCause::ALL.len()] };
        Self {
            nodes: (0..MAX_NODES).map(node).collect(),
            processors: (0..MAX_PROCESSORS).map(processor).collect(),
            copied: (0..MAX_NODES).map(|_| core::array::from_fn(pair)).collect(),
        }
    }

    pub(crate) fn count(&self, node: NodeId, event: Event) {
        self.nodes[node.index()].events[0][event as usize].add(1);
    }

    pub(crate) fn count_locked(&self, node: NodeId, event: Event) {
        self.nodes[node.index()].events[0][event as usize].add_locked(1);
    }

    pub(crate) fn get(&self, node: NodeId, event: Event) -> u64 {
        let copies = &self.nodes[node.index()].events;
        copies.iter().map(|events| events[event as usize].get()).sum()
    }

    /// A fault was served from `node`.
    pub(crate) fn count_served_locked(&self, node: NodeId, served: Served) {
        let Served { processor, access, outcome, took } = served;
        let of_node = &self.nodes[node.index()];
        of_node.served.count_locked(took);
        of_node.faults[processor.index()][access as usize][outcome as usize].add_locked(1);
    }

    /// A fault was dealt with in another way.
    #[inline]
    pub(crate) fn count_unserved(
        &self,
        processor: &Processor,
        access: Access,
        outcome: FaultOutcome,
    ) {
        let copy = of_this_thread(NR_SHARDS);
        let of_processor = &self.processors[processor.id.index()].faults[copy];
        of_processor[access as usize][outcome as usize].add(1);
        let event = match outcome {
            FaultOutcome::Coalesced => Event::Coalesced,
            FaultOutcome::Throttled => Event::Throttled,
            FaultOutcome::Failed => Event::Failed,
            FaultOutcome::Copied | FaultOutcome::ZeroFilled | FaultOutcome::Mapped => return,
        };
        self.nodes[processor.node.index()].events[copy][event as usize].add(1);
    }

    /// The faults that were served from `node`.
    pub(crate) fn served(&self, node: NodeId) -> &Times {
        &self.nodes[node.index()].served
    }

    /// A new processor has got a number: its faults are counted from here.
    pub(crate) fn begin(&self, processor: &Processor) {
        let counters = &self.processors[processor.id.index()];
        let of_nodes = self.nodes.iter().map(|node| &*node.faults[processor.id.index()]);
        let unserved = counters.faults.iter().map(|faults| &**faults);
        of_nodes.chain(unserved).flatten().flatten().for_each(Counter::reset);
        counters.node.store(processor.node.0, Ordering::Relaxed);
    }

    /// A processor has left.
    pub(crate) fn end(&self, processor: &Processor) {
        self.processors[processor.id.index()].node.store(NOBODY, Ordering::Relaxed);
    }

    /// The node of the processor of that number, if there is one.
    pub(crate) fn node_of(&self, id: ProcessorId) -> Option<NodeId> {
        let node = self.processors[id.index()].node.load(Ordering::Relaxed);
        (node != NOBODY).then_some(NodeId(node))
    }

    pub(crate) fn faults(&self, id: ProcessorId, access: Access, outcome: FaultOutcome) -> u64 {
        let of_nodes = self.nodes.iter().map(|node| &*node.faults[id.index()]);
        let unserved = self.processors[id.index()].faults.iter().map(|faults| &**faults);
        let all = of_nodes.chain(unserved);
        all.map(|faults| faults[access as usize][outcome as usize].get()).sum()
    }

    /// A page was copied by a `gmemcpy`, perhaps over the frame that it had.
    pub(crate) fn count_memcpy(&self, from: NodeId, to: NodeId) {
        self.copied[from.index()][to.index()].pages[MoveCause::Copy as usize].add(1);
    }

    /// A page has come to `to`: it was copied from `from`, or zero-filled. (Those of `gmemcpy` are
    /// counted by [`Stats::count_memcpy`].)
    pub(crate) fn count_arrival_locked(&self, from: Option<NodeId>, to: NodeId, cause: MoveCause) {
        match from {
            _ if cause == MoveCause::Copy => {}
            None => self.count_locked(to, Event::Zeroed),
            Some(from) => {
                self.copied[from.index()][to.index()].pages[cause as usize].add_locked(1);
            }
        }
        if cause == MoveCause::Prefetch {
            self.count_locked(to, Event::Prefetched);
        }
    }

    pub(crate) fn copied_pages(&self, from: NodeId, to: NodeId, cause: MoveCause) -> u64 {
        let pair = &self.copied[from.index()][to.index()];
        pair.pages[cause as usize].get()
    }
}
