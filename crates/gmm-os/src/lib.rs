//! What drivers need from the processor and the operating system alike, once.
//!
//! Copies that go around the cache ([`copy`]), threads that no signal handler runs on
//! ([`BlockedSignals`]), handles that a forked child leaves alone ([`Creator`]), looking for
//! something for as long as it is worth before going to sleep ([`Waits`]).

pub mod copy;
mod creator;
mod signals;
mod waits;

pub use creator::Creator;
pub use signals::{BlockedSignals, unblock};
pub use waits::Waits;
