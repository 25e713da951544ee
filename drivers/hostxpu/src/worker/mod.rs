//! The worker: the process that is one context of a host XPU.
//!
//! Its page table is the XPU's page table: the window is reserved without access, the host's
//! commands map frames into it (`commands`), kernels run on cores (`cores`) and a core
//! that touches what is not mapped posts a fault and waits (`fault`). The main thread serves
//! the socket: it loads kernel libraries, and leaves when the host is gone.

mod commands;
mod cores;
mod fault;
mod holes;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::RwLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use gmm_core::{PAGE_SHIFT, PageNr, PageRange};
use gmm_os::Waits;
use rustix::event::{PollFd, PollFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::config::MAX_CORES;
use crate::ring::{Ring, RingMap};
use crate::wire::{self, Exit, Hello, Message};

/// A kernel, as its library exports it: index, number of indices, arguments.
type KernelFn = unsafe extern "C" fn(u64, u64, *const u64);

/// All that the threads of a worker share.
struct Worker {
    ring: RingMap,
    frames: OwnedFd,
    nr_frames: u64,
    window: PageRange,
    spin: Duration,
    /// How many threads may look for something at once instead of sleeping, and how many do.
    max_spinners: u32,
    spinners: AtomicU32,
    /// For a fault to be served, and for work.
    fault_waits: Waits,
    command_waits: Waits,
    work_waits: Waits,
    executor: commands::Executor,
    scheduler: cores::Scheduler,
    kernels: RwLock<Vec<KernelFn>>,
}

/// Set once; signal handlers find it here.
static WORKER: OnceLock<Worker> = OnceLock::new();

/// Runs a worker on the socket that is descriptor 0. This is what the program
/// `gmm-hostxpu-worker` does; it does not return.
pub fn main() -> ! {
    // A fault is a signal; whoever started this process may have blocked all of them.
    gmm_os::unblock();
    // Where it can't be had (a sandbox that allows no more filters), all but that protection works.
    let _ = holes::forbid();
    // SAFETY: whoever starts a worker gives it its socket as descriptor 0, which stays open for
    // as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(0) };
    let host = match set_up(socket) {
        Ok(host) => host,
        Err(reason) => {
            eprintln!("gmm-hostxpu-worker: {reason}");
            let _ = wire::send(socket, wire::FAILED, 0, reason.as_bytes(), &[]);
            exit(Exit::SetUp)
        }
    };
    serve(socket, &host)
}

fn exit(how: Exit) -> ! {
    // SAFETY: leaves without running anything of a kernel library, as cores are still at work.
    unsafe { libc::_exit(how as i32) }
}

/// Becomes a worker; the pidfd of the host is the result.
fn set_up(socket: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let message = wire::receive(socket)
        .map_err(|e| format!("descriptor 0 is not a host's socket: {e}"))?
        .ok_or("the host closed the connection")?;
    let hello = Hello::from_bytes(&message.body).filter(|_| message.kind == wire::HELLO);
    let hello = hello.ok_or("the host did not say hello")?;
    if (hello.version, hello.ring_bytes) != (wire::VERSION, size_of::<Ring>() as u64) {
        return Err(format!(
            "host and worker are of different builds: protocol {} with a ring of {} bytes there, \
             {} with {} here",
            hello.version,
            hello.ring_bytes,
            wire::VERSION,
            size_of::<Ring>()
        ));
    }
    let fds: [OwnedFd; 3] =
        message.fds.try_into().map_err(|_| "the host did not pass three descriptors")?;
    let [frames, ring, host] = fds;
    let ring = RingMap::map(&ring).map_err(|e| format!("the ring can't be mapped: {e}"))?;
    let window = PageRange { start: PageNr(hello.window_start_page), nr_pages: hello.window_pages };
    reserve(window)?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let worker = Worker {
        ring,
        frames,
        nr_frames: hello.nr_frames,
        window,
        spin: Duration::from_nanos(hello.spin_ns),
        max_spinners: (cpus / 2).max(1),
        spinners: AtomicU32::new(0),
        fault_waits: Waits::default(),
        command_waits: Waits::default(),
        work_waits: Waits::default(),
        executor: commands::Executor::default(),
        scheduler: cores::Scheduler::default(),
        kernels: RwLock::default(),
    };
    let worker = WORKER.get_or_init(|| worker);
    fault::install_handlers().map_err(|e| format!("signal handlers: {e}"))?;
    commands::forbid_fork().map_err(|e| format!("pthread_atfork: {e}"))?;
    let start = |name: String, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name).spawn(body);
        thread.map(drop).map_err(|e| format!("a thread can't be started: {e}"))
    };
    start("gmm-commands".into(), Box::new(|| worker.run_command_thread()))?;
    for core in 0..(hello.cores as u32).min(MAX_CORES) {
        start(format!("gmm-core-{core}"), Box::new(move || worker.run_core(core)))?;
    }
    wire::send(socket, wire::READY, 0, &[], &[]).map_err(|e| format!("send: {e}"))?;
    Ok(host)
}

/// Reserves the window: its addresses are taken and every access faults.
fn reserve(window: PageRange) -> Result<(), String> {
    let at = window.start.start().0 as *mut core::ffi::c_void;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let len = (window.nr_pages << PAGE_SHIFT) as usize;
    // SAFETY: replaces nothing that is mapped.
    let got = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) };
    match got {
        Ok(got) if got == at => Ok(()),
        Ok(_) => Err(format!("the window {window} is taken in the worker")),
        Err(e) => Err(format!("the window {window} can't be reserved in the worker: {e}")),
    }
}

/// Serves the host's requests until it is gone.
fn serve(socket: BorrowedFd<'_>, host: &OwnedFd) -> ! {
    let mut libraries: Vec<libloading::Library> = Vec::new();
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(socket, PollFlags::IN),
            PollFd::from_borrowed_fd(host.as_fd(), PollFlags::IN),
        ];
        if rustix::event::poll(&mut fds, None).is_err() {
            continue;
        }
        if !fds[1].revents().is_empty() {
            exit(Exit::Done);
        }
        let message = match wire::receive(socket) {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => exit(Exit::Done),
        };
        let found = match message.kind {
            wire::LOAD => load(&mut libraries, &message),
            wire::FIND => find(&libraries, &message),
            wire::QUIT => exit(Exit::Done),
            _ => exit(Exit::Protocol),
        };
        let sent = match found {
            Ok(nr) => wire::send(socket, wire::FOUND, message.id, &nr.to_ne_bytes(), &[]),
            Err(text) => {
                let text = &text.as_bytes()[..text.len().min(wire::MAX_MESSAGE - 8)];
                wire::send(socket, wire::FAILED, message.id, text, &[])
            }
        };
        if sent.is_err() {
            exit(Exit::Done);
        }
    }
}

fn load(libraries: &mut Vec<libloading::Library>, message: &Message) -> Result<u32, String> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(&message.body);
    // SAFETY: the library's constructors run here; whoever loads a kernel library answers for it.
    let library = unsafe { libloading::Library::new(path) }.map_err(|e| describe(&e))?;
    libraries.push(library);
    Ok(libraries.len() as u32 - 1)
}

fn find(libraries: &[libloading::Library], message: &Message) -> Result<u32, String> {
    let library = message.number().and_then(|nr| libraries.get(nr as usize));
    let library = library.ok_or("no such library")?;
    // SAFETY: whoever launches the kernel promises that it has this type. The libraries are never
    // unloaded.
    let kernel = unsafe { library.get::<KernelFn>(&message.body[4..]) };
    let kernel = *kernel.map_err(|e| describe(&e))?;
    let mut kernels = WORKER.get().ok_or("not set up")?.kernels.write().unwrap();
    kernels.push(kernel);
    Ok(kernels.len() as u32 - 1)
}

/// What the dynamic linker said.
fn describe(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
