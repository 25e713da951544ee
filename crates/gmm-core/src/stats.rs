//! Counters, kept without a lock and read as one snapshot.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{MAX_NODES, NodeId, PAGE_SIZE};

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
}

/// The counters of a space.
pub(crate) struct Stats {
    per_node: [NodeCounters; MAX_NODES],
    /// By `[from][to]`.
    copied: [[PairCounters; MAX_NODES]; MAX_NODES],
}

/// Pages copied from one node to another, by cause: one line a pair.
#[derive(Default)]
#[repr(align(64))]
struct PairCounters([AtomicU64; MoveCause::ALL.len()]);

#[derive(Default)]
struct NodeCounters {
    faults: AtomicU64,
    coalesced: AtomicU64,
    failed: AtomicU64,
    prefetched: AtomicU64,
    zeroed: AtomicU64,
    evicted: AtomicU64,
    evicted_clean: AtomicU64,
    discarded: AtomicU64,
    frames_free: AtomicU64,
    frames_reclaimed: AtomicU64,
    throttled: AtomicU64,
    thrashing: AtomicU64,
    /// Pages of regions unmapped since that a processor of the node had touched.
    touched_before: AtomicU64,
}

/// What [`Stats`] counts of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A fault of one of its processors was served.
    Fault,
    /// A fault of one of its processors found the page usable already.
    Coalesced,
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
    Throttled,
    /// A fault of one of its processors made a page one that is thrashing.
    Thrashing,
    /// A page that its processors had touched was unmapped.
    TouchedBefore,
}

impl NodeCounters {
    fn of(&self, event: Event) -> &AtomicU64 {
        match event {
            Event::Fault => &self.faults,
            Event::Coalesced => &self.coalesced,
            Event::Failed => &self.failed,
            Event::Prefetched => &self.prefetched,
            Event::Zeroed => &self.zeroed,
            Event::Evicted => &self.evicted,
            Event::EvictedClean => &self.evicted_clean,
            Event::Discarded => &self.discarded,
            Event::FrameFree => &self.frames_free,
            Event::FrameReclaimed => &self.frames_reclaimed,
            Event::Throttled => &self.throttled,
            Event::Thrashing => &self.thrashing,
            Event::TouchedBefore => &self.touched_before,
        }
    }
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            per_node: core::array::from_fn(|_| NodeCounters::default()),
            copied: Default::default(),
        }
    }

    pub(crate) fn count(&self, node: NodeId, event: Event) {
        self.per_node[node.index()].of(event).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, node: NodeId, event: Event) -> u64 {
        self.per_node[node.index()].of(event).load(Ordering::Relaxed)
    }

    /// A page was copied from one node to another, and the copy is valid.
    pub(crate) fn count_copy(&self, from: NodeId, to: NodeId, cause: MoveCause) {
        self.copied[from.index()][to.index()].0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many pages were copied from one node to another for that cause.
    pub(crate) fn copied_for(&self, from: NodeId, to: NodeId, cause: MoveCause) -> u64 {
        self.copied[from.index()][to.index()].0[cause as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn copied_bytes(&self, from: NodeId, to: NodeId) -> u64 {
        let pair = &self.copied[from.index()][to.index()].0;
        pair.iter().map(|pages| pages.load(Ordering::Relaxed) * PAGE_SIZE).sum()
    }
}

/// What has happened in a space so far, and how its nodes stand. Counters are read one by one
/// while others may change: each is right, their sums may be off by what is under way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// By node number.
    pub nodes: Vec<NodeStats>,
    /// Bytes copied between nodes: from, to, how many; only pairs with any.
    pub migrated_bytes: Vec<(NodeId, NodeId, u64)>,
}

/// One node's part of a [`Snapshot`]. Frames and pages are of [`PAGE_SIZE`] bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node.
    pub node: NodeId,
    /// Its device's name.
    pub device: String,
    /// Frames it can have.
    pub capacity_frames: u32,
    /// Frames that are free.
    pub free_frames: u32,
    /// Frames that hold pages.
    pub resident_frames: u32,
    /// Of these, held by launches.
    pub pinned_frames: u32,
    /// Frames in the hands of faults.
    pub in_transit_frames: u32,
    /// Frames whose copy never ended.
    pub lost_frames: u32,
    /// The most frames that held pages at one time.
    pub peak_resident_frames: u32,
    /// Distinct pages that its processors have mapped.
    pub touched_pages: u64,
    /// Faults of its processors that were served.
    pub faults: u64,
    /// Faults of its processors on pages that another fault had just served.
    pub coalesced_faults: u64,
    /// Faults of its processors that could not be served.
    pub failed_faults: u64,
    /// Pages brought by prefetch.
    pub prefetched_pages: u64,
    /// Frames zero-filled on first touch.
    pub zeroed_pages: u64,
    /// Pages evicted from it.
    pub evicted_pages: u64,
    /// Of these, without a copy.
    pub evicted_clean_pages: u64,
    /// Copies dropped by `DONTNEED`.
    pub discarded_pages: u64,
    /// How often who needed a frame found one free, or got one from the device.
    pub frames_found_free: u64,
    /// How often who needed a frame had to evict a page first.
    pub frames_reclaimed: u64,
    /// Faults that had to wait because the page had come to another node only just.
    pub throttled_faults: u64,
    /// How often a fault of its processors found that a page moves back and forth.
    pub thrashing_pages: u64,
    /// Pages copied to host memory in idle time, ahead of their eviction.
    pub laundered_pages: u64,
    /// How often background reclaim has woken up.
    pub reclaimer_wakeups: u64,
}
