//! The addresses of the stitching allocator: what lives, what is free and mapped (*idle*), what is
//! free and not mapped (*void*).
//!
//! Neighbours that are both idle, or both void, are one piece. A void piece is whole pages; an
//! idle one begins and ends where live memory does, in the middle of a page as often as not. A
//! page belongs to live memory if a byte of it does.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gmm_core::{PAGE_SIZE, PageNr};

use super::rests::Rests;
use crate::BlockId;
use crate::block::Live;
use crate::fences::Fences;
use crate::pieces::{Index, Piece, Pieces};

pub(super) enum State {
    Live(Live),
    /// Free and mapped, once the fences are reached.
    Idle(Fences),
    /// Free and not mapped, since this point of time.
    Void(u64),
    /// Part of a placement that is being made: as `Idle` or `Void`, but in no index. Boxed, so that
    /// a piece fits in a cache line; it is rare.
    Claimed(Box<Claim>),
}

#[derive(Clone)]
pub(super) enum Claim {
    Idle(Fences),
    Void(u64),
}

const _: () = assert!(size_of::<Piece<State>>() == 64, "a piece is a cache line");

/// Pieces and the indexes over those that are free.
pub(super) struct Space {
    pub(super) pieces: Pieces<State>,
    /// Length, address and index of each idle piece.
    pub(super) idle: BTreeSet<(u64, u64, Index)>,
    /// By address, those idle pieces that may have a whole page.
    idle_pages: BTreeMap<u64, Index>,
    /// Each void piece by its address.
    pub(super) voids: BTreeMap<u64, Index>,
    pub(super) rests: Rests,
    pub(super) idle_bytes: u64,
    /// The tiny block that was placed last, if it is still live.
    pub(super) last_tiny: Option<BlockId>,
    /// Counts operations: the clock of ages.
    pub(super) now: u64,
}

/// The pages that have a byte of `bytes`.
pub(super) fn pages_touched(bytes: Range<u64>) -> Range<u64> {
    bytes.start / PAGE_SIZE..bytes.end.div_ceil(PAGE_SIZE)
}

/// The pages that lie within `bytes`.
pub(super) fn pages_within(bytes: Range<u64>) -> Range<u64> {
    let start = bytes.start.div_ceil(PAGE_SIZE);
    start..(bytes.end / PAGE_SIZE).max(start)
}

impl Space {
    pub(super) fn new() -> Self {
        Self {
            pieces: Pieces::new(),
            idle: BTreeSet::new(),
            idle_pages: BTreeMap::new(),
            voids: BTreeMap::new(),
            rests: Rests::default(),
            idle_bytes: 0,
            last_tiny: None,
            now: 0,
        }
    }

    /// Addresses that nothing is mapped at.
    pub(super) fn add_window(&mut self, at: PageNr, nr_pages: u64) -> Index {
        let index = self.pieces.insert(at.start().0, nr_pages * PAGE_SIZE, State::Void(0));
        self.voids.insert(at.start().0, index);
        index
    }

    pub(super) fn range(&self, index: Index) -> Range<u64> {
        let piece = &self.pieces[index];
        piece.start..piece.end()
    }

    pub(super) fn is_free(&self, index: Index) -> bool {
        matches!(self.pieces[index].data, State::Idle(_) | State::Void(_))
    }

    /// Takes a free piece out of the index of its kind.
    fn unlist(&mut self, index: Index) {
        let piece = &self.pieces[index];
        match piece.data {
            State::Idle(_) => {
                self.idle.remove(&(piece.len, piece.start, index));
                if piece.len >= PAGE_SIZE {
                    self.idle_pages.remove(&piece.start);
                }
                self.idle_bytes -= piece.len;
            }
            State::Void(_) => {
                self.voids.remove(&piece.start);
            }
            State::Live(_) | State::Claimed(_) => {}
        }
    }

    fn list(&mut self, index: Index) {
        let piece = &self.pieces[index];
        match piece.data {
            State::Idle(_) => {
                self.idle.insert((piece.len, piece.start, index));
                if piece.len >= PAGE_SIZE {
                    self.idle_pages.insert(piece.start, index);
                }
                self.idle_bytes += piece.len;
            }
            State::Void(_) => {
                self.voids.insert(piece.start, index);
            }
            State::Live(_) | State::Claimed(_) => {}
        }
    }

    /// Cuts a listed free piece at `at`, if that is within it; the part from there on is returned.
    fn cut(&mut self, index: Index, at: u64) -> Index {
        let Range { start, end } = self.range(index);
        if at <= start || at >= end {
            return index;
        }
        self.unlist(index);
        let data = match &self.pieces[index].data {
            State::Idle(fences) => State::Idle(fences.clone()),
            State::Void(since) => State::Void(*since),
            State::Live(_) | State::Claimed(_) => unreachable!("only free pieces are cut"),
        };
        let rest = self.pieces.split(index, at - start, data);
        self.list(index);
        self.list(rest);
        rest
    }

    /// Makes a piece that was live or claimed free, one with its neighbours of the same kind.
    pub(super) fn set_free(&mut self, index: Index, state: State) -> Index {
        let freed = self.range(index);
        self.pieces[index].data = state;
        let mut merged = index;
        if let Some(prev) = self.pieces[index].prev()
            && self.same_kind(prev, index)
        {
            self.unlist(prev);
            self.absorb_next(prev);
            merged = prev;
        }
        if let Some(next) = self.pieces[merged].next()
            && self.same_kind(merged, next)
        {
            self.unlist(next);
            self.absorb_next(merged);
        }
        self.list(merged);
        if matches!(self.pieces[merged].data, State::Idle(_)) {
            let (within, touched) = (pages_within(self.range(merged)), pages_touched(freed));
            let pages = within.start.max(touched.start)..within.end.min(touched.end);
            self.rests.add(pages, self.now);
        }
        merged
    }

    fn same_kind(&self, one: Index, other: Index) -> bool {
        matches!(
            (&self.pieces[one].data, &self.pieces[other].data),
            (State::Idle(_), State::Idle(_)) | (State::Void(_), State::Void(_))
        )
    }

    fn absorb_next(&mut self, index: Index) {
        let next = self.pieces[index].next().expect("there is one to absorb");
        let gone = std::mem::replace(&mut self.pieces[next].data, State::Void(0));
        match (&mut self.pieces[index].data, gone) {
            (State::Idle(fences), State::Idle(theirs)) => fences.merge(&theirs),
            (State::Void(since), State::Void(theirs)) => *since = theirs.max(*since),
            _ => unreachable!("pieces of two kinds do not merge"),
        }
        self.pieces.merge_next(index);
    }

    /// Whether all of `bytes` is in one idle piece.
    pub(super) fn is_within(&self, index: Index, bytes: &Range<u64>) -> bool {
        let piece = &self.pieces[index];
        matches!(piece.data, State::Idle(_)) && bytes.end <= piece.end()
    }

    /// Makes `bytes` of an idle piece a live one; what is left on either side stays idle.
    pub(super) fn take(&mut self, idle: Index, bytes: Range<u64>, live: Live) -> Index {
        let Range { start, end } = self.range(idle);
        self.unlist(idle);
        let fences = match std::mem::replace(&mut self.pieces[idle].data, State::Live(live)) {
            State::Idle(fences) => fences,
            _ => unreachable!("only idle pieces are taken"),
        };
        let mut index = idle;
        if start < bytes.start {
            let fences = State::Idle(fences.clone());
            let live = std::mem::replace(&mut self.pieces[idle].data, fences);
            index = self.pieces.split(idle, bytes.start - start, live);
            self.list(idle);
        }
        if bytes.end < end {
            let rest = self.pieces.split(index, bytes.end - bytes.start, State::Idle(fences));
            self.list(rest);
        }
        if end - start >= PAGE_SIZE {
            self.rests.remove(pages_touched(bytes));
        }
        index
    }

    /// Sets aside the free bytes of a placement, and the rest of the void pages that it touches.
    /// `first` is the piece that `bytes` begin in; returns the first and the last piece claimed.
    pub(super) fn claim(&mut self, first: Index, bytes: Range<u64>) -> (Index, Index) {
        let is_void = |this: &Self, index: Index| matches!(this.pieces[index].data, State::Void(_));
        let start = match is_void(self, first) {
            true => bytes.start / PAGE_SIZE * PAGE_SIZE,
            false => bytes.start,
        };
        let first = self.cut(first, start);
        let mut last = first;
        loop {
            let end = match is_void(self, last) {
                true => bytes.end.next_multiple_of(PAGE_SIZE),
                false => bytes.end,
            };
            self.cut(last, end);
            self.unlist(last);
            let piece = &mut self.pieces[last];
            piece.data = match std::mem::replace(&mut piece.data, State::Void(0)) {
                State::Idle(fences) => State::Claimed(Box::new(Claim::Idle(fences))),
                State::Void(since) => State::Claimed(Box::new(Claim::Void(since))),
                State::Live(_) | State::Claimed(_) => unreachable!("a placement is free"),
            };
            if piece.end() >= bytes.end {
                break;
            }
            last = self.pieces[last].next().expect("a placement lies within its hole");
        }
        self.rests.remove(pages_touched(bytes));
        (first, last)
    }

    /// What a claimed piece is.
    pub(super) fn claim_at(&mut self, index: Index) -> &mut Claim {
        match &mut self.pieces[index].data {
            State::Claimed(claim) => claim,
            _ => unreachable!("the pieces of a claim are claimed"),
        }
    }

    /// Gives the pieces of a claim back as what they have become since.
    pub(super) fn unclaim(&mut self, first: Index, last: Index) {
        let (mut index, end) = (first, self.range(last).end);
        loop {
            let state = match self.claim_at(index) {
                Claim::Idle(fences) => State::Idle(std::mem::take(fences)),
                Claim::Void(since) => State::Void(*since),
            };
            let upto = self.range(index).end;
            let merged = self.set_free(index, state);
            if upto == end {
                break;
            }
            index = self.pieces[merged].next().expect("the last piece ends the claim");
        }
    }

    /// Makes `bytes` of a claim, all of which is mapped, one live piece; the rest is idle.
    pub(super) fn settle(
        &mut self,
        first: Index,
        last: Index,
        bytes: Range<u64>,
        live: Live,
    ) -> Index {
        let end = self.range(last).end;
        while self.range(first).end < end {
            self.pieces.merge_next(first);
        }
        let mut index = first;
        let before = bytes.start - self.range(first).start;
        if before > 0 {
            index = self.pieces.split(first, before, State::Claimed(Box::new(Claim::Void(0))));
        }
        let after = end - bytes.end;
        if after > 0 {
            let len = bytes.end - bytes.start;
            let rest = self.pieces.split(index, len, State::Claimed(Box::new(Claim::Void(0))));
            self.pieces[index].data = State::Live(live);
            self.set_free(rest, State::Idle(Fences::default()));
        } else {
            self.pieces[index].data = State::Live(live);
        }
        if before > 0 {
            self.set_free(first, State::Idle(Fences::default()));
        }
        index
    }

    /// The idle piece that a page lies in.
    pub(super) fn idle_at(&self, page: u64) -> Index {
        let upto = self.idle_pages.range(..=page * PAGE_SIZE).next_back();
        *upto.expect("each idle page is in an idle piece").1
    }

    /// Who may still use an idle piece.
    pub(super) fn fences(&self, index: Index) -> &Fences {
        match &self.pieces[index].data {
            State::Idle(fences) => fences,
            _ => unreachable!("only idle pieces are waited for"),
        }
    }

    /// Pages of an idle piece were unmapped.
    pub(super) fn vacate(&mut self, index: Index, pages: Range<u64>) {
        let index = self.cut(index, pages.start * PAGE_SIZE);
        self.cut(index, pages.end * PAGE_SIZE);
        self.unlist(index);
        self.rests.remove(pages);
        self.set_free(index, State::Void(self.now));
    }

    /// Of the void pieces that have room for `len` bytes, the one that was unmapped longest ago.
    pub(super) fn oldest_void(&self, len: u64) -> Option<Index> {
        let fits = self.voids.values().copied().filter(|&index| self.pieces[index].len >= len);
        fits.min_by_key(|&index| match self.pieces[index].data {
            State::Void(since) => since,
            _ => u64::MAX,
        })
    }
}
