//! Ordinary memory of the test's process as the host's side of copies.

use core::sync::atomic::{AtomicU64, Ordering};

use gmm_core::{HostAddr, PAGE_SIZE};

use super::HostMemory;

const WORDS: usize = PAGE_SIZE as usize / 8;

/// Frames in one allocation, each 2 MiB-aligned.
#[derive(Debug)]
pub struct PlainHostMemory {
    words: Vec<AtomicU64>,
    /// Where in `words` the first frame starts.
    start: usize,
}

impl PlainHostMemory {
    /// `nr_frames` frames of zeros.
    pub fn new(nr_frames: usize) -> Self {
        let words: Vec<_> = (0..(nr_frames + 1) * WORDS).map(|_| AtomicU64::new(0)).collect();
        let misalignment = words.as_ptr() as usize % PAGE_SIZE as usize;
        let start = (PAGE_SIZE as usize - misalignment) % PAGE_SIZE as usize / 8;
        Self { words, start }
    }

    fn word(&self, frame: usize, offset: u64) -> &AtomicU64 {
        &self.words[self.start + frame * WORDS + offset as usize / 8]
    }
}

impl HostMemory for PlainHostMemory {
    fn addr(&self, frame: usize) -> HostAddr {
        HostAddr(core::ptr::from_ref(self.word(frame, 0)) as u64)
    }

    fn read(&self, frame: usize, offset: u64) -> u64 {
        self.word(frame, offset).load(Ordering::SeqCst)
    }

    fn write(&self, frame: usize, offset: u64, value: u64) {
        self.word(frame, offset).store(value, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_aligned_and_apart() {
        let memory = PlainHostMemory::new(2);
        assert_eq!(memory.addr(0).0 % PAGE_SIZE, 0);
        assert_eq!(memory.addr(1).0 - memory.addr(0).0, PAGE_SIZE);
        memory.write(0, PAGE_SIZE - 8, 1);
        memory.write(1, 0, 2);
        assert_eq!((memory.read(0, PAGE_SIZE - 8), memory.read(1, 0)), (1, 2));
    }
}
