//! The threads that keep XPU frames free.

use std::sync::Arc;
use std::thread::JoinHandle;

use gmm_core::{NodeId, Space, Stop};
use gmm_cpu::BlockedSignals;

use crate::{Error, Result};

/// One thread for each XPU node, which sleeps while nothing happens. Dropping it ends them.
pub(crate) struct Background {
    space: Arc<Space>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    owner: u32,
}

impl Background {
    pub(crate) fn start(space: &Arc<Space>, nodes: impl Iterator<Item = NodeId>) -> Result<Self> {
        let stop = Arc::new(Stop::new());
        let owner = std::process::id();
        let mut background = Self { space: Arc::clone(space), stop, threads: Vec::new(), owner };
        // A thread inherits the mask: a signal handler that touched unified memory there would
        // wait for a lock that its own thread holds.
        let _blocked = BlockedSignals::new();
        for node in nodes {
            let (space, stop) = (Arc::clone(space), Arc::clone(&background.stop));
            let thread = std::thread::Builder::new()
                .name(format!("gmm-reclaim-{node}"))
                .spawn(move || run(&space, node, &stop))
                .map_err(|cause| Error::Thread { doing: "reclaim in the background", cause })?;
            background.threads.push(thread);
        }
        Ok(background)
    }
}

/// A panic would leave pages locked for ever, or half moved.
fn run(space: &Space, node: NodeId, stop: &Stop) {
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let abort = Abort;
    let known = space.reclaim_in_background(node, stop);
    debug_assert!(known.is_ok(), "{known:?}");
    core::mem::forget(abort);
}

impl Drop for Background {
    fn drop(&mut self) {
        // A forked child has no such threads.
        if self.owner != std::process::id() {
            self.threads.drain(..).for_each(core::mem::forget);
            return;
        }
        self.space.stop_background(&self.stop);
        for thread in self.threads.drain(..) {
            // A panic of one has aborted the process.
            let _ = thread.join();
        }
    }
}
