//! One memory for CPUs and accelerators (XPUs): allocate once, get **one pointer that is valid on
//! every processor**. Whoever touches a page faults it in; the page moves; nobody reads stale
//! data; XPU memory can be oversubscribed. Linux, user space, no kernel patch.
//!
//! ```no_run
#![doc = include_str!("../examples/readme.rs")]
//! ```
//!
//! [`Gmm`] is the entry point: [`Gmm::mmap`] gives a [`Unified`] buffer, [`Gmm::xpu`] an [`Xpu`]
//! to launch kernels on with the same pointers. Underneath, [`Gmm::mmap_raw`], [`Gmm::munmap`],
//! [`Gmm::mprotect`] and [`Gmm::gmadvise`] work on addresses, as system calls do, and are as
//! unsafe.
//!
//! # What to know
//!
//! - Pages are 2 MiB; a buffer occupies whole pages, which are made on first touch, read as zero,
//!   and live on the node of whoever touches them.
//! - The CPU and an XPU may use one page in turn; using it at once is correct and slow (the page
//!   moves back and forth). Two processors that write one location at once race, as two threads
//!   do.
//! - An application's own `madvise(MADV_DONTNEED)` drops what the CPU maps at that moment, and only
//!   that: a page that lies on an XPU, or waits in host memory, keeps its contents. Use
//!   [`Unified::discard`] or [`Gmm::gmadvise`].
//! - A page that could not be served (out of memory, say) raises SIGBUS on the CPU, and goes on
//!   doing so until an XPU's access, `WillNeed`, `DontNeed` or `Unpin` on it succeeds.
//! - To see what happens: [`Gmm::report`] for people, [`Gmm::snapshot`] and [`metrics`] for
//!   programs (JSON, Prometheus), [`Gmm::residency`] for where pages are, and [`Gmm::trace_to`] (or
//!   the environment variable `GMM_TRACE=FILE`) for a trace that Perfetto opens;
//!   [`Gmm::record_allocations`] for what was allocated, which `gmm replay` replays.
//! - After `fork` the child has no unified memory; handles dropped there do nothing.
//! - The program's global allocator must not place its own heap in unified memory.
#![deny(unsafe_op_in_unsafe_fn)]

mod advice;
pub mod alloc;
mod background;
mod buffer;
mod builder;
mod bulk;
pub mod control;
mod error;
mod hints;
mod manager;
pub mod metrics;
mod recording;
mod report;
mod size;
mod trace;
mod workers;
mod xpu;

pub use advice::Advice;
pub use buffer::Unified;
pub use builder::Builder;
pub use bulk::Prefetching;
pub use error::{Error, Result};
pub use gmm_core::driver::{Access, Protection};
pub use gmm_core::{
    Attributes, Bucket, CopyInfo, EvictionPolicy, FaultCounts, FaultOutcome, Histogram, MoveCause,
    Moved, MovedBy, NodeId, NodeStats, OutOfMemory, PAGE_SIZE, PageInfo, PageRange, PageState,
    Prefetched, ProcessorId, ProcessorSet, ProcessorStats, RegionInfo, RegionUsage, Remap,
    RemapAnswer, RemapCause, RemapSubscriber, Run, Snapshot, Stopped, VirtAddr,
};
pub use gmm_cpu::probe;
pub use gmm_hostxpu::{self as hostxpu, KernelArgs};
pub use hints::Subscription;
pub use manager::{Gmm, MapFlags};
pub use recording::RecordingGuard;
pub use report::Report;
pub use size::{GIB, KIB, MIB, display_bytes};
pub use trace::{TraceGuard, TraceSummary};
pub use xpu::{Held, HostXpu, Kernel, Launch, Module, Stream, Xpu};
/// What a buffer may hold: its elements are valid when all their bytes are zero.
pub use zerocopy::FromZeros;
