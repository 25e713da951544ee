//! Names of nodes, processors and frames, and sets of them.

use core::fmt;

use crate::FrameNr;

/// The most nodes a space can have.
pub const MAX_NODES: usize = 16;

/// The most processors that can be attached to a space at once: the width of [`ProcessorSet`].
pub const MAX_PROCESSORS: usize = 32;

/// The number of a node. Host memory is node 0; this is what users pass to `gmadvise`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u8);

/// The number of a processor within its space. The CPU is processor 0. Numbers are used again
/// after a detach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessorId(pub u8);

impl NodeId {
    /// Host memory.
    pub const HOST: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ProcessorId {
    /// The CPU.
    pub const CPU: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ProcessorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One frame of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// The node whose memory it is.
    pub node: NodeId,
    /// Its number there.
    pub nr: FrameNr,
}

/// A set of processors of one space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProcessorSet(u32);

impl ProcessorSet {
    /// No processor.
    pub const EMPTY: Self = Self(0);

    /// The set of one processor.
    pub fn only(p: ProcessorId) -> Self {
        Self(1 << p.0)
    }

    /// Whether `p` is in the set.
    pub fn contains(self, p: ProcessorId) -> bool {
        self.0 & (1 << p.0) != 0
    }

    /// Puts `p` in.
    pub fn insert(&mut self, p: ProcessorId) {
        self.0 |= 1 << p.0;
    }

    /// Takes `p` out.
    pub fn remove(&mut self, p: ProcessorId) {
        self.0 &= !(1 << p.0);
    }

    /// Whether no processor is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many processors are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in this set and not in the other.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The processors in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ProcessorId> {
        (0..MAX_PROCESSORS as u8).map(ProcessorId).filter(move |&p| self.contains(p))
    }
}

impl fmt::Debug for ProcessorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|p| p.0)).finish()
    }
}

/// A set of nodes of one space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet(u16);

impl NodeSet {
    /// Whether `node` is in the set.
    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// Puts `node` in, or takes it out.
    pub fn set(&mut self, node: NodeId, is_in: bool) {
        self.0 = self.0 & !(1 << node.0) | u16::from(is_in) << node.0;
    }

    /// Whether no node is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..MAX_NODES as u8).map(NodeId).filter(move |&n| self.contains(n))
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|n| n.0)).finish()
    }
}
