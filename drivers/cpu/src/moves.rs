//! Moving one frame between its slot and its page, whatever gets in the way.
//!
//! The straight case is one `UFFDIO_MOVE` of a huge page. What else happens, and what is done:
//!
//! | at | the kernel says | because | so |
//! |---|---|---|---|
//! | destination | `EEXIST` | a stray touch of an empty slot; a leftover in the window | empty it, as far as the source has something to put there; go on |
//! | source, out | `ENOENT` | the application discarded a part | go on, stepping over holes (they read as zero) |
//! | source, in | `ENOENT` | the slot has holes | fill them with zeros, go on |
//! | source | `EBUSY` | pinned (for a moment by direct I/O, for long by io_uring or RDMA) | wait, 300 ms in all |
//! | either | `EAGAIN` | a page was being migrated, swapped or split | look again, within the same time |
//! | either | `EINVAL` | the application discarded the page just then, and its page table went with it | look again, a few times |
//! | either | other, and `EINVAL` every time | the application's own `mprotect` or `mlock`, no memory | put back what was moved, or copy the rest to the window; fail |
//!
//! # What the kernel has moved
//!
//! Where a move of small pages stops at one that is being migrated, Linux 6.18 may have moved more
//! than it says: up to a whole batch of page-table entries after the last that it counts. So after
//! every stop the page table is asked: what is at the destination and no more at the source was
//! moved. What is at a destination is emptied only where the source has the page.

use gmm_core::PAGE_SIZE;
use gmm_core::driver::DriverError;
use rustix::io::Errno;

use crate::handler;
use crate::mapping;
use crate::mmu::SMALL;
use crate::pagemap::Pagemap;
use crate::patience::Patience;
use crate::uffd::{CopyMode, MoveMode, Stopped, Uffd};

/// How often an `EINVAL` is not believed: kernels that free page tables with what was discarded
/// say so, too, when a table goes while they move what it maps.
const VANISHED_TABLES: u32 = 10;

/// Which way a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From its slot into the window.
    In,
    /// From the window into its slot.
    Out,
}

/// What moves pages.
#[derive(Clone, Copy)]
pub(crate) struct Mover<'a> {
    pub(crate) uffd: &'a Uffd,
    pub(crate) pagemap: &'a Pagemap,
}

impl Mover<'_> {
    /// Moves the page at `src` to `dst`, of which the first `offset` bytes are there already.
    ///
    /// # Errors
    /// Then all of the page is at `src`.
    ///
    /// # Safety
    /// Both are pages of this driver's window and pool, and only this thread works on them; the
    /// destination holds nothing that anyone needs.
    pub(crate) unsafe fn move_page(
        self,
        way: Way,
        dst: u64,
        src: u64,
        mut offset: u64,
        mut mode: MoveMode,
    ) -> Result<(), DriverError> {
        let mut patience = Patience::new();
        let mut doubts = VANISHED_TABLES;
        while offset < PAGE_SIZE {
            let rest = PAGE_SIZE - offset;
            // SAFETY: the caller's promise.
            let moved = unsafe { self.uffd.move_pages(dst + offset, src + offset, rest, mode) };
            let Err(stopped) = moved else { return Ok(()) };
            let done = self.done(dst + offset, src + offset, rest, stopped);
            offset += done;
            if done > stopped.done && !mode.contains(MoveMode::DONT_WAKE) {
                // The kernel has not, for what it did not count.
                let _ = self.uffd.wake(dst, PAGE_SIZE);
            }
            let go_on = match (stopped.errno, way) {
                // It went some way; the next try says why no further.
                _ if done > 0 => true,
                (Errno::EXIST, _) => {
                    let both = present_len(self.pagemap, src + offset, PAGE_SIZE - offset);
                    // SAFETY: the caller's promise; what is here is not what was moved.
                    let emptied = unsafe { mapping::empty(dst + offset, both.max(SMALL)) };
                    emptied.is_ok() && patience.wait()
                }
                (Errno::NOENT, Way::Out) => {
                    mode |= MoveMode::ALLOW_SRC_HOLES;
                    patience.wait()
                }
                // SAFETY: the caller's promise.
                (Errno::NOENT, Way::In) => unsafe {
                    mapping::populate(src + offset, PAGE_SIZE - offset).is_ok() && patience.wait()
                },
                (Errno::AGAIN | Errno::BUSY, _) => patience.wait(),
                (Errno::INVAL, _) if doubts > 0 => {
                    doubts -= 1;
                    patience.wait()
                }
                _ => false,
            };
            if !go_on {
                let error = match stopped.errno {
                    Errno::BUSY => DriverError::Busy,
                    errno => crate::os_error("UFFDIO_MOVE", errno),
                };
                // SAFETY: the caller's promise.
                if unsafe { self.reunite(way, dst, src, offset) } == src {
                    return Err(error);
                }
                if !mode.contains(MoveMode::DONT_WAKE) {
                    let _ = self.uffd.wake(dst, PAGE_SIZE);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// How much of a move that stopped was done, be it counted or not.
    fn done(self, dst: u64, src: u64, len: u64, stopped: Stopped) -> u64 {
        let (dst, src, rest) = (dst + stopped.done, src + stopped.done, len - stopped.done);
        let gone = absent_len(self.pagemap, src, rest);
        if gone == 0 {
            return stopped.done;
        }
        stopped.done + gone.min(present_len(self.pagemap, dst, rest))
    }

    /// Brings a page together again of which a move has done the first `offset` bytes; says where.
    /// First by moving back; what stands in the way of that is a passing `EAGAIN`, or, in the window,
    /// an application that has pinned a part since. Then by copying what is in the slot to the
    /// window, where nobody can see the gap: a thread that touches it waits. If the kernel has no
    /// memory for that either, for as long as a pinned page is waited for, the process ends: going
    /// on would lose data.
    ///
    /// # Safety
    /// As [`Mover::move_page`].
    unsafe fn reunite(self, way: Way, dst: u64, src: u64, offset: u64) -> u64 {
        // SAFETY: the caller's promise.
        if unsafe { self.put_back(src, dst, offset) } {
            return src;
        }
        // What is missing in the window: what was not moved in, or was moved out. Parts of it may
        // have been moved back.
        let (page, slot, missing) = match way {
            Way::In => (dst, src, 0..PAGE_SIZE),
            Way::Out => (src, dst, 0..offset),
        };
        let mut patience = Patience::new();
        for part in missing.step_by(SMALL as usize) {
            // SAFETY: the caller's promise; what is in the window already stays.
            while unsafe { copy_over(self.uffd, page + part, slot + part) }.is_err() {
                if !patience.wait() {
                    handler::die(
                        b"gmm: the halves of a page can't be brought together; aborting\n",
                    );
                }
            }
        }
        page
    }

    /// Undoes the first `len` bytes of a move; says whether all of it.
    ///
    /// # Safety
    /// As [`Mover::move_page`].
    unsafe fn put_back(self, src: u64, dst: u64, len: u64) -> bool {
        let mut patience = Patience::new();
        let mut offset = 0;
        while offset < len {
            let (to, from, rest) = (src + offset, dst + offset, len - offset);
            // SAFETY: the caller's promise.
            match unsafe { self.uffd.move_pages(to, from, rest, MoveMode::ALLOW_SRC_HOLES) } {
                Ok(()) => return true,
                Err(stopped) => offset += self.done(to, from, rest, stopped),
            }
            if offset < len && !patience.wait() {
                return false;
            }
        }
        true
    }
}

/// Copies 4 KiB from a slot to the window, unless something is there.
///
/// # Safety
/// As [`Mover::move_page`].
unsafe fn copy_over(uffd: &Uffd, page: u64, slot: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { uffd.copy(page, slot as *const u8, SMALL, CopyMode::DONT_WAKE) } {
        Ok(()) => Ok(()),
        Err(stopped) if stopped.errno == Errno::EXIST => Ok(()),
        Err(stopped) => Err(stopped.errno),
    }
}

/// As [`Pagemap::absent_len`]. A page table that can't be read ends the process, as guesses
/// would lose data.
fn absent_len(pagemap: &Pagemap, start: u64, len: u64) -> u64 {
    pagemap.absent_len(start, len).unwrap_or_else(|_| no_page_table())
}

/// As [`Pagemap::present_len`], likewise.
fn present_len(pagemap: &Pagemap, start: u64, len: u64) -> u64 {
    pagemap.present_len(start, len).unwrap_or_else(|_| no_page_table())
}

fn no_page_table() -> ! {
    handler::die(b"gmm: the page table can't be read in the middle of a move; aborting\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::uffd::RegisterMode;

    const HALF: u64 = PAGE_SIZE / 2;

    fn byte(i: u64) -> u8 {
        (i / SMALL) as u8 ^ 0x5a
    }

    /// While the window's half is locked in memory, and the slot's not, nothing moves between them.
    fn lock(start: u64, locked: bool) {
        // By system call, since the sanitizers turn the C library's munlock into nothing.
        // SAFETY: memory of this test; locking changes no contents and touches no absent page.
        let result = unsafe {
            match locked {
                true => libc::syscall(libc::SYS_mlock2, start, PAGE_SIZE, libc::MLOCK_ONFAULT),
                false => libc::syscall(libc::SYS_munlock, start, PAGE_SIZE),
            }
        };
        assert_eq!(result, 0);
    }

    fn assert_whole(start: u64) {
        for i in (0..PAGE_SIZE).step_by(64) {
            // SAFETY: memory of this test, present.
            assert_eq!(unsafe { (start as *const u8).add(i as usize).read_volatile() }, byte(i));
        }
    }

    #[test]
    fn a_page_that_can_move_neither_on_nor_back_is_whole_in_the_window() {
        let (uffd, pagemap) = (Uffd::open().unwrap(), Pagemap::open().unwrap());
        let mover = Mover { uffd: &uffd, pagemap: &pagemap };
        let memory = Mapping::anywhere(3 * PAGE_SIZE).unwrap();
        let slot = memory.start().next_multiple_of(PAGE_SIZE);
        let page = slot + PAGE_SIZE;
        // SAFETY: memory of this test alone; only what is present is touched.
        unsafe {
            uffd.register(slot, PAGE_SIZE, RegisterMode::WRITE_PROTECT).unwrap();
            uffd.register(page, PAGE_SIZE, RegisterMode::WINDOW).unwrap();
            (0..PAGE_SIZE).for_each(|i| (slot as *mut u8).add(i as usize).write(byte(i)));

            let mut moved = 0;
            while moved < HALF {
                let rest = HALF - moved;
                let half = uffd.move_pages(page + moved, slot + moved, rest, MoveMode::default());
                moved += half.map_or_else(|stopped| stopped.done, |()| rest);
            }
            lock(page, true);
            assert_eq!(mover.reunite(Way::In, page, slot, HALF), page);
            assert_whole(page);

            lock(page, false);
            mapping::empty(slot, PAGE_SIZE).unwrap();
            mover.move_page(Way::Out, slot, page, 0, MoveMode::default()).unwrap();
            assert_whole(slot);
            mover.move_page(Way::In, page, slot, 0, MoveMode::default()).unwrap();
            assert!(mover.put_back(slot, page, HALF));
            lock(page, true);
            assert_eq!(mover.reunite(Way::Out, slot, page, HALF), page);
            assert_whole(page);
        }
    }

    /// Two ranges of small pages, `nr_pages` of 2 MiB each: slots, filled, and pages of the window.
    fn small_pages(uffd: &Uffd, nr_pages: u64) -> (Mapping, u64, u64) {
        let len = nr_pages * PAGE_SIZE;
        let memory = Mapping::anywhere(2 * len + PAGE_SIZE).unwrap();
        let slot = memory.start().next_multiple_of(PAGE_SIZE);
        let page = slot + len;
        // SAFETY: memory of the test alone; only what is present is touched.
        unsafe {
            mapping::advise(slot, 2 * len, rustix::mm::Advice::LinuxNoHugepage).unwrap();
            uffd.register(slot, len, RegisterMode::WRITE_PROTECT).unwrap();
            uffd.register(page, len, RegisterMode::WINDOW).unwrap();
            for start in (slot..page).step_by(PAGE_SIZE as usize) {
                (0..PAGE_SIZE).for_each(|i| ((start + i) as *mut u8).write(byte(i)));
            }
        }
        (memory, slot, page)
    }

    #[test]
    fn what_was_moved_and_not_counted_is_not_lost() {
        let (uffd, pagemap) = (Uffd::open().unwrap(), Pagemap::open().unwrap());
        let mover = Mover { uffd: &uffd, pagemap: &pagemap };
        let (_memory, slot, page) = small_pages(&uffd, 1);
        let (counted, moved) = (171 * SMALL, 175 * SMALL);
        // SAFETY: as above.
        unsafe {
            for offset in [0, counted] {
                uffd.move_pages(page, slot, moved, MoveMode::default()).unwrap();
                mover.move_page(Way::In, page, slot, offset, MoveMode::default()).unwrap();
                assert_whole(page);
                uffd.move_pages(slot, page, moved, MoveMode::default()).unwrap();
                // A stray write where the source has something.
                (slot as *mut u8).add(moved as usize).write(1);
                mover.move_page(Way::Out, slot, page, offset, MoveMode::ALLOW_SRC_HOLES).unwrap();
                mapping::empty(page, PAGE_SIZE).unwrap();
                assert_whole(slot);
            }
            // All of it, and half of it on the way back.
            uffd.move_pages(page, slot, PAGE_SIZE, MoveMode::default()).unwrap();
            mover.move_page(Way::In, page, slot, 0, MoveMode::default()).unwrap();
            assert_whole(page);
            uffd.move_pages(slot, page, counted, MoveMode::default()).unwrap();
            assert!(mover.put_back(slot, page, PAGE_SIZE));
            assert_whole(slot);
        }
    }

    /// Linux 6.18 doesn't count all that it moves where it meets a page under migration.
    #[test]
    fn pages_stay_whole_while_the_kernel_migrates_them() {
        const NR_PAGES: u64 = 32;
        let compact = || std::fs::write("/proc/sys/vm/compact_memory", "1").is_ok();
        if !compact() {
            return eprintln!("SKIPPED: only root can have the kernel migrate pages");
        }
        let (uffd, pagemap) = (Uffd::open().unwrap(), Pagemap::open().unwrap());
        let mover = Mover { uffd: &uffd, pagemap: &pagemap };
        let (_memory, slot, page) = small_pages(&uffd, NR_PAGES);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let ordering = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(ordering) && compact() {
                    std::hint::spin_loop();
                }
            });
            // SAFETY: as above.
            unsafe {
                for n in 0..4000 {
                    let at = n % NR_PAGES * PAGE_SIZE;
                    let (slot, page) = (slot + at, page + at);
                    let mode = MoveMode::ALLOW_SRC_HOLES;
                    mover.move_page(Way::In, page, slot, 0, MoveMode::default()).unwrap();
                    mover.move_page(Way::Out, slot, page, 0, mode).unwrap();
                }
            }
            stop.store(true, ordering);
        });
        (slot..page).step_by(PAGE_SIZE as usize).for_each(assert_whole);
    }

    #[test]
    fn a_move_that_can_go_back_does() {
        let (uffd, pagemap) = (Uffd::open().unwrap(), Pagemap::open().unwrap());
        let mover = Mover { uffd: &uffd, pagemap: &pagemap };
        let memory = Mapping::anywhere(3 * PAGE_SIZE).unwrap();
        let slot = memory.start().next_multiple_of(PAGE_SIZE);
        let page = slot + PAGE_SIZE;
        // SAFETY: as above.
        unsafe {
            uffd.register(slot, PAGE_SIZE, RegisterMode::WRITE_PROTECT).unwrap();
            uffd.register(page, PAGE_SIZE, RegisterMode::WINDOW).unwrap();
            (0..PAGE_SIZE).for_each(|i| (slot as *mut u8).add(i as usize).write(byte(i)));
            mover.move_page(Way::In, page, slot, 0, MoveMode::default()).unwrap();
            assert!(mover.put_back(slot, page, HALF));
            assert_eq!(mover.reunite(Way::Out, slot, page, HALF), page);
            assert_whole(page);
        }
    }
}
