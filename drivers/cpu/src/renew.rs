//! Putting fresh memory over pages of the window in one step, without a moment in which a touch is
//! no event.
//!
//! Mapping anonymous memory anew and registering it with userfaultfd are two steps, and a thread
//! that touches the page between them reads zeros that nobody knows of. So there is a *spare*: a
//! range like the window, registered, in which nothing ever lies. `mremap` with
//! `MREMAP_DONTUNMAP` puts a duplicate of it over a page, atomically, and what was there is gone
//! with its page table. Since no page was ever made in the spare, the duplicate counts as born where
//! it is put, and the kernel merges it with the window around it: no mapping is added.
//!
//! The duplicate stays registered only with `UFFD_FEATURE_EVENT_REMAP`, and then `mremap` returns
//! when someone has read the event. The threads that serve faults do, when they are idle; but all
//! of them may be waiting for the lock that the caller of `mremap` holds. So there is one thread
//! more, the *reader*, woken while an `mremap` is under way, which reads events and serves none:
//! the threads whose faults it has read are sent to fault again. Until the event is read the kernel
//! moves and fills nothing, so that all who would wait for that (`Uffd::changing`).

use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use gmm_core::PAGE_SIZE;
use gmm_os::{BlockedSignals, Creator};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::mm::MremapFlags;

use crate::handler::{self, setup_error};
use crate::mapping::{self, Mapping};
use crate::uffd::{Event, RegisterMode, Uffd};
use crate::{SetupError, window};

/// How many pages one step renews at most.
pub(crate) const SPARE_PAGES: u64 = 64;

/// How many faults the reader remembers; others fault again while it reads.
const MAX_READ: usize = 64;

/// The spare, and the thread that reads.
#[derive(Debug)]
pub(crate) struct Renewer {
    spare: u64,
    shared: Arc<Shared>,
    reader: ManuallyDrop<JoinHandle<()>>,
    creator: Creator,
    _mapping: Mapping,
}

#[derive(Debug)]
struct Shared {
    uffd: Arc<Uffd>,
    /// How many threads are in `mremap`.
    under_way: AtomicU32,
    stopped: AtomicBool,
    /// Rung when one of the above changes.
    bell: OwnedFd,
}

impl Renewer {
    pub(crate) fn new(uffd: &Arc<Uffd>) -> Result<Self, SetupError> {
        let failed = |call, cause: Errno| SetupError::Os {
            call,
            doing: "reserving addresses for fresh pages",
            cause: cause.into(),
            remedy: "raise the limits on address space (ulimit -v) and mappings (vm.max_map_count)",
        };
        let mapping =
            Mapping::nothing((SPARE_PAGES + 2) * PAGE_SIZE).map_err(|e| failed("mmap", e))?;
        // With nothing on both sides: it must never have been one mapping with used memory.
        let spare = (mapping.start() + 1).next_multiple_of(PAGE_SIZE);
        let len = SPARE_PAGES * PAGE_SIZE;
        // SAFETY: the range was mapped just now, and lives as long as this.
        unsafe {
            mapping::remap(spare, len, mapping::READ_WRITE).map_err(|e| failed("mmap", e))?;
            mapping::prepare(spare, len, window::NAME)?;
            uffd.register(spare, len, RegisterMode::WINDOW)
                .map_err(|e| failed("UFFDIO_REGISTER", e))?;
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| setup_error("eventfd", e.into()))?;
        let shared = Arc::new(Shared {
            uffd: Arc::clone(uffd),
            under_way: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            bell,
        });
        let reader = {
            let shared = Arc::clone(&shared);
            // A thread inherits the mask, so that no signal ever arrives at it.
            let _blocked = BlockedSignals::new();
            std::thread::Builder::new()
                .name("gmm-remap".into())
                .spawn(move || shared.run())
                .map_err(|cause| setup_error("clone", cause))?
        };
        let (reader, creator) = (ManuallyDrop::new(reader), Creator::this_process());
        Ok(Self { spare, shared, reader, creator, _mapping: mapping })
    }

    /// Puts fresh, absent memory over a range. What was mapped there is no longer when this
    /// returns, and no access through it is in flight; touches are events without a gap.
    ///
    /// # Errors
    /// The kernel's; `ENOMEM` with too many mappings. Then the pages from some page on are as they
    /// were, and those before it are fresh.
    ///
    /// # Safety
    /// The range is of pages of the window, whose contents nobody needs.
    pub(crate) unsafe fn renew(&self, start: u64, len: u64) -> Result<(), Errno> {
        self.shared.under_way.fetch_add(1, Ordering::SeqCst);
        self.shared.ring();
        let step = (SPARE_PAGES * PAGE_SIZE) as usize;
        let renewed = (0..len).step_by(step).try_for_each(|offset| {
            // SAFETY: the caller's promise; in the spare there is nothing.
            unsafe { self.put(start + offset, (len - offset).min(step as u64)) }
        });
        self.shared.under_way.fetch_sub(1, Ordering::SeqCst);
        self.shared.ring();
        renewed
    }

    /// # Safety
    /// As [`Renewer::renew`], of at most as many pages as the spare has.
    unsafe fn put(&self, start: u64, len: u64) -> Result<(), Errno> {
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        let (from, to, len) = (self.spare as *mut _, start as *mut _, len as usize);
        let changing = self.shared.uffd.changing();
        // SAFETY: the caller's promise.
        let put = unsafe { rustix::mm::mremap_fixed(from, len, len, flags, to) };
        drop(changing);
        put.map(drop).inspect_err(|_| {
            // The kernel checks its limits, unmaps, then maps: if it failed at the last there is a
            // hole, which is worse than a moment without events.
            // SAFETY: the caller's promise.
            unsafe { self.fill_hole(start, len as u64) }
        })
    }

    /// Makes what is unmapped of a range window again.
    ///
    /// # Safety
    /// As [`Renewer::renew`].
    pub(crate) unsafe fn fill_hole(&self, start: u64, len: u64) {
        for page in (start..start + len).step_by(PAGE_SIZE as usize) {
            // SAFETY: the caller's promise; nothing is mapped there.
            unsafe {
                if mapping::is_unmapped(page) {
                    let _ = window::make(page, PAGE_SIZE, &self.shared.uffd);
                }
            }
        }
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        // A forked child has no such thread, and its copy of the eventfd is its parent's.
        if self.creator.is_this_process() {
            self.shared.stopped.store(true, Ordering::SeqCst);
            self.shared.ring();
            // SAFETY: taken once, here. A panic of it has aborted the process.
            let _ = unsafe { ManuallyDrop::take(&mut self.reader) }.join();
        }
    }
}

impl Shared {
    fn ring(&self) {
        // It fails only if the count is near 2^64, and then it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        match catch_unwind(AssertUnwindSafe(|| self.read_until_stopped())) {
            Ok(Ok(())) => {}
            _ => handler::die(b"gmm: the thread that reads remap events failed; aborting\n"),
        }
    }

    fn read_until_stopped(&self) -> Result<(), Errno> {
        let _no_allocation = handler::forbid_allocation();
        let mut read = Read { pages: [0; MAX_READ], len: 0 };
        while !self.stopped.load(Ordering::SeqCst) {
            // The events of quiet times are for others.
            let busy = self.under_way.load(Ordering::SeqCst) > 0;
            while busy && let Some(event) = self.uffd.next_event()? {
                read.remember(event, &self.uffd);
            }
            let mut fds =
                [PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&*self.uffd, PollFlags::IN)];
            match poll(&mut fds[..if busy { 2 } else { 1 }], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            // Not only when all is quiet, which may be never.
            if !fds[0].revents().is_empty() {
                let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
                read.send_back(&self.uffd);
            }
        }
        read.send_back(&self.uffd);
        Ok(())
    }
}

/// Pages of which faults were read that nobody has served.
struct Read {
    pages: [u64; MAX_READ],
    len: usize,
}

impl Read {
    fn remember(&mut self, event: Event, uffd: &Uffd) {
        let Some(addr) = event.waits_at() else { return };
        let page = addr.page().start().0;
        if self.len < MAX_READ {
            self.pages[self.len] = page;
            self.len += 1;
        } else {
            // It fails only for what is no range of addresses.
            let _ = uffd.wake(page, PAGE_SIZE);
        }
    }

    fn send_back(&mut self, uffd: &Uffd) {
        for &page in &self.pages[..core::mem::take(&mut self.len)] {
            let _ = uffd.wake(page, PAGE_SIZE);
        }
    }
}
