//! Moving much at once: prefetches that go on beside the program, and copies.

use std::sync::Arc;

use gmm_core::{NodeId, Prefetch, Prefetched, VirtAddr};
use zerocopy::FromZeros;

use crate::manager::virt;
use crate::workers::Ticket;
use crate::{Gmm, Result, Unified};

/// A `WILLNEED` that is under way. Dropping it cancels what has not begun yet; so does unmapping
/// the memory.
#[must_use = "dropping it cancels the prefetch"]
pub struct Prefetching {
    gmm: Gmm,
    prefetch: Arc<Prefetch>,
    ticket: Ticket,
}

impl Prefetching {
    /// Waits for it, and says what came of it.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) for the page that could not be brought.
    pub fn wait(self) -> Result<Prefetched> {
        drop(self.gmm.enter()?);
        self.gmm.workers().wait(self.ticket);
        Ok(self.prefetch.outcome()?)
    }

    /// Whether it has ended, one way or another.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn is_done(&self) -> Result<bool> {
        drop(self.gmm.enter()?);
        Ok(self.gmm.workers().is_done(self.ticket))
    }

    /// Has it end with the pages that are under way; [`Prefetching::wait`] says which came.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn cancel(&self) -> Result<()> {
        let _inside = self.gmm.enter()?;
        self.prefetch.cancel();
        Ok(())
    }
}

impl Drop for Prefetching {
    fn drop(&mut self) {
        // In a forked child there is nothing to cancel.
        let _ = self.cancel();
    }
}

impl core::fmt::Debug for Prefetching {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Prefetching").field("so_far", &self.prefetch.outcome()).finish()
    }
}

impl Gmm {
    /// `WILLNEED`, as [`Gmm::gmadvise`] does it, but says how many pages came.
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`].
    pub fn prefetch(&self, addr: *const u8, len_bytes: u64, node: u8) -> Result<Prefetched> {
        self.prefetch_pages(virt(addr), len_bytes, NodeId(node))
    }

    /// As [`Gmm::prefetch`], but returns at once: threads of the manager's do the work (four at
    /// most, whatever is asked of them). Faults on pages that are just being brought wait for them
    /// instead of copying twice.
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`] before anything is moved.
    pub fn prefetch_async(&self, addr: *const u8, len_bytes: u64, node: u8) -> Result<Prefetching> {
        let inside = self.enter()?;
        let prefetch = inside.space.begin_prefetch(virt(addr), len_bytes, NodeId(node))?;
        let prefetch = Arc::new(prefetch);
        let ticket = self.workers().start(prefetch.clone());
        Ok(Prefetching { gmm: self.clone(), prefetch, ticket })
    }

    pub(crate) fn prefetch_pages(
        &self,
        addr: VirtAddr,
        len_bytes: u64,
        node: NodeId,
    ) -> Result<Prefetched> {
        let inside = self.enter()?;
        let prefetch = Arc::new(inside.space.begin_prefetch(addr, len_bytes, node)?);
        self.workers().run(prefetch.clone());
        Ok(prefetch.outcome()?)
    }

    /// Copies `len_bytes` from `src` to `dst`, at any alignment, wherever the bytes are. The
    /// destination ends on `node` and mapped by its processors, as far as it fits there: their
    /// next access takes no fault. The source stays where it is. Whole pages go straight from where
    /// they are to where they will be, on several threads. Either end, but not both, may be
    /// ordinary memory. Copying nothing is a success.
    ///
    /// # Safety
    /// As of `memcpy(3)`: ordinary memory must be valid for the access until this returns, nobody
    /// writes the source or uses the destination meanwhile, and what is written may be there:
    /// nobody has a reference into the destination that this would change.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) before anything is copied if a range is not
    /// mapped, the two overlap, the destination is read-only or there is no such node; later, if a
    /// page can't be moved or copied, and then the destination's bytes mean nothing.
    pub unsafe fn gmemcpy(
        &self,
        dst: *mut u8,
        src: *const u8,
        len_bytes: u64,
        node: u8,
    ) -> Result<()> {
        let inside = self.enter()?;
        let (dst, src) = (virt(dst), virt(src));
        let copy = Arc::new(inside.space.begin_memcpy(dst, src, len_bytes, NodeId(node))?);
        self.workers().run(copy.clone());
        Ok(copy.outcome()?)
    }
}

impl<T: FromZeros + Copy> Unified<T> {
    /// Copies `src` (unified or ordinary memory) to the elements from `start` on, which end on
    /// `node`: [`Gmm::gmemcpy`].
    ///
    /// # Panics
    /// If the buffer ends before.
    ///
    /// # Errors
    /// As [`Gmm::gmemcpy`].
    pub fn copy_from(&mut self, start: usize, src: &[T], node: u8) -> Result<()> {
        let end = start.checked_add(src.len()).filter(|&end| end <= self.nr_elements());
        assert!(end.is_some(), "{} elements from {start} on don't fit", src.len());
        let len_bytes = size_of_val(src) as u64;
        let dst = self.as_mut_ptr().wrapping_add(start).cast::<u8>();
        // SAFETY: the range lies in the buffer, which is borrowed exclusively, and the source is
        // borrowed; its bytes are those of `T`s, which can be copied.
        unsafe { self.gmm().gmemcpy(dst, src.as_ptr().cast(), len_bytes, node) }
    }

    /// Copies the elements from `start` on to `dst` (unified or ordinary memory): unified memory
    /// ends on `node`.
    ///
    /// # Panics
    /// If the buffer ends before.
    ///
    /// # Errors
    /// As [`Gmm::gmemcpy`].
    pub fn copy_to(&self, start: usize, dst: &mut [T], node: u8) -> Result<()> {
        let end = start.checked_add(dst.len()).filter(|&end| end <= self.nr_elements());
        assert!(end.is_some(), "there are no {} elements from {start} on", dst.len());
        let len_bytes = size_of_val(dst) as u64;
        let src = self.as_ptr().wrapping_add(start).cast::<u8>();
        // SAFETY: as in `copy_from`, the other way round.
        unsafe { self.gmm().gmemcpy(dst.as_mut_ptr().cast(), src, len_bytes, node) }
    }
}
