//! Look-ahead: when a processor's faults run through consecutive pages, the next ones are brought
//! before they fault.
//!
//! A window of pages is brought in one flight (`bulk.rs`), so that what a page costs beside its
//! copy is paid once a window: the mappings that are in the way go with one call to their driver.
//! The pages are brought but not mapped, for two reasons. A hit on a mapped page makes no fault, so a
//! run that is followed well would not be heard of any more: touching the first page of a window is
//! a fault that copies nothing, says that the window was right, and plans the next one, twice as
//! long. And a processor that waits for that fault maps pages cheaply, while one that computes would
//! have to be interrupted: so this fault maps the rest of its window, too, in one call
//! ([`Space::map_window`]). Should the processor come to a plan before anyone has begun it, as it does
//! where threads wait for their turn to run, the fault brings the window itself. A window whose first
//! page nobody touches is the last of its run, and makes those of other runs shorter.
//!
//! A run ends with its region: what lies behind that is other data, used in another way.
//!
//! What is a run, and how far its windows go, is decided in [`runs`], which moves nothing; this file
//! brings and maps pages.
//!
//! The pages are brought by [`Space::look_ahead`], a window a call, on a thread that looks for faults
//! between them. It takes frames that are free, but for the low watermark's, which are for faults: on
//! a full node of few frames it brings nothing. It never evicts, imports or waits, and what fails is
//! left to the fault.

mod loners;
mod runs;

use core::time::Duration;

use crate::bulk::{Aim, BATCH, Flight, Locked};
use crate::entry::Mapping;
use crate::fault::Cause;
use crate::node::Node;
use crate::space::Space;
use crate::sync::Shared;
use crate::{Batch, MAX_PROCESSORS, PageNr, PageRange, Processor};

pub(crate) use runs::Streams;
use runs::Window;

/// Pages that reclaim spares for now: brought ahead of a use that may not have come yet.
pub(crate) struct Expected {
    by: Batch<Shared<Processor>, MAX_PROCESSORS>,
    now: Duration,
}

impl Expected {
    pub(crate) fn contains(&self, page: PageNr) -> bool {
        self.by.iter().any(|processor| processor.streams.expects(page, self.now))
    }
}

impl Space {
    /// The pages that were brought ahead to `node`.
    pub(crate) fn expected_on(&self, node: &Node) -> Expected {
        let mut by = Batch::new();
        for processor in self.all_processors().filter(|p| p.node == node.id && p.streams.is_live())
        {
            by.push(processor);
        }
        let now = if by.is_empty() { Duration::ZERO } else { self.clock.now() };
        Expected { by, now }
    }

    /// Brings a window of pages that the processor is about to fault on, if its faults so far say
    /// so; `false` if there is none, or another thread is at it. Before it begins `announce` is told
    /// which. Called by a driver when it has no fault to serve, again and again until there is nothing
    /// to do; a fault on an announced page need not be served before this returns. Does not
    /// allocate.
    pub fn look_ahead(&self, processor: &Processor, announce: impl FnOnce(PageRange)) -> bool {
        let streams = &processor.streams;
        if !streams.has_plan() {
            return false;
        }
        let Some(ahead) = streams.begin() else { return false };
        announce(ahead.window.range());
        let done = self.bring_window(processor, ahead.window);
        streams.end(ahead, done);
        true
    }

    /// The processor has come to a window that nobody has begun to bring: this fault does.
    pub(crate) fn bring_late(&self, processor: &Processor, window: Window) {
        let done = self.bring_window(processor, window);
        processor.streams.end_late(window, done);
    }

    /// Brings a window, and says how many pages from its first on are where they are to be, or
    /// about to be: one that can't be had cheaply ends it.
    fn bring_window(&self, processor: &Processor, window: Window) -> u32 {
        let node = self.known_node(processor.node);
        let mut flight = Flight::new(ahead(node, &[], processor));
        // The last ones, which background reclaim keeps free, are for faults.
        let mut frames = node.pop_free_run::<BATCH>(window.nr_pages, node.kept_free());
        let mut done = 0;
        for page in window.pages() {
            let Some(entry) = self.table.get(page) else { break };
            // Who has the entry is moving the page, or about to.
            let mut is_last = false;
            if let Some(m) = entry.try_lock() {
                if window.has_left_region(&m) || !self.may_follow(&m, page, processor, window) {
                    break;
                }
                is_last = m.is_first();
                // One that nobody has touched is made when it is touched, not before.
                if m.copy_on(node.id).is_none() {
                    let frame = m.source().and_then(|_| frames.pop());
                    let Some(frame) = frame else { break };
                    let mut l = Locked::new(page, m);
                    let exclusive = exclusive(processor, window);
                    if self.set_up_arrival(&mut l, node.id, exclusive, frame).is_err() {
                        break;
                    }
                    flight.pages.push(l);
                }
            }
            done += 1;
            if is_last {
                break;
            }
        }
        drop(frames);
        self.depart(&mut flight);
        self.land(&mut flight);
        let failed = flight.pages.iter().find(|l| l.failed.is_some());
        let failed = failed.and_then(|l| window.pages().position(|page| page == l.page));
        failed.map_or(done, |nr| nr as u32)
    }

    /// The processor has reached a window: maps those of its pages that are there, and says whether
    /// `page`, which it has touched, is among them.
    pub(crate) fn map_window(&self, processor: &Processor, window: Window, page: PageNr) -> bool {
        let Some(mapper) = self.processor(processor.id) else { return false };
        let (node, mappers) = (self.known_node(processor.node), [mapper]);
        let mut flight = Flight::new(ahead(node, &mappers, processor));
        for page in window.pages() {
            let Some(entry) = self.table.get(page) else { break };
            let Some(m) = entry.try_lock() else { continue };
            if window.has_left_region(&m) {
                break;
            }
            let is_last = m.is_first();
            // Two that share a node's frames are a matter for the fault.
            let is_shared = self.mappers_on(&m, node.id).next().is_some();
            if !is_shared && self.may_follow(&m, page, processor, window) {
                let mut l = Locked::new(page, m);
                if self.set_up_here(&mut l, node.id, exclusive(processor, window)) {
                    flight.pages.push(l);
                }
            }
            if is_last {
                break;
            }
        }
        self.depart(&mut flight);
        self.land(&mut flight);
        flight.pages.iter().any(|l| l.page == page && l.m.mapped().contains(processor.id))
    }

    /// Whether a page can be brought or mapped with the others of its window. What was advised about
    /// a page, or has happened to it, the fault knows.
    fn may_follow(&self, m: &Mapping, page: PageNr, processor: &Processor, window: Window) -> bool {
        m.is_open()
            && !m.is_refused_by_some()
            && !m.is_poisoned()
            && m.protection.allows(window.access())
            && !processor.is_detached()
            && self.is_plain(m, processor.node, &[], exclusive(processor, window))
            && !self.is_to_stay(page)
    }
}

fn ahead<'a>(node: &'a Node, mappers: &'a [Shared<Processor>], by: &Processor) -> Aim<'a> {
    Aim { node, mappers, cause: Cause::LookAhead, on_behalf_of: Some(by.id) }
}

/// Whether a window's pages are to have no copy elsewhere.
fn exclusive(processor: &Processor, window: Window) -> bool {
    window.writes || !processor.maps_read_only()
}
