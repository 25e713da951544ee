//! `gmm replay`: what other allocators would have made of a program's allocations.
//!
//! A recording ([`gmm_trace`]) becomes a `program`, which a `player` plays on allocators
//! ([`gmm_alloc`]) over a device that only counts. `measure` does so as often as it takes,
//! `record` is what is known then. `story` puts together what the recording and the replays come
//! to (how requests failed: `recorded`; who held memory: `holders`; what would have fitted:
//! `advice`), `explain` has the words for it, `summary` says it in a terminal, `page` in a page;
//! `export` makes a recording of a replay. `execute` runs a program for real, on an XPU's memory, with
//! sizes `scaled` so that it fits.

mod advice;
mod allocators;
mod blocks;
mod execute;
mod executed;
mod explain;
mod export;
mod holders;
mod measure;
mod moment;
mod options;
mod page;
mod player;
mod program;
mod ranges;
mod record;
mod recorded;
mod remaps;
mod scaled;
mod session;
mod story;
mod summary;
mod timeline;
mod watched;

pub use options::Args;
pub use session::run;
