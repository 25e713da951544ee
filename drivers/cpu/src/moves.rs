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
//! | either | other, and `EINVAL` every time | the application's own `mprotect` or `mlock`, no memory | put back what was moved, fail |

use gmm_core::PAGE_SIZE;
use gmm_core::driver::DriverError;
use rustix::io::Errno;

use crate::mapping;
use crate::patience::Patience;
use crate::uffd::{MoveMode, Uffd};

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
            // SAFETY: the caller's promise; the first part of `src` is empty since it was moved.
            unsafe { put_back(uffd, src, dst, offset) };
            return Err(match stopped.errno {
                Errno::BUSY => DriverError::Busy,
                errno => crate::os_error("UFFDIO_MOVE", errno),
            });
        }
    }
    Ok(())
}

/// Undoes the first `len` bytes of a move. Nothing stands in its way but a passing `EAGAIN`: what
/// was moved was not pinned, and a thread that touched the gap waits there.
///
/// # Safety
/// As [`move_page`].
unsafe fn put_back(uffd: &Uffd, src: u64, dst: u64, len: u64) {
    let mut patience = Patience::new();
    let mut offset = 0;
    while offset < len {
        let (to, from) = (src + offset, dst + offset);
        // SAFETY: the caller's promise.
        match unsafe { uffd.move_pages(to, from, len - offset, MoveMode::ALLOW_SRC_HOLES) } {
            Ok(()) => return,
            Err(stopped) => offset += stopped.done,
        }
        if !patience.wait() {
            return;
        }
    }
}
