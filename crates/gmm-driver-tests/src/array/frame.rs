//! One frame of an array memory, and what its bytes mean.

use gmm_core::PageNr;

/// How many words stand for the 2 MiB of a frame.
pub const FRAME_WORDS: usize = 8;

/// What a frame holds before anyone filled it: never a value that a test writes.
pub(super) const RUBBISH: u64 = 0xDEAD_BEEF_DEAD_BEEF;

/// Whose bytes a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// Nobody's: never filled since it was imported, or left behind by a failed operation.
    Rubbish,
    /// It was zeroed or overwritten and may be entered for any page.
    Filled,
    /// It was entered for this page and may be entered for this page only.
    Of(PageNr),
    /// An operation on it never ended: it must not be used again.
    Lost,
}

/// One frame.
#[derive(Clone, Debug)]
pub(super) struct FrameState {
    pub(super) words: [u64; FRAME_WORDS],
    pub(super) contents: Contents,
    pub(super) imported: bool,
    /// Operations under way that read it.
    pub(super) readers: u32,
    /// Operations under way that write it.
    pub(super) writers: u32,
    /// Its data is in a page table and not in its slot (`MOVABLE_FRAMES`).
    pub(super) moved_away: bool,
}

impl FrameState {
    pub(super) fn new() -> Self {
        Self {
            words: [RUBBISH; FRAME_WORDS],
            contents: Contents::Rubbish,
            imported: false,
            readers: 0,
            writers: 0,
            moved_away: false,
        }
    }

    pub(super) fn in_flight(&self) -> bool {
        self.readers + self.writers > 0
    }

    /// Leaves bytes behind that are wrong for everyone.
    pub(super) fn spoil(&mut self) {
        self.words = [RUBBISH; FRAME_WORDS];
        self.contents = Contents::Rubbish;
    }
}

/// One memory: the frames of one node.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) frames: Vec<FrameState>,
    /// Whether it is host memory, which other devices reach by address.
    pub(super) host: bool,
    /// The fabric on which its frames have addresses.
    pub(super) fabric: Option<u64>,
}

/// A frame of the machine: memory and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slot {
    pub(super) memory: usize,
    pub(super) nr: usize,
}
