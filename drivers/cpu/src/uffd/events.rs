//! Reading events.

use std::mem::MaybeUninit;

use gmm_core::VirtAddr;
use gmm_core::driver::Access;
use linux_raw_sys::general as raw;
use rustix::io::Errno;

use super::Uffd;

/// What the kernel reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread waits: it touched an absent page.
    Missing {
        /// What it touched (to the byte with `EXACT_ADDRESS`, else the start of the 4 KiB).
        addr: VirtAddr,
        /// What it wanted.
        access: Access,
    },
    /// A thread waits: it wrote to a page that is write-protected through userfaultfd.
    WriteProtected {
        /// What it wrote to.
        addr: VirtAddr,
    },
    /// A thread waits for some other reason at this address (minor fault): this driver never asks
    /// for such, so waking it is all there is to do.
    Other {
        /// What it touched.
        addr: VirtAddr,
    },
    /// A registered range was given other addresses by `mremap`, which returns now.
    Remapped,
}

impl Event {
    /// Where a thread waits, if one does.
    pub fn waits_at(self) -> Option<VirtAddr> {
        match self {
            Self::Missing { addr, .. } | Self::WriteProtected { addr } | Self::Other { addr } => {
                Some(addr)
            }
            Self::Remapped => None,
        }
    }
}

impl Uffd {
    /// The next event if there is one; each is given to one reader. Does not block or allocate.
    ///
    /// # Errors
    /// The kernel's, but for `EAGAIN` and `EINTR`, which are no event.
    pub fn next_event(&self) -> Result<Option<Event>, Errno> {
        let mut msg = MaybeUninit::<raw::uffd_msg>::uninit();
        // SAFETY: any bytes may be written to it; `uffd_msg` is plain data.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                msg.as_mut_ptr().cast::<MaybeUninit<u8>>(),
                size_of::<raw::uffd_msg>(),
            )
        };
        match rustix::io::read(self, bytes) {
            Ok((read, _)) if read.len() == size_of::<raw::uffd_msg>() => {}
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e),
        }
        // SAFETY: the kernel has written all of it.
        let msg = unsafe { msg.assume_init() };
        match u32::from(msg.event) {
            raw::UFFD_EVENT_PAGEFAULT => {}
            raw::UFFD_EVENT_REMAP => return Ok(Some(Event::Remapped)),
            // Fork, remove and unmap events come only to those who ask for them.
            _ => return Ok(None),
        }
        // SAFETY: it is the variant of a page fault event, and plain data.
        let fault = unsafe { msg.arg.pagefault };
        let addr = VirtAddr(fault.address);
        let has = |flag: u32| fault.flags & u64::from(flag) != 0;
        if has(raw::UFFD_PAGEFAULT_FLAG_WP) {
            return Ok(Some(Event::WriteProtected { addr }));
        }
        if has(raw::UFFD_PAGEFAULT_FLAG_MINOR) {
            return Ok(Some(Event::Other { addr }));
        }
        let write = has(raw::UFFD_PAGEFAULT_FLAG_WRITE);
        let access = if write { Access::Write } else { Access::Read };
        Ok(Some(Event::Missing { addr, access }))
    }
}
