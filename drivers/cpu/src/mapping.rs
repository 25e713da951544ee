//! Anonymous mappings: claiming, naming, advising, protecting. All addresses are in bytes.
//!
//! Every function here that changes memory is unsafe for one reason: the range must be memory
//! that this driver owns (its window or its pool), of which no Rust reference exists.

use core::ffi::c_void;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use gmm_os::Creator;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags};

use crate::SetupError;

const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping of this process, unmapped when dropped by the process that made it.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: u64,
    len: u64,
    creator: Creator,
}

impl Mapping {
    /// Maps `len` bytes of nothing at `start`, if nothing else is there.
    pub(crate) fn claim(start: u64, len: u64) -> Result<Self, Errno> {
        let flags = PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: FIXED_NOREPLACE replaces no mapping.
        let at = unsafe {
            rustix::mm::mmap_anonymous(pointer(start), len as usize, ProtFlags::empty(), flags)?
        };
        let mapping = Self { start: at as u64, len, creator: Creator::this_process() };
        // Kernels before 4.17 take the address for a hint.
        if at as u64 == start { Ok(mapping) } else { Err(Errno::EXIST) }
    }

    /// Maps `len` bytes of memory somewhere.
    pub(crate) fn anywhere(len: u64) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free range.
        let at = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len as usize, READ_WRITE, PRIVATE)?
        };
        Ok(Self { start: at as u64, len, creator: Creator::this_process() })
    }

    /// Maps `len` bytes of nothing somewhere.
    pub(crate) fn nothing(len: u64) -> Result<Self, Errno> {
        let none = ProtFlags::empty();
        // SAFETY: the kernel chooses a free range.
        let at = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len as usize, none, PRIVATE)?
        };
        Ok(Self { start: at as u64, len, creator: Creator::this_process() })
    }

    /// Maps a part of a file somewhere, shared, not inherited by children.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        protection: ProtFlags,
    ) -> Result<Self, Errno> {
        let (anywhere, len_bytes) = (std::ptr::null_mut(), len as usize);
        // SAFETY: the kernel chooses a free range.
        let at = unsafe {
            rustix::mm::mmap(anywhere, len_bytes, protection, MapFlags::SHARED, fd, offset)?
        };
        let mapping = Self { start: at as u64, len, creator: Creator::this_process() };
        // SAFETY: it was mapped just now.
        unsafe { advise(mapping.start, len, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Gives it the addresses from `to` on, in one step: what was mapped there is gone.
    ///
    /// # Safety
    /// See the module, for the range from `to` on.
    pub(crate) unsafe fn put_at(self, to: u64) -> Result<(), Errno> {
        let (from, len) = (pointer(self.start), self.len as usize);
        // SAFETY: the mapping is ours; the caller's promise.
        unsafe { rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, pointer(to)) }?;
        std::mem::forget(self);
        Ok(())
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            // SAFETY: the mapping is ours, and its owner is going away. Failure would leave it
            // mapped, which does no harm.
            let _ = unsafe { rustix::mm::munmap(pointer(self.start), self.len as usize) };
        }
    }
}

fn pointer(addr: u64) -> *mut c_void {
    addr as *mut c_void
}

/// Maps fresh memory (or, with an empty `protection`, nothing) over a range.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn remap(start: u64, len: u64, protection: ProtFlags) -> Result<(), Errno> {
    let flags = PRIVATE | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mmap_anonymous(pointer(start), len as usize, protection, flags) }?;
    Ok(())
}

/// # Safety
/// See the module.
pub(crate) unsafe fn protect(start: u64, len: u64, flags: ProtFlags) -> Result<(), Errno> {
    let flags = MprotectFlags::from_bits_retain(flags.bits());
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mprotect(pointer(start), len as usize, flags) }
}

/// # Safety
/// See the module.
pub(crate) unsafe fn advise(start: u64, len: u64, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::madvise(pointer(start), len as usize, advice) }
}

/// Whether nothing is mapped at the page at `start`.
pub(crate) fn is_unmapped(start: u64) -> bool {
    // SAFETY: the kernel only looks at the mapping.
    let looked = unsafe { rustix::mm::msync(pointer(start), 4096, MsyncFlags::ASYNC) };
    looked == Err(Errno::NOMEM)
}

/// Gives the memory of a range back: absent from now on (and no longer poisoned).
///
/// # Safety
/// See the module.
pub(crate) unsafe fn empty(start: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { advise(start, len, Advice::LinuxDontNeed) }
}

/// Makes a range present and writable, absent parts zero: huge where the kernel can.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn populate(start: u64, len: u64) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { advise(start, len, Advice::LinuxPopulateWrite) } {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Makes small pages one huge page again (rustix lacks this advice).
///
/// # Safety
/// See the module.
pub(crate) unsafe fn collapse(start: u64, len: u64) -> io::Result<()> {
    // SAFETY: the caller's promise; the contents stay the same.
    match unsafe { libc::madvise(pointer(start), len as usize, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Huge pages, no inheritance by children (a page shared by `fork` can't be moved), and a name
/// in `/proc/PID/maps`.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn prepare(start: u64, len: u64, name: &CStr) -> Result<(), SetupError> {
    for (advice, call) in [
        (Advice::LinuxDontFork, "madvise(MADV_DONTFORK)"),
        (Advice::LinuxHugepage, "madvise(MADV_HUGEPAGE)"),
    ] {
        // SAFETY: the caller's promise.
        unsafe { advise(start, len, advice) }.map_err(|e| SetupError::Os {
            call,
            doing: "preparing memory for unified pages",
            cause: e.into(),
            remedy: "the kernel must be built with transparent huge pages",
        })?;
    }
    self::name(start, len, name);
    Ok(())
}

/// Names a range in `/proc/PID/maps`. Kernels without `CONFIG_ANON_VMA_NAME` refuse, and then only
/// its look suffers.
pub(crate) fn name(start: u64, len: u64, name: &CStr) {
    // rustix wants a slice, which `PROT_NONE` memory can't be.
    // SAFETY: the kernel reads the name, which is a C string; the range's memory is not touched.
    let _ = unsafe {
        libc::prctl(libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, start, len, name.as_ptr())
    };
}
