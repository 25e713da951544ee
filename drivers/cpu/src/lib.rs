//! The CPU as a GMM processor: userfaultfd and the pool of host frames.
//!
//! [`CpuDriver`] brings it together: a [`Window`] of unified addresses, [`HostMemory`] (the
//! device: a pool of movable frames), [`CpuMmu`] (the page table) and the threads that serve
//! faults ([`FaultHandlers`]).
//!
//! # How a page gets in and out
//!
//! A host frame is 2 MiB of ordinary anonymous memory, huge where the kernel can, in a slot of the
//! pool. `pmap_enter` moves it to its page in the window by `UFFDIO_MOVE`, `pmap_clear` moves it
//! back: 1 to 2 µs each, atomic, and it stays huge. Absent pages of the window are
//! registered with userfaultfd: a thread that touches one waits until a handler thread has had it
//! served.
//!
//! Two other ways to map a page: a frame of another node, as a piece of its device's memory file
//! (`remote`), and a read-only copy of a host frame that stays in its slot (`replica`).
//!
//! # What is guaranteed
//!
//! - A touch of unified memory never hangs and never reads stale data: it is served, or raises
//!   SIGBUS (the page was poisoned: it could not be served), or SIGSEGV (wild, or a write to a
//!   read-only region).
//! - System calls fault pages in as loads do (unless only user-mode faults may be served; see
//!   [`uffd::AccessKind`]).
//! - An application may `madvise(MADV_DONTNEED)` its own unified pages, whole or by 4 KiB: they read
//!   as zero then. Where a page is mapped remotely or as a replica it keeps its data, as pages of a
//!   shared file do: only the mapping or the copy is dropped.
//! - Window and pool are not inherited by forked children, in which dropping a handle does
//!   nothing.
//!
//! # What is not
//!
//! - A page pinned for long by someone else (io_uring fixed buffers, RDMA) can't move: `Busy`.
//! - Direct I/O into a page that is mapped remotely goes to the device's frame, and what of it is
//!   under way when the page is unmapped is lost: the kernel does not tell.
//! - Pages given to a pipe (`vmsplice`) or sent with `MSG_ZEROCOPY` move all the same, and the
//!   reader then sees what the frame holds next. Don't.
//! - `mprotect` or `mlock` on unified memory makes moves fail (`UFFDIO_MOVE`, `EINVAL`). Regions
//!   have a protection of their own.
//! - A page is made read-only right after it was moved in, and writable right before it is moved
//!   out: in these 10 to 60 µs a write to a read-only region by another thread is not noticed.

mod bits;
mod clock;
mod coming;
mod driver;
mod error;
mod handler;
mod host;
mod mapping;
mod mmu;
mod moves;
mod pagemap;
mod patience;
mod pool;
pub mod probe;
mod remote;
mod renew;
mod replica;
pub mod uffd;
mod window;

use gmm_core::driver::DriverError;
use rustix::io::Errno;

pub use clock::MonotonicClock;
pub use driver::{CpuDriver, Options};
pub use error::SetupError;
pub use gmm_os::{BlockedSignals, copy};
pub use handler::{FaultHandlers, FaultServer, on_handler_thread};
pub use host::HostMemory;
pub use mmu::CpuMmu;
pub use window::Window;

/// What the core is told when the kernel refuses.
fn os_error(call: &'static str, errno: Errno) -> DriverError {
    match errno {
        Errno::NOMEM => DriverError::NoMemory,
        errno => DriverError::Os { call, errno: errno.raw_os_error() },
    }
}
