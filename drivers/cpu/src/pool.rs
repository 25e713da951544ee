//! The pool of host frames: where a frame's memory lies while it is not in the window.
//!
//! A reserve of addresses with a 2 MiB slot for each frame. Entering a frame moves its memory
//! from the slot into the window and leaves the slot empty; clearing moves it back. What lies in
//! a slot is private to the manager. The pool is registered with userfaultfd for write protection
//! only: enough for moves in both directions, and an empty slot is plain zero memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use gmm_core::driver::{DriverError, Protection};
use gmm_core::{FrameNr, PAGE_SIZE};
use gmm_os::copy;

use crate::SetupError;
use crate::mapping::{self, Mapping};
use crate::pagemap::{Look, Pagemap};
use crate::uffd::{RegisterMode, Uffd};

/// The call that makes a slot present.
pub(crate) const POPULATE: &str = "madvise(MADV_POPULATE_WRITE)";

/// Where a frame's memory is. One byte a frame:
///
/// | value | the frame | becomes |
/// |---|---|---|
/// | 0 `HOME` | in its slot, or nowhere yet | 1, 2 or 3 by `pmap_enter` |
/// | 1 `ENTERED` | in the window, read-write | 0 by `pmap_clear`, 2 by `pmap_enter` |
/// | 2 `ENTERED_READ_ONLY` | in the window, read-only | 0 by `pmap_clear`, 1 by `pmap_enter` |
/// | 3 `REPLICATED` | in its slot, and a copy of it in the window | 0 by `pmap_clear` |
///
/// A frame whose page was lost with its region (`va_release`) stays as it is until it is filled or
/// released, which makes it 0.
const HOME: u8 = 0;
const ENTERED: u8 = 1;
const ENTERED_READ_ONLY: u8 = 2;
const REPLICATED: u8 = 3;

/// The slots of all frames.
#[derive(Debug)]
pub(crate) struct Pool {
    base: u64,
    capacity: u32,
    places: Box<[AtomicU8]>,
    pub(crate) uffd: Arc<Uffd>,
    pub(crate) pagemap: Pagemap,
    _mapping: Mapping,
}

impl Pool {
    pub(crate) fn new(capacity: u32, uffd: Arc<Uffd>) -> Result<Self, SetupError> {
        if capacity == 0 {
            return Err(SetupError::EmptyPool);
        }
        let len = u64::from(capacity) * PAGE_SIZE;
        let mapping = Mapping::anywhere(len + PAGE_SIZE).map_err(|e| SetupError::Os {
            call: "mmap",
            doing: "reserving addresses for host frames",
            cause: e.into(),
            remedy: "raise the limit on address space (ulimit -v), set vm.overcommit_memory to 0 \
                     or 1, or give the pool fewer frames",
        })?;
        let base = mapping.start().next_multiple_of(PAGE_SIZE);
        // SAFETY: the range was mapped just now, and the mapping lives as long as the pool.
        unsafe {
            mapping::prepare(base, len, c"gmm:pool")?;
            uffd.register(base, len, RegisterMode::WRITE_PROTECT).map_err(|e| SetupError::Os {
                call: "UFFDIO_REGISTER",
                doing: "registering the pool of host frames",
                cause: e.into(),
                remedy: "the kernel must have userfaultfd write protection (x86-64 or arm64)",
            })?;
        }
        let places = (0..capacity).map(|_| AtomicU8::new(HOME)).collect();
        let pagemap = Pagemap::open()?;
        Ok(Self { base, capacity, places, uffd, pagemap, _mapping: mapping })
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The address of a frame's slot.
    pub(crate) fn slot(&self, frame: FrameNr) -> u64 {
        self.base + u64::from(frame.0) * PAGE_SIZE
    }

    /// Whether there is such a frame.
    pub(crate) fn has(&self, frame: FrameNr) -> bool {
        frame.0 < self.capacity
    }

    /// How the frame itself is mapped in the window, `None` if it is at home.
    pub(crate) fn entered(&self, frame: FrameNr) -> Option<Protection> {
        // Relaxed, here and below: the core's entry lock orders all calls about one frame.
        match self.places[frame.0 as usize].load(Ordering::Relaxed) {
            ENTERED => Some(Protection::ReadWrite),
            ENTERED_READ_ONLY => Some(Protection::ReadOnly),
            _ => None,
        }
    }

    pub(crate) fn set_entered(&self, frame: FrameNr, protection: Option<Protection>) {
        let place = match protection {
            None => HOME,
            Some(Protection::ReadWrite) => ENTERED,
            Some(Protection::ReadOnly) => ENTERED_READ_ONLY,
        };
        self.places[frame.0 as usize].store(place, Ordering::Relaxed);
    }

    /// Whether the window holds a copy of the frame.
    pub(crate) fn is_replicated(&self, frame: FrameNr) -> bool {
        self.places[frame.0 as usize].load(Ordering::Relaxed) == REPLICATED
    }

    pub(crate) fn set_replicated(&self, frame: FrameNr, replicated: bool) {
        let place = if replicated { REPLICATED } else { HOME };
        self.places[frame.0 as usize].store(place, Ordering::Relaxed);
    }

    /// Makes a slot present: what is absent of it is zero, and huge where the kernel can.
    pub(crate) fn populate(&self, frame: FrameNr) -> Result<(), DriverError> {
        // SAFETY: the slot is ours.
        unsafe { mapping::populate(self.slot(frame), PAGE_SIZE) }
            .map_err(|errno| crate::os_error(POPULATE, errno))
    }

    /// Fills a frame with zeros. A slot that is empty is filled by the kernel, in one pass.
    pub(crate) fn zero(&self, frame: FrameNr) -> Result<(), DriverError> {
        self.set_entered(frame, None);
        let fresh = self.pagemap.look(self.slot(frame), 1) == Look::Absent;
        self.populate(frame)?;
        if !fresh {
            // SAFETY: the slot is ours, and present.
            unsafe { copy::stream_zero(self.slot(frame) as *mut u8, PAGE_SIZE as usize) };
        }
        Ok(())
    }

    /// Gives a frame's memory back to the kernel.
    pub(crate) fn discard(&self, frame: FrameNr) -> Result<(), DriverError> {
        self.set_entered(frame, None);
        // SAFETY: the slot is ours.
        unsafe { mapping::empty(self.slot(frame), PAGE_SIZE) }
            .map_err(|errno| crate::os_error("madvise(MADV_DONTNEED)", errno))
    }
}
