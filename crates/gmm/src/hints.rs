//! Hints that stay: pins, attributes, and who is told before pages move.

use std::sync::Arc;

use gmm_core::{Attributes, NodeId, PageRange, RemapSubscriber};
use zerocopy::FromZeros;

use crate::manager::virt;
use crate::{Advice, Gmm, Result, Unified};

impl Gmm {
    /// What is advised about `addr .. addr + len_bytes`: runs of pages that are alike, by address;
    /// pages without advice are left out.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) for a bad range.
    pub fn attributes(
        &self,
        addr: *const u8,
        len_bytes: u64,
    ) -> Result<Vec<(PageRange, Attributes)>> {
        let range = PageRange::covering(virt(addr), len_bytes)?;
        Ok(self.enter()?.space.attributes(range)?)
    }

    /// How many pages of `node` may be pinned from now on (more than it has: all). At first it is
    /// three quarters of the node. What is pinned stays pinned.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) for a node that does not exist.
    pub fn set_pin_limit(&self, node: u8, nr_pages: u32) -> Result<()> {
        Ok(self.enter()?.space.set_pin_limit(NodeId(node), nr_pages)?)
    }

    /// Has `subscriber` asked before a frame of `addr .. addr + len_bytes` goes: moved, evicted or
    /// discarded. It may keep the frame; of an unmapping it is only told. It is called while the
    /// manager works on the page: see [`RemapSubscriber`] for what it must not do. It ends with
    /// what this returns.
    ///
    /// # Errors
    /// [`Error::Manager`](crate::Error::Manager) for a bad range.
    pub fn subscribe(
        &self,
        addr: *const u8,
        len_bytes: u64,
        subscriber: Arc<dyn RemapSubscriber>,
    ) -> Result<Subscription> {
        let range = PageRange::covering(virt(addr), len_bytes)?;
        let subscription = self.enter()?.space.subscribe(range, subscriber)?;
        Ok(Subscription { gmm: self.clone(), inner: Some(subscription) })
    }
}

/// Has a subscriber called until it is dropped. The drop waits for a call that is under way.
pub struct Subscription {
    gmm: Gmm,
    inner: Option<gmm_core::Subscription>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        match self.gmm.enter() {
            Ok(_inside) => drop(self.inner.take()),
            // In a forked child nothing is ours.
            Err(_) => core::mem::forget(self.inner.take()),
        }
    }
}

impl core::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Subscription")
    }
}

impl<T: FromZeros> Unified<T> {
    /// Gives the whole buffer an advice.
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`].
    pub fn advise(&mut self, advice: Advice, node: u8) -> Result<()> {
        let start = self.as_ptr().cast();
        // SAFETY: should it drop the contents, nobody else has a reference to them, and zero is
        // a `T`.
        unsafe { self.gmm().gmadvise(start, self.pages().len_bytes(), advice, node) }
    }

    /// `PIN`: brings the buffer to `node` and keeps it there until as many [`Unified::unpin`], or
    /// until it is dropped.
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`]; no page has been pinned then.
    pub fn pin(&self, node: u8) -> Result<()> {
        let range = self.pages();
        let inside = self.gmm().enter()?;
        Ok(inside.space.pin(range.start.start(), range.len_bytes(), NodeId(node))?)
    }

    /// `UNPIN`: ends one [`Unified::pin`].
    ///
    /// # Errors
    /// As [`Gmm::gmadvise`], if a page is not pinned on `node`; no page has been unpinned then.
    pub fn unpin(&self, node: u8) -> Result<()> {
        let range = self.pages();
        let inside = self.gmm().enter()?;
        Ok(inside.space.unpin(range.start.start(), range.len_bytes(), NodeId(node))?)
    }

    /// What is advised about the buffer's pages.
    ///
    /// # Errors
    /// As [`Gmm::attributes`].
    pub fn attributes(&self) -> Result<Vec<(PageRange, Attributes)>> {
        self.gmm().attributes(self.as_ptr().cast(), self.pages().len_bytes())
    }
}
