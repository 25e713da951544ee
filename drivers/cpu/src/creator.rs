//! Who made a handle: a forked child holds copies of its parent's handles, whose addresses mean
//! nothing in it (the mappings are `MADV_DONTFORK`) and whose threads don't exist in it.

use rustix::process::{Pid, getpid};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creator(Pid);

impl Creator {
    /// This process.
    pub(crate) fn this_process() -> Self {
        Self(getpid())
    }

    /// Whether this process made it. A child's drops do nothing.
    pub(crate) fn is_this_process(self) -> bool {
        self.0 == getpid()
    }
}
