//! A context's page table.

use super::{Capabilities, DriverError, Partial, RemoteHandle};
use crate::{Frame, PageNr, PageRange, VirtAddr};

/// What a processor wanted to do when it faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read or fetch.
    Read,
    /// To write, or to read and write.
    Write,
}

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Reads.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

impl Protection {
    /// Whether an access may go ahead under this protection.
    pub fn allows(self, access: Access) -> bool {
        matches!((self, access), (Self::ReadWrite, _) | (Self::ReadOnly, Access::Read))
    }
}

/// The answer to [`Mmu::va_examine`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Examine {
    /// The context can use the range and has reserved it.
    Reserved,
    /// The context can't use this range.
    Refused,
    /// It can't use this range but could use one that starts at `base`, or further up at a
    /// multiple of `alignment_bytes`.
    Suggest {
        /// The lowest start that would do.
        base: VirtAddr,
        /// A power of two, at least the page size.
        alignment_bytes: u64,
    },
}

/// One mapping to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enter {
    /// The page.
    pub page: PageNr,
    /// The frame that holds its data: of the context's own node, but for
    /// [`MappingKind::Remote`].
    pub frame: Frame,
    /// What the processor may do through the mapping.
    pub protection: Protection,
    /// How the frame is to be mapped.
    pub kind: MappingKind,
}

/// How a processor maps a frame. A driver remembers it until the page is cleared; a page is
/// cleared before it is entered in another way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappingKind {
    /// A frame of the processor's own node, itself.
    Local,
    /// Bytes equal to those of a frame of the processor's own node, for reading only; the frame
    /// stays in reach of copies and is not written meanwhile. Asked only of a processor whose
    /// frames move and that has [`Capabilities::READ_ONLY_REPLICAS`]. The protection is what the
    /// page's region allows: with [`Protection::ReadWrite`] a write faults, and the core is asked;
    /// with [`Protection::ReadOnly`] it fails, as through any read-only mapping. What the processor drops
    /// of it behind the core's back is no loss: [`Clear::was_empty`] stays false, and
    /// [`Mmu::revalidate`] makes it again.
    Replica,
    /// A frame of another node, itself. Asked only of a processor with
    /// [`Capabilities::COHERENT_LINK`], with what the frame's device gave as
    /// [`Device::remote_handle`](super::Device::remote_handle). What the processor drops of it
    /// behind the core's back is no loss either.
    Remote(RemoteHandle),
}

impl Enter {
    /// The plain mapping of a frame of the processor's own node.
    pub fn local(page: PageNr, frame: Frame, protection: Protection) -> Self {
        Self { page, frame, protection, kind: MappingKind::Local }
    }
}

/// One mapping to remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clear {
    /// The page.
    pub page: PageNr,
    /// The frame that it maps.
    pub frame: Frame,
    /// Set by the driver: the processor had discarded the page's contents behind the core's back
    /// (an application's `madvise(MADV_DONTNEED)`), so the page reads as zero and the frame's
    /// contents mean nothing.
    pub was_empty: bool,
}

/// The page table of one context (the paper's "pmap"). Every method may be called by several
/// threads at once, but for one page only one call is in progress at a time: the core holds the
/// page's entry lock around `pmap_enter`, `pmap_clear`, `revalidate`, `poison`, `unpoison` and
/// `is_unused_since_entered`. These must not allocate, must not call back into the core, and must
/// return within a few seconds whatever the context does: one that does not answer is killed.
pub trait Mmu: Send + Sync {
    /// What this context can do, where that is not what the device of its node can: a context of
    /// a device without memory, on node 0. Must not change. The default is the node's device's.
    fn capabilities(&self) -> Option<Capabilities> {
        None
    }

    /// Asks whether the context can use `range`, and reserves it if so. Called by `mmap` before
    /// the range is claimed on the CPU, and by `attach` for regions that exist already.
    ///
    /// # Errors
    /// The driver could not even ask. The core treats it as a refusal and reports the cause
    /// ([`Error::Refused`](crate::Error::Refused)); the CPU's driver is not asked again.
    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError>;

    /// Ends a reservation, whole or part. When it returns nothing is mapped there any more, with
    /// the guarantee of [`Mmu::pmap_clear`]; where frames are movable, those still mapped have
    /// lost their contents. Accesses that wait in a fault on the range are woken (and then fail).
    /// The pages' entries are closed; no entry lock is held.
    fn va_release(&self, range: PageRange);

    /// Makes mappings. Entering a page that already maps that frame changes its protection.
    /// Accesses waiting for the page may go on at once.
    ///
    /// # Errors
    /// [`Partial`]: the first `done` were made, the rest are as before.
    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial>;

    /// Removes mappings. When it returns, no access through them is in flight and no translation
    /// of them is cached: the frames' bytes don't change any more. On a dead context it succeeds,
    /// once no access of it can land any more.
    ///
    /// # Errors
    /// [`Partial`]: the first `done` were removed, the rest are as before.
    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial>;

    /// The processor faulted on a page that the core believes it maps: another fault was quicker,
    /// or the processor dropped the mapping behind the core's back. Makes sure that the access at
    /// `addr` can go on (a dropped page reads as zero). The default has nothing to do.
    ///
    /// # Errors
    /// The access can't be made to go on.
    fn revalidate(&self, mapping: Enter, addr: VirtAddr) -> Result<(), DriverError> {
        let _ = (mapping, addr);
        Ok(())
    }

    /// Makes accesses to `page` (which this context does not map) fail at once instead of
    /// waiting: the core could not serve them. Says whether the page is now poisoned. The default
    /// can't.
    fn poison(&self, page: PageNr) -> bool {
        let _ = page;
        false
    }

    /// Undoes [`Mmu::poison`]: the next access faults again. Called when the page is served for
    /// anyone.
    fn unpoison(&self, page: PageNr) {
        let _ = page;
    }

    /// Whether the access for which `page` was entered is known not to have gone on yet. Reclaim
    /// spares such pages, so that faulting processors make progress. Answered without waiting.
    fn is_unused_since_entered(&self, page: PageNr) -> bool {
        let _ = page;
        false
    }
}
