//! Work for one client, on a thread of its own: it may wait for pages that are on the move, and
//! the thread that answers everybody must not.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gmm_cpu::BlockedSignals;

use super::protocol::{Body, Command, Progress};
use super::work::{Course, Work};

/// Work under way. Dropped, it is waited for.
pub(super) struct Job {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pub(super) moves_pages: bool,
}

#[derive(Default)]
struct Shared {
    course: Course,
    answer: Mutex<Option<String>>,
}

impl Job {
    /// Begins; writes to `wake` when it is done.
    pub(super) fn start(
        work: &Arc<Work>,
        command: Command,
        wake: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let moves_pages = command.moves_pages();
        let (its, work, wake) = (Arc::clone(&shared), Arc::clone(work), Arc::clone(wake));
        let run = move || {
            let answer = catch_unwind(AssertUnwindSafe(|| work.run(&command, &its.course)));
            let answer = answer.unwrap_or_else(|_| Body::Error("a bug: it panicked".into()));
            *its.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.line());
            // It fails only if the count is near 2^64, and then it has been woken already.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        // The thread inherits that, so that no signal handler ever runs inside the manager.
        let _signals = BlockedSignals::new();
        let thread = std::thread::Builder::new().name("gmm-control-job".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread), moves_pages })
    }

    pub(super) fn progress(&self) -> Progress {
        self.shared.course.progress()
    }

    /// What to answer, once it is done.
    pub(super) fn take_answer(&self) -> Option<String> {
        self.shared.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Nobody wants the answer any more.
    pub(super) fn cancel(&self) {
        self.shared.course.cancel();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
