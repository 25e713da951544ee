//! The interface that all allocators share.

use core::fmt;

use gmm_core::VirtAddr;

use crate::{Result, Stats};

/// A stream: a queue of work on the device, which runs in order. Work of different streams runs in
/// no order but that which [`Backend::order`](crate::Backend::order) makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A live allocation. The number of a freed one is never given again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(u64);

impl BlockId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// Where it is kept, and which user of that place it is.
    pub(crate) fn parts(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, generation) = self.parts();
        write!(f, "{index}.{generation}")
    }
}

/// What [`Allocator::allocate`] hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// What it is freed by.
    pub block: BlockId,
    /// Its first byte; a multiple of 256 at least.
    pub addr: VirtAddr,
    /// How many bytes from there on are the caller's: what was asked for, rounded up.
    pub usable_bytes: u64,
}

/// An allocator of device memory, whose calls are ordered by streams: memory that is freed on a
/// stream may be handed out again at once, and what uses it next runs after what used it last.
///
/// The device's work on an allocation must be submitted after [`Allocator::allocate`] returned and
/// before [`Allocator::free`] is called. Work on a stream other than the allocation's own is made
/// known by [`Allocator::record_use`]; that it runs after what filled the memory is the caller's
/// affair, as it is with any memory.
pub trait Allocator {
    /// What it is called in reports and on command lines, such as `best-fit`.
    fn name(&self) -> &'static str;

    /// Memory for work that is submitted to `stream` from now on. A request for 0 bytes gets the
    /// smallest unit.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) says whether memory is exhausted or
    /// fragmented; [`Error::Backend`](crate::Error::Backend) that the device failed. Nothing was
    /// handed out then.
    fn allocate(&mut self, size_bytes: u64, stream: StreamId) -> Result<Allocation>;

    /// Says that work of `stream` uses `block`: its memory is not used again before all that
    /// `stream` has been given when it is freed has run.
    ///
    /// # Errors
    ///
    /// [`Error::NotLive`](crate::Error::NotLive).
    fn record_use(&mut self, block: BlockId, stream: StreamId) -> Result<()>;

    /// Frees `block` at the point that `stream` has come to. `stream` is the allocation's own, or
    /// one whose work used it last; nothing that is submitted later may use it.
    ///
    /// # Errors
    ///
    /// [`Error::NotLive`](crate::Error::NotLive): it was freed before.
    fn free(&mut self, block: BlockId, stream: StreamId) -> Result<()>;

    /// Gives back to the device all memory that nothing lives in, waiting for work that may still
    /// use it. Returns how many bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Backend`](crate::Error::Backend): the device failed. What was given back by then
    /// is gone, the rest is kept; nobody's memory has changed.
    fn trim(&mut self) -> Result<u64>;

    /// What is and was in use.
    fn stats(&self) -> Stats;
}
