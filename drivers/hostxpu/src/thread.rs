//! Threads that serve faults: signals are blocked in them (a handler that touched unified memory
//! there would wait for itself), and a panic ends the process (the fault it was about to serve
//! would hang).

use std::thread::JoinHandle;

use crate::Error;

/// Starts such a thread.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let blocked = BlockSignals::new();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let abort = AbortOnDrop;
        body();
        core::mem::forget(abort);
    });
    drop(blocked);
    thread.map_err(|e| Error::Os { call: "clone", errno: e.raw_os_error().unwrap_or(0) })
}

struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Blocks all signals in this thread (a thread it starts inherits that) until dropped.
pub(crate) struct BlockSignals(libc::sigset_t);

impl BlockSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: plain calls with valid pointers; a zeroed sigset is a valid value to overwrite.
        unsafe {
            let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Self(before)
        }
    }
}

impl Drop for BlockSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
    }
}

/// Lets every signal through to this thread (a thread it starts inherits that).
pub(crate) fn unblock_signals() {
    // SAFETY: plain calls with valid pointers; a zeroed sigset is a valid value to overwrite.
    unsafe {
        let mut none = core::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, core::ptr::null_mut());
    }
}
