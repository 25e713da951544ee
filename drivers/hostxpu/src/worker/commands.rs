//! Executing the host's page-table commands.
//!
//! The command thread does it, or a core that waits in its fault handler and so would only look
//! on: whoever gets the executor. Batches and the commands within them are executed strictly in
//! order, and a batch is acknowledged when all of it is done; a thread that executes touches no
//! unified memory meanwhile. Nothing here allocates: it runs in signal handlers.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gmm_core::{PAGE_SHIFT, PAGE_SIZE, PageNr, PageRange};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{WORKER, Worker};
use crate::ring::{COMMAND_CLEAR, COMMAND_ENTER, COMMAND_RELEASE, CommandRecord, NR_COMMANDS};
use crate::wait;
use crate::wire::Exit;

/// The right to execute commands: one thread has it at a time.
#[derive(Default)]
pub(super) struct Executor {
    busy: AtomicBool,
}

/// A command, read once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Command {
    kind: u32,
    writable: bool,
    page: u64,
    frame: u64,
}

impl Command {
    fn read(record: &CommandRecord) -> Self {
        Self {
            kind: record.kind.load(Ordering::Relaxed),
            writable: record.writable.load(Ordering::Relaxed) != 0,
            page: record.page.load(Ordering::Relaxed),
            frame: record.frame.load(Ordering::Relaxed),
        }
    }

    /// Whether `self`, `n` places after `first`, continues the run that `first` starts.
    fn continues(self, first: Self, n: u64) -> bool {
        (self.kind, self.writable, self.page) == (first.kind, first.writable, first.page + n)
            && match self.kind {
                COMMAND_ENTER => self.frame == first.frame + n,
                COMMAND_CLEAR => true,
                _ => false,
            }
    }
}

impl Worker {
    pub(super) fn run_command_thread(&self) {
        let slot = &self.ring.command;
        loop {
            self.run_commands();
            let posted = slot.posted.load(Ordering::SeqCst);
            if posted == slot.done.load(Ordering::SeqCst) {
                let begun = Instant::now();
                // While kernels run, a core that waits executes commands, and needs the processor.
                if !self.scheduler.is_busy() {
                    self.look_for(&self.command_waits, || {
                        slot.posted.load(Ordering::SeqCst) != posted || self.scheduler.is_busy()
                    });
                }
                wait::rest_while(&slot.posted, posted);
                self.command_waits.note(begun.elapsed());
            }
        }
    }

    /// Executes what the host has posted, unless another thread is at it.
    pub(super) fn run_commands(&self) {
        let slot = &self.ring.command;
        // Looked at again after the executor was given back: what was posted meanwhile may have
        // been seen by a thread that did not get it.
        while slot.posted.load(Ordering::SeqCst) != slot.done.load(Ordering::SeqCst) {
            if self.executor.busy.swap(true, Ordering::SeqCst) {
                return;
            }
            let posted = slot.posted.load(Ordering::SeqCst);
            if posted != slot.done.load(Ordering::SeqCst) {
                let (done, errno) = self.execute_batch();
                slot.done_count.store(done, Ordering::Relaxed);
                slot.errno.store(errno, Ordering::Relaxed);
                slot.done.store(posted, Ordering::SeqCst);
                wait::wake(&slot.done, 1);
            }
            self.executor.busy.store(false, Ordering::SeqCst);
        }
    }

    /// How many commands were done, and why the next was not.
    fn execute_batch(&self) -> (u32, i32) {
        let slot = &self.ring.command;
        let count = (slot.count.load(Ordering::Relaxed) as usize).min(NR_COMMANDS);
        let commands: [Command; NR_COMMANDS] =
            core::array::from_fn(|i| Command::read(&slot.records[i]));
        let mut at = 0;
        while at < count {
            let first = commands[at];
            let run = 1 + commands[at + 1..count]
                .iter()
                .zip(1..)
                .take_while(|&(next, n)| next.continues(first, n))
                .count();
            if let Err(errno) = self.execute(first, run as u64) {
                return (at as u32, errno.raw_os_error());
            }
            at += run;
        }
        (count as u32, 0)
    }

    fn execute(&self, command: Command, run: u64) -> rustix::io::Result<()> {
        let nr_pages = if command.kind == COMMAND_RELEASE { command.frame } else { run };
        let end = command.page.checked_add(nr_pages).ok_or(rustix::io::Errno::INVAL)?;
        let window = self.window.start.0..=self.window.end().0;
        if command.page >= end || !(window.contains(&command.page) && window.contains(&end)) {
            return Err(rustix::io::Errno::INVAL);
        }
        let range = PageRange { start: PageNr(command.page), nr_pages };
        match command.kind {
            COMMAND_ENTER if command.frame + run <= self.nr_frames => {
                self.map(range, command.frame, command.writable)
            }
            COMMAND_CLEAR | COMMAND_RELEASE => unmap(range),
            _ => Err(rustix::io::Errno::INVAL),
        }
    }

    fn map(&self, range: PageRange, frame: u64, writable: bool) -> rustix::io::Result<()> {
        let (at, len) = place(range);
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range lies in the window, where only the host's commands decide what is
        // mapped; accesses to it before and after are a kernel's, which its launcher answers for.
        unsafe {
            rustix::mm::mmap(
                at,
                len,
                ProtFlags::READ | write,
                flags,
                &self.frames,
                frame * PAGE_SIZE,
            )?;
            // A process that a kernel forks must not keep the frames when this one is dead.
            if rustix::mm::madvise(at, len, Advice::LinuxDontFork).is_err() {
                // What was mapped here before is gone, so that "not done" would not be true.
                super::exit(Exit::Fork);
            }
        }
        Ok(())
    }
}

fn place(range: PageRange) -> (*mut c_void, usize) {
    (range.start.start().0 as *mut c_void, (range.nr_pages << PAGE_SHIFT) as usize)
}

/// Maps nothing, inaccessible, over the range. When this returns no access through what was
/// mapped is in flight on any processor.
fn unmap(range: PageRange) -> rustix::io::Result<()> {
    let (at, len) = place(range);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as for `map`.
    unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) }.map(drop)
}

/// Sees to it that a forked child has no window: between the mapping of a frame and the advice
/// that forks don't inherit it, one could.
pub(super) fn forbid_fork() -> std::io::Result<()> {
    unsafe extern "C" fn drop_window() {
        if let Some(worker) = WORKER.get() {
            let (at, len) = place(worker.window);
            // SAFETY: in the child, which has one thread, and that is here.
            let _ = unsafe { rustix::mm::munmap(at, len) };
        }
    }
    // SAFETY: the handler makes one system call.
    match unsafe { libc::pthread_atfork(None, None, Some(drop_window)) } {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}
