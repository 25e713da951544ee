//! Requests to the worker over the socket, one at a time: its answers come to the watcher.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::ring::Violation;
use crate::shared::Shared;
use crate::wire::{self, Message};
use crate::{Death, Error};

/// How long the worker may take to answer: it may have to load a large library.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Requests {
    /// Whoever holds this may ask.
    turn: Mutex<()>,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of the last request, and whether its answer is outstanding.
    id: u32,
    outstanding: bool,
    /// The answer: a number, or what went wrong.
    answer: Option<Result<u32, String>>,
}

impl Requests {
    /// The context is dead: who waits for an answer gets none.
    pub(crate) fn wake(&self) {
        drop(self.state.lock());
        self.answered.notify_all();
    }
}

impl Shared {
    /// Asks the worker. The inner result is its answer.
    pub(crate) fn ask(
        &self,
        kind: u32,
        what: &'static str,
        body: &[u8],
    ) -> Result<Result<u32, String>, Error> {
        let _turn = self.requests.turn.lock().unwrap_or_else(|e| e.into_inner());
        let mut state = self.requests.state.lock().unwrap_or_else(|e| e.into_inner());
        state.id = state.id.wrapping_add(1);
        state.answer = None;
        state.outstanding = true;
        if let Err(error) = wire::send(&self.process.socket, kind, state.id, body, &[]) {
            state.outstanding = false;
            // Of these the worker is gone, or does not listen any more.
            if error != rustix::io::Errno::PIPE && error != rustix::io::Errno::CONNRESET {
                return Err(Error::os("sendmsg")(error));
            }
            self.end_disconnected();
        }
        let end = Instant::now() + REQUEST_TIMEOUT;
        loop {
            if let Some(answer) = state.answer.take() {
                return Ok(answer);
            }
            if self.is_dead() {
                return Err(Error::ContextDead(self.death()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.doom(Death::NoAnswer { request: what, timeout: REQUEST_TIMEOUT });
                return Err(Error::NoAnswer { request: what, timeout: REQUEST_TIMEOUT });
            }
            let waited = self.requests.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// The watcher received an answer.
    pub(crate) fn take_answer(&self, message: &Message) -> Result<(), Violation> {
        let violation = Violation::Message { kind: message.kind, len: message.body.len() };
        let answer = match message.kind {
            wire::FOUND => Ok(message.number().ok_or(violation)?),
            _ => Err(message.text()),
        };
        let mut state = self.requests.state.lock().unwrap_or_else(|e| e.into_inner());
        if !state.outstanding || message.id != state.id {
            return Err(violation);
        }
        state.outstanding = false;
        state.answer = Some(answer);
        drop(state);
        self.requests.answered.notify_all();
        Ok(())
    }
}
