//! Looking at a process's unified memory, and moving it, from outside the process.
//!
//! Each [`Gmm`](crate::Gmm) offers a Unix socket, unless [`Builder::control_socket`] turned that
//! off. [`processes`] finds the sockets, [`Client`] asks over one. The command `gmm` is made of
//! these; [`protocol`] is what others need who would rather speak it themselves.
//!
//! # What is guaranteed
//!
//! Only the user of the process and root are answered. A client that is stuck or hostile holds up
//! no other, and not the process: what it can make the process hold is bounded ([`protocol`] has
//! the limits), its requests lock what the application's own calls lock and for no longer, and
//! there is a bound on all together. While nobody is connected nothing runs.
//!
//! [`Builder::control_socket`]: crate::Builder::control_socket

mod client;
mod connection;
mod folder;
mod job;
mod peer;
pub mod protocol;
mod server;
mod work;

use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gmm_core::Space;
use gmm_cpu::BlockedSignals;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use client::{Client, ClientError, Process, find, processes};
use folder::{Folder, SocketName};
use server::{PATIENCE, Server, eventfd};
use work::Work;

use crate::xpu::Device;

/// The sockets of this process (and of those that forked it): process and instance.
static TAKEN: Mutex<BTreeSet<(u32, u32)>> = Mutex::new(BTreeSet::new());

/// How many clients may wait to be accepted.
const BACKLOG: i32 = 64;

/// A control socket and the thread that serves it. Dropping it ends both; in a forked child it
/// only closes descriptors.
pub(crate) struct ControlSocket {
    stop: OwnedFd,
    thread: ManuallyDrop<JoinHandle<()>>,
    file: SocketFile,
}

impl ControlSocket {
    /// Offers a socket.
    ///
    /// # Errors
    /// Why it can't be, in words.
    pub(crate) fn offer(space: &Arc<Space>, devices: &[Device]) -> Result<Self, String> {
        let folder = Folder::for_offering()?;
        let path = folder.path.display().to_string();
        let failed = |error: io::Error| format!("{path}: {error}");
        let (listener, file) = listen(folder).map_err(failed)?;
        let work = Work {
            space: Arc::clone(space),
            devices: devices.to_vec(),
            instance: file.name.instance,
            path: file.path(),
        };
        let start = || {
            let (stop, wake) = (eventfd()?, Arc::new(eventfd()?));
            let its_stop = stop.try_clone()?;
            let server = Server::new(listener, its_stop, wake, Arc::new(work), PATIENCE);
            // The thread inherits that, so that no signal ever arrives at it.
            let _signals = BlockedSignals::new();
            let thread = std::thread::Builder::new().name("gmm-control".into());
            Ok((stop, thread.spawn(move || server.run())?))
        };
        let (stop, thread) = start().map_err(failed)?;
        Ok(Self { stop, thread: ManuallyDrop::new(thread), file })
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> PathBuf {
        self.file.path()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.file.name.pid != std::process::id() {
            return;
        }
        // It fails only if the count is near 2^64, and then it has been told already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // SAFETY: taken once, here.
        let _ = unsafe { ManuallyDrop::take(&mut self.thread) }.join();
    }
}

/// The name of a socket that listens, until dropped.
struct SocketFile {
    folder: Folder,
    name: SocketName,
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn path(&self) -> PathBuf {
        self.folder.path.join(self.name.file())
    }
}

/// Makes a socket that listens, under the first name that is free.
fn listen(folder: Folder) -> io::Result<(OwnedFd, SocketFile)> {
    let pid = std::process::id();
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = (0..).map(|instance| SocketName { pid, instance });
    // A process of this number in another name space may have the same folder.
    let is_free = |name: &SocketName| {
        !taken.contains(&(pid, name.instance)) && client::connect(&folder, *name).is_err()
    };
    let name = names.find(is_free).expect("there are more numbers than sockets");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&listener, &folder.unready_address(name)?)?;
    folder.restrict(name)?;
    rustix::net::listen(&listener, BACKLOG)?;
    folder.publish(name)?;
    taken.insert((pid, name.instance));
    let identity = folder.identity(name);
    Ok((listener, SocketFile { folder, name, identity }))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let SocketName { pid, instance } = self.name;
        // In a forked child the socket is its parent's.
        if pid != std::process::id() {
            return;
        }
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        // Someone may have cleaned up, and another have taken the name.
        if self.identity.is_some() && self.folder.identity(self.name) == self.identity {
            self.folder.remove(self.name);
        }
        taken.remove(&(pid, instance));
    }
}
