//! Getting a userfaultfd: by the device file, by the system call, for user-mode faults only.

use core::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::RwLock;

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

use super::{AccessKind, Features, Uffd};
use crate::SetupError;

const UFFDIO_API: Opcode = opcode::read_write::<raw::uffdio_api>(0xAA, 0x3F);

const FLAGS: UserfaultfdFlags = UserfaultfdFlags::CLOEXEC.union(UserfaultfdFlags::NONBLOCK);
const NEEDED: [(Features, &str); 4] = [
    (Features::MOVE, "UFFDIO_MOVE"),
    (Features::POISON, "UFFDIO_POISON"),
    (Features::PAGEFAULT_FLAG_WP, "write protection"),
    (Features::EVENT_REMAP, "remap events"),
];

impl Uffd {
    /// Opens one in the most capable way allowed, with all of [`Features`] that the kernel has.
    ///
    /// # Errors
    /// [`SetupError::NoUserfaultfd`]; [`SetupError::MissingFeature`] if it lacks what is needed
    /// (which Linux 6.8 has).
    pub fn open() -> Result<Self, SetupError> {
        let (features, _) = Self::query()?;
        if let Some((_, feature)) = NEEDED.into_iter().find(|(f, _)| !features.contains(*f)) {
            return Err(SetupError::MissingFeature { feature });
        }
        let (fd, access) = new_fd()?;
        handshake(&fd, features)?;
        Ok(Self { fd, access, features, addresses: RwLock::new(()) })
    }

    /// What the kernel offers and how it would be obtained, without keeping one.
    ///
    /// # Errors
    /// [`SetupError::NoUserfaultfd`].
    pub fn query() -> Result<(Features, AccessKind), SetupError> {
        // A descriptor's features are fixed by its first handshake: this one is for asking only.
        let (fd, access) = new_fd()?;
        Ok((Features::from_bits_truncate(handshake(&fd, Features::empty())?), access))
    }
}

fn new_fd() -> Result<(OwnedFd, AccessKind), SetupError> {
    let device = match by_device() {
        Ok(fd) => return Ok((fd, AccessKind::Device)),
        Err(e) => e.into(),
    };
    // SAFETY: the descriptor is used by this module alone, which registers only ranges that its
    // callers own.
    let syscall = match unsafe { rustix::mm::userfaultfd(FLAGS) } {
        Ok(fd) => return Ok((fd, AccessKind::SystemCall)),
        Err(e) => e.into(),
    };
    let user_mode_only = UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
    // SAFETY: as above.
    let user_mode = match unsafe { rustix::mm::userfaultfd(FLAGS | user_mode_only) } {
        Ok(fd) => return Ok((fd, AccessKind::UserModeOnly)),
        Err(e) => e.into(),
    };
    Err(SetupError::NoUserfaultfd { device, syscall, user_mode })
}

fn by_device() -> Result<OwnedFd, Errno> {
    let device =
        rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: see `NewFd`.
    unsafe { ioctl(device, NewFd) }
}

/// `USERFAULTFD_IOC_NEW`: its argument is a number, its result a descriptor.
struct NewFd;

// SAFETY: the request takes its flags by value and touches no memory of ours.
unsafe impl Ioctl for NewFd {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(0xAA, 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        FLAGS.bits() as usize as *mut c_void
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Agrees on `features`; returns the bits of all that the kernel has.
fn handshake(fd: &OwnedFd, features: Features) -> Result<u64, SetupError> {
    let mut api =
        raw::uffdio_api { api: u64::from(raw::UFFD_API), features: features.bits(), ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `uffdio_api`.
    unsafe { ioctl(fd, Updater::<UFFDIO_API, _>::new(&mut api)) }.map_err(|e| SetupError::Os {
        call: "UFFDIO_API",
        doing: "agreeing on features with userfaultfd",
        cause: e.into(),
        remedy: "Linux 6.8 or later is needed",
    })?;
    Ok(api.features)
}
