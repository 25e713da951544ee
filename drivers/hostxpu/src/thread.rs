//! Threads that serve faults: signals are blocked in them (a handler that touched unified memory
//! there would wait for itself), and a panic ends the process (the fault it was about to serve
//! would hang).

use std::thread::JoinHandle;

use gmm_os::BlockedSignals;

use crate::Error;

/// Starts such a thread.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let blocked = BlockedSignals::new();
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
