//! A typed buffer in unified memory.

use core::fmt;
use core::ops::{Deref, DerefMut};

use gmm_core::driver::Protection;
use gmm_core::{NodeId, PageRange, Prefetched};
use zerocopy::FromZeros;

use crate::{Gmm, Prefetching, Result};

/// A slice of `T` in unified memory: the same pointer is valid on the CPU and on every XPU.
/// Dropped, it is unmapped; a launch that still uses it is then a wild access.
pub struct Unified<T: FromZeros> {
    gmm: Gmm,
    range: PageRange,
    data: *mut T,
    len: usize,
}

// SAFETY: a `Unified<T>` owns its memory exclusively, like a `Vec<T>`.
unsafe impl<T: FromZeros + Send> Send for Unified<T> {}
// SAFETY: shared access gives only `&[T]`.
unsafe impl<T: FromZeros + Sync> Sync for Unified<T> {}

impl<T: FromZeros> Unified<T> {
    /// Wraps a region.
    ///
    /// # Safety
    /// `range` is a region of `gmm` that was just made, that nobody else will unmap, and that has
    /// room for `len` values; `T`'s alignment is at most the page size.
    pub(crate) unsafe fn new(gmm: Gmm, range: PageRange, len: usize) -> Self {
        let data = core::ptr::with_exposed_provenance_mut(range.start.start().0 as usize);
        Self { gmm, range, data, len }
    }

    /// The first element's address, for kernels that read.
    pub fn as_ptr(&self) -> *const T {
        self.data
    }

    /// The first element's address, for kernels that write.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }

    pub(crate) fn gmm(&self) -> &Gmm {
        &self.gmm
    }

    pub(crate) fn nr_elements(&self) -> usize {
        self.len
    }

    /// The pages the buffer occupies.
    pub fn pages(&self) -> PageRange {
        self.range
    }

    /// `WILLNEED`: brings the buffer to `node` ahead of its use, as far as it fits there, and says
    /// how many pages came.
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`].
    pub fn will_need(&self, node: u8) -> Result<Prefetched> {
        self.gmm.prefetch_pages(self.range.start.start(), self.range.len_bytes(), NodeId(node))
    }

    /// As [`Unified::will_need`], beside the program: [`Gmm::prefetch_async`].
    ///
    /// # Errors
    /// As [`Gmm::prefetch_async`].
    pub fn will_need_async(&self, node: u8) -> Result<Prefetching> {
        self.gmm.prefetch_async(self.data.cast(), self.range.len_bytes(), node)
    }

    /// `DONTNEED`: drops the contents on all nodes. The buffer reads as zero afterwards.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) if a launch, or someone outside the manager,
    /// holds a page.
    pub fn discard(&mut self) -> Result<()> {
        let (start, len) = (self.range.start.start(), self.range.len_bytes());
        Ok(self.gmm.enter()?.space.discard(start, len)?)
    }

    /// Changes what processors may do with the buffer. While it is read-only a write raises
    /// SIGSEGV on the CPU, and ends a launch with an error.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) if a processor's mapping can't be changed.
    pub fn protect(&mut self, protection: Protection) -> Result<()> {
        let (start, len) = (self.range.start.start(), self.range.len_bytes());
        Ok(self.gmm.enter()?.space.protect(start, len, protection)?)
    }

    /// The length of the elements in bytes.
    pub fn len_bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }
}

impl<T: FromZeros> Deref for Unified<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: by the contract of `new` the region holds `len` values, aligned; it reads as
        // zero at first, which is a `T` because of `FromZeros`. Launches that write it at the same
        // time are excluded by the contract of `Stream::launch`.
        unsafe { core::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T: FromZeros> DerefMut for Unified<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as `deref`; `&mut self` makes the access exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<T: FromZeros> Drop for Unified<T> {
    fn drop(&mut self) {
        let (start, len) = (self.range.start.start(), self.range.len_bytes());
        // In a forked child nothing is ours. While a launch holds a page the region stays, and
        // with it the addresses: that is a launch nobody waited for.
        let _ = self.gmm.unmap(start, len);
    }
}

impl<T: FromZeros> fmt::Debug for Unified<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the elements: reading them would move pages.
        f.debug_struct("Unified").field("range", &self.range).field("len", &self.len).finish()
    }
}
