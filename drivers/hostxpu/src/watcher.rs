//! The watcher: one thread a context, which receives the worker's messages and sees to it that
//! its end, whenever and however it comes, is noticed by everyone at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::Death;
use crate::manager::Manager;
use crate::ring::Violation;
use crate::shared::Shared;
use crate::spawn::Ended;
use crate::wire;

/// How long a worker that ends may take from the end of its socket to its own.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);

impl Shared {
    /// The body of the watcher's thread: returns when the context is dead and detached.
    pub(crate) fn watch(&self, manager: impl FnOnce() -> Option<std::sync::Arc<dyn Manager>>) {
        let mut connected = true;
        loop {
            let pidfd = PollFd::from_borrowed_fd(self.process.pidfd.as_fd(), PollFlags::IN);
            let socket = PollFd::from_borrowed_fd(self.process.socket.as_fd(), PollFlags::IN);
            let mut fds = [pidfd, socket];
            let watched = if connected { &mut fds[..] } else { &mut fds[..1] };
            if rustix::event::poll(watched, None).is_err() {
                continue;
            }
            if !fds[0].revents().is_empty() {
                break;
            }
            if connected && !fds[1].revents().is_empty() {
                connected = self.receive();
                if !connected {
                    // From now on no completion would be heard of, nor any answer.
                    self.end_disconnected();
                }
            }
        }
        self.note_end(self.cause_of_end());
        self.bury();
        if let Some(manager) = manager() {
            manager.detach();
        }
    }

    /// Receives one message; whether more may come.
    fn receive(&self) -> bool {
        let message = match wire::receive(&self.process.socket) {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return false,
        };
        let taken = match message.kind {
            wire::FOUND | wire::FAILED => self.take_answer(&message),
            wire::COMPLETED => self.launches.reap(&self.ring),
            kind => Err(Violation::Message { kind, len: message.body.len() }),
        };
        if let Err(violation) = taken {
            self.doom_for(violation);
        }
        true
    }

    /// The socket is closed. So it is when the worker ends; one that lives on has to end.
    pub(crate) fn end_disconnected(&self) {
        if !self.process.is_gone(Instant::now() + HANG_UP_TIMEOUT) {
            self.doom(Death::Disconnected);
        }
    }

    fn cause_of_end(&self) -> Death {
        match self.process.wait_end(Instant::now() + Duration::from_secs(5)) {
            Some(Ended::Signal(signal)) => Death::Killed { signal },
            Some(Ended::Status(status)) => {
                Death::Exited { status, meaning: wire::exit_meaning(status) }
            }
            Some(Ended::Unknown) | None => Death::Vanished,
        }
    }
}
