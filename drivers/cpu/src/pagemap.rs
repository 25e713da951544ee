//! What the kernel has at an address, by `PAGEMAP_SCAN` (Linux 6.7) on `/proc/self/pagemap`.
//!
//! `mincore` would not do: it calls swapped pages absent.

use std::os::fd::OwnedFd;

use gmm_core::PAGE_SIZE;
use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::SetupError;

const EXISTS: u64 = (raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED) as u64;
const HUGE: u64 = raw::PAGE_IS_HUGE as u64;

/// How a range is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// No part of it exists.
    Absent,
    /// All of it, by huge pages.
    Huge,
    /// Some or all of it, by small pages (in memory or swapped out).
    Small,
}

/// The page map of this process.
#[derive(Debug)]
pub(crate) struct Pagemap(OwnedFd);

impl Pagemap {
    pub(crate) fn open() -> Result<Self, SetupError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/self/pagemap", flags, Mode::empty()).map(Self).map_err(|e| {
            SetupError::Os {
                call: "open(/proc/self/pagemap)",
                doing: "preparing to look at page tables",
                cause: e.into(),
                remedy: "/proc must be mounted",
            }
        })
    }

    /// How `nr_pages` 2 MiB pages from `start` are mapped. `Small` if it can't be told (it is
    /// what works for all, only slower).
    pub(crate) fn look(&self, start: u64, nr_pages: u64) -> Look {
        self.try_look(start, nr_pages * PAGE_SIZE).unwrap_or(Look::Small)
    }

    /// As [`Pagemap::look`], for any range.
    pub(crate) fn try_look(&self, start: u64, len: u64) -> Result<Look, Errno> {
        let Some(found) = self.first_region(start, len)? else { return Ok(Look::Absent) };
        let whole = found.start == start && found.end == start + len;
        Ok(match whole && found.categories & HUGE != 0 {
            true => Look::Huge,
            false => Look::Small,
        })
    }

    /// How many bytes of a range, from its start, do not exist.
    pub(crate) fn absent_len(&self, start: u64, len: u64) -> Result<u64, Errno> {
        Ok(self.first_region(start, len)?.map_or(len, |found| found.start - start))
    }

    /// How many bytes of a range, from its start, exist; perhaps not all of them.
    pub(crate) fn present_len(&self, start: u64, len: u64) -> Result<u64, Errno> {
        let found = self.first_region(start, len)?.filter(|found| found.start == start);
        Ok(found.map_or(0, |found| found.end - start))
    }

    /// The first part of a range that exists and is alike.
    fn first_region(&self, start: u64, len: u64) -> Result<Option<raw::page_region>, Errno> {
        let mut found = raw::page_region { start: 0, end: 0, categories: 0 };
        let mut scan = Scan(raw::pm_scan_arg {
            size: size_of::<raw::pm_scan_arg>() as u64,
            flags: 0,
            start,
            end: start + len,
            walk_end: 0,
            vec: &raw mut found as u64,
            vec_len: 1,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: EXISTS,
            return_mask: EXISTS | HUGE,
        });
        // SAFETY: the scan writes its argument and at most one region, into `found`.
        let regions = unsafe { ioctl(&self.0, &mut scan) }?;
        Ok((regions > 0).then_some(found))
    }
}

struct Scan(raw::pm_scan_arg);

// SAFETY: PAGEMAP_SCAN reads and writes one `pm_scan_arg` and returns a count.
unsafe impl Ioctl for &mut Scan {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<raw::pm_scan_arg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(out)
    }
}
