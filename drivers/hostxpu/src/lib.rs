//! The host XPU: an accelerator made of a process, with its own page table, faults and memory.
//!
//! It is the reference driver, and an accelerator that every machine has. It is no simulator: its
//! page table is walked by hardware, its faults are real, its memory is its own.
//!
//! | part | what it is | where |
//! |---|---|---|
//! | local memory | frames in a memory file | `memory` |
//! | copy engines | threads with streaming stores | `dma`, `link` |
//! | a context | a process, the *worker* | `context`, `spawn`, `worker` |
//! | its page table | mappings that the worker makes on command | `mmu`, `worker/commands` |
//! | its fault interrupt | a signal handler and a ring in shared memory | `ring`, `faults`, `worker/fault` |
//! | its end | a watcher that wakes everyone | `watcher`, `shared` |
//! | code | kernels in shared libraries, launched on streams | `module`, `stream`, `launch`, `worker/cores` |
//!
//! # Guarantees
//! - Every wait ends when the context does, and no worker, however it behaves, makes one last.
//! - When `pmap_clear` returns, no access through the old mapping can land: the worker has
//!   acknowledged it, or is gone.
//! - Threads that serve faults do not allocate, hold no lock while the manager is at work and
//!   block all signals.
//!
//! # Locks
//! Each of these is taken with no other held: command slot (held for one batch), launch slots,
//! copy queue, link, requests. A stream's lock is taken before the launch slots, and the turn to
//! hold pages before the command slot.

mod args;
mod config;
#[cfg(test)]
mod conformance;
mod context;
mod device;
mod divert;
mod dma;
#[cfg(test)]
mod ending;
mod error;
mod faults;
mod hold;
#[cfg(test)]
mod hostile;
mod launch;
mod link;
mod manager;
mod memory;
mod mmu;
mod module;
mod request;
mod ring;
mod shared;
mod spawn;
mod stream;
mod thread;
mod wait;
mod watcher;
mod wire;
mod worker;

pub use args::{KernelArg, KernelArgs, MAX_ARGS};
pub use config::{Backing, HostXpuConfig, MAX_CORES, MAX_DELAY, MIN_FRAMES, MIN_LINK_BANDWIDTH};
pub use context::{Context, ContextCounters};
pub use device::HostXpuDevice;
pub use error::{Death, Error, Result};
pub use launch::Launch;
pub use memory::{BackingKind, FrameBacking};
pub use module::{Kernel, Module};
pub use ring::Violation;
pub use stream::Stream;
pub use worker::main as worker_main;
