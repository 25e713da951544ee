//! The classic user-space pager, as a baseline: one thread reads the events of a userfaultfd, copies
//! what is missing from the device into a bounce buffer, and has the kernel copy it from there into the
//! memory of the process (`UFFDIO_COPY`), a unit a fault.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gmm::PAGE_SIZE;
use gmm_cpu::uffd::{CopyMode, RegisterMode, Uffd};
use gmm_kernels::stress::TOUCH_STRIDE_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::ordinary::{Ordinary, Pages};
use super::raw::RawCopies;

/// How often the thread looks whether it is to end.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Memory that is served by a pager.
pub(super) struct Pager {
    uffd: Uffd,
    memory: Ordinary,
    unit_bytes: u64,
}

impl Pager {
    /// Memory for `nr_pages` of 2 MiB, served in units of so many bytes.
    #[expect(unsafe_code, reason = "registers memory with userfaultfd")]
    pub(super) fn new(nr_pages: u64, unit_bytes: u64) -> anyhow::Result<Self> {
        let memory = Ordinary::new(nr_pages * PAGE_SIZE, Pages::Small)?;
        let uffd = Uffd::open()?;
        let (start, len) = (memory.as_ptr() as u64, memory.len() as u64 * 8);
        // SAFETY: the mapping is ours; `touch_all` serves its events.
        unsafe { uffd.register(start, len, RegisterMode::MISSING) }
            .context("UFFDIO_REGISTER for the baseline's pager")?;
        Ok(Self { uffd, memory, unit_bytes })
    }

    /// Reads a word in each 4 KiB of memory that is not there yet, and lies in the XPU frames of
    /// `source`, which hold `word(n)` in every `n`-th word; says how long it took.
    pub(super) fn touch_all(
        &mut self,
        source: &RawCopies,
        word: impl Fn(usize) -> u64,
    ) -> anyhow::Result<Duration> {
        self.memory.discard()?;
        let done = AtomicBool::new(false);
        let this = &*self;
        let (took, served) = std::thread::scope(|scope| {
            let handler = scope.spawn(|| {
                let served = this.serve(source, &done);
                if served.is_err() {
                    // Who waits for a page that will never come reads zero, and notices.
                    this.give_up();
                }
                served
            });
            let start = Instant::now();
            let mut sum = 0u64;
            for word in this.memory.iter().step_by(TOUCH_STRIDE_BYTES / 8) {
                sum = sum.wrapping_add(std::hint::black_box(*word));
            }
            let took = start.elapsed();
            std::hint::black_box(sum);
            done.store(true, Ordering::Relaxed);
            let served = handler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (took, served)
        });
        served?;
        for (nr, &got) in self.memory.iter().enumerate() {
            let wanted = word(nr);
            ensure!(got == wanted, "the pager's word {nr} is {got:#x}, not {wanted:#x}");
        }
        Ok(took)
    }

    /// Serves events until `done`.
    fn serve(&self, source: &RawCopies, done: &AtomicBool) -> anyhow::Result<()> {
        let mut bounce = vec![0u64; self.unit_bytes as usize / 8];
        let start = self.memory.as_ptr() as u64;
        while !done.load(Ordering::Relaxed) {
            let mut fds = [PollFd::from_borrowed_fd(self.uffd.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) | Err(Errno::INTR) => continue,
                other => other.context("poll of the userfaultfd")?,
            };
            while let Some(event) = self.uffd.next_event().context("reading an event")? {
                let Some(addr) = event.waits_at() else { continue };
                let offset = (addr.0 - start) / self.unit_bytes * self.unit_bytes;
                source.read(offset, &mut bounce)?;
                self.fill(start + offset, &bounce)?;
            }
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "fills registered memory")]
    fn fill(&self, to: u64, bounce: &[u64]) -> anyhow::Result<()> {
        let (mut done, len) = (0, self.unit_bytes);
        while done < len {
            let from = bounce.as_ptr().cast::<u8>().wrapping_add(done as usize);
            // SAFETY: the destination is a unit of our memory; the buffer is as long.
            match unsafe { self.uffd.copy(to + done, from, len - done, CopyMode::empty()) } {
                Ok(()) => return Ok(()),
                Err(stopped) if stopped.errno == Errno::AGAIN => done += stopped.done,
                Err(stopped) => return Err(stopped).context("UFFDIO_COPY"),
            }
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "ends a registration")]
    fn give_up(&self) {
        let (start, len) = (self.memory.as_ptr() as u64, self.memory.len() as u64 * 8);
        // SAFETY: what is absent reads as zero from now on, which the check notices.
        let _ = unsafe { self.uffd.unregister(start, len) };
    }
}
