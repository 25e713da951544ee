//! userfaultfd, typed: opening one, its operations, its events.
//!
//! A page of a registered range that is absent makes the thread that touches it wait; the event
//! is read here, and the thread goes on when something was put there or when it is woken. The
//! operation that carries this driver is [`Uffd::move_pages`]: it re-hangs ready-made huge pages
//! between two mappings of the process in 1 to 2 µs, atomically.

mod events;
mod open;
mod ops;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bitflags::bitflags;
use linux_raw_sys::general as raw;

pub use events::Event;
pub use ops::{CopyMode, MoveMode, Stopped};

bitflags! {
    /// What a kernel's userfaultfd can do, as far as this driver cares.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Events say when they are about write protection.
        const PAGEFAULT_FLAG_WP = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
        /// What `mremap` moves stays registered, and is an event.
        const EVENT_REMAP = raw::UFFD_FEATURE_EVENT_REMAP as u64;
        /// Events carry the very address that was touched, not the start of its 4 KiB page.
        const EXACT_ADDRESS = raw::UFFD_FEATURE_EXACT_ADDRESS as u64;
        /// `UFFDIO_POISON` (Linux 6.6).
        const POISON = raw::UFFD_FEATURE_POISON as u64;
        /// `UFFDIO_MOVE` (Linux 6.8).
        const MOVE = raw::UFFD_FEATURE_MOVE as u64;
    }

    /// Which faults of a registered range are events.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct RegisterMode: u64 {
        /// A touch of an absent page.
        const MISSING = raw::UFFDIO_REGISTER_MODE_MISSING as u64;
        /// A write to a page that was write-protected through userfaultfd.
        const WRITE_PROTECT = raw::UFFDIO_REGISTER_MODE_WP as u64;
        /// What pages of the window are registered for.
        const WINDOW = Self::MISSING.bits() | Self::WRITE_PROTECT.bits();
    }
}

/// How the userfaultfd was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// From `/dev/userfaultfd`: all faults are served.
    Device,
    /// From the system call: all faults are served.
    SystemCall,
    /// From the system call, for faults in user mode only: a system call that touches an absent
    /// page (`read(fd, unified_pointer, n)`) fails with `EFAULT`.
    UserModeOnly,
}

/// An open userfaultfd of this process. Its descriptor does not block and is closed on `exec`.
/// Closing it ends all its registrations and wakes all who wait.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    access: AccessKind,
    features: Features,
    /// Read around what fills memory, written while `mremap` changes addresses of registered
    /// memory: the kernel refuses to fill any (`EAGAIN`) until its event has been read.
    addresses: RwLock<()>,
}

impl Uffd {
    /// Keeps the addresses of registered memory as they are. The last lock of all.
    fn still(&self) -> RwLockReadGuard<'_, ()> {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets this thread alone change addresses of registered memory.
    pub(crate) fn changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.addresses.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it was obtained.
    pub fn access(&self) -> AccessKind {
        self.access
    }

    /// What it can do.
    pub fn features(&self) -> Features {
        self.features
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
