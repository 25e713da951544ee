//! Pages of the window that map a frame of another node: a 2 MiB piece of a device's memory file.
//!
//! The piece is mapped elsewhere first, told not to be inherited by children, and then given the
//! page's addresses by `mremap`, in one step: 4 to 10 µs. [`Renewer`](crate::renew::Renewer) puts
//! window there again, in one step too. So a touch at any time finds the one or the other, and
//! when `pmap_clear` returns the old mapping is gone from every processor.
//!
//! - An application's `MADV_DONTNEED` there drops nothing but the mapping: the data is the
//!   device's, as with any shared mapping, and the next touch finds it.
//! - Memory pinned through such a page (direct I/O under way, io_uring, RDMA) is the device's
//!   frame, and stays pinned when the page is cleared: the kernel doesn't say that it is. What such
//!   I/O writes after that is lost.
//! - The mapping keeps the file alive, whatever becomes of the device and its contexts.
//! - Each is a mapping of its own (up to three, with what it splits), of which a process has
//!   `vm.max_map_count`.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use gmm_core::driver::{DriverError, Protection, RemoteHandle};
use gmm_core::{PAGE_SIZE, PageNr, PageRange};
use rustix::io::Errno;

use crate::bits::PageBits;
use crate::mapping::Mapping;
use crate::mmu::CpuMmu;
use crate::probe;

/// What the kernel allows by default.
const DEFAULT_MAX_MAP_COUNT: u64 = 65_530;

/// Which pages are mapped so.
#[derive(Debug)]
pub(crate) struct Remote {
    pages: PageBits,
    nr_pages: AtomicU64,
    /// More are refused, so that there are mappings left for the application, and for clearing
    /// these, which needs room for two.
    max_pages: u64,
}

impl Remote {
    pub(crate) fn new(window: PageRange) -> Self {
        let max_map_count = probe::max_map_count().unwrap_or(DEFAULT_MAX_MAP_COUNT);
        let pages = PageBits::new(window);
        Self { pages, nr_pages: AtomicU64::new(0), max_pages: max_map_count / 6 }
    }

    pub(crate) fn has(&self, page: PageNr) -> bool {
        self.pages.has(page)
    }

    /// Counts one more, if it may be.
    fn admit(&self) -> bool {
        let more = |n| (n < self.max_pages).then_some(n + 1);
        self.nr_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// The page is not mapped so any more.
    pub(crate) fn forget(&self, page: PageNr) {
        if self.pages.remove(page) {
            self.nr_pages.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl CpuMmu {
    /// Maps a frame of another node at a page, or changes the protection of that mapping.
    pub(crate) fn enter_remote(
        &self,
        page: PageNr,
        handle: RemoteHandle,
        protection: Protection,
    ) -> Result<(), DriverError> {
        if !self.window().contains(page) || handle.fd < 0 {
            return Err(DriverError::Broken("no such page or file on the CPU"));
        }
        if self.remote.has(page) {
            self.set_protection(page, protection)?;
        } else if !self.remote.admit() {
            return Err(DriverError::NoMemory);
        } else if let Err(errno) = self.map_file(page, handle, protection) {
            self.remote.nr_pages.fetch_sub(1, Ordering::Relaxed);
            return Err(crate::os_error("mremap", errno));
        } else {
            self.remote.pages.insert(page);
        }
        self.wake(page);
        Ok(())
    }

    fn map_file(
        &self,
        page: PageNr,
        handle: RemoteHandle,
        protection: Protection,
    ) -> Result<(), Errno> {
        // SAFETY: the device keeps it open for as long as the core holds the frame.
        let fd = unsafe { BorrowedFd::borrow_raw(handle.fd) };
        let flags = crate::mmu::flags(protection);
        let file = Mapping::file(fd, handle.offset_bytes, PAGE_SIZE, flags)?;
        let addr = page.start().0;
        // SAFETY: the page lies in the window and maps no frame, says the core.
        unsafe {
            file.put_at(addr).inspect_err(|_| self.renewer.fill_hole(addr, PAGE_SIZE))?;
        }
        // It was poisoned by what is gone now.
        self.poisoned.remove(page);
        Ok(())
    }

    /// Removes `nr_pages` such mappings from `page` on.
    pub(crate) fn clear_remote(&self, page: PageNr, nr_pages: u64) -> Result<(), DriverError> {
        // SAFETY: the pages lie in the window, and hold nothing but those mappings.
        unsafe { self.renewer.renew(page.start().0, nr_pages * PAGE_SIZE) }
            .map_err(|errno| crate::os_error("mremap", errno))?;
        for n in 0..nr_pages {
            self.remote.forget(page.plus(n));
        }
        Ok(())
    }
}
