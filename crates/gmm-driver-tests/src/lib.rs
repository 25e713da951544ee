//! The conformance kit that every GMM driver passes, and the array device.
//!
//! * [`conformance`] checks a driver in one line of its tests; [`kit`] has the rules. How to write
//!   a driver is told in `PORTING.md`.
//! * [`mod@array`] is a whole machine made of arrays, on which the manager itself is tested.
#![forbid(unsafe_code)]

pub mod array;
mod clock;
pub mod kit;
mod world;

pub use clock::{TestClock, WallClock};
pub use kit::conformance;
pub use world::{TestProcessor, World, WorldBuilder, word};
