//! An array context: a page table, behind the `Mmu` trait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gmm_core::driver::{
    Capabilities, Clear, DriverError, Enter, Examine, MappingKind, Mmu, Partial,
};
use gmm_core::sync::RwLock;
use gmm_core::{PageNr, PageRange, VirtAddr};

use super::access::FaultServer;
use super::frame::Contents;
use super::inject::{Call, Failure};
use super::machine::State;
use super::mappings::Table;
use super::{Defect, Machine};

/// One context: the CPU of the process, or one context of an XPU.
pub struct ArrayContext {
    pub(super) machine: Arc<Machine>,
    /// The number of its page table in the machine.
    pub(super) table: usize,
    pub(super) capabilities: Capabilities,
    pub(super) defect: Option<Defect>,
    pub(super) server: RwLock<Option<FaultServer>>,
}

impl ArrayContext {
    pub(super) fn new(
        machine: &Arc<Machine>,
        memory: usize,
        capabilities: Capabilities,
        defect: Option<Defect>,
    ) -> Arc<Self> {
        let table = machine.with(|s| {
            s.tables.push(Table {
                memory,
                capabilities,
                defect,
                entries: BTreeMap::new(),
                poisoned: BTreeSet::new(),
                waiting: BTreeMap::new(),
                reserved: Vec::new(),
                refusals: Vec::new(),
                dead: false,
                hung: BTreeSet::new(),
                stale: BTreeMap::new(),
                buffered: None,
                last_store: None,
            });
            s.tables.len() - 1
        });
        let machine = machine.clone();
        Arc::new(Self { machine, table, capabilities, defect, server: RwLock::new(None) })
    }

    /// Makes it answer `answer` when asked about a range that overlaps `range`.
    pub fn refuse(&self, range: PageRange, answer: Examine) {
        self.table(|t| t.refusals.push((range, answer)));
    }

    /// Makes it take every range again.
    pub fn refuse_nothing(&self) {
        self.table(|t| t.refusals.clear());
    }

    /// Kills the context, as when its process dies.
    pub fn kill(&self) {
        self.machine.with(|s| s.kill(self.table));
    }

    /// What it can do: what its device can.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.table(|t| t.dead)
    }

    /// What an application's `madvise(MADV_DONTNEED)` does: the page, if it is mapped, reads as
    /// zero from now on, and nobody tells the core.
    pub fn discard_behind_the_core(&self, page: PageNr) {
        self.table(|t| {
            let dropped = t.entries.get_mut(&page);
            // A frame of another node stays a file's.
            if let Some(m) = dropped.filter(|m| !matches!(m.kind, MappingKind::Remote(_))) {
                m.discarded = true;
            }
        });
    }

    /// Whether the context maps `page`.
    pub fn maps(&self, page: PageNr) -> bool {
        self.table(|t| t.entries.contains_key(&page))
    }

    /// The ranges it has reserved.
    pub fn reserved(&self) -> Vec<PageRange> {
        self.table(|t| t.reserved.clone())
    }

    pub(super) fn table<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        self.machine.with(|s| f(&mut s.tables[self.table]))
    }

    /// What the trigger does to this element: an error, or the death of the context.
    fn failure(&self, state: &mut State, call: Call) -> Result<(), DriverError> {
        match state.injector.decide(call) {
            Some(Failure::Error(error)) => Err(error),
            Some(Failure::Hang) => Err(DriverError::Timeout),
            Some(Failure::Death) => {
                // The CPU of a process does not die on its own.
                if !self.capabilities.contains(Capabilities::MOVABLE_FRAMES) {
                    state.kill(self.table);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn partial(&self, done: usize, error: DriverError) -> Partial {
        let done = match self.defect {
            Some(Defect::CountTooHigh) => done + 1,
            Some(Defect::CountTooLow) => done.saturating_sub(1),
            _ => done,
        };
        Partial { done, error }
    }

    fn check_len(&self, state: &mut State, len: usize) {
        if len > 16 {
            state.blame("a batch has at most 16 elements", format!("{len}"));
        }
    }
}

impl Mmu for ArrayContext {
    fn capabilities(&self) -> Option<Capabilities> {
        Some(self.capabilities)
    }

    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError> {
        self.machine.call_hook(Call::Examine);
        self.machine.with(|s| {
            self.failure(s, Call::Examine)?;
            let table = &mut s.tables[self.table];
            if table.dead {
                return Err(DriverError::Dead);
            }
            let overlaps = |r: PageRange| r.start < range.end() && range.start < r.end();
            if let Some(&(_, answer)) = table.refusals.iter().find(|(r, _)| overlaps(*r)) {
                return Ok(answer);
            }
            if table.reserved.iter().any(|&r| overlaps(r)) {
                return Err(s.refuse("a range is reserved once", format!("{range}")));
            }
            table.reserved.push(range);
            Ok(Examine::Reserved)
        })
    }

    fn va_release(&self, range: PageRange) {
        self.machine.with(|s| {
            s.release_range(self.table, range);
            if self.defect == Some(Defect::ReservationLeaks) {
                s.tables[self.table].refusals.push((range, Examine::Refused));
            }
        });
    }

    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        self.machine.call_hook(Call::Enter);
        self.machine.with(|s| {
            self.check_len(s, mappings.len());
            for (done, &enter) in mappings.iter().enumerate() {
                let entered = self.failure(s, Call::Enter);
                if entered == Err(DriverError::Timeout) {
                    s.tables[self.table].hung.insert(enter.page);
                }
                entered
                    .and_then(|()| s.enter(self.table, enter))
                    .map_err(|error| self.partial(done, error))?;
                if self.defect == Some(Defect::EnterFirstOnly) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        self.machine.call_hook(Call::Clear);
        self.machine.with(|s| {
            self.check_len(s, mappings.len());
            for (done, clear) in mappings.iter_mut().enumerate() {
                self.failure(s, Call::Clear)
                    .and_then(|()| s.clear(self.table, clear))
                    .map_err(|error| self.partial(done, error))?;
            }
            Ok(())
        })
    }

    fn revalidate(&self, enter: Enter, addr: VirtAddr) -> Result<(), DriverError> {
        self.machine.call_hook(Call::Revalidate);
        self.machine.with(|s| {
            self.failure(s, Call::Revalidate)?;
            if s.tables[self.table].dead {
                return Err(DriverError::Dead);
            }
            let said = format!("{enter:?} at {addr}");
            let Some(&mapping) = s.tables[self.table].entries.get(&enter.page) else {
                return Err(s.refuse("pages revalidated are mapped", said));
            };
            if s.slot(enter.frame) != Some(mapping.slot) {
                return Err(s.refuse("pages are revalidated with their frame", said));
            }
            if mapping.kind != enter.kind {
                return Err(s.refuse("pages are revalidated as they were entered", said));
            }
            if mapping.discarded && mapping.kind == MappingKind::Local {
                let frame = s.frame_mut(mapping.slot);
                frame.words.fill(0);
                frame.contents = Contents::Of(enter.page);
            }
            if mapping.discarded {
                s.tables[self.table].entries.entry(enter.page).and_modify(|m| m.discarded = false);
            }
            Ok(())
        })
    }

    fn poison(&self, page: PageNr) -> bool {
        self.machine.with(|s| {
            let table = &mut s.tables[self.table];
            if table.entries.contains_key(&page) {
                s.blame("a page that is mapped is not poisoned", format!("{page:?}"));
                return false;
            }
            table.poisoned.insert(page);
            true
        })
    }

    fn unpoison(&self, page: PageNr) {
        self.table(|t| t.poisoned.remove(&page));
    }

    fn is_unused_since_entered(&self, page: PageNr) -> bool {
        self.table(|t| {
            let awaited = t.waiting.get(&page).is_some_and(|&n| n > 0);
            let unused = t.entries.get(&page).is_some_and(|m| !m.used);
            awaited && unused && self.capabilities.contains(Capabilities::REPLAYABLE_FAULTS)
        })
    }
}

impl ArrayContext {
    /// Whether an access is one that this context can wait with.
    pub(super) fn can_replay(&self) -> bool {
        self.capabilities.contains(Capabilities::REPLAYABLE_FAULTS)
    }
}
