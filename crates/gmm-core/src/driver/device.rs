//! A device: memory in frames, and the means to fill and copy them.

use core::time::Duration;

use bitflags::bitflags;

use super::DriverError;
use crate::{Batch, Frame, FrameNr, HostAddr, NodeId, PAGE_SIZE};

bitflags! {
    /// What a device and its contexts can do beyond the mandatory minimum.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Capabilities: u32 {
        /// A context that touches an unmapped page waits, and goes on when the page is entered.
        /// Without it a launch names the ranges it uses and they are held resident until it
        /// completes (see [`Space::hold`](crate::Space::hold)).
        const REPLAYABLE_FAULTS = 1 << 0;
        /// [`Mmu::pmap_enter`](super::Mmu::pmap_enter) can map read-only, and a write through
        /// such a mapping faults. Without it every fault counts as a write.
        const READ_ONLY_MAPPINGS = 1 << 1;
        /// [`Op::Copy`] can name a frame of another device of the same
        /// [`Device::fabric`] as [`Place::Peer`].
        const PEER_COPY = 1 << 2;
        /// A processor can map a frame of another node, read-write and read-only, if that frame's
        /// device gives a handle for it ([`Device::remote_handle`]).
        const COHERENT_LINK = 1 << 3;
        /// DMA pins host memory: host frames must not move while it runs.
        const NEEDS_STABLE_HOST_FRAMES = 1 << 4;
        /// The device has frames of its own. Without it its contexts map host frames and nothing
        /// migrates.
        const OWN_MEMORY = 1 << 5;
        /// Entering a frame takes it out of reach of copies until it is cleared (the CPU's
        /// frames, which move into the window). The core clears before it copies from one.
        const MOVABLE_FRAMES = 1 << 6;
        /// A processor whose frames move can instead map a private, read-only copy of one, which
        /// stays in reach of copies ([`MappingKind::Replica`](super::MappingKind)).
        const READ_ONLY_REPLICAS = 1 << 7;
    }
}

/// A memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeDescription {
    /// How many frames it has at most. Frame numbers are below this.
    pub capacity_frames: u32,
}

/// A run of frames of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first frame.
    pub start: FrameNr,
    /// How many frames.
    pub nr_frames: u32,
}

/// The address of a frame as the other devices of the same fabric use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAddr(pub u64);

/// A frame as the processors of other nodes map it: a file of this process and a place in it.
/// Valid for as long as the core holds the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteHandle {
    /// A file descriptor of this process; it stays the device's.
    pub fd: i32,
    /// Where the frame starts in the file, a multiple of the page size.
    pub offset_bytes: u64,
}

/// One end of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A frame of this device.
    Frame(Frame),
    /// A host frame of another device, by address; valid until the fence completes. In an
    /// [`Op::CopyPart`] it may be any other memory of this process too, at any alignment.
    Host(HostAddr),
    /// A frame of another device of the same fabric (only with [`Capabilities::PEER_COPY`]).
    Peer(PeerAddr),
}

/// One operation. At least one place is a frame of the device it is given to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill a frame of this device with zero bytes.
    Zero(Frame),
    /// Copy one frame's bytes.
    Copy {
        /// Where from.
        from: Place,
        /// Where to.
        to: Place,
    },
    /// Copy `len` bytes, at least one, at any alignment. In a frame they lie within that frame;
    /// both places may be one frame, and the two ranges then don't overlap. Bytes of the target
    /// outside the range are left alone, whatever happens: part of the frame may be in use.
    CopyPart {
        /// Where from.
        from: Place,
        /// How far into that place the bytes start.
        from_offset: u64,
        /// Where to.
        to: Place,
        /// How far into that place the bytes go.
        to_offset: u64,
        /// How many bytes.
        len: u64,
    },
}

/// An [`Op`] as bytes: one shape for all kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteCopy {
    /// Where from, and how far into it; `None` for zero bytes.
    pub from: Option<(Place, u64)>,
    /// Where to, and how far into it.
    pub to: (Place, u64),
    /// How many bytes.
    pub len: u64,
}

impl Op {
    /// What it moves, byte by byte. `None` if it does not lie within its frames, or moves nothing:
    /// a driver refuses it.
    pub fn as_bytes(&self) -> Option<ByteCopy> {
        let copy = match *self {
            Self::Zero(frame) => {
                ByteCopy { from: None, to: (Place::Frame(frame), 0), len: PAGE_SIZE }
            }
            Self::Copy { from, to } => {
                ByteCopy { from: Some((from, 0)), to: (to, 0), len: PAGE_SIZE }
            }
            Self::CopyPart { from, from_offset, to, to_offset, len } => {
                ByteCopy { from: Some((from, from_offset)), to: (to, to_offset), len }
            }
        };
        let fits = |(place, offset): (Place, u64)| {
            let end = offset.checked_add(copy.len);
            matches!(place, Place::Host(_)) || end.is_some_and(|end| end <= PAGE_SIZE)
        };
        (copy.len > 0 && fits(copy.to) && copy.from.is_none_or(fits)).then_some(copy)
    }
}

/// A batch that was submitted. What the number means is the device's own affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence(pub u64);

/// A device, shared by its contexts. Every method may be called by several threads at once, and
/// is called on fault-handling threads: no method but `import` and `release` may allocate.
pub trait Device: Send + Sync {
    /// What to call it in reports and errors.
    fn name(&self) -> &str;

    /// What it and its contexts can do. Must not change.
    fn capabilities(&self) -> Capabilities;

    /// Its memories: at least one with [`Capabilities::OWN_MEMORY`], none without. Must not change.
    /// Called once, when the device joins the space.
    fn nodes(&self) -> &[NodeDescription];

    /// Says which numbers the nodes have in the space: `first`, `first + 1`, ... in the order of
    /// [`Device::nodes`]. Called once, before any other call that names a node.
    fn set_first_node(&self, first: NodeId);

    /// Hands over up to `nr_frames` frames of `node` that the core does not hold now. Fewer are a
    /// legal answer, and so is none for now (`Ok` with nothing in `out`). Their contents may be
    /// anything. May block, though entry locks may be held; must not call back into the core; one
    /// call at a time for a node.
    ///
    /// # Errors
    /// The core treats an error as "none for now" and reports it if the request fails for it.
    fn import(
        &self,
        node: NodeId,
        nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError>;

    /// Takes frames back. The core has cleared every mapping of them and no operation on them is
    /// in flight. Called with no lock of a page or a node held, but `munmap` holds the one that
    /// keeps contexts and regions from coming and going: must not call back into the core.
    fn release(&self, node: NodeId, extents: &[Extent]);

    /// Starts a batch of operations and returns at once or when done, as the driver likes. The
    /// operations of a batch are independent of one another (no byte that one writes is read or
    /// written by another) and may run in any order. Called
    /// with entry locks held: must not call back into the core.
    ///
    /// # Errors
    /// None of the operations was started.
    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError>;

    /// Waits until a batch is complete, at most `timeout`. Each fence is waited for once.
    ///
    /// # Errors
    /// Other than [`DriverError::Timeout`]: the batch has ended, some of it did not happen, and
    /// none of it happens later.
    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), DriverError>;

    /// Whether a batch is complete, without waiting. A batch that failed is complete.
    fn poll(&self, fence: Fence) -> bool;

    /// Where the bytes of a frame lie for other devices' DMA. `Some` for host nodes, `None` for
    /// others.
    fn host_addr(&self, frame: Frame) -> Option<HostAddr> {
        let _ = frame;
        None
    }

    /// The fabric that links this device to its peers: devices with the same number can use each
    /// other's [`PeerAddr`].
    fn fabric(&self) -> Option<u64> {
        None
    }

    /// The address of a frame on the fabric. `Some` if [`Device::fabric`] is.
    fn peer_addr(&self, frame: Frame) -> Option<PeerAddr> {
        let _ = frame;
        None
    }

    /// What a processor of another node needs to map the frame ([`Capabilities::COHERENT_LINK`]):
    /// for every frame of a node or for none, imported or not. Called with entries locked. The
    /// default: nobody else can.
    fn remote_handle(&self, frame: Frame) -> Option<RemoteHandle> {
        let _ = frame;
        None
    }
}
