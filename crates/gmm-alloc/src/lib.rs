//! Allocators over accelerator memory, all with one stream-ordered interface ([`Allocator`]) and
//! over one back end trait ([`Backend`]): the pure one that counts frames for a replay
//! ([`PureBackend`]), or a device.
//!
//! | name | what it is |
//! |---|---|
//! | `stitching` | [`Stitching`]: assembles free frames, from anywhere, under ranges of addresses: ours |
//! | `pytorch` | [`Caching`]: PyTorch's published policy, with its settings ([`CachingConfig`]) |
//! | `pytorch-expandable` | [`Caching::expandable`]: the same with expandable segments |
//! | `best-fit` | [`Heap::best_fit`]: segments cut to measure, the smallest hole that fits, coalescing |
//! | `bfc` | [`Heap::bfc`]: best fit with coalescing as TensorFlow's documentation describes it |
//! | `jemalloc` | `Jemalloc` (with the feature of this name): jemalloc itself, its extents on our frames |
//!
//! [`smallest_capacity`] finds the smallest device on which something runs.
// jemalloc is C: one module speaks to it.
#![cfg_attr(not(feature = "jemalloc"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod allocator;
mod backend;
mod block;
mod caching;
mod capacity;
mod error;
mod fences;
mod heap;
#[cfg(feature = "jemalloc")]
mod jemalloc;
mod memory;
mod pending;
mod pieces;
mod pure;
mod stats;
mod stitching;

pub use allocator::{Allocation, Allocator, BlockId, StreamId};
pub use backend::{Backend, BackendError, Mark};
pub use caching::{Caching, CachingConfig, ConfigError, Divisions};
pub use capacity::smallest_capacity;
pub use error::{Action, Cause, Error, OutOfMemory, Result};
pub use heap::Heap;
#[cfg(feature = "jemalloc")]
pub use jemalloc::Jemalloc;
pub use pure::PureBackend;
pub use stats::Stats;
pub use stitching::Stitching;
