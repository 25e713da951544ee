//! Pages of the window that hold a read-only copy of a frame, which stays in its slot.
//!
//! The copy is made by `UFFDIO_COPY`, write-protected from its first moment: 350 to 1,000 µs for 2
//! MiB, in small pages. A write to it is an event, which the core answers by clearing the copy
//! and moving a frame in. Clearing discards the copy and then, by discarding the page once more,
//! its page table, so that what comes next can be huge: 70 µs. (Kernels before 6.14 keep the
//! table; there the page is renewed instead.)
//!
//! An application's `MADV_DONTNEED` there drops nothing but the copy, as with a mapping of a
//! file: the next touch gets it again.

use gmm_core::driver::{DriverError, Protection};
use gmm_core::{Frame, PAGE_SIZE, PageNr, VirtAddr};
use rustix::io::Errno;

use crate::mmu::{CpuMmu, SMALL};
use crate::pagemap::Look;
use crate::patience::Patience;
use crate::uffd::CopyMode;

impl CpuMmu {
    /// Puts a copy of a frame at a page, or changes what a write to it does.
    pub(crate) fn enter_replica(
        &self,
        page: PageNr,
        frame: Frame,
        protection: Protection,
    ) -> Result<(), DriverError> {
        self.check(page, frame)?;
        if self.pool.entered(frame.nr).is_some() {
            return Err(DriverError::Broken("the CPU was asked for a replica of a frame it maps"));
        }
        if self.pool.is_replicated(frame.nr) {
            self.set_protection(page, protection)?;
            self.wake(page);
            return Ok(());
        }
        self.unpoison_page(page);
        let slot = self.pool.slot(frame.nr);
        let filled = self.fill(page.start().0, slot, PAGE_SIZE).and_then(|()| match protection {
            Protection::ReadOnly => self.set_protection(page, protection),
            Protection::ReadWrite => Ok(()),
        });
        if let Err(error) = filled {
            let _ = self.drop_copy(page);
            return Err(error);
        }
        self.pool.set_replicated(frame.nr, true);
        self.wake(page);
        Ok(())
    }

    /// Removes the copy of a frame.
    pub(crate) fn clear_replica(&self, page: PageNr, frame: Frame) -> Result<(), DriverError> {
        self.drop_copy(page)?;
        self.pool.set_replicated(frame.nr, false);
        Ok(())
    }

    /// Brings back what the application dropped of a copy, at least at `addr`.
    pub(crate) fn refill_replica(
        &self,
        page: PageNr,
        frame: Frame,
        addr: VirtAddr,
        look: Look,
    ) -> Result<(), DriverError> {
        let slot = self.pool.slot(frame.nr);
        if look == Look::Absent {
            return self.fill(page.start().0, slot, PAGE_SIZE);
        }
        let part = addr.0 & !(SMALL - 1);
        match self.copy_protected(part, slot + (part - page.start().0), SMALL) {
            // It is there, or the touch will fault again.
            Ok(()) | Err((_, Errno::EXIST | Errno::AGAIN)) => Ok(()),
            Err((_, errno)) => Err(crate::os_error("UFFDIO_COPY", errno)),
        }
    }

    /// Copies a slot to a page of which some may be there already.
    fn fill(&self, page: u64, slot: u64, len: u64) -> Result<(), DriverError> {
        let mut patience = Patience::new();
        let mut offset = 0;
        while offset < len {
            let copied = self.copy_protected(page + offset, slot + offset, len - offset);
            let Err((done, errno)) = copied else { return Ok(()) };
            offset += done;
            let go_on = match errno {
                Errno::AGAIN if done > 0 => true,
                Errno::AGAIN => patience.wait(),
                // A leftover; in a page that maps nothing there is no other.
                // SAFETY: the page lies in the window.
                Errno::EXIST => unsafe {
                    let (start, rest) = (page + offset, len - offset);
                    crate::mapping::empty(start, rest).is_ok() && patience.wait()
                },
                _ => false,
            };
            if !go_on {
                return Err(crate::os_error("UFFDIO_COPY", errno));
            }
        }
        Ok(())
    }

    /// Copies without waking; says how far it got if it got stuck.
    fn copy_protected(&self, dst: u64, src: u64, len: u64) -> Result<(), (u64, Errno)> {
        let mode = CopyMode::WRITE_PROTECT | CopyMode::DONT_WAKE;
        // SAFETY: the destination lies in a page of the window that maps no frame, the source in
        // the slot of the frame whose copy it is to hold.
        unsafe { self.uffd().copy(dst, src as *const u8, len, mode) }
            .map_err(|stopped| (stopped.done, stopped.errno))
    }

    /// Empties a page, page table and all, and makes it writable for whatever comes next.
    fn drop_copy(&self, page: PageNr) -> Result<(), DriverError> {
        self.empty_page(page).map_err(|e| crate::os_error("madvise(MADV_DONTNEED)", e))?;
        self.set_protection(page, Protection::ReadWrite)?;
        // What it leaves behind costs speed at most.
        let _ = self.free_page_table(page);
        Ok(())
    }
}
