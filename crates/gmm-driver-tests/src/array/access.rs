//! The cores of a context: loads and stores that walk its page table and fault.

use std::sync::Arc;

use gmm_core::driver::{Access, MappingKind};
use gmm_core::{Error, PAGE_SIZE, Resolved, Result, VirtAddr};

use super::frame::{FRAME_WORDS, Slot};
use super::machine::State;
use super::{ArrayContext, Defect};

/// What serves a context's faults: `space.fault(processor, addr, access)`.
pub type FaultServer = Arc<dyn Fn(VirtAddr, Access) -> Result<Resolved> + Send + Sync>;

/// How often an access is replayed before it is given up.
const MAX_REPLAYS: u32 = 100_000;

/// How often an access to a page that a launch holds is replayed before it is given up.
const MAX_HELD: u32 = 200;

/// Why an access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// The context is dead.
    #[error("the context is dead")]
    Dead,
    /// The page is poisoned: an earlier fault on it could not be served.
    #[error("the page is poisoned")]
    Poisoned,
    /// The access faulted, and nobody serves faults (or the context can't replay them).
    #[error("the access faulted and nobody served it")]
    Unserved,
    /// The access faulted and the core could not serve it.
    #[error(transparent)]
    Fault(#[from] Error),
    /// A launch holds the page, and went on holding it.
    #[error("the page was held each of {MAX_HELD} times that the access faulted")]
    Held,
    /// The fault was served again and again and the access never went on.
    #[error("the access faulted {MAX_REPLAYS} times")]
    Endless,
}

/// Why an access can't go on now.
enum Stop {
    Fault,
    Error(AccessError),
}

impl ArrayContext {
    /// Has faults served by `server`; `None` lets accesses that fault fail.
    pub fn serve(&self, server: Option<FaultServer>) {
        self.server.with_mut(|s| *s = server);
    }

    /// Reads the word at `addr`.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn load(&self, addr: VirtAddr) -> Result<u64, AccessError> {
        self.access(addr, Access::Read, |word| word)
    }

    /// Writes the word at `addr`.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn store(&self, addr: VirtAddr, value: u64) -> Result<(), AccessError> {
        self.access(addr, Access::Write, |_| value).map(|_| ())
    }

    /// Adds to the word at `addr` in one step and returns what it was.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn add(&self, addr: VirtAddr, n: u64) -> Result<u64, AccessError> {
        self.access(addr, Access::Write, |word| word.wrapping_add(n))
    }

    fn access(
        &self,
        addr: VirtAddr,
        access: Access,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, AccessError> {
        let (mut waits, mut held) = (None, 0);
        for _ in 0..MAX_REPLAYS {
            match self.machine.with(|s| self.attempt(s, addr, access, &change)) {
                Ok(value) => return Ok(value),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Fault) => {}
            }
            let server = self.server.with(Clone::clone).filter(|_| self.can_replay());
            let server = server.ok_or(AccessError::Unserved)?;
            waits.get_or_insert_with(|| Waiting::new(self, addr));
            match server(addr, access) {
                Ok(Resolved::Again) if held == MAX_HELD => return Err(AccessError::Held),
                Ok(Resolved::Again) => held += 1,
                Ok(Resolved::Entered | Resolved::AlreadyUsable) => {}
                Err(error) => {
                    let dead = self.table(|t| t.dead);
                    return Err(if dead { AccessError::Dead } else { error.into() });
                }
            }
        }
        Err(AccessError::Endless)
    }

    /// One try of an access: all of it, in one step, or none.
    fn attempt(
        &self,
        state: &mut State,
        addr: VirtAddr,
        access: Access,
        change: &impl Fn(u64) -> u64,
    ) -> Result<u64, Stop> {
        let word = (addr.0 % PAGE_SIZE / 8) as usize % FRAME_WORDS;
        if let Some((slot, word, value)) = state.tables[self.table].buffered.take() {
            state.frame_mut(slot).words[word] = value;
        }
        let slot = self.walk(state, addr, access)?;
        let mapping = state.tables[self.table].entries.get(&addr.page());
        let is_copy = |kind: MappingKind| match kind {
            MappingKind::Local => false,
            MappingKind::Replica => true,
            MappingKind::Remote(_) => self.defect == Some(Defect::RemoteIsACopy),
        };
        let replica = mapping.filter(|m| is_copy(m.kind)).map(|m| m.replica);
        let old = replica.unwrap_or(state.frame(slot).words)[word];
        if access == Access::Write {
            let value = change(old);
            let table = &mut state.tables[self.table];
            table.last_store = Some((slot, word, value));
            if self.defect == Some(Defect::LateWrite) {
                table.buffered = table.last_store;
            } else {
                state.frame_mut(slot).words[word] = value;
            }
        }
        Ok(old)
    }

    fn walk(&self, state: &mut State, addr: VirtAddr, access: Access) -> Result<Slot, Stop> {
        let table = &mut state.tables[self.table];
        let page = addr.page();
        if table.dead {
            return Err(Stop::Error(AccessError::Dead));
        }
        if table.poisoned.contains(&page) {
            return Err(Stop::Error(AccessError::Poisoned));
        }
        if let Some(&slot) = table.stale.get(&page) {
            return Ok(slot);
        }
        let mapping = table.entries.get_mut(&page).filter(|m| !m.discarded).ok_or(Stop::Fault)?;
        let lax = self.defect == Some(Defect::ReadOnlyIsNot);
        if !lax && !mapping.protection.allows(access) {
            return Err(Stop::Fault);
        }
        mapping.used = true;
        Ok(mapping.slot)
    }
}

/// An access that waits for a page: the page is spared by reclaim until the access went on.
struct Waiting<'a> {
    context: &'a ArrayContext,
    addr: VirtAddr,
}

impl<'a> Waiting<'a> {
    fn new(context: &'a ArrayContext, addr: VirtAddr) -> Self {
        context.table(|t| *t.waiting.entry(addr.page()).or_default() += 1);
        Self { context, addr }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.context.table(|t| {
            if let Some(n) = t.waiting.get_mut(&self.addr.page()) {
                *n -= 1;
            }
        });
    }
}
