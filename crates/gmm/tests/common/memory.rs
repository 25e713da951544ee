//! Unified memory by raw accesses that the compiler can't remove.

use std::ptr::null;

use gmm::{Gmm, MapFlags, PageInfo, PageState, Protection, Xpu};
use gmm_kernels::samples::ListNode;

use super::{RawCalls, run};

pub const PAGE: usize = 2 << 20;
pub const SMALL: usize = 4096;

/// A region, or any address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory(pub *mut u8);

// SAFETY: the tests order their accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Maps so many pages.
pub fn mmap(gmm: &Gmm, pages: usize) -> Memory {
    mmap_as(gmm, pages, Protection::ReadWrite)
}

pub fn mmap_as(gmm: &Gmm, pages: usize, protection: Protection) -> Memory {
    let len = (pages * PAGE) as u64;
    Memory(gmm.mmap_raw(len, protection, MapFlags::XPU_VISIBLE, "test").unwrap())
}

impl Memory {
    pub fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }

    /// The memory from `offset` on.
    pub fn from(self, offset: usize) -> Self {
        Self(self.at(offset))
    }

    pub fn addr(self, offset: usize) -> u64 {
        self.at(offset).addr() as u64
    }

    pub fn read(self, offset: usize) -> u8 {
        // SAFETY: the tests read within regions, or want the signal.
        unsafe { self.at(offset).read_volatile() }
    }

    pub fn write(self, offset: usize, value: u8) {
        // SAFETY: as for reads.
        unsafe { self.at(offset).write_volatile(value) }
    }

    pub fn read_word(self, offset: usize) -> u64 {
        // SAFETY: as for reads; offsets are multiples of 8.
        unsafe { self.at(offset).cast::<u64>().read_volatile() }
    }

    pub fn write_word(self, offset: usize, value: u64) {
        // SAFETY: as for reads; offsets are multiples of 8.
        unsafe { self.at(offset).cast::<u64>().write_volatile(value) }
    }

    /// Fills `len` bytes with one list, a node each 64 bytes in ascending order, of values that
    /// `seed` and the place decide: a kernel that follows the list reads all of it.
    pub fn fill(self, offset: usize, len: usize, seed: u64) {
        for i in (offset..offset + len).step_by(STEP) {
            let is_last = i + STEP >= offset + len;
            let next = if is_last { null() } else { self.at(i + STEP).cast_const().cast() };
            let node = ListNode { next, value: pattern(i, seed) };
            // SAFETY: within a region; offsets are multiples of 16.
            unsafe { self.at(i).cast::<ListNode>().write_volatile(node) };
        }
    }

    /// How many of the values that [`Memory::fill`] wrote are different, read by the CPU.
    pub fn differences(self, offset: usize, len: usize, seed: u64) -> usize {
        let places = (offset..offset + len).step_by(STEP);
        places.filter(|&i| self.read_word(i + 8) != pattern(i, seed)).count()
    }

    /// How many words of a range are not zero, read by the CPU.
    pub fn not_zero(self, offset: usize, len: usize) -> usize {
        (offset..offset + len).step_by(8).filter(|&i| self.read_word(i) != 0).count()
    }

    /// The sum of the list that begins at `offset`, read by an XPU. It is written to `out`, a word
    /// of unified memory, and read from there by the CPU.
    pub fn sum_on(self, xpu: &Xpu, offset: usize, out: Memory) -> gmm::Result<u64> {
        run(xpu, "sum_list", 1, (self.at(offset), out.at(0)))?;
        Ok(out.read_word(0))
    }

    /// Has an XPU touch so many pages, for writing or for reading, one grid index a page.
    pub fn touch_on(self, xpu: &Xpu, pages: usize, write: bool) {
        run(xpu, "touch", pages as u64, (self.at(0), pages * PAGE, write)).unwrap();
    }

    pub fn info(self, gmm: &Gmm, offset: usize) -> PageInfo {
        gmm.inspect(self.at(offset)).unwrap()
    }

    pub fn state(self, gmm: &Gmm, offset: usize) -> PageState {
        self.info(gmm, offset).state
    }

    /// The nodes that have a valid copy, ascending.
    pub fn nodes(self, gmm: &Gmm, offset: usize) -> Vec<u8> {
        let mut nodes: Vec<_> = self.info(gmm, offset).copies.iter().map(|c| c.node.0).collect();
        nodes.sort_unstable();
        nodes
    }

    pub fn unmap(self, gmm: &Gmm, pages: usize) {
        gmm.unmap(self.at(0), (pages * PAGE) as u64).unwrap();
    }

    /// The application's own `madvise(MADV_DONTNEED)`.
    pub fn discard(self, offset: usize, len: usize) {
        // SAFETY: the tests discard unified memory of theirs only.
        let r = unsafe { libc::madvise(self.at(offset).cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    }

    /// Whether the kernel can read a byte here, which is no signal if it can't.
    pub fn is_readable(self, offset: usize) -> bool {
        let mut pipe = [0; 2];
        // SAFETY: makes a pipe, writes a byte from an address that may be anything (then that is
        // an error), closes both ends.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let written = libc::write(pipe[1], self.at(offset).cast(), 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            written == 1
        }
    }
}

const STEP: usize = 64;

fn pattern(i: usize, seed: u64) -> u64 {
    (i as u64 / STEP as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 40)
}

/// The sum of the values that [`Memory::fill`] writes.
pub fn sum_of(offset: usize, len: usize, seed: u64) -> u64 {
    let places = (offset..offset + len).step_by(STEP);
    places.fold(0, |sum, i| sum.wrapping_add(pattern(i, seed)))
}

/// A counter of `/proc/self/smaps`, in KiB, summed over the mappings that overlap the range.
pub fn smaps_kib(memory: Memory, len: usize, key: &str) -> u64 {
    let (start, end) = (memory.addr(0), memory.addr(len));
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        let bounds = first.split_once('-').and_then(|(from, to)| {
            Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
        });
        if let Some((from, to)) = bounds {
            inside = from < end && start < to;
        } else if inside && first.strip_suffix(':') == Some(key) {
            sum += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}
