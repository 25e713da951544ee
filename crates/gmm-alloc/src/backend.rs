//! What an allocator stands on: frames, addresses to map them at, and streams to wait for.

use gmm_core::{FrameNr, PageNr};

use crate::StreamId;

/// A point in a stream: after everything that was submitted to it before
/// [`Backend::mark`]. Later points of one stream are larger; those of different streams can't be
/// compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mark(pub u64);

/// Memory of one device: frames of 2 MiB up to a capacity, addresses, of which there are plenty,
/// and the order of its streams.
///
/// An allocator is the only user of its back end and calls it from one thread at a time, with no
/// lock held. Each call may fail, and then has done nothing, unless it says otherwise. A page is
/// mapped to at most one frame and a frame at one page at most; the allocator keeps that.
pub trait Backend {
    /// How many frames [`Backend::import`] can hand out at most, those handed out included.
    fn capacity_frames(&self) -> u64;

    /// Sets `nr_pages` adjoining pages of addresses aside. Nothing is mapped there.
    fn reserve(&mut self, nr_pages: u64) -> Result<PageNr, BackendError>;

    /// Gives addresses of [`Backend::reserve`] back, a whole reservation at a time, nothing mapped
    /// there. A back end that can't reuse them keeps them.
    fn unreserve(&mut self, at: PageNr, nr_pages: u64);

    /// Appends up to `nr_frames` frames to `frames`. Fewer, or none, means that there are no more
    /// for now.
    fn import(&mut self, nr_frames: u64, frames: &mut Vec<FrameNr>) -> Result<(), BackendError>;

    /// Takes back frames that are mapped nowhere.
    fn release(&mut self, frames: &[FrameNr]) -> Result<(), BackendError>;

    /// Maps `frames`, in this order, at as many pages from `at` on, which are reserved and not
    /// mapped.
    fn map(&mut self, at: PageNr, frames: &[FrameNr]) -> Result<(), BackendError>;

    /// Unmaps `nr_pages` pages from `at` on, all of which are mapped, and appends their frames to
    /// `frames` in the order of the pages. Nothing that was submitted may still use them: the
    /// allocator has waited.
    fn unmap(
        &mut self,
        at: PageNr,
        nr_pages: u64,
        frames: &mut Vec<FrameNr>,
    ) -> Result<(), BackendError>;

    /// The point that `stream` has come to: after everything submitted to it so far. Called at
    /// each free, so it should cost no more than reading a counter.
    fn mark(&mut self, stream: StreamId) -> Mark;

    /// Whether everything before `mark` in `stream` has ended. True stays true.
    fn reached(&mut self, stream: StreamId, mark: Mark) -> bool;

    /// Lets what is submitted to `waiter` from now on begin only when `stream` has reached `mark`.
    /// The caller does not wait, unless the device's streams can't wait for one another.
    fn order(&mut self, waiter: StreamId, stream: StreamId, mark: Mark)
    -> Result<(), BackendError>;

    /// Returns when `stream` has reached `mark`.
    fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<(), BackendError>;
}

/// Why a back end could not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No adjoining addresses of this length are left.
    #[error("no {nr_pages} adjoining pages of addresses are left")]
    NoAddresses {
        /// How many pages were asked for.
        nr_pages: u64,
    },
    /// The device or its driver refused.
    #[error("the device failed with code {code}")]
    Device {
        /// Its own code.
        code: i32,
    },
}
