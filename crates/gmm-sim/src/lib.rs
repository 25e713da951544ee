//! What eviction policies are measured with: workloads, and the fewest pages that could have been
//! moved.
//!
//! A [`Workload`] is a sequence of pages that a processor uses, made from its parameters alone:
//! the same on every machine. [`optimum()`] says how many pages have to be moved at least to serve
//! it. The simulation itself is this crate's tests: the whole manager over array devices, in one
//! thread with a virtual clock (`tests/simulation`). The example `policies` prints the table and
//! draws the plot of `docs/policies.md`; a test holds the document to them.
#![forbid(unsafe_code)]

mod optimum;
mod random;
mod workload;

pub use optimum::optimum;
pub use random::Random;
pub use workload::{Pass, Workload};
