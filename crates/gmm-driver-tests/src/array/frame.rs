//! One frame of an array memory, and what its bytes mean.

use gmm_core::{PAGE_SIZE, PageNr};

/// How many words stand for the 2 MiB of a frame: half of them for its first bytes, half for its
/// last. The bytes between do not exist: they read as zero, and what is written there is gone.
pub const FRAME_WORDS: usize = 8;

/// How many bytes of a frame exist.
pub const FRAME_BYTES: usize = FRAME_WORDS * 8;

/// The offset in the page of a byte that exists.
pub fn byte_offset(byte: usize) -> u64 {
    if byte < FRAME_BYTES / 2 { byte as u64 } else { PAGE_SIZE - (FRAME_BYTES - byte) as u64 }
}

/// Which of the bytes that exist lies at `offset` of a page.
pub(super) fn byte_at(offset: u64) -> Option<usize> {
    let from_end = (PAGE_SIZE - offset) as usize;
    match offset as usize {
        byte if byte < FRAME_BYTES / 2 => Some(byte),
        _ if from_end <= FRAME_BYTES / 2 => Some(FRAME_BYTES - from_end),
        _ => None,
    }
}

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
    /// The bytes that parts were copied to since it was last filled or entered: bit n for byte n.
    pub(super) covered: u64,
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
            covered: 0,
            imported: false,
            readers: 0,
            writers: 0,
            moved_away: false,
        }
    }

    /// A frame of zero bytes.
    pub(super) fn filled() -> Self {
        Self { words: [0; FRAME_WORDS], contents: Contents::Filled, ..Self::new() }
    }

    pub(super) fn in_flight(&self) -> bool {
        self.readers + self.writers > 0
    }

    /// Leaves bytes behind that are wrong for everyone.
    pub(super) fn spoil(&mut self) {
        self.words = [RUBBISH; FRAME_WORDS];
        self.contents = Contents::Rubbish;
        self.covered = 0;
    }

    pub(super) fn byte(&self, byte: usize) -> u8 {
        self.words[byte / 8].to_le_bytes()[byte % 8]
    }

    pub(super) fn set_byte(&mut self, byte: usize, value: u8) {
        let mut bytes = self.words[byte / 8].to_le_bytes();
        bytes[byte % 8] = value;
        self.words[byte / 8] = u64::from_le_bytes(bytes);
    }

    /// Parts were copied to `bytes` (bit n for byte n). A frame that parts have filled whole is
    /// filled.
    pub(super) fn cover(&mut self, bytes: u64) {
        self.covered |= bytes;
        if self.covered == u64::MAX {
            self.contents = Contents::Filled;
        }
    }

    /// Whether one of `bytes` means nothing.
    pub(super) fn is_rubbish(&self, bytes: u64) -> bool {
        self.contents == Contents::Rubbish && bytes & !self.covered != 0
    }

    /// A copy to `bytes` failed: they are wrong for everyone, the others are as they were.
    pub(super) fn spoil_part(&mut self, bytes: u64) {
        for byte in (0..FRAME_BYTES).filter(|&byte| bytes >> byte & 1 != 0) {
            self.set_byte(byte, RUBBISH.to_le_bytes()[byte % 8]);
        }
        self.covered &= !bytes;
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
    /// Ordinary memory of the process, which is no node of anyone.
    pub(super) plain: bool,
}

/// A frame of the machine: memory and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slot {
    pub(super) memory: usize,
    pub(super) nr: usize,
}
