//! What has happened in a space so far, and how its nodes stand, as one structure. Taking it waits
//! for nobody: no lock that a fault needs is taken.

use crate::driver::Access;
use crate::histogram::Histogram;
use crate::node::Node;
use crate::space::Space;
use crate::stats::{Event, FaultOutcome, MoveCause};
use crate::{MAX_PROCESSORS, NodeId, PAGE_SIZE, ProcessorId};

/// What has happened in a space so far, and how its nodes stand. Counters are read one by one
/// while others may change: each is right, their sums may be off by what is under way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// By node number.
    pub nodes: Vec<NodeStats>,
    /// Those attached now, by number. (Faults of those that have left are in their node's.)
    pub processors: Vec<ProcessorStats>,
    /// What was copied between nodes, by direction and cause; only where there was anything.
    pub moves: Vec<Moved>,
    /// Bytes copied between nodes: from, to, how many; only pairs with any.
    pub migrated_bytes: Vec<(NodeId, NodeId, u64)>,
}

/// One node's part of a [`Snapshot`]. Frames and pages are of [`PAGE_SIZE`] bytes. At any moment
/// a frame is free, active, spare, pinned, in transit, lost, or not yet asked of the device.
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
    /// Frames that hold pages: active, spare and pinned.
    pub resident_frames: u32,
    /// Of these, those that could be evicted.
    pub active_frames: u32,
    /// Of these, those that could go without a copy: another node has an equal one.
    pub spare_frames: u32,
    /// Of these, pinned, or held by launches.
    pub pinned_frames: u32,
    /// Frames in the hands of faults.
    pub in_transit_frames: u32,
    /// Frames whose copy never ended.
    pub lost_frames: u32,
    /// The most frames that held pages at one time.
    pub peak_resident_frames: u32,
    /// Distinct pages that its processors have mapped.
    pub touched_pages: u64,
    /// Faults that were served from it: its frame was mapped. They are its processors', and those
    /// of others that map its pages remotely.
    pub faults: u64,
    /// How long these took, from the call of [`Space::fault`] to its end.
    pub fault_service: Histogram,
    /// Faults of its processors on pages that another fault had just served.
    pub coalesced_faults: u64,
    /// Faults of its processors that were sent back to be tried again later.
    pub throttled_faults: u64,
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
    /// Faults of its processors that had to wait because the page had come to another node only
    /// just.
    pub delayed_faults: u64,
    /// How often a fault of its processors found that a page moves back and forth.
    pub thrashing_pages: u64,
    /// Pages copied to host memory in idle time, ahead of their eviction.
    pub laundered_pages: u64,
    /// How often background reclaim has woken up.
    pub reclaimer_wakeups: u64,
}

/// The faults of one processor since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProcessorStats {
    /// The processor.
    pub processor: ProcessorId,
    /// Its node.
    pub node: NodeId,
    /// Faults on reads.
    pub reads: FaultCounts,
    /// Faults on writes. (All faults of a processor without read-only mappings act as writes, yet
    /// count as what they were.)
    pub writes: FaultCounts,
}

/// What became of faults of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Those that were served.
    pub served: u64,
    /// Of these, by zero-filling a frame.
    pub zero_filled: u64,
    /// Of these, without a copy: the node had one already, or the page was mapped where it is. A
    /// first write to a page that is mapped for reading is one of these.
    pub upgraded: u64,
    /// Those that another fault had just served.
    pub coalesced: u64,
    /// Those that were sent back to be tried again later.
    pub throttled: u64,
    /// Those that could not be served.
    pub failed: u64,
}

/// What was copied from one node to another for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Moved {
    /// Whose frames were read.
    pub from: NodeId,
    /// Whose frames were written.
    pub to: NodeId,
    /// Why.
    pub cause: MoveCause,
    /// Whole pages.
    pub pages: u64,
    /// All bytes: those of the whole pages, and of parts.
    pub bytes: u64,
}

impl Space {
    /// The counters. Takes no lock and waits for nobody.
    pub fn snapshot(&self) -> Snapshot {
        let nodes: Vec<_> = self.nodes().map(|node| self.node_stats(node)).collect();
        let pairs = || nodes.iter().flat_map(|a| nodes.iter().map(|b| (a.node, b.node)));
        let moved = |(from, to)| MoveCause::ALL.map(|cause| self.moved(from, to, cause));
        let moves: Vec<_> = pairs().flat_map(moved).filter(|m| m.bytes > 0).collect();
        let of_pair = |(from, to)| {
            let of_pair = moves.iter().filter(|m| (m.from, m.to) == (from, to));
            (from, to, of_pair.map(|m| m.bytes).sum())
        };
        let migrated_bytes = pairs().map(of_pair).filter(|&(_, _, bytes)| bytes > 0).collect();
        let numbers = (0..MAX_PROCESSORS as u8).map(ProcessorId);
        let processors = numbers.filter_map(|id| self.processor_stats(id)).collect();
        Snapshot { nodes, processors, moves, migrated_bytes }
    }

    fn node_stats(&self, node: &Node) -> NodeStats {
        let counts = node.counts();
        let get = |event| self.stats.get(node.id, event);
        let fault_service = self.stats.served(node.id).snapshot();
        NodeStats {
            node: node.id,
            device: node.device.name().to_owned(),
            capacity_frames: counts.capacity,
            free_frames: counts.free,
            resident_frames: counts.active + counts.spare + counts.pinned,
            active_frames: counts.active,
            spare_frames: counts.spare,
            pinned_frames: counts.pinned,
            in_transit_frames: counts.in_transit,
            lost_frames: counts.lost,
            peak_resident_frames: counts.peak_resident,
            touched_pages: get(Event::Touched),
            faults: fault_service.count(),
            fault_service,
            coalesced_faults: get(Event::Coalesced),
            throttled_faults: get(Event::Throttled),
            failed_faults: get(Event::Failed),
            prefetched_pages: get(Event::Prefetched),
            zeroed_pages: get(Event::Zeroed),
            evicted_pages: get(Event::Evicted),
            evicted_clean_pages: get(Event::EvictedClean),
            discarded_pages: get(Event::Discarded),
            frames_found_free: get(Event::FrameFree),
            frames_reclaimed: get(Event::FrameReclaimed),
            delayed_faults: get(Event::Delayed),
            thrashing_pages: get(Event::Thrashing),
            laundered_pages: self.stats.copied_pages(node.id, NodeId::HOST, MoveCause::Laundering),
            reclaimer_wakeups: counts.reclaimer_wakeups,
        }
    }

    fn moved(&self, from: NodeId, to: NodeId, cause: MoveCause) -> Moved {
        let pages = self.stats.copied_pages(from, to, cause);
        Moved { from, to, cause, pages, bytes: pages * PAGE_SIZE }
    }

    fn processor_stats(&self, processor: ProcessorId) -> Option<ProcessorStats> {
        let node = self.stats.node_of(processor)?;
        let of = |access| {
            let get = |outcome| self.stats.faults(processor, access, outcome);
            let (zero_filled, upgraded) =
                (get(FaultOutcome::ZeroFilled), get(FaultOutcome::Mapped));
            FaultCounts {
                served: get(FaultOutcome::Copied) + zero_filled + upgraded,
                zero_filled,
                upgraded,
                coalesced: get(FaultOutcome::Coalesced),
                throttled: get(FaultOutcome::Throttled),
                failed: get(FaultOutcome::Failed),
            }
        };
        Some(ProcessorStats { processor, node, reads: of(Access::Read), writes: of(Access::Write) })
    }
}
