//! Starting a worker process.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gmm_os::Creator;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use crate::wire::{self, Hello};
use crate::{Error, divert};

/// How long a worker may take to set itself up.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(30);

/// The name of the worker program.
const WORKER: &str = "gmm-hostxpu-worker";

/// A worker process. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) socket: OwnedFd,
    creator: Creator,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Status(i32),
    Signal(i32),
    /// The application collects the status of all its children.
    Unknown,
}

impl Process {
    /// Starts a worker and sets it up.
    pub(crate) fn start(
        hello: Hello,
        frames: BorrowedFd<'_>,
        ring: BorrowedFd<'_>,
    ) -> Result<Self, Error> {
        let (path, diverted) = find()?;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(Error::os("socketpair"))?;
        let variable = OsStr::from_bytes(wire::DIVERT_VARIABLE.to_bytes());
        let mut command = Command::new(&path);
        // In a process group of its own, so that what a terminal sends to the application (an
        // interrupt that it handles, a stop) does not end or stop its accelerator.
        command.arg0(WORKER).stdin(Stdio::from(theirs)).process_group(0);
        if diverted {
            command.env(variable, "1");
        } else {
            command.env_remove(variable);
        }
        let spawned = command.spawn();
        // The child's end must not stay open here.
        drop(command);
        let mut child = spawned
            .map_err(|e| Error::WorkerSpawn { path: path.clone(), message: e.to_string() })?;
        let pid = Pid::from_child(&child);
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => {
                return Err(Error::WorkerCollected { pid: pid.as_raw_pid() });
            }
            Err(errno) => {
                // Nobody would do so later. (Fails only if it is gone and collected.)
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Error::os("pidfd_open")(errno));
            }
        };
        if !is_child(&pidfd) {
            // Its number is a stranger's by now, who must not be killed.
            return Err(Error::WorkerCollected { pid: pid.as_raw_pid() });
        }
        let process = Self { pid, pidfd, socket: ours, creator: Creator::this_process() };
        process.set_up(hello, frames, ring).map_err(|reason| {
            process.kill();
            Error::WorkerSetUp { path, reason }
        })?;
        Ok(process)
    }

    fn set_up(
        &self,
        hello: Hello,
        frames: BorrowedFd<'_>,
        ring: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let host = rustix::process::pidfd_open(self.creator.pid(), PidfdFlags::empty())
            .map_err(|e| format!("pidfd_open failed: {e}"))?;
        let fds = [frames, ring, host.as_fd()];
        match wire::send(&self.socket, wire::HELLO, 0, &hello.to_bytes(), &fds) {
            Ok(()) => {}
            Err(rustix::io::Errno::PIPE) => return Err(self.describe_end()),
            Err(e) => return Err(format!("it could not be sent its settings: {e}")),
        }
        let end = Instant::now() + SET_UP_TIMEOUT;
        if !readable(self.socket.as_fd(), end) {
            return Err(format!("no answer within {SET_UP_TIMEOUT:?}"));
        }
        match wire::receive(&self.socket) {
            Ok(Some(message)) if message.kind == wire::READY => Ok(()),
            Ok(Some(message)) if message.kind == wire::FAILED => Err(message.text()),
            Ok(Some(message)) => Err(format!("it answered with a message {}", message.kind)),
            Ok(None) | Err(_) => Err(self.describe_end()),
        }
    }

    /// How a worker ended that closed its socket before it was set up.
    fn describe_end(&self) -> String {
        match self.wait_end(Instant::now() + Duration::from_secs(1)) {
            Some(Ended::Status(status)) => {
                format!("it exited with status {status} ({})", wire::exit_meaning(status))
            }
            Some(Ended::Signal(signal)) => format!("it was killed by signal {signal}"),
            Some(Ended::Unknown) | None => "it closed the connection".to_owned(),
        }
    }

    /// Kills it. It is gone when `pidfd` is readable.
    pub(crate) fn kill(&self) {
        // Fails only if it is gone already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Whether it is gone: from then on no access of it can land. Waits for that until `end`.
    pub(crate) fn is_gone(&self, end: Instant) -> bool {
        readable(self.pidfd.as_fd(), end)
    }

    /// Waits for its end and collects its status.
    pub(crate) fn wait_end(&self, end: Instant) -> Option<Ended> {
        if !self.is_gone(end) {
            return None;
        }
        let status = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
        });
        Some(match status.ok().flatten() {
            Some(status) => match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Ended::Status(status),
                (_, Some(signal)) => Ended::Signal(signal),
                _ => Ended::Unknown,
            },
            None => Ended::Unknown,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A forked child has these descriptors too, and no say in the worker's life.
        if self.creator.is_this_process() {
            self.kill();
            // Collects the zombie if the watcher has not.
            self.wait_end(Instant::now() + Duration::from_secs(1));
        }
    }
}

/// Whether a process is a child of this one that nobody has collected.
fn is_child(pidfd: &OwnedFd) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).is_ok()
}

/// Whether `fd` becomes readable (or its other end goes) before `end`.
pub(crate) fn readable(fd: BorrowedFd<'_>, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(1..) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) if left.is_zero() => return false,
            _ => {}
        }
    }
}

/// The worker program, and whether it must be diverted to be one.
fn find() -> Result<(PathBuf, bool), Error> {
    if let Some(path) = std::env::var_os("GMM_HOSTXPU_WORKER") {
        return Ok((path.into(), false));
    }
    if divert::is_possible() {
        return Ok(("/proc/self/exe".into(), true));
    }
    let beside = [std::env::current_exe().ok(), this_library()];
    let mut tried: Vec<PathBuf> = beside.into_iter().flatten().collect();
    tried.iter_mut().for_each(|path| path.set_file_name(WORKER));
    match tried.iter().find(|path| path.is_file()) {
        Some(path) => Ok((path.clone(), false)),
        None => Err(Error::WorkerNotFound { tried }),
    }
}

/// The file that holds this code.
fn this_library() -> Option<PathBuf> {
    // SAFETY: a zeroed Dl_info is a valid value for dladdr to overwrite; it names the file by a
    // string that lives as long as the library, which this code is in.
    let name = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(this_library as *const _, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        core::ffi::CStr::from_ptr(info.dli_fname)
    };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_no_children() {
        let open = |pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert!(!is_child(&open(rustix::process::getpid())));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = open(Pid::from_child(&child));
        assert!(is_child(&pidfd));
        child.kill().unwrap();
        assert!(readable(pidfd.as_fd(), Instant::now() + Duration::from_secs(60)));
        assert!(is_child(&pidfd), "a zombie is a child still");
        child.wait().unwrap();
        assert!(!is_child(&pidfd));
    }
}
