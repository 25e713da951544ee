//! The window of unified addresses.
//!
//! Claimed whole, as nothing (`PROT_NONE`), so that no one else maps there; a region's part of it
//! becomes memory when the region is made. The base is not left to the kernel: XPU drivers limit
//! which addresses they can map, and ThreadSanitizer which a program may use.

use std::ffi::CStr;

use gmm_core::{PAGE_SIZE, PageNr, PageRange, VirtAddr};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};

use crate::SetupError;
use crate::mapping::{self, Mapping};
use crate::uffd::{RegisterMode, Uffd};

pub(crate) const NAME: &CStr = c"gmm:window";

/// Where a window lies by default: its lowest base and its length in bytes.
#[cfg(not(gmm_tsan))]
const DEFAULT: (u64, u64) = (0x1100_0000_0000, 4 << 40);
/// ThreadSanitizer allows mappings in a few ranges only.
#[cfg(gmm_tsan)]
const DEFAULT: (u64, u64) = (0x0100_0000_0000, 256 << 30);

/// How many default places are tried.
const PLACES: u32 = 4;

/// A claimed range of unified addresses. Dropping it unmaps all of it.
#[derive(Debug)]
pub struct Window {
    range: PageRange,
    _claimed: Mapping,
}

impl Window {
    /// The default place number `k`: 4 TiB from `0x1100_0000_0000 + k * 4 TiB`.
    pub fn default_range(k: u32) -> PageRange {
        let (base, len) = DEFAULT;
        PageRange {
            start: VirtAddr(base + u64::from(k) * len).page(),
            nr_pages: len >> gmm_core::PAGE_SHIFT,
        }
    }

    /// Claims the first default place that is free; a second space of the process gets the
    /// second, up to four.
    ///
    /// # Errors
    /// [`SetupError::NoWindow`], or as [`Window::claim`].
    pub fn claim_default() -> Result<Self, SetupError> {
        for k in 0..PLACES {
            match Self::claim(Self::default_range(k)) {
                Err(SetupError::WindowInUse { .. }) => {}
                other => return other,
            }
        }
        Err(SetupError::NoWindow { places: PLACES, last: Self::default_range(PLACES - 1) })
    }

    /// Claims a range.
    ///
    /// # Errors
    /// [`SetupError::WindowInUse`], [`SetupError::BadWindow`], or the kernel's
    /// ([`SetupError::Os`]).
    pub fn claim(range: PageRange) -> Result<Self, SetupError> {
        let top = PageNr(1 << (47 - gmm_core::PAGE_SHIFT));
        let end = range.start.0.checked_add(range.nr_pages);
        if range.is_empty() || range.start.0 == 0 || end.is_none_or(|end| end > top.0) {
            return Err(SetupError::BadWindow { window: range });
        }
        let (start, len) = (range.start.start().0, range.len_bytes());
        let claimed = Mapping::claim(start, len).map_err(|errno| match errno {
            Errno::EXIST => SetupError::WindowInUse { window: range },
            errno => SetupError::Os {
                call: "mmap(PROT_NONE)",
                doing: "claiming the window of unified addresses",
                cause: errno.into(),
                remedy: "raise the limit on address space (ulimit -v) or choose a smaller window",
            },
        })?;
        // SAFETY: the range was claimed just now.
        unsafe { mapping::prepare(start, len, NAME) }?;
        Ok(Self { range, _claimed: claimed })
    }

    /// The range.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Makes a part of the window memory whose absent pages are events of `uffd`.
    pub(crate) fn open(&self, part: PageRange, uffd: &Uffd) -> Result<(), Errno> {
        let (start, len) = (part.start.start().0, part.len_bytes());
        // SAFETY: the part lies in the window (the caller has checked), which is ours; no region
        // is there yet, so nobody uses its addresses until this returns.
        unsafe { make(start, len, uffd) }.inspect_err(|_| self.close(part, uffd))
    }

    /// Makes a part of the window nothing again. Its contents are lost.
    pub(crate) fn close(&self, part: PageRange, uffd: &Uffd) {
        let (start, len) = (part.start.start().0, part.len_bytes());
        // SAFETY: the part lies in the window, which is ours; its region is gone.
        unsafe {
            if mapping::remap(start, len, ProtFlags::empty()).is_err() {
                return spoil(part, uffd);
            }
            let _ = mapping::advise(start, len, Advice::LinuxDontFork);
            mapping::name(start, len, NAME);
        }
    }
}

/// Maps a range as pages of the window are: absent, and a touch is an event.
///
/// # Safety
/// The range is of pages of the window that nobody uses: until this returns, a touch may read zeros.
pub(crate) unsafe fn make(start: u64, len: u64, uffd: &Uffd) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        mapping::remap(start, len, mapping::READ_WRITE)?;
        mapping::advise(start, len, Advice::LinuxDontFork)?;
        mapping::advise(start, len, Advice::LinuxHugepage)?;
        uffd.register(start, len, RegisterMode::WINDOW)?;
    }
    mapping::name(start, len, NAME);
    Ok(())
}

/// Makes a part that can't be unmapped (the kernel allows no more mappings) raise SIGBUS instead of
/// SIGSEGV: a touch that is an event would fault for ever, since no region is there.
fn spoil(part: PageRange, uffd: &Uffd) {
    for page in part.pages() {
        let start = page.start().0;
        // SAFETY: as in `close`. Single pages may have mappings of their own, which then must go.
        unsafe {
            if mapping::remap(start, PAGE_SIZE, ProtFlags::empty()).is_err() {
                let _ = mapping::empty(start, PAGE_SIZE);
                let _ = uffd.poison(start, PAGE_SIZE);
            }
        }
    }
}
