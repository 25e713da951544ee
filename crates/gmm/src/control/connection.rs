//! One client, as the server sees it. At any time at most one request of it is being served, and
//! only once that answer is on its way is the next one read: what a client can make the server
//! hold is one request, one reply, one thread.

use std::mem;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::job::Job;
use super::protocol::{Body, Command, MAX_REQUEST_BYTES, Request};

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until a request is whole.
    pub(super) idle: Duration,
    /// Until it reads some of its reply.
    pub(super) stall: Duration,
    /// How often it is told how far a move of pages is.
    pub(super) progress: Duration,
}

pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    patience: Patience,
    input: Vec<u8>,
    output: Vec<u8>,
    nr_sent: usize,
    job: Option<Job>,
    /// No more is read: it is let go when the output has been sent.
    closing: bool,
    /// When it last got further: a byte that it read, an answer that was made.
    since: Instant,
    told_progress: Instant,
}

/// What became of a client.
pub(super) enum Step {
    /// Nothing to do but wait.
    Wait,
    /// It asks for something: answer with [`Connection::answer`] or [`Connection::begin`].
    Asks(Command),
    /// It is done with, or has gone.
    Gone,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, patience: Patience, now: Instant) -> Self {
        Self {
            socket,
            patience,
            input: Vec::new(),
            output: Vec::new(),
            nr_sent: 0,
            job: None,
            closing: false,
            since: now,
            told_progress: now,
        }
    }

    /// What to wait for. That it hangs up is always told.
    pub(super) fn interest(&self) -> PollFlags {
        match (self.has_output(), &self.job) {
            (true, _) => PollFlags::OUT,
            (false, Some(_)) => PollFlags::empty(),
            (false, None) => PollFlags::IN,
        }
    }

    /// When to look again at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.has_output(), &self.job) {
            (true, _) => Some(self.since + self.patience.stall),
            (false, Some(job)) => {
                job.moves_pages.then_some(self.told_progress + self.patience.progress)
            }
            (false, None) => Some(self.since + self.patience.idle),
        }
    }

    /// Whether it could be let go for another: since when it has kept the server waiting.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        self.job.is_none().then_some(self.since)
    }

    /// Does what can be done without waiting.
    pub(super) fn step(&mut self, ready: PollFlags, now: Instant) -> Step {
        if ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Step::Gone;
        }
        if let Some(answer) = self.job.as_ref().and_then(Job::take_answer) {
            self.job = None;
            self.output.extend_from_slice(answer.as_bytes());
            self.since = now;
        }
        self.tell_progress(now);
        if !self.flush(now) {
            return Step::Gone;
        }
        if self.has_output() || self.job.is_some() {
            let stalled = self.has_output() && now >= self.since + self.patience.stall;
            return if stalled { Step::Gone } else { Step::Wait };
        }
        if self.closing {
            return Step::Gone;
        }
        self.read(ready, now)
    }

    /// Reads, if it may; a request that is whole is taken out of the input.
    fn read(&mut self, ready: PollFlags, now: Instant) -> Step {
        if ready.contains(PollFlags::IN) {
            let mut buffer = [0; MAX_REQUEST_BYTES];
            let room = MAX_REQUEST_BYTES - self.input.len();
            match rustix::io::read(&self.socket, &mut buffer[..room]) {
                Ok(0) => return Step::Gone,
                Ok(nr) => self.input.extend_from_slice(&buffer[..nr]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Step::Gone,
            }
        }
        if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let rest = self.input.split_off(end + 1);
            let line = mem::replace(&mut self.input, rest);
            return match Request::parse(&line) {
                Ok(command) => Step::Asks(command),
                Err(reason) => self.refuse(reason, now),
            };
        }
        if self.input.len() == MAX_REQUEST_BYTES {
            let reason = format!("a request has at most {MAX_REQUEST_BYTES} bytes");
            return self.refuse(reason, now);
        }
        if now >= self.since + self.patience.idle { Step::Gone } else { Step::Wait }
    }

    /// Answers a client that does not keep to the protocol, for the last time.
    pub(super) fn refuse(&mut self, reason: String, now: Instant) -> Step {
        self.closing = true;
        self.answer(Body::Error(reason), now)
    }

    pub(super) fn answer(&mut self, body: Body, now: Instant) -> Step {
        self.output.extend_from_slice(body.line().as_bytes());
        self.since = now;
        match self.flush(now) {
            true if self.closing && !self.has_output() => Step::Gone,
            true => Step::Wait,
            false => Step::Gone,
        }
    }

    pub(super) fn begin(&mut self, job: Job, now: Instant) {
        self.job = Some(job);
        self.since = now;
        self.told_progress = now;
    }

    pub(super) fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// Its work, if it goes before that is done.
    pub(super) fn into_job(self) -> Option<Job> {
        self.job
    }

    /// Whether a request waits in the input already.
    pub(super) fn has_request(&self) -> bool {
        self.job.is_none() && !self.has_output() && self.input.contains(&b'\n')
    }

    fn tell_progress(&mut self, now: Instant) {
        let Some(job) = self.job.as_ref().filter(|job| job.moves_pages) else { return };
        // A client that does not read is told no more until it does.
        if !self.has_output() && now >= self.told_progress + self.patience.progress {
            let line = Body::Progress(job.progress()).line();
            self.output.extend_from_slice(line.as_bytes());
            self.told_progress = now;
            self.since = now;
        }
    }

    fn has_output(&self) -> bool {
        self.nr_sent < self.output.len()
    }

    /// Sends what the client takes; says whether it is still there.
    fn flush(&mut self, now: Instant) -> bool {
        while self.has_output() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.output[self.nr_sent..], flags) {
                Ok(nr) => {
                    self.nr_sent += nr;
                    self.since = now;
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        // Its memory is given back: a reply can be large.
        (self.output, self.nr_sent) = (Vec::new(), 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::protocol::StatFormat;
    use super::*;

    const PATIENCE: Patience = Patience {
        idle: Duration::from_secs(30),
        stall: Duration::from_secs(10),
        progress: Duration::from_secs(1),
    };

    struct Pair {
        client: UnixStream,
        connection: Connection,
        start: Instant,
    }

    fn pair() -> Pair {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let start = Instant::now();
        Pair { client, connection: Connection::new(server.into(), PATIENCE, start), start }
    }

    impl Pair {
        /// What becomes of what is there, so many seconds after the start.
        fn step(&mut self, at_s: u64) -> Step {
            let ready = self.connection.interest();
            self.connection.step(ready, self.start + Duration::from_secs(at_s))
        }
    }

    #[test]
    fn a_request_in_pieces_is_taken_when_it_is_whole() {
        let mut pair = pair();
        pair.client.write_all(b"{\"gmm\":1,\"comm").unwrap();
        assert!(matches!(pair.step(0), Step::Wait));
        pair.client.write_all(b"and\":\"hello\"}\n{\"gmm\":1,\"command\":\"stat\"}\n{").unwrap();
        assert!(matches!(pair.step(29), Step::Asks(Command::Hello)));
        assert!(pair.connection.has_request(), "the next one waits");
        let now = pair.start + Duration::from_secs(29);
        assert!(matches!(pair.connection.answer(Body::Result(1.into()), now), Step::Wait));
        let stat = Command::Stat { format: StatFormat::Json };
        assert!(matches!(pair.step(30), Step::Asks(command) if command == stat));
        assert!(!pair.connection.has_request());
    }

    #[test]
    fn who_never_ends_a_request_is_let_go_however_slowly_it_goes_on() {
        let mut pair = pair();
        for second in 0..30 {
            pair.client.write_all(b"x").unwrap();
            assert!(matches!(pair.step(second), Step::Wait), "second {second}");
        }
        pair.client.write_all(b"x").unwrap();
        assert!(matches!(pair.step(30), Step::Gone));
    }

    #[test]
    fn too_long_a_request_is_refused_and_not_kept() {
        let mut pair = pair();
        pair.client.write_all(&[b'x'; 3 * MAX_REQUEST_BYTES]).unwrap();
        assert!(matches!(pair.step(0), Step::Gone), "after the answer was sent");
        assert!(pair.connection.input.len() <= MAX_REQUEST_BYTES);
        drop(pair.connection);
        let mut said = String::new();
        let _ = pair.client.read_to_string(&mut said);
        assert!(said.contains("4096 bytes"), "{said}");
    }

    #[test]
    fn who_does_not_read_is_let_go_and_asked_nothing_meanwhile() {
        let mut pair = pair();
        pair.client.write_all(b"{\"gmm\":1,\"command\":\"hello\"}\n").unwrap();
        let large = Body::Result("x".repeat(MAX_REPLY).into());
        assert!(matches!(pair.connection.answer(large, pair.start), Step::Wait));
        assert_eq!(pair.connection.interest(), PollFlags::OUT);
        assert!(matches!(pair.step(9), Step::Wait));
        assert!(matches!(pair.step(10), Step::Gone));
    }

    #[test]
    fn who_reads_slowly_is_served() {
        let mut pair = pair();
        let large = Body::Result("x".repeat(MAX_REPLY).into());
        assert!(matches!(pair.connection.answer(large, pair.start), Step::Wait));
        let mut buffer = vec![0; 1 << 16];
        let mut nr_read = 0;
        for second in 0.. {
            if !pair.connection.has_output() {
                break;
            }
            nr_read += pair.client.read(&mut buffer).unwrap();
            assert!(matches!(pair.step(9 * second), Step::Wait), "second {second}");
        }
        pair.client.set_nonblocking(true).unwrap();
        while let Ok(nr) = pair.client.read(&mut buffer) {
            nr_read += nr;
        }
        assert!(nr_read > MAX_REPLY);
    }

    /// More than a socket takes.
    const MAX_REPLY: usize = 4 << 20;
}
