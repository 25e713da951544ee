//! Ordinary memory of this process, with the pages that were asked for: the kernel's own, as the
//! baseline of unified memory.

use std::ops::{Deref, DerefMut, Range};

use anyhow::{Context as _, ensure};
use gmm::PAGE_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// With which pages memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pages {
    /// 2 MiB, transparently.
    Huge,
    /// 4 KiB.
    Small,
}

/// Words in private anonymous memory, whole pages of 2 MiB.
pub(super) struct Ordinary {
    mapping: *mut u8,
    /// Longer than the words by a page, so that these can be aligned.
    mapping_bytes: usize,
    words: *mut u64,
    nr_words: usize,
}

// SAFETY: it owns its memory, as a `Vec<u64>` does.
unsafe impl Send for Ordinary {}
// SAFETY: shared, it gives only `&[u64]`.
unsafe impl Sync for Ordinary {}

impl Ordinary {
    /// At least so many bytes.
    #[expect(unsafe_code, reason = "maps memory")]
    pub(super) fn new(bytes: u64, pages: Pages) -> anyhow::Result<Self> {
        let len = usize::try_from(bytes.next_multiple_of(PAGE_SIZE))?;
        let mapping_bytes = len + PAGE_SIZE as usize;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapping =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, protection, flags) };
        let mapping =
            mapping.with_context(|| format!("can't map {mapping_bytes} bytes"))?.cast::<u8>();
        let skipped = mapping.align_offset(PAGE_SIZE as usize);
        let words = mapping.wrapping_add(skipped).cast::<u64>();
        let memory = Self { mapping, mapping_bytes, words, nr_words: len / 8 };
        let advice = match pages {
            Pages::Huge => Advice::LinuxHugepage,
            Pages::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: it changes only how the kernel will back this mapping.
        unsafe { madvise(memory.words.cast(), len, advice) }.context("madvise")?;
        Ok(memory)
    }

    /// Drops the contents: the words read as zero, and the next touch of a page is a fault.
    pub(super) fn discard(&mut self) -> anyhow::Result<()> {
        self.discard_part(0..self.nr_words)
    }

    /// As [`Ordinary::discard`], of words that begin and end with a page of the kernel's.
    #[expect(unsafe_code, reason = "advises the kernel")]
    pub(super) fn discard_part(&mut self, words: Range<usize>) -> anyhow::Result<()> {
        let words = &mut self[words];
        let (start, len) = (words.as_mut_ptr(), size_of_val(words));
        // SAFETY: the memory is ours alone, and zero is a `u64`.
        unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) }.context("madvise")
    }

    /// Makes sure that the kernel gave the pages that were asked for, once all were touched.
    pub(super) fn check_pages(&self, pages: Pages) -> anyhow::Result<()> {
        let huge = self.bytes_in_smaps("AnonHugePages")?;
        let all = self.nr_words as u64 * 8;
        match pages {
            Pages::Huge => ensure!(
                huge >= all / 10 * 9,
                "of {all} bytes the kernel maps only {huge} with 2 MiB pages: is \
                 /sys/kernel/mm/transparent_hugepage/enabled never, or memory scattered?"
            ),
            Pages::Small => ensure!(huge == 0, "{huge} bytes have 2 MiB pages, against the advice"),
        }
        Ok(())
    }

    /// How much of it is in swap.
    pub(super) fn swapped_bytes(&self) -> anyhow::Result<u64> {
        self.bytes_in_smaps("Swap")
    }

    fn bytes_in_smaps(&self, field: &str) -> anyhow::Result<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").context("/proc/self/smaps")?;
        field_bytes(&smaps, self.words as u64, field)
    }
}

/// What the text of `/proc/self/smaps` says under `field` of the mapping that holds `addr`.
fn field_bytes(smaps: &str, addr: u64, field: &str) -> anyhow::Result<u64> {
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let numbers = range
            .map(|(start, end)| (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)));
        if let Some((Ok(start), Ok(end))) = numbers {
            inside = (start..end).contains(&addr);
        } else if let Some((_, kib)) =
            line.split_once(':').filter(|(name, _)| inside && *name == field)
        {
            let kib = kib.trim().trim_end_matches("kB").trim().parse::<u64>();
            return Ok(kib.with_context(|| line.to_owned())? << 10);
        }
    }
    anyhow::bail!("/proc/self/smaps has no {field} of the mapping at {addr:#x}")
}

impl Deref for Ordinary {
    type Target = [u64];
    #[expect(unsafe_code, reason = "the memory as a slice")]
    fn deref(&self) -> &[u64] {
        // SAFETY: so many words are mapped there until the drop; any bytes are words.
        unsafe { std::slice::from_raw_parts(self.words, self.nr_words) }
    }
}

impl DerefMut for Ordinary {
    #[expect(unsafe_code, reason = "the memory as a slice")]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.words, self.nr_words) }
    }
}

impl Drop for Ordinary {
    #[expect(unsafe_code, reason = "unmaps memory")]
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it is left.
        let _ = unsafe { munmap(self.mapping.cast(), self.mapping_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_reads_as_zero_again_once_dropped() {
        let mut memory = Ordinary::new(PAGE_SIZE + 1, Pages::Small).unwrap();
        assert_eq!(memory.len() as u64 * 8, 2 * PAGE_SIZE);
        assert_eq!(memory.as_ptr() as u64 % PAGE_SIZE, 0);
        memory.fill(7);
        memory.check_pages(Pages::Small).unwrap();
        assert!(memory.check_pages(Pages::Huge).is_err());
        memory.discard().unwrap();
        assert!(memory.iter().all(|word| *word == 0));
    }

    #[test]
    fn fields_are_of_the_mapping_alone() {
        let smaps = "\
1000-2000 rw-p 00000000 00:00 0\nSize: 4 kB\nAnonHugePages:      2048 kB\nSwap: 8 kB\n\
2000-3000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:         0 kB\n";
        assert_eq!(field_bytes(smaps, 0x1fff, "AnonHugePages").unwrap(), 2 << 20);
        assert_eq!(field_bytes(smaps, 0x1000, "Swap").unwrap(), 8 << 10);
        assert_eq!(field_bytes(smaps, 0x2000, "AnonHugePages").unwrap(), 0);
        assert!(field_bytes(smaps, 0x2000, "Swap").is_err());
        assert!(field_bytes(smaps, 0x3000, "AnonHugePages").is_err());
    }
}
