//! Page tables, and what must hold when a mapping is made or removed.

use std::collections::{BTreeMap, BTreeSet};

use gmm_core::driver::{Capabilities, Clear, DriverError, Enter, Examine, MappingKind, Protection};
use gmm_core::{PageNr, PageRange};

use super::frame::{Contents, FRAME_WORDS, Slot};
use super::machine::State;
use super::options::Defect;

/// What a page table says about a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) slot: Slot,
    pub(super) protection: Protection,
    /// Whether an access went through it since it was entered.
    pub(super) used: bool,
    /// The processor discarded the page behind the core's back.
    pub(super) discarded: bool,
    pub(super) kind: MappingKind,
    /// The bytes of a replica.
    pub(super) replica: [u64; FRAME_WORDS],
}

impl Mapping {
    /// Whether the frame itself has moved into the page table.
    fn takes_frame(&self, table: &Table) -> bool {
        let moves = table.capabilities.contains(Capabilities::MOVABLE_FRAMES);
        moves && self.kind == MappingKind::Local
    }
}

/// The page table of one context.
#[derive(Debug)]
pub(super) struct Table {
    /// The memory of its node.
    pub(super) memory: usize,
    pub(super) capabilities: Capabilities,
    pub(super) defect: Option<Defect>,
    pub(super) entries: BTreeMap<PageNr, Mapping>,
    pub(super) poisoned: BTreeSet<PageNr>,
    /// How many accesses wait for each page.
    pub(super) waiting: BTreeMap<PageNr, u32>,
    pub(super) reserved: Vec<PageRange>,
    /// Ranges that it does not take, and what it says instead.
    pub(super) refusals: Vec<(PageRange, Examine)>,
    pub(super) dead: bool,
    /// Pages whose enter did not answer: the core may take them for mapped.
    pub(super) hung: BTreeSet<PageNr>,
    /// Translations that a defect keeps.
    pub(super) stale: BTreeMap<PageNr, Slot>,
    /// A store that a defect puts off.
    pub(super) buffered: Option<(Slot, usize, u64)>,
    /// The last store of its cores, until the page is cleared.
    pub(super) last_store: Option<(Slot, usize, u64)>,
}

impl State {
    /// Whether any context maps the frame (writable, if `writable`).
    pub(super) fn is_mapped(&self, slot: Slot, writable: bool) -> bool {
        self.tables
            .iter()
            .flat_map(|t| t.entries.values())
            .any(|m| m.slot == slot && (!writable || m.protection == Protection::ReadWrite))
    }

    /// Makes one mapping, or says which rule forbids it.
    pub(super) fn enter(&mut self, table: usize, enter: Enter) -> Result<(), DriverError> {
        let t = &self.tables[table];
        if t.dead {
            return Err(DriverError::Dead);
        }
        let page = enter.page;
        if !t.reserved.iter().any(|r| r.contains(page)) {
            return Err(self.refuse("pages entered are reserved", format!("{enter:?}")));
        }
        // A page table without read-only mappings lets writes through whatever it is told.
        let protection = match t.capabilities.contains(Capabilities::READ_ONLY_MAPPINGS) {
            true => enter.protection,
            false => Protection::ReadWrite,
        };
        if t.poisoned.contains(&page) {
            return Err(
                self.refuse("poison is undone before a page is entered", format!("{enter:?}"))
            );
        }
        let Some(mut slot) = self.slot(enter.frame) else {
            return Err(self.refuse("frames entered exist", format!("{enter:?}")));
        };
        let far = slot.memory != t.memory;
        if far != matches!(enter.kind, MappingKind::Remote(_)) {
            return Err(self.refuse("frames entered are of the node", format!("{enter:?}")));
        }
        self.check_kind(table, slot, enter)?;
        let old = self.tables[table].entries.get(&page).copied();
        if old.is_some_and(|m| m.slot != slot) {
            return Err(self.refuse("a page is cleared before another frame", format!("{enter:?}")));
        }
        if old.is_some_and(|m| m.kind != enter.kind) {
            let rule = "a page is cleared before it is entered in another way";
            return Err(self.refuse(rule, format!("{enter:?}")));
        }
        let is_replica = enter.kind == MappingKind::Replica;
        // A write through it faults, whatever the region allows.
        let lax = self.tables[table].defect == Some(Defect::ReplicaLetsWritesThrough);
        let protection = if is_replica && !lax { Protection::ReadOnly } else { protection };
        self.check_frame_for(page, slot, protection)?;
        self.check_coherence(page, slot, protection)?;
        let moved = self.check_movable(table, slot, enter.kind)?;
        let takes = self.tables[table].defect == Some(Defect::ReplicaTakesFrame);
        let moved = moved || is_replica && takes;
        let frame = self.frame_mut(slot);
        frame.contents = Contents::Of(page);
        frame.covered = 0;
        frame.moved_away |= moved;
        let replica = frame.words;
        if self.tables[table].defect == Some(Defect::WrongFrame) {
            slot.nr = (slot.nr + 1) % self.memories[slot.memory].frames.len();
        }
        let t = &mut self.tables[table];
        t.stale.remove(&page);
        let protection = match old {
            Some(m) if t.defect == Some(Defect::ReenterIgnored) => m.protection,
            _ => protection,
        };
        let discarded = old.is_some_and(|m| m.discarded);
        let kind = enter.kind;
        let mapping = Mapping { slot, protection, used: false, discarded, kind, replica };
        t.entries.insert(page, mapping);
        Ok(())
    }

    /// A frame of another node comes with its handle, to a processor that can use it.
    fn check_kind(&mut self, table: usize, slot: Slot, enter: Enter) -> Result<(), DriverError> {
        let can = |capability| self.tables[table].capabilities.contains(capability);
        match enter.kind {
            MappingKind::Local => Ok(()),
            MappingKind::Replica if !can(Capabilities::READ_ONLY_REPLICAS) => {
                Err(self.refuse("replicas are for those that can have them", format!("{enter:?}")))
            }
            MappingKind::Replica if !can(Capabilities::MOVABLE_FRAMES) => {
                Err(self.refuse("replicas are for those whose frames move", format!("{enter:?}")))
            }
            MappingKind::Replica if self.is_mapped(slot, true) => {
                Err(self.refuse("nobody can write a page that has a replica", format!("{enter:?}")))
            }
            MappingKind::Replica => Ok(()),
            MappingKind::Remote(_) if !can(Capabilities::COHERENT_LINK) => {
                Err(self.refuse("frames of other nodes need a coherent link", format!("{enter:?}")))
            }
            MappingKind::Remote(handle) if handle != slot.remote_handle() => {
                Err(self
                    .refuse("frames of other nodes come with their handle", format!("{enter:?}")))
            }
            MappingKind::Remote(_) => Ok(()),
        }
    }

    fn check_frame_for(
        &mut self,
        page: PageNr,
        slot: Slot,
        protection: Protection,
    ) -> Result<(), DriverError> {
        let said = || format!("{slot} for page {page:?}");
        let frame = self.frame(slot);
        if !frame.imported {
            return Err(self.refuse("frames entered are held by the core", said()));
        }
        if frame.writers > 0 || (frame.readers > 0 && protection == Protection::ReadWrite) {
            return Err(self.refuse("a frame in flight is left alone", said()));
        }
        match frame.contents {
            Contents::Rubbish => Err(self.refuse("a frame is filled before it is mapped", said())),
            Contents::Lost => Err(self.refuse("lost frames are not used again", said())),
            Contents::Of(other) if other != page => Err(self.refuse(
                "a frame is filled before it is mapped for another page",
                format!("{slot} of page {other:?} for page {page:?}"),
            )),
            Contents::Of(_) | Contents::Filled => Ok(()),
        }
    }

    /// A page is writable on one node at most, and then mapped on no other; contexts of one node
    /// that map it map the same frame.
    fn check_coherence(
        &mut self,
        page: PageNr,
        slot: Slot,
        protection: Protection,
    ) -> Result<(), DriverError> {
        let clash = self.tables.iter().filter_map(|t| t.entries.get(&page)).find(|m| {
            let writable = [protection, m.protection].contains(&Protection::ReadWrite);
            let other = m.slot != slot && (writable || m.slot.memory == slot.memory);
            other || m.kind == MappingKind::Replica && protection == Protection::ReadWrite
        });
        let Some(m) = clash else { return Ok(()) };
        let detail = format!("page {page:?}: {protection:?} of {slot}, but {m:?}");
        Err(self.refuse("a page is writable on one node, and then mapped on no other", detail))
    }

    /// A frame that moves into a page table is in that one alone. Says whether it moves.
    fn check_movable(
        &mut self,
        table: usize,
        slot: Slot,
        kind: MappingKind,
    ) -> Result<bool, DriverError> {
        let moves = self.tables[table].capabilities.contains(Capabilities::MOVABLE_FRAMES)
            && kind == MappingKind::Local;
        let mut others = self.tables.iter().enumerate().filter(|&(nr, _)| nr != table);
        let clash = others.any(|(_, t)| {
            t.entries.values().any(|m| m.slot == slot && (moves || m.takes_frame(t)))
        });
        match clash {
            true => {
                let detail = format!("{slot} entered in a second page table");
                Err(self.refuse("a frame that moves is in one page table", detail))
            }
            false => Ok(moves),
        }
    }

    /// Removes one mapping.
    pub(super) fn clear(&mut self, table: usize, clear: &mut Clear) -> Result<(), DriverError> {
        let t = &self.tables[table];
        clear.was_empty = false;
        if t.dead {
            return match t.defect {
                Some(Defect::ClearFailsWhenDead) => Err(DriverError::Dead),
                _ => Ok(()),
            };
        }
        if t.defect == Some(Defect::ClearIgnored) {
            return Ok(());
        }
        let Some(&mapping) = self.tables[table].entries.get(&clear.page) else {
            if self.tables[table].hung.contains(&clear.page) {
                return Ok(());
            }
            return Err(self.refuse("pages cleared are mapped", format!("{clear:?}")));
        };
        let wrong = self.tables[table].defect == Some(Defect::WrongFrame);
        if !wrong && self.slot(clear.frame) != Some(mapping.slot) {
            let detail = format!("{clear:?}, but it maps {}", mapping.slot);
            return Err(self.refuse("pages are cleared with their frame", detail));
        }
        if self.frame(mapping.slot).writers > 0 {
            let detail = format!("clear of {}", mapping.slot);
            return Err(self.refuse("a frame in flight is left alone", detail));
        }
        let lost = mapping.discarded && mapping.kind == MappingKind::Local;
        clear.was_empty = lost;
        let slot = mapping.slot;
        let t = &mut self.tables[table];
        t.entries.remove(&clear.page);
        t.last_store = t.last_store.filter(|&(of, ..)| of != slot);
        let stays = match mapping.kind {
            MappingKind::Local => Defect::StaleTlb,
            MappingKind::Replica => Defect::ReplicaStays,
            MappingKind::Remote(_) => Defect::RemoteStays,
        };
        if t.defect == Some(stays) {
            t.stale.insert(clear.page, slot);
        }
        if !self.is_mapped(slot, false) {
            self.frame_mut(slot).moved_away = false;
        }
        if lost {
            self.frame_mut(slot).spoil();
        }
        Ok(())
    }

    /// The context is gone: nothing goes through its mappings any more.
    pub(super) fn kill(&mut self, table: usize) {
        let t = &mut self.tables[table];
        t.dead = true;
        let wipe = t.defect == Some(Defect::DeathWipesFrames);
        for (_, mapping) in core::mem::take(&mut t.entries) {
            if wipe {
                self.frame_mut(mapping.slot).words.fill(0);
            }
        }
    }

    /// Ends a reservation: what was mapped there is unmapped and its contents are lost.
    pub(super) fn release_range(&mut self, table: usize, range: PageRange) {
        let t = &mut self.tables[table];
        t.reserved = t.reserved.iter().flat_map(|r| r.without(range)).collect();
        t.poisoned.retain(|&p| !range.contains(p));
        if t.defect == Some(Defect::ReleaseKeepsMappings) {
            return;
        }
        let pages: Vec<PageNr> = t.entries.keys().copied().filter(|&p| range.contains(p)).collect();
        for page in pages {
            let t = &mut self.tables[table];
            let is_far = |m: &Mapping| matches!(m.kind, MappingKind::Remote(_));
            if t.defect == Some(Defect::ReleaseKeepsRemote)
                && t.entries.get(&page).is_some_and(is_far)
            {
                continue;
            }
            let Some(mapping) = t.entries.remove(&page) else { continue };
            if t.defect == Some(Defect::LateWriteAtRelease) {
                t.buffered = t.last_store.take_if(|(of, ..)| *of == mapping.slot).or(t.buffered);
            }
            if !self.is_mapped(mapping.slot, false) {
                let frame = self.frame_mut(mapping.slot);
                // What moved into the window goes with it.
                if core::mem::take(&mut frame.moved_away) {
                    frame.spoil();
                }
            }
        }
    }
}
