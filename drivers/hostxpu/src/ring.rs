//! The memory that host and worker share: fault slots, the command slot and launch slots.
//!
//! Every field is an atomic and there is no lock. Each sequence number counts up by one (and
//! wraps); whoever is named under "written by" is its only writer while the worker lives.
//!
//! | words | written by | states, and what changes them |
//! |---|---|---|
//! | `FaultSlot::requested`, `done`, `resumed` | worker, host, worker | all equal: the core runs. *posts* → `requested = done + 1`: it waits. *served* → `done = requested`: it may go on. *goes on* → `resumed = done`. |
//! | `CommandSlot::posted`, `done` | host, worker | equal: idle. *posts* → `posted = done + 1`: the worker executes. *acknowledges* → `done = posted`. |
//! | `LaunchSlot::submitted`, `completed` | host, worker | equal: free or completed. *submits* → `submitted = completed + 1`: it runs, or waits for its predecessor. *completes* → `completed = submitted`. |
//! | `fault_bell` | worker | changes whenever a fault was posted |
//! | `end_bell`, `end_waiters` | both, host | the first changes when a launch has completed while the second is not 0 |
//! | `coming` | host | the pages that are being brought ahead of their use: the number of the first times 256, and how many; 0 if none |
//! | `work_bell` | both | changes whenever a launch was submitted, or started that others may join |
//!
//! The other fields of a slot are written by the poster before it posts (with release ordering)
//! and are read after the post was seen. Once the worker is dead, the host's watcher changes the
//! words that host threads sleep on.
//!
//! The host takes the worker for hostile: it reads each value once, and the functions `check_*`
//! say whether what it read is a legal transition. One that is not ends the context.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use gmm_core::{PageNr, PageRange};
use gmm_os::Creator;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;
use crate::config::MAX_CORES;

/// The number of page-table commands in a batch.
pub(crate) const NR_COMMANDS: usize = 16;
/// The number of launches that a worker knows at a time.
pub(crate) const NR_LAUNCHES: usize = 64;
/// The number of argument words of a launch.
pub(crate) const NR_ARGS: usize = 16;

/// `FaultSlot::access` of a read.
pub(crate) const ACCESS_READ: u32 = 0;
/// `FaultSlot::access` of a write.
pub(crate) const ACCESS_WRITE: u32 = 1;
/// `FaultSlot::access` of a kernel that raised a signal: this plus its number.
pub(crate) const ACCESS_SIGNAL: u32 = 0x100;

/// `CommandRecord::kind`: map `page` to the frame at `frame`, writable if `writable`.
pub(crate) const COMMAND_ENTER: u32 = 1;
/// `CommandRecord::kind`: unmap `page`.
pub(crate) const COMMAND_CLEAR: u32 = 2;
/// `CommandRecord::kind`: unmap `frame` pages from `page` on.
pub(crate) const COMMAND_RELEASE: u32 = 3;

/// Where one core posts its faults.
#[repr(C, align(128))]
pub(crate) struct FaultSlot {
    pub(crate) requested: AtomicU32,
    pub(crate) resumed: AtomicU32,
    pub(crate) access: AtomicU32,
    /// The number of the launch slot whose kernel faulted.
    pub(crate) launch: AtomicU32,
    pub(crate) address: AtomicU64,
    pub(crate) done: AtomicU32,
    /// In tests: the fault was refused, and the kernel is told so by a signal.
    #[cfg(test)]
    pub(crate) refused: AtomicU32,
}

/// One page-table command.
#[repr(C)]
pub(crate) struct CommandRecord {
    pub(crate) kind: AtomicU32,
    pub(crate) writable: AtomicU32,
    pub(crate) page: AtomicU64,
    pub(crate) frame: AtomicU64,
}

/// Where the host posts page-table commands, a batch at a time.
#[repr(C, align(128))]
pub(crate) struct CommandSlot {
    pub(crate) posted: AtomicU32,
    pub(crate) count: AtomicU32,
    /// How many threads of the worker look for commands now, so that none need be woken.
    pub(crate) pollers: AtomicU32,
    pub(crate) done: AtomicU32,
    /// Of the last batch: how many commands took effect.
    pub(crate) done_count: AtomicU32,
    /// Why the next did not.
    pub(crate) errno: AtomicI32,
    pub(crate) records: [CommandRecord; NR_COMMANDS],
}

/// Where the host submits a launch.
#[repr(C, align(128))]
pub(crate) struct LaunchSlot {
    pub(crate) submitted: AtomicU32,
    pub(crate) completed: AtomicU32,
    pub(crate) kernel: AtomicU32,
    /// Whether to say so on the socket when it completes.
    pub(crate) notify: AtomicU32,
    /// It may start when slot `after_slot` has completed its launch `after_seq`; `after_slot` is
    /// `NR_LAUNCHES` if it need not wait.
    pub(crate) after_slot: AtomicU32,
    pub(crate) after_seq: AtomicU32,
    pub(crate) grid: AtomicU64,
    pub(crate) args: [AtomicU64; NR_ARGS],
}

/// All of it.
#[repr(C)]
pub(crate) struct Ring {
    pub(crate) fault_bell: AtomicU32,
    /// How many host threads look for faults, or are about to, so that none need be woken.
    pub(crate) fault_pollers: AtomicU32,
    /// The pages that a host thread is bringing and will look for faults after. Who faults on one
    /// need wake no thread.
    pub(crate) coming: AtomicU64,
    pub(crate) work_bell: AtomicU32,
    pub(crate) end_bell: AtomicU32,
    /// How many host threads wait for the end of any launch.
    pub(crate) end_waiters: AtomicU32,
    pub(crate) command: CommandSlot,
    pub(crate) faults: [FaultSlot; MAX_CORES as usize],
    pub(crate) launches: [LaunchSlot; NR_LAUNCHES],
}

/// The ring, mapped.
///
/// # Invariants
/// `ring` points to a shared mapping of `size_of::<Ring>()` bytes of a file that can't shrink,
/// which stays until this is dropped. In a forked child there is no such mapping, and another may
/// be where it was.
pub(crate) struct RingMap {
    ring: NonNull<Ring>,
    creator: Creator,
}

// SAFETY: all fields of `Ring` are atomics.
unsafe impl Send for RingMap {}
// SAFETY: as above.
unsafe impl Sync for RingMap {}

impl core::ops::Deref for RingMap {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        // SAFETY: the invariant; the other process changes the memory too, and all of it is
        // atomics, for which any value is valid.
        unsafe { self.ring.as_ref() }
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            // SAFETY: the mapping is this value's alone (invariant).
            let _ = unsafe { rustix::mm::munmap(self.ring.as_ptr().cast(), size_of::<Ring>()) };
        }
    }
}

impl RingMap {
    /// Makes a ring, all zero, and the file to hand to the worker.
    pub(crate) fn create() -> Result<(Self, OwnedFd), Error> {
        let fd = rustix::fs::memfd_create(
            "gmm:hostxpu-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(Error::os("memfd_create"))?;
        rustix::fs::ftruncate(&fd, size_of::<Ring>() as u64).map_err(Error::os("ftruncate"))?;
        // A worker that shrank the file would make the host's accesses raise SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::os("fcntl(F_ADD_SEALS)"))?;
        Ok((Self::map(&fd).map_err(Error::os("mmap"))?, fd))
    }

    /// Maps the ring in `fd`, which [`RingMap::create`] made.
    pub(crate) fn map(fd: &impl AsFd) -> rustix::io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let len = size_of::<Ring>();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, flags, fd, 0) }?;
        // A forked child has no business here. (Can't fail for a mapping that was just made.)
        // SAFETY: advice on the mapping just made.
        let _ = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxDontFork) };
        let ring = NonNull::new(at.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { ring, creator: Creator::this_process() })
    }
}

/// What a worker wrote that it may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A core's fault numbers have a gap.
    #[error("core {core} posted fault {got} after {last}")]
    FaultGap {
        /// The core.
        core: usize,
        /// The number it posted.
        got: u32,
        /// The last one taken.
        last: u32,
    },
    /// A fault of an unknown kind.
    #[error("core {core} posted a fault with access code {code:#x}")]
    AccessCode {
        /// The core.
        core: usize,
        /// The code.
        code: u32,
    },
    /// A fault by a launch that is not running.
    #[error("core {core} posted a fault of launch slot {slot}, where nothing runs")]
    UnknownLaunch {
        /// The core.
        core: usize,
        /// The slot it named.
        slot: u32,
    },
    /// An acknowledgement of a batch of commands that was not posted.
    #[error("command batch {posted} was answered as {done}")]
    CommandGap {
        /// The number of the batch.
        posted: u32,
        /// The number in the answer.
        done: u32,
    },
    /// More commands done than posted.
    #[error("{done} commands done of a batch of {count}")]
    CommandCount {
        /// How many were posted.
        count: usize,
        /// How many are said to be done.
        done: u32,
    },
    /// The completion of a launch that was not submitted.
    #[error("launch slot {slot} completed launch {completed}, but {submitted} was submitted")]
    CompletionGap {
        /// The slot.
        slot: usize,
        /// The number submitted.
        submitted: u32,
        /// The number completed.
        completed: u32,
    },
    /// A message on the socket that makes no sense.
    #[error("message of kind {kind} and {len} bytes")]
    Message {
        /// Its kind.
        kind: u32,
        /// Its length.
        len: usize,
    },
}

/// What a core posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    /// An access that its page table does not allow.
    Fault(gmm_core::driver::Access),
    /// A signal that its kernel raised.
    Signal(i32),
}

/// What `coming` holds for a range of up to 255 pages.
pub(crate) fn pack_coming(range: PageRange) -> u64 {
    range.start.0 << 8 | range.nr_pages.min(255)
}

/// Whether a page is among those that `coming` names.
pub(crate) fn is_coming(coming: u64, page: PageNr) -> bool {
    let (first, nr_pages) = (coming >> 8, coming & 255);
    page.0.checked_sub(first).is_some_and(|nth| nth < nr_pages)
}

/// Whether `core` posted a fault that no one has taken yet, `last` being the last taken.
pub(crate) fn check_fault(core: usize, got: u32, last: u32) -> Result<bool, Violation> {
    match got.wrapping_sub(last) {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation::FaultGap { core, got, last }),
    }
}

/// What the access code in a core's fault slot says.
pub(crate) fn check_access(core: usize, code: u32) -> Result<Posted, Violation> {
    use gmm_core::driver::Access;
    match code {
        ACCESS_READ => Ok(Posted::Fault(Access::Read)),
        ACCESS_WRITE => Ok(Posted::Fault(Access::Write)),
        _ if (ACCESS_SIGNAL + 1..ACCESS_SIGNAL + 65).contains(&code) => {
            Ok(Posted::Signal((code - ACCESS_SIGNAL) as i32))
        }
        _ => Err(Violation::AccessCode { core, code }),
    }
}

/// Whether the batch `posted` was answered.
pub(crate) fn check_command(posted: u32, done: u32) -> Result<bool, Violation> {
    match posted.wrapping_sub(done) {
        0 => Ok(true),
        1 => Ok(false),
        _ => Err(Violation::CommandGap { posted, done }),
    }
}

/// How many commands of a batch of `count` were done.
pub(crate) fn check_count(count: usize, done: u32) -> Result<usize, Violation> {
    if done as usize <= count {
        Ok(done as usize)
    } else {
        Err(Violation::CommandCount { count, done })
    }
}

/// Whether the launch `submitted` in `slot` is complete.
pub(crate) fn check_completion(
    slot: usize,
    submitted: u32,
    completed: u32,
) -> Result<bool, Violation> {
    match submitted.wrapping_sub(completed) {
        0 => Ok(true),
        1 => Ok(false),
        _ => Err(Violation::CompletionGap { slot, submitted, completed }),
    }
}

#[cfg(test)]
mod tests {
    use gmm_core::driver::Access;

    use super::*;

    /// A process that an application forks has no ring, and may have other memory there.
    #[test]
    fn a_forked_child_unmaps_nothing() {
        let (ring, _fd) = RingMap::create().unwrap();
        let (at, len) = (ring.ring.as_ptr().cast(), size_of::<Ring>());
        // SAFETY: the child makes system calls only, in memory that it maps where nothing is.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let (prot, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let flags = private | MapFlags::FIXED_NOREPLACE;
            // SAFETY: as above.
            unsafe {
                if rustix::mm::mmap_anonymous(at, len, prot, flags).is_err() {
                    libc::_exit(1);
                }
                drop(ring);
                let advised = rustix::mm::madvise(at, len, rustix::mm::Advice::Normal);
                libc::_exit(if advised.is_ok() { 0 } else { 2 });
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status >> 8, 0, "1: the ring was there; 2: the child's own memory is gone");
    }

    #[test]
    fn legal_transitions_pass_also_where_numbers_wrap() {
        for last in [0, 1, 7, u32::MAX - 1, u32::MAX] {
            let next = last.wrapping_add(1);
            assert_eq!(check_fault(0, last, last), Ok(false));
            assert_eq!(check_fault(0, next, last), Ok(true));
            assert_eq!(check_command(next, last), Ok(false));
            assert_eq!(check_command(next, next), Ok(true));
            assert_eq!(check_completion(0, next, last), Ok(false));
            assert_eq!(check_completion(0, next, next), Ok(true));
        }
        assert_eq!(check_access(0, ACCESS_READ), Ok(Posted::Fault(Access::Read)));
        assert_eq!(check_access(0, ACCESS_WRITE), Ok(Posted::Fault(Access::Write)));
        assert_eq!(check_access(0, ACCESS_SIGNAL + 8), Ok(Posted::Signal(8)));
        assert_eq!(check_count(16, 16), Ok(16));
    }

    #[test]
    fn pages_that_are_coming_are_told_from_others() {
        let coming = pack_coming(PageRange { start: PageNr(0x0088_0005), nr_pages: 3 });
        let is = |page| is_coming(coming, PageNr(page));
        assert!(is(0x0088_0005) && is(0x0088_0007) && !is(0x0088_0004) && !is(0x0088_0008));
        assert!(!is_coming(0, PageNr(0)) && !is_coming(0, PageNr(1)));
    }

    /// Whatever garbage a worker writes, at most the one legal next value is taken.
    #[test]
    fn garbage_is_a_violation() {
        let mut seed = 0x9e37_79b9_u32;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            seed
        };
        for _ in 0..100_000 {
            let (a, b) = (random(), random());
            let ahead = a.wrapping_sub(b);
            assert_eq!(check_fault(3, a, b).is_err(), ahead > 1);
            assert_eq!(check_command(a, b).is_err(), ahead > 1);
            assert_eq!(check_completion(3, a, b).is_err(), ahead > 1);
            let known = a <= 1 || (0x101..=0x140).contains(&a);
            assert_eq!(check_access(3, a).is_ok(), known);
            let count = (b % 17) as usize;
            assert_eq!(check_count(count, a).is_ok(), a as usize <= count);
        }
    }
}
