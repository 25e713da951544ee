//! A processor: something with a page table that takes part in a space.

use std::sync::Arc;

use crate::driver::{Capabilities, Mmu};
use crate::lookahead::Streams;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{NodeId, ProcessorId};

/// The CPU, or one XPU context, attached to a space.
pub struct Processor {
    pub(crate) id: ProcessorId,
    pub(crate) node: NodeId,
    pub(crate) mmu: Arc<dyn Mmu>,
    pub(crate) capabilities: Capabilities,
    pub(crate) streams: Streams,
    detached: AtomicBool,
}

impl Processor {
    pub(crate) fn new(
        id: ProcessorId,
        node: NodeId,
        mmu: Arc<dyn Mmu>,
        capabilities: Capabilities,
    ) -> Self {
        let (streams, detached) = (Streams::default(), AtomicBool::new(false));
        Self { id, node, mmu, capabilities, streams, detached }
    }

    /// Its number in the space.
    pub fn id(&self) -> ProcessorId {
        self.id
    }

    /// The node whose frames it maps.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether it can be told to fault on writes only.
    pub(crate) fn maps_read_only(&self) -> bool {
        self.capabilities.contains(Capabilities::READ_ONLY_MAPPINGS)
    }

    /// Whether a frame that it maps is out of reach of copies.
    pub(crate) fn moves_frames(&self) -> bool {
        self.capabilities.contains(Capabilities::MOVABLE_FRAMES)
    }

    /// Whether that happens to frames of `node`; what it maps from another node stays there.
    pub(crate) fn takes_frames_of(&self, node: NodeId) -> bool {
        self.moves_frames() && self.node == node
    }

    /// Whether it can map a private copy of one of its frames instead, to read.
    pub(crate) fn maps_replicas(&self) -> bool {
        self.moves_frames() && self.capabilities.contains(Capabilities::READ_ONLY_REPLICAS)
    }

    /// Whether it has left: no mapping is made for it any more. Read under an entry lock, it
    /// stays valid for that entry, since a detach visits every entry after setting it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::SeqCst)
    }

    /// Marks it as left; says whether it was not before.
    pub(crate) fn set_detached(&self) -> bool {
        !self.detached.swap(true, Ordering::SeqCst)
    }
}

impl core::fmt::Debug for Processor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Processor({} of node {})", self.id, self.node)
    }
}
