//! The event trace: an observer is told what happened, and when. Off, it costs one relaxed load at
//! each place that would tell it something.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use crate::driver::{Access, Clear, Enter, Partial};
use crate::space::Space;
use crate::{FaultOutcome, MoveCause, NodeId, PageNr, Processor, ProcessorId, VirtAddr};

/// Something that took some time, or (an eviction) just happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEvent {
    /// A fault, from the call of [`Space::fault`] to its end.
    Fault {
        /// Who faulted.
        processor: ProcessorId,
        /// Where.
        addr: VirtAddr,
        /// To do what.
        access: Access,
        /// What became of it.
        outcome: FaultOutcome,
    },
    /// A batch of copies between nodes.
    Copy {
        /// Whose frames were read.
        from: NodeId,
        /// Whose frames were written.
        to: NodeId,
        /// Why.
        cause: MoveCause,
        /// The first page.
        page: PageNr,
        /// How many pages, not always consecutive ones.
        nr_pages: u32,
        /// Whether it was done.
        ok: bool,
    },
    /// A frame was zero-filled.
    Zero {
        /// Whose frame.
        node: NodeId,
        /// For which page.
        page: PageNr,
        /// Whether it was done.
        ok: bool,
    },
    /// A batch of pages was mapped, or the protection of their mappings changed.
    Enter {
        /// In whose page table.
        processor: ProcessorId,
        /// The first page.
        page: PageNr,
        /// How many pages, not always consecutive ones.
        nr_pages: u32,
        /// Whether it was done.
        ok: bool,
    },
    /// A batch of pages was unmapped.
    Clear {
        /// In whose page table.
        processor: ProcessorId,
        /// The first page.
        page: PageNr,
        /// How many pages, not always consecutive ones.
        nr_pages: u32,
        /// Whether it was done.
        ok: bool,
    },
    /// A page left a node to make room.
    Evict {
        /// The node.
        node: NodeId,
        /// The page.
        page: PageNr,
        /// Whether without a copy.
        clean: bool,
    },
    /// A range, or what one of several threads did of it, was brought to a node ahead of its use.
    Prefetch {
        /// The node.
        node: NodeId,
        /// The first page.
        page: PageNr,
        /// How many, with other threads' between them.
        nr_pages: u64,
    },
    /// The contents of a range were dropped.
    Discard {
        /// The first page.
        page: PageNr,
        /// How many.
        nr_pages: u64,
    },
    /// A range was unmapped.
    Unmap {
        /// The first page.
        page: PageNr,
        /// How many.
        nr_pages: u64,
    },
}

/// Who is told of events.
pub trait Observer: Send + Sync {
    /// `event` happened between two readings of the space's clock, which are equal for what takes
    /// no time. Called at its end, on any thread that is in the manager, mostly with a page's
    /// entry locked: it does not block, allocate, or call the space.
    fn record(&self, begun: Duration, ended: Duration, event: TraceEvent);
}

/// Where a space keeps its observer.
#[derive(Default)]
pub(crate) struct Hook {
    on: AtomicBool,
    observer: OnceLock<Arc<dyn Observer>>,
}

/// When something began, if anyone wants to know.
#[derive(Clone, Copy)]
pub(crate) struct Begun(Option<Duration>);

impl Space {
    /// Has `observer` told of events while [`Space::set_observed`]. A space has one observer,
    /// once and for all; says whether this one is it.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) -> bool {
        self.hook.observer.set(observer).is_ok()
    }

    /// Turns the telling on or off. What is under way may still be told after it was turned off.
    pub fn set_observed(&self, on: bool) {
        self.hook.on.store(on, Ordering::Relaxed);
    }

    /// Something that the observer may want to know of begins.
    pub(crate) fn begin(&self) -> Begun {
        Begun(self.hook.on.load(Ordering::Relaxed).then(|| self.clock.now()))
    }

    /// It has ended.
    pub(crate) fn end(&self, begun: Begun, event: impl FnOnce() -> TraceEvent) {
        if let Begun(Some(begun)) = begun {
            self.tell(begun, event);
        }
    }

    /// [`Mmu::pmap_enter`](crate::driver::Mmu::pmap_enter), told.
    pub(crate) fn pmap_enter(&self, p: &Processor, enters: &[Enter]) -> Result<(), Partial> {
        let begun = self.begin();
        let done = p.mmu.pmap_enter(enters);
        self.end(begun, || TraceEvent::Enter {
            processor: p.id,
            page: enters[0].page,
            nr_pages: enters.len() as u32,
            ok: done.is_ok(),
        });
        done
    }

    /// [`Mmu::pmap_clear`](crate::driver::Mmu::pmap_clear), told.
    pub(crate) fn pmap_clear(&self, p: &Processor, clears: &mut [Clear]) -> Result<(), Partial> {
        let begun = self.begin();
        let done = p.mmu.pmap_clear(clears);
        self.end(begun, || TraceEvent::Clear {
            processor: p.id,
            page: clears[0].page,
            nr_pages: clears.len() as u32,
            ok: done.is_ok(),
        });
        done
    }

    /// Something that began then has ended.
    pub(crate) fn tell(&self, begun: Duration, event: impl FnOnce() -> TraceEvent) {
        if self.hook.on.load(Ordering::Relaxed)
            && let Some(observer) = self.hook.observer.get()
        {
            observer.record(begun, self.clock.now(), event());
        }
    }
}
