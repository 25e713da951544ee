//! Memory of which whole pages can be given back: unified, and the kernel's.

use std::ops::{Deref, DerefMut, Range};

use gmm::{Advice, Gmm, PAGE_SIZE, Unified};

use crate::bench::ordinary::{Ordinary, Pages};

/// Words of a page.
pub(super) const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// Whole pages of words.
pub(super) trait Memory: DerefMut<Target = [u64]> + Send {
    /// The contents of these pages are not needed any more: they read as zero.
    fn give_back(&mut self, pages: Range<usize>) -> anyhow::Result<()>;
}

pub(super) struct InUnified(Gmm, Unified<u64>);

impl InUnified {
    pub(super) fn new(gmm: &Gmm, bytes: u64) -> anyhow::Result<Self> {
        let nr_pages = usize::try_from(bytes.div_ceil(PAGE_SIZE))?;
        Ok(Self(gmm.clone(), gmm.mmap_named(nr_pages * PAGE_WORDS, "bench heap")?))
    }
}

impl Memory for InUnified {
    #[expect(unsafe_code, reason = "what is given back reads as zero")]
    fn give_back(&mut self, pages: Range<usize>) -> anyhow::Result<()> {
        let words = &mut self.1[pages.start * PAGE_WORDS..pages.end * PAGE_WORDS];
        let (addr, len) = (words.as_mut_ptr(), size_of_val(words) as u64);
        // SAFETY: borrowed exclusively, so nobody else has a reference; zero is a `u64`.
        unsafe { self.0.gmadvise(addr.cast(), len, Advice::DontNeed, 0)? };
        Ok(())
    }
}

impl Deref for InUnified {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.1
    }
}

impl DerefMut for InUnified {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.1
    }
}

pub(super) struct InOrdinary(Ordinary);

impl InOrdinary {
    pub(super) fn new(bytes: u64) -> anyhow::Result<Self> {
        Ok(Self(Ordinary::new(bytes, Pages::Huge)?))
    }
}

impl Memory for InOrdinary {
    fn give_back(&mut self, pages: Range<usize>) -> anyhow::Result<()> {
        self.0.discard_part(pages.start * PAGE_WORDS..pages.end * PAGE_WORDS)
    }
}

impl Deref for InOrdinary {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for InOrdinary {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}
