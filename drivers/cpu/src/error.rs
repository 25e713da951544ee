//! What can go wrong while the CPU side is set up, and what to do about it.

use std::io;

use gmm_core::PageRange;

/// Why the CPU side could not be set up. Each message names the call that failed and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// No way to get a userfaultfd was allowed.
    #[error(
        "no access to userfaultfd: /dev/userfaultfd says \"{device}\", the system call says \
         \"{syscall}\", for user-mode faults only it says \"{user_mode}\"; give this user access \
         to /dev/userfaultfd, or (as root) set vm.unprivileged_userfaultfd=1; a container's \
         seccomp profile must allow userfaultfd"
    )]
    NoUserfaultfd {
        /// Opening `/dev/userfaultfd` and asking it for one.
        device: io::Error,
        /// The system call, for all faults.
        syscall: io::Error,
        /// The system call, for user-mode faults only.
        user_mode: io::Error,
    },
    /// The kernel's userfaultfd lacks something.
    #[error("this kernel's userfaultfd lacks {feature}; Linux 6.8 or later is needed")]
    MissingFeature {
        /// The name of the feature bit.
        feature: &'static str,
    },
    /// Something else lies where the window should be.
    #[error("the addresses {window} are in use; choose another window")]
    WindowInUse {
        /// The range that was tried.
        window: PageRange,
    },
    /// No window was given and all default places are taken.
    #[error("all {places} default places for the window are in use, the last of them {last}")]
    NoWindow {
        /// How many places were tried.
        places: u32,
        /// The last of them.
        last: PageRange,
    },
    /// A window with no page, or beyond the end of the address space.
    #[error("{window} is no range of addresses that a window could have")]
    BadWindow {
        /// The range given.
        window: PageRange,
    },
    /// A pool of no frame.
    #[error("a pool of 0 frames can hold nothing; give host memory at least one frame")]
    EmptyPool,
    /// A system call failed.
    #[error("{call} failed while {doing}: {cause}; {remedy}")]
    Os {
        /// The system call or ioctl.
        call: &'static str,
        /// What it was for.
        doing: &'static str,
        /// What the kernel said.
        cause: io::Error,
        /// What may help.
        remedy: &'static str,
    },
}
