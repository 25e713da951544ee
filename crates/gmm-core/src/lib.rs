//! The core of GMM: one memory manager for CPUs and programmable accelerators (XPUs).
//!
//! A [`Space`] is the unified address space of one process. Its pages (2 MiB each) move between
//! *nodes*, memories with frames of their own, as the *processors* attached to the space fault on
//! them. The core decides; drivers act: memory belongs to a [`driver::Device`], a page table to a
//! [`driver::Mmu`]. The CPU is a processor like any other.
//!
//! # What is guaranteed
//!
//! 1. A page is writable on at most one node, and then mapped on no other.
//! 2. All copies of a shared page are equal.
//! 3. A frame is in exactly one place; an entry's frame points back at that entry.
//! 4. An operation that fails changes nothing that can be observed; its error says what, where
//!    and how much.
//! 5. Every wait is bounded. A dead XPU or a failed copy never hangs another.
//! 6. A frame was zeroed or overwritten before it is mapped for a page.
//!
//! [`Space::check`] verifies 1 to 3 on a quiet space; the tests do so after every scenario.
//!
//! # Lock order
//!
//! set-up → region table → entry → frame lists ([`sync::Rank`]); the table of processors is read
//! at any point and for a moment only. Entry locks never nest,
//! except by try-lock in reclaim. The order is checked in debug builds.
//!
//! # What this crate does not do
//!
//! It makes no system call, reads no clock (time comes from [`Clock`]), never dereferences
//! unified memory and has no unsafe code. The fault path does not allocate.
#![forbid(unsafe_code)]

mod addr;
mod advise;
mod attributes;
mod background;
mod batch;
mod bulk;
mod clock;
mod coherence;
mod config;
pub mod driver;
mod entry;
mod error;
mod fault;
mod histogram;
mod hold;
mod id;
mod inspect;
mod launder;
mod list;
mod lookahead;
mod memcpy;
mod node;
mod pins;
mod placement;
mod policy;
mod prefetch;
mod processor;
mod protect;
mod reclaim;
mod region;
mod remap;
mod residency;
mod snapshot;
mod space;
mod stats;
pub mod sync;
mod table;
mod thrashing;
mod trace;
mod transfer;
mod unmap;
mod whole;

pub use addr::{FrameNr, HostAddr, PAGE_SHIFT, PAGE_SIZE, PageNr, PageRange, VirtAddr};
pub use attributes::{Attribute, Attributes};
pub use background::Stop;
pub use batch::Batch;
pub use clock::Clock;
pub use config::Config;
pub use entry::{MAX_COPIES, PageState};
pub use error::{Error, OutOfMemory, Result};
pub use fault::Resolved;
pub use histogram::{Bucket, Histogram};
pub use hold::Hold;
pub use id::{Frame, MAX_NODES, MAX_PROCESSORS, NodeId, NodeSet, ProcessorId, ProcessorSet};
pub use inspect::{PageInfo, RegionUsage};
pub use memcpy::Memcpy;
pub use policy::{
    Arrival, Departure, Dip, EvictionPolicy, Fifo16, Lru, NextUse, Policy, UnknownPolicy,
};
pub use prefetch::{Prefetch, Prefetched, Stopped};
pub use processor::Processor;
pub use region::RegionInfo;
pub use remap::{Remap, RemapAnswer, RemapCause, RemapSubscriber, Subscription};
pub use residency::{CopyInfo, MovedBy, Run};
pub use snapshot::{FaultCounts, Moved, NodeStats, ProcessorStats, Snapshot};
pub use space::{Attached, Space};
pub use stats::{FaultOutcome, MoveCause};
pub use thrashing::ThrashingPage;
pub use trace::{Observer, TraceEvent};
