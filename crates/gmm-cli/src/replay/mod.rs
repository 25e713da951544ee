//! `gmm replay`: what other allocators would have made of a program's allocations.
//!
//! A recording ([`gmm_trace`]) becomes a [`program`], which a [`player`] plays on allocators
//! ([`gmm_alloc`]) over a device that only counts. [`measure`] does so as often as it takes,
//! [`record`] is what is known then, [`summary`] says it.

mod allocators;
mod blocks;
mod measure;
mod options;
mod player;
mod program;
mod ranges;
mod record;
mod remaps;
mod session;
mod summary;
mod timeline;
mod watched;

pub use options::Args;
pub use session::run;
