//! What a program can tell the manager about its use of memory.

use gmm_core::{Attribute, NodeId};

/// An advice to [`Gmm::gmadvise`](crate::Gmm::gmadvise). Ranges are rounded outward to whole
/// pages, but for [`Advice::DontNeed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The range will be used on the node soon: bring its pages there (rounded outward to whole
    /// pages) and map them; pages that are there already become hot. Returns when done. What does not
    /// fit there stays where it is ([`Gmm::prefetch`](crate::Gmm::prefetch) says how much); if not
    /// one page that had to be brought could be, that is an error.
    WillNeed,
    /// The contents are not needed any more: drop them on all nodes (rounded inward to whole
    /// pages; less than one does nothing). The range reads as zero afterwards.
    DontNeed,
    /// The pages are brought to the node and stay there, in the frames that they have then, until
    /// as many [`Advice::Unpin`]. A processor of another node maps them there if it has a coherent
    /// link, or reads copies; else its access fails (SIGBUS on the CPU, a failed launch on an
    /// XPU). A node has a limit: [`Gmm::set_pin_limit`](crate::Gmm::set_pin_limit).
    Pin,
    /// Ends one pin of each page. Pages that are not pinned on the node are an error.
    Unpin,
    /// The range is mostly read: reads make copies on several nodes, a write leaves one. The node
    /// does not matter.
    ReadMostly,
    /// Ends [`Advice::ReadMostly`].
    NotReadMostly,
    /// The range should be on the node: pages are made there and fetched back there by whoever
    /// touches them, if he can map them remotely; else he gets them as usual.
    Preferred,
    /// Ends [`Advice::Preferred`], whatever node it named.
    NotPreferred,
    /// The node's processors access the range now and then: they map its pages where they are,
    /// if they have a coherent link to there, instead of moving them.
    AccessedBy,
    /// Ends [`Advice::AccessedBy`] of the node.
    NotAccessedBy,
}

impl Advice {
    /// The attribute that it changes, for those that do nothing but.
    pub(crate) fn attribute(self, node: NodeId) -> Option<Attribute> {
        match self {
            Self::WillNeed | Self::DontNeed | Self::Pin | Self::Unpin => None,
            Self::ReadMostly => Some(Attribute::ReadMostly(true)),
            Self::NotReadMostly => Some(Attribute::ReadMostly(false)),
            Self::Preferred => Some(Attribute::Preferred(Some(node))),
            Self::NotPreferred => Some(Attribute::Preferred(None)),
            Self::AccessedBy => Some(Attribute::AccessedBy(node, true)),
            Self::NotAccessedBy => Some(Attribute::AccessedBy(node, false)),
        }
    }
}
