//! The entry: the logical mapping of one page, in one 64-byte line with its own lock.
//!
//! | state | copies | who may map it |
//! |---|---|---|
//! | `Closed` | none | nobody: never mapped, or being unmapped; faults fail |
//! | `Empty` | none | nobody; the next touch zero-fills on the toucher's node |
//! | `Exclusive(n)` | one, on node n | processors of n, and by remote mappings others, for writing too; or nobody |
//! | `Shared` | equal copies on several nodes | processors of these nodes, for reading |
//!
//! The state is not stored: it follows from whether the entry is open and how many copies there
//! are. What a thread may do with a page it may do only through an [`EntryGuard`].
//!
//! The frame that a processor maps is the copy on its own node or, if there is none, the only
//! copy ([`Mapping::frame_seen_from`]): a remote mapping.

use crate::driver::Protection;
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::{Batch, Frame, FrameNr, NodeId, ProcessorId, ProcessorSet};

/// The most copies of one page. One more reader makes another copy go.
pub const MAX_COPIES: usize = 8;

const ENTRY_RANK: u8 = Rank::Entry as u8;

/// What is known of a page, locked.
pub(crate) type EntryGuard<'a> = MutexGuard<'a, Mapping, ENTRY_RANK>;

/// The state of a page: see the table at the head of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// In no region.
    Closed,
    /// In a region; reads as zero.
    Empty,
    /// One copy.
    Exclusive(NodeId),
    /// Several equal copies.
    Shared,
}

/// One page's entry.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Entry(Mutex<Mapping, ENTRY_RANK>);

/// One line an entry: the promise of 64 bytes a page.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Entry>() == 64);

/// The logical mapping of one page.
///
/// # Invariants
/// `frames[..nr_copies]` on `nodes[..nr_copies]` are the copies, of distinct nodes, and each of
/// these frames names this page as its owner. `writable` is a subset of `mapped`; a processor in
/// `mapped` belongs to a node with a copy, unless there is one copy only; if `writable` is not
/// empty there is one copy and no replica.
#[derive(Debug)]
pub(crate) struct Mapping {
    frames: [FrameNr; MAX_COPIES],
    nodes: [NodeId; MAX_COPIES],
    mapped: ProcessorSet,
    writable: ProcessorSet,
    /// Bit n: a processor of node n has mapped the page since it was opened.
    touched_nodes: u32,
    nr_copies: u8,
    /// How often the page was opened: tells a page from its successor at the same address.
    generation: u8,
    pub(crate) protection: Protection,
    /// Bit 0: poisoned; bit 1: some processor refused the region; bit 2: unsure; bit 3: open;
    /// bit 4: advised; bit 5: watched; bit 6: the CPU's mapping is a replica; bit 7: the first of
    /// what was mapped at one time.
    flags: u8,
}

const POISONED: u8 = 1;
const REFUSED: u8 = 2;
const UNSURE: u8 = 4;
const OPEN: u8 = 8;
const ADVISED: u8 = 16;
const WATCHED: u8 = 32;
const REPLICA: u8 = 64;
const FIRST: u8 = 128;

impl Entry {
    /// A closed entry.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Mapping {
            frames: [FrameNr(0); MAX_COPIES],
            nodes: [NodeId(0); MAX_COPIES],
            mapped: ProcessorSet::EMPTY,
            writable: ProcessorSet::EMPTY,
            touched_nodes: 0,
            nr_copies: 0,
            generation: 0,
            protection: Protection::ReadOnly,
            flags: 0,
        }))
    }

    pub(crate) fn lock(&self) -> EntryGuard<'_> {
        self.0.lock()
    }

    /// Locks several entries, in the order of their addresses, with no other locked. Which lock is
    /// whose is said by what the entry was given with.
    pub(crate) fn lock_all<'a, K, const N: usize>(
        entries: impl Iterator<Item = (K, &'a Self)>,
    ) -> Batch<(K, Option<EntryGuard<'a>>), N> {
        let locks = entries.map(|(key, entry)| (key, &entry.0));
        Mutex::lock_all(locks)
    }

    pub(crate) fn try_lock(&self) -> Option<EntryGuard<'_>> {
        self.0.try_lock()
    }
}

impl Mapping {
    pub(crate) fn state(&self) -> PageState {
        match (self.is_open(), self.nr_copies) {
            (false, _) => PageState::Closed,
            (true, 0) => PageState::Empty,
            (true, 1) => PageState::Exclusive(self.nodes[0]),
            (true, _) => PageState::Shared,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.flags & OPEN != 0
    }

    pub(crate) fn generation(&self) -> u8 {
        self.generation
    }

    /// `mmap`: Closed → Empty. The page before the `first` one is another region's.
    pub(crate) fn open(&mut self, protection: Protection, first: bool) {
        debug_assert!(!self.is_open() && self.nr_copies == 0 && self.mapped.is_empty());
        self.protection = protection;
        self.touched_nodes = 0;
        self.flags = if first { OPEN | FIRST } else { OPEN };
        self.generation = self.generation.wrapping_add(1);
    }

    /// Whether it is the first page that `mmap` has made a region of.
    pub(crate) fn is_first(&self) -> bool {
        self.flags & FIRST != 0
    }

    /// `munmap`, first step: faults fail from here on; copies and mappings are as they were.
    pub(crate) fn close(&mut self) {
        self.set_flag(OPEN, false);
    }

    /// `munmap` found the range in use: as if it had not been called.
    pub(crate) fn reopen(&mut self) {
        self.set_flag(OPEN, true);
    }

    /// The valid copies.
    pub(crate) fn copies(&self) -> impl Iterator<Item = Frame> {
        (0..usize::from(self.nr_copies)).map(|i| Frame { node: self.nodes[i], nr: self.frames[i] })
    }

    pub(crate) fn nr_copies(&self) -> usize {
        usize::from(self.nr_copies)
    }

    /// The copy on `node`.
    pub(crate) fn copy_on(&self, node: NodeId) -> Option<Frame> {
        self.copies().find(|c| c.node == node)
    }

    /// The frame that a processor of `node` maps, or would map if it mapped the page as it is: the
    /// copy on its node, or the only one.
    pub(crate) fn frame_seen_from(&self, node: NodeId) -> Option<Frame> {
        let only = || self.copies().next().filter(|_| self.nr_copies == 1);
        self.copy_on(node).or_else(only)
    }

    /// The copy to read from: host memory first, since its link is every device's own.
    pub(crate) fn source(&self) -> Option<Frame> {
        self.copy_on(NodeId::HOST).or_else(|| self.copies().next())
    }

    /// Records a new valid copy. The caller has made room: [`Mapping::nr_copies`] below
    /// [`MAX_COPIES`].
    pub(crate) fn add_copy(&mut self, frame: Frame) {
        debug_assert!(self.copy_on(frame.node).is_none());
        let i = usize::from(self.nr_copies);
        self.nodes[i] = frame.node;
        self.frames[i] = frame.nr;
        self.nr_copies += 1;
    }

    /// Forgets the copy on `node`, which nobody maps, and says which frame it was.
    pub(crate) fn remove_copy(&mut self, node: NodeId) -> Option<Frame> {
        let i = self.copies().position(|c| c.node == node)?;
        let frame = Frame { node, nr: self.frames[i] };
        let last = usize::from(self.nr_copies) - 1;
        self.nodes[i] = self.nodes[last];
        self.frames[i] = self.frames[last];
        self.nr_copies -= 1;
        Some(frame)
    }

    pub(crate) fn mapped(&self) -> ProcessorSet {
        self.mapped
    }

    pub(crate) fn writable(&self) -> ProcessorSet {
        self.writable
    }

    /// Records that `p` (of `node`) maps the page; says whether it is the first of that node to do
    /// so since the page was opened.
    pub(crate) fn set_mapped(&mut self, p: ProcessorId, node: NodeId, writable: bool) -> bool {
        self.mapped.insert(p);
        if writable {
            self.writable.insert(p);
        } else {
            self.writable.remove(p);
        }
        let before = self.touched_nodes;
        self.touched_nodes |= 1 << node.0;
        self.touched_nodes != before
    }

    /// Records that `p` does not map the page any more.
    pub(crate) fn set_unmapped(&mut self, p: ProcessorId) {
        self.mapped.remove(p);
        self.writable.remove(p);
        if p == ProcessorId::CPU {
            self.set_flag(REPLICA, false);
        }
        if self.mapped.is_empty() {
            self.set_unsure(false);
        }
    }

    /// Whether a page-table operation has timed out: `mapped` and `writable` say the most that
    /// can be. It ends when nobody maps the page any more, or the only one maps it anew.
    pub(crate) fn is_unsure(&self) -> bool {
        self.flags & UNSURE != 0
    }

    pub(crate) fn set_unsure(&mut self, unsure: bool) {
        self.set_flag(UNSURE, unsure);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.flags & POISONED != 0
    }

    pub(crate) fn set_poisoned(&mut self, poisoned: bool) {
        self.set_flag(POISONED, poisoned);
    }

    /// Whether some processor refused the page's region: the region table knows which.
    pub(crate) fn is_refused_by_some(&self) -> bool {
        self.flags & REFUSED != 0
    }

    pub(crate) fn set_refused_by_some(&mut self, refused: bool) {
        self.set_flag(REFUSED, refused);
    }

    /// Whether something was advised about the page, or it is pinned: the attribute table and the
    /// frames know what.
    pub(crate) fn is_advised(&self) -> bool {
        self.flags & ADVISED != 0
    }

    pub(crate) fn set_advised(&mut self, advised: bool) {
        self.set_flag(ADVISED, advised);
    }

    /// Whether someone is to be asked before a copy goes.
    pub(crate) fn is_watched(&self) -> bool {
        self.flags & WATCHED != 0
    }

    pub(crate) fn set_watched(&mut self, watched: bool) {
        self.set_flag(WATCHED, watched);
    }

    /// Whether the CPU, the one processor whose frames may move, maps a replica.
    pub(crate) fn has_replica(&self) -> bool {
        self.flags & REPLICA != 0
    }

    pub(crate) fn set_replica(&mut self, is_replica: bool) {
        self.set_flag(REPLICA, is_replica);
    }

    fn set_flag(&mut self, flag: u8, on: bool) {
        self.flags = self.flags & !flag | if on { flag } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_from_copies() {
        let entry = Entry::new();
        let mut m = entry.lock();
        assert_eq!(m.state(), PageState::Closed);
        m.open(Protection::ReadWrite, true);
        assert_eq!(m.state(), PageState::Empty);
        let (host, xpu) = (NodeId(0), NodeId(1));
        m.add_copy(Frame { node: xpu, nr: FrameNr(7) });
        assert_eq!(m.state(), PageState::Exclusive(xpu));
        m.add_copy(Frame { node: host, nr: FrameNr(3) });
        assert_eq!(m.state(), PageState::Shared);
        assert_eq!(m.source().unwrap().node, host);
        assert_eq!(m.remove_copy(xpu).unwrap().nr, FrameNr(7));
        assert_eq!(m.state(), PageState::Exclusive(host));
        assert_eq!(m.remove_copy(xpu), None);
        assert!(
            m.set_mapped(ProcessorId(3), xpu, true) && m.set_mapped(ProcessorId(0), host, true)
        );
        m.set_unmapped(ProcessorId(0));
        assert!(!m.set_mapped(ProcessorId(3), xpu, false));
        assert!(m.writable().is_empty() && m.mapped().contains(ProcessorId(3)));
    }
}
