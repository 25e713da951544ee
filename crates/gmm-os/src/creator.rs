//! Who made a handle: a forked child holds copies of its parent's handles, whose addresses mean
//! nothing in it (the mappings are `MADV_DONTFORK`) and whose threads don't exist in it.

use rustix::process::{Pid, getpid};

/// The process that made something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Creator(Pid);

impl Creator {
    /// This process.
    pub fn this_process() -> Self {
        Self(getpid())
    }

    /// Whether this process made it. A child's drops do nothing.
    pub fn is_this_process(self) -> bool {
        self.0 == getpid()
    }

    /// The process.
    pub fn pid(self) -> Pid {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let creator = Creator::this_process();
        assert!(creator.is_this_process());
        // SAFETY: the child compares two numbers and leaves.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(creator.is_this_process()));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
