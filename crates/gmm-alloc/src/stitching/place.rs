//! Where a request goes: the free range that needs the fewest new frames.
//!
//! Small requests are served from the low end of the addresses, by best fit, so that what is left
//! of a page is used up before a page is broken. Large ones are served from the high end: there
//! are few of them, and those that come and go together then lie together and leave one range that
//! the next can use whole.

use std::ops::Range;

use gmm_core::PAGE_SIZE;

use super::space::{Space, State, pages_touched};
use crate::pieces::Index;

/// Requests of this many bytes are large: 32 frames.
const LARGE_BYTES: u64 = 32 * PAGE_SIZE;

/// Requests of up to this many bytes are tiny. They are packed one after the other where there is
/// room in a page: a tiny block that stays would hold back a page of what large ones leave.
const TINY_BYTES: u64 = PAGE_SIZE / 32;

/// How many idle ranges, the longest first, and how many void ones are looked at when no idle
/// range is long enough. A bound on the time that a request takes.
const MAX_LOOKED_AT: usize = 16;

/// A place for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placement {
    /// The free piece that it begins in.
    pub(super) first: Index,
    pub(super) start: u64,
    /// How many of its pages have to be mapped.
    pub(super) new_frames: u64,
}

impl Space {
    /// A place in idle memory alone, if there is one.
    pub(super) fn place_idle(&self, len: u64) -> Option<Placement> {
        if len <= TINY_BYTES
            && let Some(placement) = self.place_after_last_tiny(len)
        {
            return Some(placement);
        }
        if len < LARGE_BYTES {
            let &(_, start, first) = self.idle.range((len, 0, 0)..).next()?;
            return Some(Placement { first, start, new_frames: 0 });
        }
        let exact = self.idle.range((len, 0, 0)..(len + 1, 0, 0)).next_back();
        let highest = || self.idle.range((len, 0, 0)..).max_by_key(|(_, start, _)| *start);
        let &(run, start, first) = exact.or_else(highest)?;
        Some(Placement { first, start: start + run - len, new_frames: 0 })
    }

    /// A place behind the tiny block that was placed last, if its page has room there.
    fn place_after_last_tiny(&self, len: u64) -> Option<Placement> {
        let last = self.pieces.find(self.last_tiny?).ok()?;
        let first = self.pieces[last].next()?;
        let Range { start, end } = self.range(first);
        let page_end = start.next_multiple_of(PAGE_SIZE);
        let fits = start + len <= end.min(page_end);
        let is_idle = matches!(self.pieces[first].data, State::Idle(_));
        (fits && is_idle).then_some(Placement { first, start, new_frames: 0 })
    }

    /// Remembers where a block was placed.
    pub(super) fn placed(&mut self, index: Index) {
        if self.pieces[index].len <= TINY_BYTES {
            self.last_tiny = Some(self.pieces.block(index));
        }
    }

    /// A place that needs new frames, the fewest of those looked at, for which no more than
    /// `frames` plus the idle pages outside of it are needed.
    pub(super) fn place_stitched(&self, len: u64, frames: u64) -> Option<Placement> {
        let longest = self.idle.iter().rev().take(MAX_LOOKED_AT).map(|run| run.2);
        let lowest = self.voids.values().take(MAX_LOOKED_AT).copied();
        let highest = self.voids.values().rev().take(MAX_LOOKED_AT).copied();
        let mut best: Option<(u64, u64, Placement)> = None;
        for near in longest.chain(lowest).chain(highest) {
            for start in self.starts(near, len).into_iter().flatten() {
                let Some(placement) = self.measure(near, start, len) else { continue };
                let idle = self.rests.nr_within(pages_touched(start..start + len));
                if placement.new_frames > frames + self.rests.nr_pages() - idle {
                    continue;
                }
                let far = if len < LARGE_BYTES { start } else { u64::MAX - start };
                if best.is_none_or(|(frames, before, _)| {
                    (placement.new_frames, far) < (frames, before)
                }) {
                    best = Some((placement.new_frames, far, placement));
                }
            }
        }
        best.map(|(_, _, placement)| placement)
    }

    /// Where a placement that uses `near` could begin: at its start, or so that it ends where
    /// `near` does, and at both ends of the hole around it; none if the hole is too small.
    fn starts(&self, near: Index, len: u64) -> [Option<u64>; 4] {
        let Range { start, end } = self.range(near);
        let (low, high) = (self.reach_down(near, len), self.reach_up(near, len));
        let Some(highest) = high.checked_sub(len).filter(|highest| *highest >= low) else {
            return [None; 4];
        };
        let upto = end.saturating_sub(len);
        // What was never used has no high end.
        let is_frontier = self.pieces[near].next().is_none();
        let bounded = |start: u64| (!is_frontier).then_some(start);
        let ends = [bounded(upto.clamp(low, highest)), bounded(highest)];
        [Some(start.min(highest)), Some(low), ends[0], ends[1]]
    }

    /// The lowest free address from which on all is free up to `near`, not much further than
    /// `len` away.
    fn reach_down(&self, near: Index, len: u64) -> u64 {
        let start = self.pieces[near].start;
        let (mut index, mut low) = (near, start);
        while start - low < len
            && let Some(prev) = self.pieces[index].prev()
            && self.is_free(prev)
        {
            (index, low) = (prev, self.pieces[prev].start);
        }
        low
    }

    fn reach_up(&self, near: Index, len: u64) -> u64 {
        let end = self.pieces[near].end();
        let (mut index, mut high) = (near, end);
        while high - end < len
            && let Some(next) = self.pieces[index].next()
            && self.is_free(next)
        {
            (index, high) = (next, self.pieces[next].end());
        }
        high
    }

    /// What a placement at `start`, in the hole of `near`, would need.
    fn measure(&self, near: Index, start: u64, len: u64) -> Option<Placement> {
        let mut first = near;
        while self.pieces[first].start > start {
            first = self.pieces[first].prev()?;
        }
        while self.pieces[first].end() <= start {
            first = self.pieces[first].next()?;
        }
        let (mut index, mut new_frames) = (first, 0);
        loop {
            let range = self.range(index);
            if let State::Void(_) = self.pieces[index].data {
                let needed = pages_touched(range.start.max(start)..range.end.min(start + len));
                new_frames += needed.end - needed.start;
            }
            if range.end >= start + len {
                return Some(Placement { first, start, new_frames });
            }
            index = self.pieces[index].next()?;
        }
    }
}
