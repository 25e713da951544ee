//! What the command `gmm` does, as a library, so that tests can reach it.

pub mod bench;
pub mod demo;
mod page;
pub mod process;
pub mod replay;
