//! What a program can tell the manager about its use of memory.

/// An advice to [`Gmm::gmadvise`](crate::Gmm::gmadvise).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The range will be used on the node soon: bring its pages there (rounded outward to whole
    /// pages) and map them; pages that are there already become hot. Returns when done. What does not
    /// fit there stays where it is ([`Gmm::prefetch`](crate::Gmm::prefetch) says how much).
    WillNeed,
    /// The contents are not needed any more: drop them on all nodes (rounded inward to whole
    /// pages; less than one does nothing). The range reads as zero afterwards.
    DontNeed,
}
