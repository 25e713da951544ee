//! Points in a stream: which of its launches have completed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gmm_alloc::Mark;
use gmm_hostxpu::Launch;

/// A stream, and those of its launches that something is freed behind.
pub(super) struct Queue {
    stream: Arc<gmm_hostxpu::Stream>,
    /// In the order of the stream, which is that of the marks.
    pending: VecDeque<(Mark, Launch)>,
    /// The last mark that was given to a launch,
    last: Mark,
    /// and the last of a launch that has completed.
    completed: Mark,
}

/// Whether nothing of the launch runs any more. It does not if it has failed: its context is dead.
fn has_ended(launch: &Launch) -> bool {
    launch.wait_timeout(Duration::ZERO).unwrap_or(true)
}

impl Queue {
    pub(super) fn new(stream: Arc<gmm_hostxpu::Stream>) -> Self {
        Self { stream, pending: VecDeque::new(), last: Mark(0), completed: Mark(0) }
    }

    /// The point after all that was launched so far.
    pub(super) fn mark(&mut self) -> Mark {
        let last = self.stream.last().filter(|last| !has_ended(last));
        let Some(last) = last else {
            self.pending.clear();
            self.completed = self.last;
            return self.last;
        };
        if !self.pending.back().is_some_and(|(_, marked)| marked.is(&last)) {
            self.last.0 += 1;
            self.pending.push_back((self.last, last));
        }
        self.last
    }

    pub(super) fn reached(&mut self, mark: Mark) -> bool {
        while mark > self.completed
            && let Some((first, launch)) = self.pending.front()
            && has_ended(launch)
        {
            self.completed = *first;
            self.pending.pop_front();
        }
        mark <= self.completed
    }

    pub(super) fn wait(&mut self, mark: Mark) {
        while !self.reached(mark)
            && let Some((_, launch)) = self.pending.front()
        {
            // A launch that has failed has ended.
            let _ = launch.wait();
        }
    }

    /// Waits for all that was launched.
    pub(super) fn drain(&mut self) {
        let mark = self.mark();
        self.wait(mark);
    }

    /// Whether the program has dropped the stream, and nothing of it runs.
    pub(super) fn is_over(&mut self) -> bool {
        Arc::strong_count(&self.stream) == 1 && {
            let mark = self.mark();
            self.reached(mark)
        }
    }
}
