//! What drivers need from the processor and the operating system alike, once.
//!
//! Copies that go around the cache ([`copy`]), threads that no signal handler runs on
//! ([`BlockedSignals`]), handles that a forked child leaves alone ([`Creator`]).

pub mod copy;
mod creator;
mod signals;

pub use creator::Creator;
pub use signals::{BlockedSignals, unblock};
