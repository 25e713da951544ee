//! Who is told before the frame under an address changes or goes: a registration for RDMA, a
//! cache of captured graphs.
//!
//! # Lock order
//! Subscribers are called with the page's entry locked and the list of subscribers read-locked:
//! when a [`Subscription`] has been dropped its subscriber is not called any more. Pages that
//! nobody watches pay for a look at a flag of their entry.

use std::sync::Arc;

use crate::entry::Mapping;
use crate::space::Space;
use crate::{Error, Frame, PageNr, PageRange, Result};

/// Who is asked before frames go.
pub trait RemapSubscriber: Send + Sync {
    /// A frame is about to stop holding `remap.page`'s data. Called on the thread that wants it
    /// gone, which may serve a fault, with the page's entry locked: returns soon, does not
    /// allocate, touches no unified memory, and calls nothing of the space (nor drops a
    /// [`Subscription`]). What was announced may still not happen, if a driver fails.
    ///
    /// After [`RemapAnswer::Keep`] the frame stays: an eviction spares it, a fault or `DONTNEED`
    /// fails with [`Error::PageKept`]. `munmap` and what has happened already can't be stopped.
    fn before_remap(&self, remap: Remap) -> RemapAnswer;
}

/// A frame that is about to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Remap {
    /// The page.
    pub page: PageNr,
    /// The frame that has a valid copy of it, until now.
    pub from: Frame,
    /// Why it goes.
    pub cause: RemapCause,
}

/// Why a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RemapCause {
    /// The page is wanted on another node, to be written there.
    Move,
    /// Its node needs room.
    Eviction,
    /// Its contents are discarded.
    Discard,
    /// Its region is unmapped.
    Unmap,
}

/// What a subscriber says to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapAnswer {
    /// The frame may go: the subscriber uses it no more.
    Proceed,
    /// The frame has to stay for now.
    Keep,
}

/// Has a subscriber called until it is dropped. The drop waits for a call that is under way.
pub struct Subscription {
    space: Arc<Space>,
    id: u64,
}

#[derive(Default)]
pub(crate) struct Subscribers {
    nr_made: u64,
    /// A subscription whose middle was unmapped has two.
    watched: Vec<Watched>,
}

#[derive(Clone)]
struct Watched {
    id: u64,
    range: PageRange,
    subscriber: Arc<dyn RemapSubscriber>,
}

impl Subscribers {
    pub(crate) fn watches(&self, page: PageNr) -> bool {
        self.watched.iter().any(|w| w.range.contains(page))
    }

    pub(crate) fn ranges(&self) -> Vec<PageRange> {
        self.watched.iter().map(|w| w.range).collect()
    }

    fn keeps(&self, remap: Remap) -> bool {
        let mut keeps = false;
        // Everyone is told, even if the first says no.
        for asked in self.watched.iter().filter(|w| w.range.contains(remap.page)) {
            keeps |= asked.subscriber.before_remap(remap) == RemapAnswer::Keep;
        }
        keeps
    }

    /// The range is unmapped.
    fn remove(&mut self, range: PageRange) {
        let cut = |w: Watched| {
            let parts = w.range.without(range);
            parts.map(move |range| Watched { range, ..w.clone() })
        };
        self.watched = core::mem::take(&mut self.watched).into_iter().flat_map(cut).collect();
    }
}

impl Space {
    /// Has `subscriber` asked before a frame of a page of `range` goes, until what this returns
    /// is dropped or the page is unmapped.
    ///
    /// # Errors
    /// [`Error::ZeroLength`], [`Error::NotMapped`], [`Error::AddressOverflow`].
    pub fn subscribe(
        self: &Arc<Self>,
        range: PageRange,
        subscriber: Arc<dyn RemapSubscriber>,
    ) -> Result<Subscription> {
        if range.is_empty() {
            return Err(Error::ZeroLength);
        }
        // No region comes or goes meanwhile.
        let _setup = self.set_up();
        self.check_mapped(range)?;
        let id = self.subscribers.with_mut(|s| {
            s.nr_made += 1;
            s.watched.push(Watched { id: s.nr_made, range, subscriber });
            s.nr_made
        });
        for (_, entry) in self.table.entries(range) {
            entry.lock().set_watched(true);
        }
        Ok(Subscription { space: Arc::clone(self), id })
    }

    /// Asks whether the copies for which `which` says so may go.
    ///
    /// # Errors
    /// [`Error::PageKept`] if someone wants one to stay.
    pub(crate) fn ask(
        &self,
        m: &Mapping,
        page: PageNr,
        cause: RemapCause,
        which: impl Fn(Frame) -> bool,
    ) -> Result<()> {
        if !m.is_watched() {
            return Ok(());
        }
        let mut answer = Ok(());
        // They are told of every copy: some go whatever the answer.
        for from in m.copies().filter(|&copy| which(copy)) {
            if self.subscribers.with(|s| s.keeps(Remap { page, from, cause })) {
                answer = Err(Error::PageKept { addr: page.start(), node: from.node });
            }
        }
        answer
    }

    /// `munmap`: whoever maps the addresses next is not watched.
    pub(crate) fn end_subscriptions(&self, range: PageRange) {
        if self.subscribers.with(|s| !s.watched.is_empty()) {
            self.subscribers.with_mut(|s| s.remove(range));
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let space = &self.space;
        let _setup = space.set_up();
        let (mine, others) = space.subscribers.with_mut(|s| {
            let all = core::mem::take(&mut s.watched).into_iter();
            let (mine, others): (Vec<_>, _) = all.partition(|w| w.id == self.id);
            s.watched = others;
            (mine, !s.watched.is_empty())
        });
        for (page, entry) in mine.iter().flat_map(|w| space.table.entries(w.range)) {
            let watched = others && space.subscribers.with(|s| s.watches(page));
            entry.lock().set_watched(watched);
        }
    }
}
