//! What can go wrong, with the numbers that a person needs to act on it.

use crate::driver::{Access, DriverError};
use crate::{MAX_PROCESSORS, NodeId, PAGE_SIZE, PageRange, ProcessorId, VirtAddr};

/// The result of most operations.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation failed. An operation that fails has changed nothing that can be observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A range of no bytes.
    #[error("the length is 0; a range has at least one byte")]
    ZeroLength,
    /// A range that runs past the end of the address space.
    #[error("the range of {len} bytes at {addr} runs past the end of the address space")]
    AddressOverflow {
        /// Its start.
        addr: VirtAddr,
        /// Its length in bytes.
        len: u64,
    },
    /// A copy whose ends share bytes.
    #[error("the {len} bytes at {dst} and at {src} overlap; copy to somewhere else and back")]
    Overlap {
        /// Where to.
        dst: VirtAddr,
        /// Where from.
        src: VirtAddr,
        /// How many bytes.
        len: u64,
    },
    /// An address that should start a page and does not.
    #[error("address {addr} is not a multiple of the page size ({PAGE_SIZE} bytes)")]
    Unaligned {
        /// The address.
        addr: VirtAddr,
    },
    /// An address that is in no region (never mapped, or unmapped since).
    #[error("address {addr} is not in a region of unified memory")]
    NotMapped {
        /// The first such address.
        addr: VirtAddr,
    },
    /// A write to a read-only region.
    #[error("{access:?} access to {addr}, in a region that is read-only")]
    Protection {
        /// The address.
        addr: VirtAddr,
        /// What was tried.
        access: Access,
    },
    /// A node number that no node has.
    #[error("there is no node {node}; this space has nodes 0 to {last}")]
    UnknownNode {
        /// The number given.
        node: NodeId,
        /// The highest number in use.
        last: NodeId,
    },
    /// A processor that is not attached (any more).
    #[error("processor {processor} is not attached to this space")]
    NotAttached {
        /// The processor.
        processor: ProcessorId,
    },
    /// All processor numbers are in use.
    #[error("{MAX_PROCESSORS} processors are attached already; detach one first")]
    TooManyProcessors,
    /// All node numbers are in use.
    #[error("{wanted} more nodes don't fit: a space has at most {} nodes", crate::MAX_NODES)]
    TooManyNodes {
        /// How many the device has.
        wanted: usize,
    },
    /// A device whose DMA pins host memory, beside a host whose frames move.
    #[error(
        "the device needs host frames that stay where they are while it copies (it pins them), \
         and the frames of node 0 move"
    )]
    NeedsStableFrames,
    /// A node has no frame and can't make one.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The window has no free range of that length.
    #[error("no free range of {len_bytes} bytes in the window of unified addresses ({window})")]
    NoAddresses {
        /// The length asked for.
        len_bytes: u64,
        /// The whole window.
        window: PageRange,
    },
    /// A processor could not reserve any of the ranges that were tried.
    #[error(
        "processor {processor} refused {tries} address ranges, the last of them {last}{}",
        Because(*cause)
    )]
    Refused {
        /// Who refused.
        processor: ProcessorId,
        /// How many ranges were tried.
        tries: u32,
        /// The last of them.
        last: PageRange,
        /// Why, if it could not even be asked.
        cause: Option<DriverError>,
    },
    /// A context faulted in a region whose addresses it could not reserve when it was attached.
    #[error(
        "address {addr} is in a region that processor {processor} refused when it was attached"
    )]
    RegionRefused {
        /// The address.
        addr: VirtAddr,
        /// The context.
        processor: ProcessorId,
    },
    /// The page can't leave its node now: someone outside the manager has pinned it.
    #[error(
        "the page at {addr} can't leave node {node}: it is pinned by someone outside the manager \
         (io_uring buffers, RDMA, a vendor's host registration); unregister it first"
    )]
    PageBusy {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node that holds it.
        node: NodeId,
    },
    /// The page can't leave its node now: a launch holds it.
    #[error("the page at {addr} can't leave node {node}: it is held there by a running launch")]
    PageHeld {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node that holds it.
        node: NodeId,
    },
    /// The page can't leave its node: a program has pinned it, and whoever wants it can neither
    /// map it there nor do with a copy.
    #[error("the page at {addr} can't leave node {node}: it is pinned there; unpin it first")]
    PagePinned {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node that it is pinned on.
        node: NodeId,
    },
    /// The page can't leave its node now: a subscriber to its remaps keeps it.
    #[error(
        "the page at {addr} can't leave node {node}: someone who asked to be told before it moves \
         keeps it there (a registration, a captured graph); end that first"
    )]
    PageKept {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node that holds it.
        node: NodeId,
    },
    /// More pinned pages than a node may have.
    #[error(
        "pinning {asked} more pages on node {node} is too many: {pinned} of its frames are pinned \
         and {limit} may be; unpin some, or raise the limit"
    )]
    PinLimit {
        /// The node.
        node: NodeId,
        /// How many of its frames may be pinned.
        limit: u32,
        /// How many are.
        pinned: u32,
        /// How many more were to be.
        asked: u64,
    },
    /// A launch, or someone else, is to hold more pages than a node has frames.
    #[error(
        "{asked} pages can't be held on node {node} at a time: it has {capacity} frames; use less \
         in one launch"
    )]
    HoldTooLarge {
        /// The node.
        node: NodeId,
        /// How many frames it has in all.
        capacity: u32,
        /// How many pages were to be held.
        asked: u64,
    },
    /// A page that should be pinned and is not.
    #[error(
        "the page at {addr} is not pinned on node {node}; only what was pinned can be unpinned"
    )]
    NotPinned {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node.
        node: NodeId,
    },
    /// A processor kept losing the page before it could be mapped.
    #[error("the page at {addr} could not be kept on node {node} after {tries} tries")]
    Thrashing {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node that wanted it.
        node: NodeId,
        /// How often it was tried.
        tries: u32,
    },
    /// A processor's page table could not be changed.
    #[error("processor {processor} could not {operation} the page at {addr}: {cause}")]
    Mmu {
        /// Whose page table.
        processor: ProcessorId,
        /// "map", "unmap", "revalidate".
        operation: &'static str,
        /// Where the page starts.
        addr: VirtAddr,
        /// Why.
        cause: DriverError,
    },
    /// A page could not be copied or zeroed.
    #[error("moving the page at {addr} from node {from} to node {to} failed: {cause}")]
    Transfer {
        /// Where the page starts.
        addr: VirtAddr,
        /// The node with the data (the same as `to` when the page was to be zeroed).
        from: NodeId,
        /// The node that was to get it.
        to: NodeId,
        /// Why.
        cause: DriverError,
    },
}

/// A node has no free frame, can import none, and can evict none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "out of memory on node {node}: of {capacity} frames ({} MiB) {active} are in use and can't be \
     evicted now, {pinned} pinned, {in_transit} moving, {free} free, {lost} lost to failed \
     copies{}", capacity * (PAGE_SIZE >> 20) as u32, host_note(*host_full, *import_error)
)]
pub struct OutOfMemory {
    /// The node.
    pub node: NodeId,
    /// How many frames it has in all.
    pub capacity: u32,
    /// Frames that hold pages.
    pub active: u32,
    /// Frames that are pinned or held by a launch.
    pub pinned: u32,
    /// Frames in the hands of other faults.
    pub in_transit: u32,
    /// Frames that are free (another fault was quicker to take them).
    pub free: u32,
    /// Frames whose copy never ended, which can't be used again.
    pub lost: u32,
    /// Whether pages could have been evicted had there been host memory to put them in.
    pub host_full: bool,
    /// What the device said when it was last asked for frames, if that failed.
    pub import_error: Option<DriverError>,
}

/// A cause as the end of a sentence, if there is one.
struct Because(Option<DriverError>);

impl core::fmt::Display for Because {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

fn host_note(host_full: bool, import_error: Option<DriverError>) -> &'static str {
    match (host_full, import_error) {
        (true, _) => "; node 0 (host memory) has no frame to evict to",
        (false, Some(_)) => "; the device failed to hand over more",
        (false, None) => "",
    }
}
