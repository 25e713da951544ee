//! The other end: finding the processes that use GMM, and asking them.
//!
//! Who asks trusts the server no further than it has to: it waits a bounded time for each line, and
//! lines have a greatest length.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::folder::{Folder, SocketName};
use super::peer::Peer;
use super::protocol::*;

/// How long a server has for each line. One that moves pages says so twice a second.
const PATIENCE: Duration = Duration::from_secs(15);

/// A process's socket.
#[derive(Clone, Debug)]
pub struct Process {
    /// The process.
    pub pid: u32,
    /// The how-manieth `Gmm` of it, from 0.
    pub instance: u32,
    folder: Arc<Folder>,
}

impl Process {
    /// Where its socket lies.
    pub fn path(&self) -> PathBuf {
        self.folder.path.join(self.name().file())
    }

    fn name(&self) -> SocketName {
        SocketName { pid: self.pid, instance: self.instance }
    }
}

/// Why a process can't be asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No process of that number runs.
    #[error("no process {pid} runs here; `gmm ps` lists those that use GMM")]
    NoSuchProcess {
        /// The number.
        pid: u32,
    },
    /// It runs, and has no socket.
    #[error(
        "process {pid} ({name}) does not use GMM, or has its control socket turned off; \
         `gmm ps` lists those that can be asked"
    )]
    NotOffered {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// It has no such socket of several.
    #[error("process {pid} has no memory number {instance}; `gmm ps` lists what it has")]
    NoSuchInstance {
        /// The process.
        pid: u32,
        /// The number.
        instance: u32,
    },
    /// It is another user's.
    #[error("process {pid} belongs to user {uid}: only that user and root can ask it (try sudo)")]
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// The connection failed.
    #[error("process {pid} can't be asked: {cause}")]
    Connection {
        /// The process.
        pid: u32,
        /// What the system said.
        cause: io::Error,
    },
    /// It did not answer in time.
    #[error("process {pid} does not answer (is it stopped?)")]
    NoAnswer {
        /// The process.
        pid: u32,
    },
    /// It answered something else, or the connection ended.
    #[error("process {pid} answered what can't be understood: {what}; is it of another version?")]
    Confused {
        /// The process.
        pid: u32,
        /// What is wrong with the answer.
        what: String,
    },
    /// It answered that it can't.
    #[error("process {pid}: {reason}")]
    Refused {
        /// The process.
        pid: u32,
        /// The reason it gave.
        reason: String,
    },
}

/// Every process that can be asked: this user's; for root, everybody's. Sockets of processes that
/// have died are removed.
pub fn processes() -> Vec<Process> {
    let me = rustix::process::geteuid().as_raw();
    let mut folders = Folder::of_user(me, std::env::var_os("XDG_RUNTIME_DIR"));
    if me == 0 {
        for uid in other_users() {
            folders.extend(Folder::of_user(uid, None));
        }
    }
    in_folders(folders)
}

/// The sockets of one process.
///
/// # Errors
/// [`ClientError::NoSuchProcess`], [`ClientError::OtherUser`], [`ClientError::NotOffered`].
pub fn find(pid: u32) -> Result<Vec<Process>, ClientError> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let owner = std::fs::metadata(&proc).map_err(|_| ClientError::NoSuchProcess { pid })?.uid();
    let me = rustix::process::geteuid().as_raw();
    if me != 0 && me != owner {
        return Err(ClientError::OtherUser { pid, uid: owner });
    }
    // Where it was started with another folder than this program, its socket is there.
    let its = runtime_folder_of(&proc);
    let mut folders = Folder::of_user(owner, std::env::var_os("XDG_RUNTIME_DIR"));
    folders.extend(Folder::of_user(owner, its));
    let mut found = in_folders(folders);
    found.retain(|process| process.pid == pid);
    if found.is_empty() {
        let name = std::fs::read_to_string(proc.join("comm")).unwrap_or_default();
        return Err(ClientError::NotOffered { pid, name: name.trim().to_owned() });
    }
    Ok(found)
}

fn in_folders(folders: Vec<Folder>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    for folder in folders.into_iter().map(Arc::new) {
        for name in folder.sockets() {
            let SocketName { pid, instance } = name;
            let listens = match connect(&folder, name) {
                Ok(stream) => Peer::of(&stream).is_ok_and(|peer| peer.pid == pid),
                Err(Errno::CONNREFUSED) => {
                    folder.remove(name);
                    false
                }
                // It is there, and can't be asked just now: the caller hears why.
                Err(_) => true,
            };
            if listens && is_alive(pid) {
                found.push(Process { pid, instance, folder: Arc::clone(&folder) });
            } else if listens {
                // A child that its process forked keeps the socket open, and answers nothing.
                folder.remove(name);
            }
        }
    }
    // Two ways to the same folder.
    found.sort_by_key(|process| (process.pid, process.instance));
    found.dedup_by_key(|process| (process.pid, process.instance));
    found
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Users that have a folder at one of the usual places.
fn other_users() -> Vec<u32> {
    let numbers = |folder: &str, prefix: &'static str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect::<Vec<u32>>()
    };
    let mut users = [numbers("/run/user", ""), numbers("/tmp", "gmm-")].concat();
    users.sort_unstable();
    users.dedup();
    users.retain(|&uid| uid != 0);
    users
}

/// `XDG_RUNTIME_DIR` as the process was started with.
fn runtime_folder_of(proc: &Path) -> Option<OsString> {
    let environment = std::fs::read(proc.join("environ")).ok()?;
    let mut variables = environment.split(|&byte| byte == 0);
    let value = variables.find_map(|v| v.strip_prefix(b"XDG_RUNTIME_DIR="))?;
    Some(OsString::from_vec(value.to_vec()))
}

/// Connects, without waiting longer than a server that lives needs.
pub(super) fn connect(folder: &Folder, name: SocketName) -> Result<UnixStream, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let address = folder
        .address(name)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// A connection to a process.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Connection`], also if someone else than its user answers at the socket.
    pub fn connect(process: &Process) -> Result<Self, ClientError> {
        let pid = process.pid;
        let failed = |cause: io::Error| ClientError::Connection { pid, cause };
        let stream = connect(&process.folder, process.name()).map_err(|e| failed(e.into()))?;
        let peer = Peer::of(&stream).map_err(failed)?;
        if peer.uid != process.folder.uid && peer.uid != 0 {
            return Err(failed(io::Error::other(format!("user {} answers for it", peer.uid))));
        }
        Ok(Self { pid, stream: BufReader::new(stream) })
    }

    /// How long the process may take for each line of its answer, instead of 15 s.
    pub fn set_patience(&mut self, patience: Duration) {
        // It fails for a time of zero only.
        let _ = self.stream.get_ref().set_read_timeout(Some(patience));
    }

    /// Asks, and waits for the answer; `on_progress` is told how far it is.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the process's own reason; or it could not be asked, or did
    /// not answer as it should.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        command: Command,
        mut on_progress: impl FnMut(Progress),
    ) -> Result<T, ClientError> {
        let pid = self.pid;
        let request = Request { gmm: VERSION, command };
        let mut line = serde_json::to_vec(&request).map_err(|e| self.confused(&e))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|e| self.failed(e))?;
        loop {
            match self.read_line()?.body {
                Body::Progress(progress) => on_progress(progress),
                Body::Result(value) => {
                    return serde_json::from_value(value).map_err(|e| self.confused(&e));
                }
                Body::Error(reason) => return Err(ClientError::Refused { pid, reason }),
            }
        }
    }

    /// As [`Client::ask`], for what takes no time.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn get(&mut self, command: Command) -> Result<Value, ClientError> {
        self.ask(command, |_| ())
    }

    fn read_line(&mut self) -> Result<Reply, ClientError> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_REPLY_BYTES as u64);
        limited.read_until(b'\n', &mut line).map_err(|e| self.failed(e))?;
        if line.last() != Some(&b'\n') {
            let what = match line.len() {
                MAX_REPLY_BYTES => "a line that is too long",
                _ => "the connection ended",
            };
            return Err(self.confused(&what));
        }
        serde_json::from_slice(&line).map_err(|e| self.confused(&e))
    }

    fn failed(&self, cause: io::Error) -> ClientError {
        match cause.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::NoAnswer { pid: self.pid }
            }
            _ => ClientError::Connection { pid: self.pid, cause },
        }
    }

    fn confused(&self, what: &dyn core::fmt::Display) -> ClientError {
        ClientError::Confused { pid: self.pid, what: what.to_string() }
    }
}
