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

/// Lets every signal through to this thread, and to threads that it starts.
pub fn unblock() {
    let mut none = MaybeUninit::uninit();
    // SAFETY: the first call initializes `none`.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: the call initializes `now`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn signals_are_blocked_for_as_long_as_it_lives_and_unblocked_when_told() {
        assert!(!is_blocked(libc::SIGUSR1));
        let blocked = BlockedSignals::new();
        assert!(is_blocked(libc::SIGUSR1) && is_blocked(libc::SIGTERM));
        std::thread::spawn(|| {
            assert!(is_blocked(libc::SIGUSR1), "inherited");
            unblock();
            assert!(!is_blocked(libc::SIGUSR1));
        })
        .join()
        .unwrap();
        assert!(is_blocked(libc::SIGUSR1));
        drop(blocked);
        assert!(!is_blocked(libc::SIGUSR1));
    }
}
