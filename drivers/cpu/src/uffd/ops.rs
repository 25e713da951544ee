//! The operations on registered ranges. Lengths and addresses are bytes, multiples of 4 KiB.

use bitflags::bitflags;
use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::{RegisterMode, Uffd};

const REGISTER: Opcode = opcode::read_write::<raw::uffdio_register>(0xAA, 0x00);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(0xAA, 0x01);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(0xAA, 0x02);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(0xAA, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<raw::uffdio_zeropage>(0xAA, 0x04);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(0xAA, 0x05);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(0xAA, 0x08);

bitflags! {
    /// How [`Uffd::move_pages`] moves. (These bits are in `linux/userfaultfd.h` only.)
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MoveMode: u64 {
        /// Don't wake those who wait for the destination.
        const DONT_WAKE = 1 << 0;
        /// Step over absent parts of the source instead of stopping there.
        const ALLOW_SRC_HOLES = 1 << 1;
    }
}

bitflags! {
    /// How [`Uffd::copy`] fills.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct CopyMode: u64 {
        /// Don't wake those who wait for the destination.
        const DONT_WAKE = raw::UFFDIO_COPY_MODE_DONTWAKE as u64;
        /// Write-protect what was filled, from the start: a write is an event.
        const WRITE_PROTECT = raw::UFFDIO_COPY_MODE_WP as u64;
    }
}

/// An operation that stopped part way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stopped after {done} bytes: {errno}")]
pub struct Stopped {
    /// How many bytes were done.
    pub done: u64,
    /// Why no more; `EAGAIN` (try the rest) if it did anything at all.
    pub errno: Errno,
}

impl Stopped {
    /// `count` is what the kernel wrote back: bytes done, or a negative error number.
    fn new(count: i64, errno: Errno) -> Self {
        Self { done: u64::try_from(count).unwrap_or(0), errno }
    }
}

impl Uffd {
    /// Makes faults of a range events.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// The range is a private anonymous mapping that the caller owns, and someone serves the
    /// events.
    pub unsafe fn register(&self, start: u64, len: u64, mode: RegisterMode) -> Result<(), Errno> {
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_register { range, mode: mode.bits(), ioctls: 0 };
        // SAFETY: REGISTER reads and writes one `uffdio_register`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<REGISTER, _>::new(&mut arg)) }
    }

    /// Ends a registration and wakes all who wait there.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// Absent pages of the range read as zero from now on; that must be no surprise to anyone.
    pub unsafe fn unregister(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut arg = raw::uffdio_range { start, len };
        // SAFETY: UNREGISTER reads one `uffdio_range`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<UNREGISTER, _>::new(&mut arg)) }
    }

    /// Wakes all who wait in a fault on the range; they touch again. Always harmless.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wake(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut arg = raw::uffdio_range { start, len };
        // SAFETY: WAKE reads one `uffdio_range` and changes no memory.
        unsafe { ioctl(self, Updater::<WAKE, _>::new(&mut arg)) }
    }

    /// Moves pages from `src` to `dst`, which must be absent there, and wakes who waits for them.
    /// Each page (a huge one where both ends allow it) moves atomically.
    ///
    /// # Errors
    /// [`Stopped`], with `done` bytes moved: `EBUSY` pinned or shared with a child, `EEXIST`
    /// something is at the destination, `ENOENT` nothing at the source, `EAGAIN` try again,
    /// `EINVAL` the mappings differ in protection or locking.
    ///
    /// # Safety
    /// The caller owns the memory at both ends; no one may rely on the source's contents.
    pub unsafe fn move_pages(
        &self,
        dst: u64,
        src: u64,
        len: u64,
        mode: MoveMode,
    ) -> Result<(), Stopped> {
        let mut arg = raw::uffdio_move { dst, src, len, mode: mode.bits(), move_: 0 };
        let _still = self.still();
        // SAFETY: MOVE reads and writes one `uffdio_move`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<MOVE, _>::new(&mut arg)) }
            .map_err(|errno| Stopped::new(arg.move_, errno))
    }

    /// Fills absent 4 KiB pages at `dst` with a copy of `src` and wakes who waits for them. The
    /// pages are small ones, and keep later moves to their place from staying huge.
    ///
    /// # Errors
    /// [`Stopped`]; `EEXIST` something is at the destination.
    ///
    /// # Safety
    /// The caller owns the destination; `src` is readable for `len` bytes.
    pub unsafe fn copy(
        &self,
        dst: u64,
        src: *const u8,
        len: u64,
        mode: CopyMode,
    ) -> Result<(), Stopped> {
        let mode = mode.bits();
        let mut arg = raw::uffdio_copy { dst, src: src as u64, len, mode, copy: 0 };
        let _still = self.still();
        // SAFETY: COPY reads and writes one `uffdio_copy`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<COPY, _>::new(&mut arg)) }
            .map_err(|errno| Stopped::new(arg.copy, errno))
    }

    /// Maps the kernel's zero page at absent 4 KiB pages and wakes who waits for them.
    ///
    /// # Errors
    /// [`Stopped`]; `EEXIST` something is there.
    ///
    /// # Safety
    /// The caller owns the range.
    pub unsafe fn zeropage(&self, start: u64, len: u64) -> Result<(), Stopped> {
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_zeropage { range, mode: 0, zeropage: 0 };
        let _still = self.still();
        // SAFETY: ZEROPAGE reads and writes one `uffdio_zeropage`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<ZEROPAGE, _>::new(&mut arg)) }
            .map_err(|errno| Stopped::new(arg.zeropage, errno))
    }

    /// Makes touches of absent pages raise SIGBUS, and wakes who waits for them (into it).
    /// `MADV_DONTNEED` undoes it.
    ///
    /// # Errors
    /// [`Stopped`]; `EEXIST` something is there.
    ///
    /// # Safety
    /// The caller owns the range.
    pub unsafe fn poison(&self, start: u64, len: u64) -> Result<(), Stopped> {
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_poison { range, mode: 0, updated: 0 };
        let _still = self.still();
        // SAFETY: POISON reads and writes one `uffdio_poison`; the rest is the caller's.
        unsafe { ioctl(self, Updater::<POISON, _>::new(&mut arg)) }
            .map_err(|errno| Stopped::new(arg.updated, errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_the_kernels() {
        use linux_raw_sys::ioctl as k;
        assert_eq!(
            [REGISTER, UNREGISTER, WAKE, COPY, ZEROPAGE],
            [
                k::UFFDIO_REGISTER,
                k::UFFDIO_UNREGISTER,
                k::UFFDIO_WAKE,
                k::UFFDIO_COPY,
                k::UFFDIO_ZEROPAGE
            ]
        );
        assert_eq!((MOVE, POISON), (0xc028_aa05, 0xc020_aa08));
    }
}
