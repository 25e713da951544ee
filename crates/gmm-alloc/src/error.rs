//! What can go wrong, with the numbers that a person needs to act on it.

use crate::{BackendError, BlockId, StreamId};

/// The result of most operations.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory for a request is not there.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A block that was freed before, or never was.
    #[error("block {block} is not live: it was freed before, or belongs to another allocator")]
    NotLive {
        /// Its number.
        block: BlockId,
    },
    /// The back end failed.
    #[error("to {action}")]
    Backend {
        /// What it was asked for, such as `map 3 frames at page 17`.
        action: Action,
        /// Why it did not do it.
        source: BackendError,
    },
}

/// What a back end was asked for when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Action {
    /// [`Backend::reserve`](crate::Backend::reserve).
    #[error("reserve {0} pages of addresses")]
    Reserve(u64),
    /// [`Backend::import`](crate::Backend::import).
    #[error("import {0} frames")]
    Import(u64),
    /// [`Backend::release`](crate::Backend::release).
    #[error("release {0} frames")]
    Release(u64),
    /// [`Backend::map`](crate::Backend::map).
    #[error("map {nr_pages} frames at page {at:#x}")]
    Map {
        /// The first page.
        at: u64,
        /// How many.
        nr_pages: u64,
    },
    /// [`Backend::unmap`](crate::Backend::unmap).
    #[error("unmap {nr_pages} frames at page {at:#x}")]
    Unmap {
        /// The first page.
        at: u64,
        /// How many.
        nr_pages: u64,
    },
    /// [`Backend::order`](crate::Backend::order).
    #[error("let {waiter} wait for {stream}")]
    Order {
        /// The stream that is to wait.
        waiter: StreamId,
        /// The stream waited for.
        stream: StreamId,
    },
    /// [`Backend::wait`](crate::Backend::wait).
    #[error("wait for {0}")]
    Wait(StreamId),
}

/// A request that did not fit, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "out of memory: {requested_bytes} bytes on {stream} do not fit: {cause} \
     ({free_bytes} of {capacity_bytes} bytes are free, the largest hole has \
     {largest_hole_bytes}; {live_bytes} bytes are live in {reserved_bytes} reserved)"
)]
pub struct OutOfMemory {
    /// What was asked for.
    pub requested_bytes: u64,
    /// By which stream.
    pub stream: StreamId,
    /// Why it does not fit.
    pub cause: Cause,
    /// All that the device can give.
    pub capacity_bytes: u64,
    /// What the allocator has of it.
    pub reserved_bytes: u64,
    /// What was asked for by the allocations that are live.
    pub live_bytes: u64,
    /// What is neither in use nor lost by rounding requests up.
    pub free_bytes: u64,
    /// The largest free range that could be had in one piece, by some request.
    pub largest_hole_bytes: u64,
}

/// Why a request does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Cause {
    /// Less is free, in all places together, than was asked for. Only smaller tensors or a larger
    /// device help.
    #[error("memory is exhausted")]
    Exhausted,
    /// Enough is free, but scattered, or kept for requests of another size or stream.
    #[error("memory is fragmented")]
    Fragmented,
}
