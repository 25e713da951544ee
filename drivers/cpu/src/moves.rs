//! Moving one frame between its slot and its page, whatever gets in the way.
//!
//! The straight case is one `UFFDIO_MOVE` of a huge page. What else happens, and what is done:
//!
//! | at | the kernel says | because | so |
//! |---|---|---|---|
//! | destination | `EEXIST` | a stray touch of an empty slot; a leftover in the window | empty it, go on |
//! | source, out | `ENOENT` | the application discarded a part | go on, stepping over holes (they read as zero) |
//! | source, in | `ENOENT` | the slot has holes | fill them with zeros, go on |
//! | source | `EBUSY` | pinned (for a moment by direct I/O, for long by io_uring or RDMA) | wait, 300 ms in all |
//! | either | `EAGAIN` | a page was being migrated, swapped or split | look again, within the same time |
//! | either | `EINVAL` | the application discarded the page just then, and its page table went with it | look again, a few times |
//! | either | other, and `EINVAL` every time | the application's own `mprotect` or `mlock`, no memory | put back what was moved, or copy the rest to the window; fail |

use gmm_core::PAGE_SIZE;
use gmm_core::driver::DriverError;
use rustix::io::Errno;

use crate::handler;
use crate::mapping;
use crate::mmu::SMALL;
use crate::patience::Patience;
use crate::uffd::{CopyMode, MoveMode, Uffd};

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

/// Moves the page at `src` to `dst`, of which the first `offset` bytes are there already.
///
/// # Errors
/// Then all of the page is at `src`.
///
/// # Safety
/// Both are pages of this driver's window and pool, and only this thread works on them; the
/// destination holds nothing that anyone needs.
pub(crate) unsafe fn move_page(
    uffd: &Uffd,
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
        let stopped = match unsafe { uffd.move_pages(dst + offset, src + offset, rest, mode) } {
            Ok(()) => return Ok(()),
            Err(stopped) => stopped,
        };
        offset += stopped.done;
        let go_on = match (stopped.errno, way) {
            // It went some way; the next try says why no further.
            (Errno::AGAIN, _) if stopped.done > 0 => true,
            // SAFETY: the caller's promise.
            (Errno::EXIST, _) => unsafe {
                mapping::empty(dst + offset, PAGE_SIZE - offset).is_ok() && patience.wait()
            },
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
            if unsafe { reunite(uffd, way, dst, src, offset) } == src {
                return Err(error);
            }
            if !mode.contains(MoveMode::DONT_WAKE) {
                let _ = uffd.wake(dst, PAGE_SIZE);
            }
            return Ok(());
        }
    }
    Ok(())
}

/// Brings a page together again of which a move has done the first `offset` bytes; says where. First
/// by moving back; what stands in the way of that is a passing `EAGAIN`, or, in the window, an application
/// that has pinned a part since. Then by copying what is in the slot to the window, where nobody
/// can see the gap: a thread that touches it waits. If the kernel has no memory for that either,
/// for as long as a pinned page is waited for, the process ends: going on would lose data.
///
/// # Safety
/// As [`move_page`].
unsafe fn reunite(uffd: &Uffd, way: Way, dst: u64, src: u64, offset: u64) -> u64 {
    // SAFETY: the caller's promise.
    if unsafe { put_back(uffd, src, dst, offset) } {
        return src;
    }
    // What is missing in the window: what was not moved in, or was moved out. Parts of it may have
    // been moved back.
    let (page, slot, missing) = match way {
        Way::In => (dst, src, 0..PAGE_SIZE),
        Way::Out => (src, dst, 0..offset),
    };
    let mut patience = Patience::new();
    for part in missing.step_by(SMALL as usize) {
        // SAFETY: the caller's promise; what is in the window already stays.
        while unsafe { copy_over(uffd, page + part, slot + part) }.is_err() {
            if !patience.wait() {
                handler::die(b"gmm: the halves of a page can't be brought together; aborting\n");
            }
        }
    }
    page
}

/// Copies 4 KiB from a slot to the window, unless something is there.
///
/// # Safety
/// As [`move_page`].
unsafe fn copy_over(uffd: &Uffd, page: u64, slot: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { uffd.copy(page, slot as *const u8, SMALL, CopyMode::DONT_WAKE) } {
        Ok(()) => Ok(()),
        Err(stopped) if stopped.errno == Errno::EXIST => Ok(()),
        Err(stopped) => Err(stopped.errno),
    }
}

/// Undoes the first `len` bytes of a move; says whether all of it.
///
/// # Safety
/// As [`move_page`].
unsafe fn put_back(uffd: &Uffd, src: u64, dst: u64, len: u64) -> bool {
    let mut patience = Patience::new();
    let mut offset = 0;
    while offset < len {
        let (to, from) = (src + offset, dst + offset);
        // SAFETY: the caller's promise.
        match unsafe { uffd.move_pages(to, from, len - offset, MoveMode::ALLOW_SRC_HOLES) } {
            Ok(()) => return true,
            Err(stopped) => offset += stopped.done,
        }
        if offset < len && !patience.wait() {
            return false;
        }
    }
    true
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
        let uffd = Uffd::open().unwrap();
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
            assert_eq!(reunite(&uffd, Way::In, page, slot, HALF), page);
            assert_whole(page);

            lock(page, false);
            mapping::empty(slot, PAGE_SIZE).unwrap();
            move_page(&uffd, Way::Out, slot, page, 0, MoveMode::default()).unwrap();
            assert_whole(slot);
            move_page(&uffd, Way::In, page, slot, 0, MoveMode::default()).unwrap();
            assert!(put_back(&uffd, slot, page, HALF));
            lock(page, true);
            assert_eq!(reunite(&uffd, Way::Out, slot, page, HALF), page);
            assert_whole(page);
        }
    }

    #[test]
    fn a_move_that_can_go_back_does() {
        let uffd = Uffd::open().unwrap();
        let memory = Mapping::anywhere(3 * PAGE_SIZE).unwrap();
        let slot = memory.start().next_multiple_of(PAGE_SIZE);
        let page = slot + PAGE_SIZE;
        // SAFETY: as above.
        unsafe {
            uffd.register(slot, PAGE_SIZE, RegisterMode::WRITE_PROTECT).unwrap();
            uffd.register(page, PAGE_SIZE, RegisterMode::WINDOW).unwrap();
            (0..PAGE_SIZE).for_each(|i| (slot as *mut u8).add(i as usize).write(byte(i)));
            move_page(&uffd, Way::In, page, slot, 0, MoveMode::default()).unwrap();
            assert!(put_back(&uffd, slot, page, HALF));
            assert_eq!(reunite(&uffd, Way::Out, slot, page, HALF), page);
            assert_whole(page);
        }
    }
}
