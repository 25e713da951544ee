//! Where the pages of a range are: runs of pages alike. Nothing is waited for: a page that is being
//! worked on is reported as in motion, so that one that is stuck does not hang who asks.

use crate::entry::{Entry, EntryGuard, Mapping, PageState};
use crate::space::Space;
use crate::{
    MAX_PROCESSORS, MoveCause, NodeId, PageRange, ProcessorId, ProcessorSet, Result, VirtAddr,
};

/// How often a page's lock is tried. It is mostly held for less time than that takes (or for as
/// long as a copy, and then the page is in motion).
const TRIES: u32 = 100;

/// Who or what brought a page to where it is.
///
/// In one byte, since every frame has one: the cause in the low three bits, the processor above
/// (0 where the cause has none).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MovedBy(u8);

const _: () = assert!(MAX_PROCESSORS <= 32 && MoveCause::ALL.len() <= 8);

impl MovedBy {
    pub(crate) fn new(cause: MoveCause, processor: Option<ProcessorId>) -> Self {
        Self(cause as u8 | processor.map_or(0, |p| p.0) << 3)
    }

    /// Why.
    pub fn cause(self) -> MoveCause {
        MoveCause::ALL[usize::from(self.0 & 7)]
    }

    /// For whom: of faults, look-ahead and holds. (The number may have gone to another since.)
    pub fn processor(self) -> Option<ProcessorId> {
        let wants = [MoveCause::Fault, MoveCause::LookAhead, MoveCause::Hold];
        wants.contains(&self.cause()).then_some(ProcessorId(self.0 >> 3))
    }
}

impl core::fmt::Debug for MovedBy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.cause().name())?;
        self.processor().map_or(Ok(()), |p| write!(f, " of {p}"))
    }
}

/// Consecutive pages of which the same is to be said.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The pages.
    pub range: PageRange,
    /// Their state; `None` if someone is working on each of them just now (or is stuck with it):
    /// then nothing else is known.
    pub state: Option<PageState>,
    /// Their valid copies, by node.
    pub copies: Vec<CopyInfo>,
    /// Who maps them.
    pub mapped: ProcessorSet,
    /// Who maps them for writing.
    pub writable: ProcessorSet,
}

/// One copy of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CopyInfo {
    /// Where it is.
    pub node: NodeId,
    /// Whether it is pinned there, or held by a launch.
    pub pinned: bool,
    /// What brought it there last.
    pub moved_by: MovedBy,
}

impl Space {
    /// Where the pages that hold `addr .. addr + len_bytes` are, as runs of pages alike, in order.
    /// Locks each page for a moment, and waits for none.
    ///
    /// # Errors
    /// [`Error::ZeroLength`](crate::Error), [`Error::AddressOverflow`](crate::Error),
    /// [`Error::NotMapped`](crate::Error) with the first address that is in no region.
    pub fn residency(&self, addr: VirtAddr, len_bytes: u64) -> Result<Vec<Run>> {
        let range = PageRange::covering(addr, len_bytes)?;
        self.check_mapped(range)?;
        let mut runs: Vec<Run> = Vec::new();
        for (page, entry) in self.table.entries(range) {
            let range = PageRange { start: page, nr_pages: 1 };
            let run = match look(entry) {
                Some(m) => self.describe(range, &m),
                None => Run {
                    range,
                    state: None,
                    copies: Vec::new(),
                    mapped: ProcessorSet::EMPTY,
                    writable: ProcessorSet::EMPTY,
                },
            };
            match runs.last_mut() {
                Some(last) if *last == (Run { range: last.range, ..run.clone() }) => {
                    last.range.nr_pages += 1;
                }
                _ => runs.push(run),
            }
        }
        Ok(runs)
    }

    fn describe(&self, range: PageRange, m: &Mapping) -> Run {
        let copies = m.copies().map(|copy| {
            let (moved_by, pinned) = self.known_node(copy.node).story(copy.nr);
            CopyInfo { node: copy.node, pinned, moved_by }
        });
        let mut copies: Vec<_> = copies.collect();
        copies.sort_by_key(|copy| copy.node);
        let (mapped, writable) = (m.mapped(), m.writable());
        Run { range, state: Some(m.state()), copies, mapped, writable }
    }
}

/// The page, unless someone is working on it.
pub(crate) fn look(entry: &Entry) -> Option<EntryGuard<'_>> {
    (0..TRIES).find_map(|_| {
        core::hint::spin_loop();
        entry.try_lock()
    })
}
