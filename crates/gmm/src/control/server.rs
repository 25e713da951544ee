//! The thread that accepts clients and answers them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::connection::{Connection, Patience, Step};
use super::job::Job;
use super::peer::Peer;
use super::protocol::{Body, Command};
use super::work::Work;

/// How many clients there are at a time.
pub(super) const MAX_CLIENTS: usize = 16;

/// How many pieces of work are under way at a time, with those whose clients have gone.
const MAX_JOBS: usize = 16;

/// How long no client is accepted after that has failed, for want of descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

pub(super) const PATIENCE: Patience = Patience {
    idle: Duration::from_secs(30),
    stall: Duration::from_secs(10),
    progress: Duration::from_millis(500),
};

pub(super) struct Server {
    pub(super) listener: OwnedFd,
    pub(super) stop: OwnedFd,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) work: Arc<Work>,
    pub(super) patience: Patience,
    connections: Vec<Connection>,
    /// Work whose clients have gone, until it has noticed.
    orphans: Vec<Job>,
    accept_from: Option<Instant>,
}

impl Server {
    pub(super) fn new(
        listener: OwnedFd,
        stop: OwnedFd,
        wake: Arc<OwnedFd>,
        work: Arc<Work>,
        patience: Patience,
    ) -> Self {
        let (connections, orphans) = (Vec::new(), Vec::new());
        Self { listener, stop, wake, work, patience, connections, orphans, accept_from: None }
    }

    /// Serves until told to stop. Work under way ends first.
    pub(super) fn run(mut self) {
        while self.turn() {}
        // All of it is told before any is waited for.
        self.orphans.extend(self.connections.drain(..).filter_map(Connection::into_job));
        self.orphans.iter().for_each(Job::cancel);
    }

    /// Waits for something to do, and does it; says whether to go on.
    fn turn(&mut self) -> bool {
        let Some((woken, ready)) = self.wait() else { return false };
        let now = Instant::now();
        if woken {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            self.orphans.retain(|job| job.take_answer().is_none());
        }
        let mut gone = Vec::new();
        for (i, ready) in ready.into_iter().enumerate() {
            let mut step = self.connections[i].step(ready, now);
            if let Step::Asks(command) = step {
                step = self.serve(i, command, now);
            }
            if matches!(step, Step::Gone) {
                gone.push(i);
            }
        }
        for i in gone.into_iter().rev() {
            if let Some(job) = self.connections.remove(i).into_job() {
                job.cancel();
                self.orphans.push(job);
            }
        }
        self.accept(now);
        true
    }

    /// Says whether work was done, and of each client what it is ready for; `None` to stop.
    fn wait(&mut self) -> Option<(bool, Vec<PollFlags>)> {
        let now = Instant::now();
        self.accept_from = self.accept_from.filter(|&from| from > now);
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(
                &self.listener,
                if self.accept_from.is_some() { PollFlags::empty() } else { PollFlags::IN },
            ),
        ];
        let mut deadline = self.accept_from;
        for connection in &self.connections {
            fds.push(PollFd::from_borrowed_fd(connection.socket.as_fd(), connection.interest()));
            let its = if connection.has_request() { Some(now) } else { connection.deadline() };
            deadline = [deadline, its].into_iter().flatten().min();
        }
        let timeout = deadline.map(|deadline| {
            // Rounded up: waking a moment too early would be for nothing.
            let left = deadline.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Of the kernel's reasons only a lack of memory can be: not to be answered by
            // asking again at once.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        if !fds[0].revents().is_empty() {
            return None;
        }
        let woken = !fds[1].revents().is_empty();
        Some((woken, fds[3..].iter().map(PollFd::revents).collect()))
    }

    /// Begins what a client asks for.
    fn serve(&mut self, client: usize, command: Command, now: Instant) -> Step {
        let jobs = || self.connections.iter().filter_map(Connection::job).chain(&self.orphans);
        let is_busy = jobs().count() >= MAX_JOBS;
        let is_moving = command.moves_pages() && jobs().any(|job| job.moves_pages);
        let connection = &mut self.connections[client];
        let refusal = match (is_busy, is_moving) {
            (true, _) => "too much is asked for at once: try again in a second".to_owned(),
            (_, true) => "pages are being moved for another client: try again when that is done \
                          (`gmm stat` shows whether it goes on)"
                .to_owned(),
            (false, false) => match Job::start(&self.work, command, &self.wake) {
                Ok(job) => {
                    connection.begin(job, now);
                    return Step::Wait;
                }
                Err(error) => format!("no thread can be had for it: {error}; raise ulimit -u"),
            },
        };
        connection.answer(Body::Error(refusal), now)
    }

    /// Accepts one client at a time, so that it is heard before others can take its place.
    fn accept(&mut self, now: Instant) {
        if self.accept_from.is_some() {
            return;
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => self.admit(socket, now),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => self.accept_from = Some(now + ACCEPT_PAUSE),
        }
    }

    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        let me = rustix::process::geteuid().as_raw();
        let is_welcome = Peer::of(&socket).is_ok_and(|peer| peer.uid == me || peer.uid == 0);
        let mut connection = Connection::new(socket, self.patience, now);
        if !is_welcome {
            let reason = format!("only user {me} and root are answered here");
            // One try: the socket is new, and so has room.
            connection.refuse(reason, now);
            return;
        }
        if self.connections.len() == MAX_CLIENTS {
            // The one that keeps the server waiting longest. All may have work under way.
            let silent = self.connections.iter().enumerate();
            let silent = silent.filter_map(|(i, c)| Some((c.silent_since()?, i))).min();
            let Some((_, longest)) = silent else {
                connection.refuse(format!("{MAX_CLIENTS} clients are being served"), now);
                return;
            };
            drop(self.connections.remove(longest));
        }
        self.connections.push(connection);
    }
}

/// Makes a descriptor that wakes a poll.
pub(super) fn eventfd() -> io::Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
