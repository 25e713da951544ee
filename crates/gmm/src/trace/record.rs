//! An event as the words of a ring's record, and back.

use core::time::Duration;

use gmm_core::driver::Access;
use gmm_core::{FaultOutcome, MoveCause, NodeId, PageNr, ProcessorId, TraceEvent, VirtAddr};

/// One line of memory.
pub(crate) type Record = [u64; 8];

/// An event with its times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) begun: Duration,
    pub(crate) ended: Duration,
    pub(crate) event: TraceEvent,
}

const FAULT: u64 = 0;
const COPY: u64 = 1;
const ZERO: u64 = 2;
const ENTER: u64 = 3;
const CLEAR: u64 = 4;
const EVICT: u64 = 5;
const PREFETCH: u64 = 6;
const DISCARD: u64 = 7;
const UNMAP: u64 = 8;

impl Span {
    pub(crate) fn to_words(self) -> Record {
        let ns = |at: Duration| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let [kind, a, b, c, d, e] = match self.event {
            TraceEvent::Fault { processor, addr, access, outcome } => {
                [FAULT, processor.0.into(), addr.0, access as u64, outcome as u64, 0]
            }
            TraceEvent::Copy { from, to, cause, page, nr_pages, ok } => {
                let ends = u64::from(from.0) << 8 | u64::from(to.0);
                [COPY, ends, page.0, nr_pages.into(), cause as u64, ok.into()]
            }
            TraceEvent::Zero { node, page, ok } => [ZERO, node.0.into(), page.0, 0, 0, ok.into()],
            TraceEvent::Enter { processor, page, nr_pages, ok } => {
                [ENTER, processor.0.into(), page.0, nr_pages.into(), 0, ok.into()]
            }
            TraceEvent::Clear { processor, page, nr_pages, ok } => {
                [CLEAR, processor.0.into(), page.0, nr_pages.into(), 0, ok.into()]
            }
            TraceEvent::Evict { node, page, clean } => {
                [EVICT, node.0.into(), page.0, clean.into(), 0, 0]
            }
            TraceEvent::Prefetch { node, page, nr_pages } => {
                [PREFETCH, node.0.into(), page.0, nr_pages, 0, 0]
            }
            TraceEvent::Discard { page, nr_pages } => [DISCARD, 0, page.0, nr_pages, 0, 0],
            TraceEvent::Unmap { page, nr_pages } => [UNMAP, 0, page.0, nr_pages, 0, 0],
        };
        [ns(self.begun), ns(self.ended), kind, a, b, c, d, e]
    }

    /// `None` for words that no event has.
    pub(crate) fn from_words(words: &Record) -> Option<Self> {
        let [begun, ended, kind, a, b, c, d, e] = *words;
        let (node, processor, page) = (NodeId(a as u8), ProcessorId(a as u8), PageNr(b));
        let (nr_pages, ok) = (c as u32, e != 0);
        let event = match kind {
            FAULT => {
                let access = if c == 0 { Access::Read } else { Access::Write };
                let outcome = *FaultOutcome::ALL.get(d as usize)?;
                TraceEvent::Fault { processor, addr: VirtAddr(b), access, outcome }
            }
            COPY => {
                let (from, to) = (NodeId((a >> 8) as u8), NodeId(a as u8));
                let cause = *MoveCause::ALL.get(d as usize)?;
                TraceEvent::Copy { from, to, cause, page, nr_pages, ok }
            }
            ZERO => TraceEvent::Zero { node, page, ok },
            ENTER => TraceEvent::Enter { processor, page, nr_pages, ok },
            CLEAR => TraceEvent::Clear { processor, page, nr_pages, ok },
            EVICT => TraceEvent::Evict { node, page, clean: c != 0 },
            PREFETCH => TraceEvent::Prefetch { node, page, nr_pages: c },
            DISCARD => TraceEvent::Discard { page, nr_pages: c },
            UNMAP => TraceEvent::Unmap { page, nr_pages: c },
            _ => return None,
        };
        let [begun, ended] = [begun, ended].map(Duration::from_nanos);
        Some(Self { begun, ended, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_the_ring() {
        let (page, processor, node) = (PageNr(0x88_0001), ProcessorId(31), NodeId(15));
        let addr = VirtAddr(u64::MAX - 7);
        let mut events = vec![
            TraceEvent::Zero { node, page, ok: false },
            TraceEvent::Enter { processor, page, nr_pages: 1, ok: true },
            TraceEvent::Clear { processor, page, nr_pages: 16, ok: false },
            TraceEvent::Evict { node, page, clean: true },
            TraceEvent::Prefetch { node, page, nr_pages: 1 << 40 },
            TraceEvent::Discard { page, nr_pages: 3 },
            TraceEvent::Unmap { page, nr_pages: 4 },
        ];
        for access in [Access::Read, Access::Write] {
            events.extend(FaultOutcome::ALL.map(|outcome| TraceEvent::Fault {
                processor,
                addr,
                access,
                outcome,
            }));
        }
        events.extend(MoveCause::ALL.map(|cause| {
            let (from, nr_pages, ok) = (NodeId(3), u32::MAX, true);
            TraceEvent::Copy { from, to: node, cause, page, nr_pages, ok }
        }));
        for event in events {
            let span =
                Span { begun: Duration::from_nanos(1), ended: Duration::from_secs(9), event };
            assert_eq!(Span::from_words(&span.to_words()), Some(span));
        }
        assert_eq!(Span::from_words(&[99; 8]), None);
    }
}
