//! The array device: a host, a CPU and XPUs that are a few arrays, so that the whole manager runs
//! as an ordinary program, under shuttle, and with any driver call made to fail.
//!
//! # What it is
//!
//! A [`Machine`] holds the memories of all devices. An [`ArrayDevice`] is one device of it (the
//! host or an XPU), an [`ArrayContext`] one page table with the cores behind it. A frame is
//! [`FRAME_WORDS`] words that stand for 2 MiB: the word at offset `o` of a page is word
//! `o / 8 % FRAME_WORDS` of the frame that the page maps. For copies of parts, which name bytes,
//! the first half of the words are the first bytes of the page and the second half the last ones
//! ([`byte_offset`]); the bytes between do not exist.
//!
//! # What it guarantees
//!
//! It does exactly what the traits promise and not a bit more: a page that was entered on the CPU
//! (a device with `MOVABLE_FRAMES`) is gone from its slot; copies happen late or in two halves,
//! as [`Completion`] says; a copy that failed leaves rubbish behind. And it is *checked*: whatever
//! the core does that the traits don't allow is recorded as a [`Violation`].
//!
//! # Locks
//!
//! One lock for the whole machine, of rank [`Frames`](gmm_core::sync::Rank::Frames): a core that
//! calls a driver while it holds a frame list panics in debug builds.

mod access;
mod context;
mod device;
mod frame;
mod inject;
mod machine;
mod mappings;
mod options;
mod subject;
mod transfer;

pub use access::{AccessError, FaultServer};
pub use context::ArrayContext;
pub use device::ArrayDevice;
pub use frame::{FRAME_BYTES, FRAME_WORDS, byte_offset};
pub use inject::{Call, Failure, Trigger};
pub use machine::{Machine, Violation};
pub use options::{Completion, Defect, DeviceOptions};
pub use subject::ArraySubject;
