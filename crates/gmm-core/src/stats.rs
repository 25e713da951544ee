//! Counters: written with relaxed atomics, read without a lock.
//!
//! A fault counts with three read-modify-writes: how long it took (in its node's histogram), how
//! it was resolved (of its processor), and what it copied (of that pair of nodes); each of the
//! three lies in another's line only if processor, pair or node are the same. Plain atomics, not
//! those of [`sync`](crate::sync): no schedule depends on them.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;

use crossbeam_utils::CachePadded;

use crate::driver::Access;
use crate::histogram::Times;
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
    events: [AtomicU64; NR_EVENTS],
    /// Faults of its processors that were served.
    served: CachePadded<Times>,
}

struct ProcessorCounters {
    /// By access and outcome.
    faults: [[AtomicU64; NR_OUTCOMES]; 2],
    /// The node of who has this number, or [`NOBODY`].
    node: AtomicU8,
}

const NOBODY: u8 = u8::MAX;

/// Pages copied from one node to another, by cause: one line a pair.
#[repr(align(64))]
struct PairCounters {
    pages: [AtomicU64; MoveCause::ALL.len()],
}

impl Stats {
    pub(crate) fn new() -> Self {
        let node = |_| {
            CachePadded::new(NodeCounters {
                events: [const { AtomicU64::new(0) }; NR_EVENTS],
                served: CachePadded::new(Times::new()),
            })
        };
        let processor = |_| {
            CachePadded::new(ProcessorCounters {
                faults: [const { [const { AtomicU64::new(0) }; NR_OUTCOMES] }; 2],
                node: AtomicU8::new(NOBODY),
            })
        };
        let pair = |_| PairCounters { pages: [const { AtomicU64::new(0) }; MoveCause::ALL.len()] };
        Self {
            nodes: (0..MAX_NODES).map(node).collect(),
            processors: (0..MAX_PROCESSORS).map(processor).collect(),
            copied: (0..MAX_NODES).map(|_| core::array::from_fn(pair)).collect(),
        }
    }

    pub(crate) fn count(&self, node: NodeId, event: Event) {
        self.nodes[node.index()].events[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, node: NodeId, event: Event) -> u64 {
        self.nodes[node.index()].events[event as usize].load(Ordering::Relaxed)
    }

    /// A fault has been dealt with; `took` is the time that it took.
    pub(crate) fn count_fault(
        &self,
        processor: &Processor,
        access: Access,
        outcome: FaultOutcome,
        took: Duration,
    ) {
        let of_processor = &self.processors[processor.id.index()];
        of_processor.faults[access as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        match outcome {
            FaultOutcome::Copied | FaultOutcome::ZeroFilled | FaultOutcome::Mapped => {
                self.nodes[processor.node.index()].served.count(took);
            }
            FaultOutcome::Coalesced => self.count(processor.node, Event::Coalesced),
            FaultOutcome::Throttled => self.count(processor.node, Event::Throttled),
            FaultOutcome::Failed => self.count(processor.node, Event::Failed),
        }
    }

    /// The faults that were served for processors of `node`.
    pub(crate) fn served(&self, node: NodeId) -> &Times {
        &self.nodes[node.index()].served
    }

    /// A new processor has got a number: its faults are counted from here.
    pub(crate) fn begin(&self, processor: &Processor) {
        let counters = &self.processors[processor.id.index()];
        for count in counters.faults.iter().flatten() {
            count.store(0, Ordering::Relaxed);
        }
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
        let of_processor = &self.processors[id.index()];
        of_processor.faults[access as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// A page was copied from one node to another, and the copy is valid.
    pub(crate) fn count_copy(&self, from: NodeId, to: NodeId, cause: MoveCause) {
        let pair = &self.copied[from.index()][to.index()];
        pair.pages[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn copied_pages(&self, from: NodeId, to: NodeId, cause: MoveCause) -> u64 {
        let pair = &self.copied[from.index()][to.index()];
        pair.pages[cause as usize].load(Ordering::Relaxed)
    }
}
