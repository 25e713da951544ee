//! Recordings of what programs allocated on accelerators, as others' allocators wrote them down:
//! readers, one model for all of them, and writers.
//!
//! | format | recognised by | what it tells |
//! |---|---|---|
//! | PyTorch memory snapshot | pickle of protocol 2 to 5 | several devices, streams, segments, stack frames, settings |
//! | RMM allocation log | its header line | one device, streams, failures |
//! | event list | a first line `a ...`, `f ...` or `u ...` | one device, streams |
//! | interval table | a header with `id`, `lower`, `upper`, `size` | lifetimes only |
//!
//! Each may be compressed with gzip. [`read`] looks at the contents, not at the name.
//!
//! What is read was written by strangers. It is data only: what would run code is refused by
//! name. Nothing in a file makes a reader panic, recurse, or take more memory than
//! [`MEMORY_PER_BYTE`] bytes for each byte of the file (as it is uncompressed) plus
//! [`MEMORY_AT_LEAST`]; a compressed file may not grow by more than [`MAX_EXPANSION`]. Errors name
//! the byte at which a file stops making sense.
//!
//! ```
//! let list = "a 1 4096 0\na 2 512 0\nf 1\n";
//! let trace = gmm_trace::read(list.as_bytes(), &mut |_bytes| {})?;
//! let recording = &trace.recordings[0];
//! assert_eq!(recording.peak_live_bytes(), 4608);
//! # Ok::<(), gmm_trace::Error>(())
//! ```

#![forbid(unsafe_code)]

mod builder;
mod chunked;
mod csv;
mod error;
mod event_list;
mod intervals;
mod lines;
mod pickle;
mod read;
mod recording;
mod rmm;
mod settings;
mod sites;
mod snapshot;
mod source;
mod write;

pub use builder::{MAX_DEVICES, MAX_SIZE_BYTES, RecordingBuilder, Stamp};
pub use error::{Error, Expected};
pub use read::{Format, MEMORY_AT_LEAST, MEMORY_PER_BYTE, Trace, read, read_file};
pub use recording::{
    Block, BlockId, BlockState, Event, Gaps, OutOfMemory, Recording, Segment, SegmentBlock,
    SegmentChange, SegmentKind, StreamUse,
};
pub use settings::AllocatorSettings;
pub use sites::{Frame, SiteId, Sites};
pub use source::MAX_EXPANSION;
pub use write::{write_event_list, write_snapshot};
