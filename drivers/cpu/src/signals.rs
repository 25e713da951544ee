//! Keeping an application's signal handlers off a thread that is inside the manager.
//!
//! A handler may touch unified memory. On a thread that holds one of the manager's locks, or serves
//! faults, that touch would wait for this very thread.

use std::mem::MaybeUninit;

/// Blocks all signals of this thread until dropped; threads started meanwhile inherit that.
#[derive(Debug)]
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks them.
    #[expect(clippy::new_without_default, reason = "made for its effect, not for its value")]
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call initializes `all`, the second `before`: it fails only for
        // an unknown first argument.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask that this thread had.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
