//! The five page-table operations: commands that the worker executes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gmm_core::driver::{Clear, DriverError, Enter, Examine, MappingKind, Mmu, Partial, Protection};
use gmm_core::{PageNr, PageRange, VirtAddr};

use crate::ring::{COMMAND_CLEAR, COMMAND_ENTER, COMMAND_RELEASE, NR_COMMANDS};
use crate::ring::{check_command, check_count};
use crate::shared::Shared;
use crate::{Death, wait};

/// How long the worker may take to execute a batch before it is killed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// The page table of a context.
pub(crate) struct ContextMmu(pub(crate) Arc<Shared>);

/// A command as it is posted.
#[derive(Clone, Copy)]
struct Command {
    kind: u32,
    writable: bool,
    page: PageNr,
    /// The frame; or how many pages to release.
    operand: u64,
}

impl Mmu for ContextMmu {
    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError> {
        if self.0.is_doomed() {
            return Err(DriverError::Dead);
        }
        if !self.0.window.contains_range(range) {
            return Ok(Examine::Refused);
        }
        let hook = &self.0.device.config.examine.0;
        Ok(hook.as_ref().map_or(Examine::Reserved, |answer| answer(range)))
    }

    fn va_release(&self, range: PageRange) {
        if range.is_empty() || !self.0.window.contains_range(range) {
            return;
        }
        let release = Command {
            kind: COMMAND_RELEASE,
            writable: false,
            page: range.start,
            operand: range.nr_pages,
        };
        if let Err(Partial { error, .. }) = self.0.execute(&[release]) {
            // Nothing may stay mapped: a context that can't be told so has to end.
            if let DriverError::Os { errno, .. } = error {
                self.0.doom(Death::CommandFailed { command: "unmap", errno });
            }
            // It was killed, whatever the error: but the caller has no use for "not yet".
            self.0.process.is_gone(wait::deadline(Duration::MAX));
        }
    }

    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        let always_writable = !self.0.device.config.read_only_mappings;
        // A worker maps frames of its own device only.
        let local = mappings.iter().take_while(|m| m.kind == MappingKind::Local).count();
        self.0.execute_all(&mappings[..local], |mapping| Command {
            kind: COMMAND_ENTER,
            writable: always_writable || mapping.protection == Protection::ReadWrite,
            page: mapping.page,
            operand: mapping.frame.nr.0.into(),
        })?;
        match local == mappings.len() {
            true => Ok(()),
            false => Err(Partial { done: local, error: DriverError::Unsupported }),
        }
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        mappings.iter_mut().for_each(|mapping| mapping.was_empty = false);
        let cleared = self.0.execute_all(mappings, |mapping| Command {
            kind: COMMAND_CLEAR,
            writable: false,
            page: mapping.page,
            operand: 0,
        });
        wait::delay(self.0.device.config.clear_cost);
        match cleared {
            // `execute` says so only when no access can land any more.
            Err(Partial { error: DriverError::Dead, .. }) => Ok(()),
            other => other,
        }
    }

    /// Mostly another core's fault was quicker. But where the worker has less than the core
    /// believes (a kernel unmapped it, or a command failed half way) the access would fault for
    /// ever: when a core comes back the mapping is made again.
    fn revalidate(&self, mapping: Enter, _addr: VirtAddr) -> Result<(), DriverError> {
        if !self.0.is_repeated(mapping.page) {
            return Ok(());
        }
        self.pmap_enter(&[mapping]).map_err(|Partial { error, .. }| error)
    }

    fn is_unused_since_entered(&self, page: PageNr) -> bool {
        self.0.is_awaited(page)
    }
}

impl Shared {
    fn execute_all<T>(&self, items: &[T], command: impl Fn(&T) -> Command) -> Result<(), Partial> {
        let mut before = 0;
        for chunk in items.chunks(NR_COMMANDS) {
            let mut batch =
                [Command { kind: 0, writable: false, page: PageNr(0), operand: 0 }; NR_COMMANDS];
            for (place, item) in batch.iter_mut().zip(chunk) {
                *place = command(item);
            }
            self.execute(&batch[..chunk.len()])
                .map_err(|Partial { done, error }| Partial { done: before + done, error })?;
            before += chunk.len();
        }
        Ok(())
    }

    /// Has the worker execute a batch. `Dead` is returned only when the worker is gone.
    fn execute(&self, batch: &[Command]) -> Result<(), Partial> {
        wait::delay(self.device.config.message_latency);
        let mut last = self.commands.lock().unwrap_or_else(|e| e.into_inner());
        let slot = &self.ring.command;
        if self.is_doomed() {
            return Err(Partial { done: 0, error: self.end() });
        }
        for (record, command) in slot.records.iter().zip(batch) {
            record.kind.store(command.kind, Ordering::Relaxed);
            record.writable.store(command.writable.into(), Ordering::Relaxed);
            record.page.store(command.page.0, Ordering::Relaxed);
            record.frame.store(command.operand, Ordering::Relaxed);
        }
        slot.count.store(batch.len() as u32, Ordering::Relaxed);
        *last = last.wrapping_add(1);
        slot.posted.store(*last, Ordering::SeqCst);
        if slot.pollers.load(Ordering::SeqCst) == 0 {
            wait::wake(&slot.posted, 1);
        }
        self.counters.command_batches.fetch_add(1, Ordering::Relaxed);
        self.counters.commands.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.await_answer(*last).map_err(|error| Partial { done: 0, error })?;
        let done_count = slot.done_count.load(Ordering::Relaxed);
        let errno = slot.errno.load(Ordering::Relaxed);
        match check_count(batch.len(), done_count) {
            Ok(done) if done == batch.len() => Ok(()),
            Ok(done) => Err(Partial { done, error: DriverError::Os { call: "mmap", errno } }),
            Err(violation) => {
                self.doom_for(violation);
                Err(Partial { done: 0, error: self.end() })
            }
        }
    }

    /// Waits until batch `posted` was answered. A worker that does not answer is killed.
    fn await_answer(&self, posted: u32) -> Result<(), DriverError> {
        let done = &self.ring.command.done;
        let begun = Instant::now();
        let end = begun + COMMAND_TIMEOUT;
        self.command_waits.look(self.device.config.spin, || {
            done.load(Ordering::SeqCst) == posted || self.is_dead()
        });
        loop {
            let seen = done.load(Ordering::SeqCst);
            if self.is_dead() {
                return Err(DriverError::Dead);
            }
            match check_command(posted, seen) {
                Ok(true) => {
                    self.command_waits.note(begun.elapsed());
                    return Ok(());
                }
                Ok(false) => {}
                Err(violation) => {
                    self.doom_for(violation);
                    return Err(self.end());
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.end_unresponsive());
            }
            // Should a core of the worker have stopped looking just when this was posted.
            wait::wake(&self.ring.command.posted, 1);
            wait::sleep_while(done, seen, left.min(Duration::from_millis(5)));
        }
    }

    fn end_unresponsive(&self) -> DriverError {
        self.doom(Death::Unresponsive { timeout: COMMAND_TIMEOUT });
        self.end()
    }

    /// Waits for the end of a doomed worker.
    fn end(&self) -> DriverError {
        if self.wait_gone() { DriverError::Dead } else { DriverError::Timeout }
    }
}
