//! The threads that serve the CPU's faults.
//!
//! A handler thread must never wait for unified memory, or for anything that does: it would wait
//! for itself. So after it has started it does not allocate (an allocator may live in unified
//! memory, or hold a lock while it touches some), it blocks all signals (an application's signal
//! handler may touch unified memory), it does not log, and it aborts the process if it panics.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gmm_core::driver::Access;
use gmm_core::{Error, PAGE_SIZE, PageRange, Space, VirtAddr};
use gmm_os::{BlockedSignals, Creator, Waits};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::coming::Coming;
use crate::uffd::{Event, Uffd};
use crate::{CpuMmu, SetupError};

thread_local! {
    static IS_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread serves faults, and has started to: it must not allocate. For tests'
/// allocators.
#[doc(hidden)]
pub fn on_handler_thread() -> bool {
    IS_HANDLER.get()
}

/// Says, for as long as it lives, that this thread must not allocate.
pub(crate) fn forbid_allocation() -> impl Drop {
    struct Forbidden;
    impl Drop for Forbidden {
        fn drop(&mut self) {
            IS_HANDLER.set(false);
        }
    }
    IS_HANDLER.set(true);
    Forbidden
}

/// Who serves the CPU's faults: the space, or a test in its place.
#[doc(hidden)]
pub trait FaultServer: Send + Sync {
    /// A thread waits at `addr`. When this returns it is woken, and touches the page again.
    fn fault(&self, addr: VirtAddr, access: Access);

    /// Nobody waits any more for what this thread serves: time to bring what is about to be
    /// touched. Says which pages before it begins; `false` if there are none.
    fn look_ahead(&self, announce: &dyn Fn(PageRange)) -> bool {
        let _ = announce;
        false
    }
}

impl FaultServer for Space {
    fn fault(&self, addr: VirtAddr, access: Access) {
        let served = Space::fault(self, self.cpu(), addr, access);
        if let (Err(Error::Protection { .. }), Access::Write) = (served, access) {
            // A write to a read-only region. Once the page is there, read-only, the write gets
            // its SIGSEGV from the processor, with the right address and code.
            let _ = Space::fault(self, self.cpu(), addr, Access::Read);
        }
        // Other errors: the core has poisoned the page, or it is being unmapped and the next
        // touch is a SIGSEGV. A page that a launch holds is one that is touched again.
    }

    fn look_ahead(&self, announce: &dyn Fn(PageRange)) -> bool {
        Space::look_ahead(self, self.cpu(), announce)
    }
}

/// The running handler threads. Dropping it stops them; what touches an absent page of the window
/// after that waits until the window is gone.
#[derive(Debug)]
pub struct FaultHandlers {
    stop: OwnedFd,
    threads: ManuallyDrop<Vec<JoinHandle<()>>>,
    creator: Creator,
}

impl FaultHandlers {
    pub(crate) fn start<S: FaultServer + 'static>(
        faults: &Arc<S>,
        mmu: &Arc<CpuMmu>,
        nr_threads: usize,
        spin: Duration,
    ) -> Result<Self, SetupError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| setup_error("eventfd", e.into()))?;
        let creator = Creator::this_process();
        let mut handlers = Self { stop, threads: ManuallyDrop::new(Vec::new()), creator };
        // A thread inherits the mask, so that no signal ever arrives at it.
        let _blocked = BlockedSignals::new();
        let (watch, coming) = (Arc::new(Watch::default()), Arc::new(Coming::default()));
        for i in 0..nr_threads.max(1) {
            let stop =
                handlers.stop.try_clone().map_err(|cause| setup_error("dup(eventfd)", cause))?;
            let (faults, mmu) = (Arc::clone(faults), Arc::clone(mmu));
            let (watch, coming) = (Arc::clone(&watch), Arc::clone(&coming));
            let server = Server { faults, mmu, stop, spin, watch, coming };
            let thread = std::thread::Builder::new()
                .name(format!("gmm-fault-{i}"))
                .spawn(move || server.run())
                .map_err(|cause| setup_error("clone", cause))?;
            handlers.threads.push(thread);
        }
        Ok(handlers)
    }
}

impl Drop for FaultHandlers {
    fn drop(&mut self) {
        // A forked child has no such threads, and its copy of the eventfd is its parent's.
        if !self.creator.is_this_process() {
            return;
        }
        // It fails only if the count is near 2^64, and then they have been told already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // SAFETY: taken once, here.
        for thread in unsafe { ManuallyDrop::take(&mut self.threads) } {
            // A panic of one has aborted the process.
            let _ = thread.join();
        }
    }
}

pub(crate) fn setup_error(call: &'static str, cause: std::io::Error) -> SetupError {
    SetupError::Os {
        call,
        doing: "starting the threads that serve faults",
        cause,
        remedy: "raise the limits on threads and open files (ulimit -u, ulimit -n)",
    }
}

/// What one handler thread works with.
struct Server<S> {
    faults: Arc<S>,
    mmu: Arc<CpuMmu>,
    stop: OwnedFd,
    spin: Duration,
    watch: Arc<Watch>,
    coming: Arc<Coming>,
}

/// One thread of all looks for events, the others sleep.
#[derive(Default)]
struct Watch {
    taken: AtomicBool,
    /// From one fault served to the next event.
    waits: Waits,
}

impl<S: FaultServer> Server<S> {
    fn run(self) {
        let _no_allocation = forbid_allocation();
        let served = catch_unwind(AssertUnwindSafe(|| self.serve_until_stopped()));
        match served {
            Ok(Ok(())) => {}
            Ok(Err(_)) => die(b"gmm: a thread that serves page faults can't read them; aborting\n"),
            Err(_) => die(b"gmm: a thread that serves page faults panicked; aborting\n"),
        }
    }

    fn serve_until_stopped(&self) -> Result<(), Errno> {
        loop {
            while let Some(event) = self.uffd().next_event()? {
                self.serve(event);
            }
            let begun = Instant::now();
            let watches = !self.watch.taken.swap(true, Ordering::SeqCst);
            let event = if watches { self.look()? } else { None };
            if watches {
                self.watch.taken.store(false, Ordering::SeqCst);
            }
            if let Some(event) = event {
                self.watch.waits.note(begun.elapsed());
                self.serve(event);
                continue;
            }
            let mut fds =
                [PollFd::new(self.uffd(), PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            if watches {
                self.watch.waits.note(begun.elapsed());
            }
        }
    }

    fn uffd(&self) -> &Uffd {
        self.mmu.uffd()
    }

    /// Looks for an event for a while, since going to sleep and being woken costs more than many a
    /// fault.
    fn look(&self) -> Result<Option<Event>, Errno> {
        let mut found = Ok(None);
        self.watch.waits.look(self.spin, || {
            found = self.uffd().next_event();
            !matches!(found, Ok(None))
        });
        found
    }

    /// Serves a fault, and then brings what the next ones will want: those that come meanwhile for
    /// such pages are answered here, the others by other threads.
    fn serve(&self, event: Event) {
        if self.coming.takes(event) {
            return;
        }
        self.answer(event);
        while self.faults.look_ahead(&|pages| self.coming.begin(pages)) {
            for event in self.coming.end() {
                self.answer(event);
            }
        }
    }

    fn answer(&self, event: Event) {
        match event {
            Event::Missing { addr, access } => self.faults.fault(addr, access),
            Event::WriteProtected { addr } => self.faults.fault(addr, Access::Write),
            Event::Other { .. } | Event::Remapped => {}
        }
        let Some(addr) = event.waits_at() else { return };
        // Entering a page has woken who waits for it, and so has poisoning it; but no path at
        // all may leave a thread waiting, and one that is woken for nothing only touches again.
        let _ = self.uffd().wake(addr.page().start().0, PAGE_SIZE);
    }
}

/// Ends the process without allocating or taking a lock.
pub(crate) fn die(message: &[u8]) -> ! {
    // SAFETY: writes a static message to standard error.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    std::process::abort()
}
