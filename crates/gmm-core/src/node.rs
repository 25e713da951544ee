//! A node: frames, and where each of them is.
//!
//! # Guarantees
//! A frame is in exactly one place (the table). [`TransitFrame`] is a frame in one thread's
//! hands: dropping it frees it, so no error path can leak one.
//!
//! | place | who may act on it | leaves to |
//! |---|---|---|
//! | `Absent` | the device | `Free` (import) |
//! | `Free` | whoever holds the list lock | `Transit` (taken) |
//! | `Transit` | the thread with the [`TransitFrame`] | `Active`, `Free`, `Absent` (release), `Lost` |
//! | `Active` | whoever holds its page's entry lock | `Spare`, `Pinned`, `Transit`, `Lost` |
//! | `Spare` | the same; another node has an equal copy, so this one can go | `Active`, `Pinned`, `Transit`, `Lost` |
//! | `Pinned` | the same, but a launch may end its hold with no lock; never evicted, moved or freed | `Active`, `Spare` |
//! | `Lost` | nobody: an operation on it never ended | |
//!
//! # Lock order
//! The list lock is the last: nothing is called, and no other lock taken, while it is held.

mod pinning;
mod transit;
mod watermarks;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use crate::driver::{Device, DriverError};
use crate::list::FrameList;
use crate::sync::{Condvar, Counter, Deadline, Mutex, MutexGuard, Rank};
use crate::{
    Arrival, Batch, Clock, Config, Departure, Frame, FrameNr, MoveCause, MovedBy, NodeId,
    OutOfMemory, PageNr, Policy,
};

pub(crate) use transit::{TransitFrame, highest_first};
use watermarks::{Reclaimer, Watermarks};
pub(crate) use watermarks::{Rest, Task};

const FRAMES_RANK: u8 = Rank::Frames as u8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FramePlace {
    Absent,
    Free,
    Transit,
    Active,
    Spare,
    Pinned,
    Lost,
}

const NR_PLACES: usize = 7;

#[derive(Clone, Copy, Debug)]
struct FrameMeta {
    /// The page whose data it holds; meaningful in `Active`, `Spare` and `Pinned`.
    owner: PageNr,
    place: FramePlace,
    /// Someone may go on using it who can't be stopped: it is lost when it is no page's any more.
    distrusted: bool,
    /// Another node has an equal copy: what a pinned frame will be once it is not.
    spare: bool,
    /// What brought the page that it holds.
    moved_by: MovedBy,
    /// It was brought ahead of its use, which its policy has been told of already.
    expected: bool,
    /// Counts mapping events, so that one between an offer and the entry's lock is noticed.
    uses: u8,
    /// How many launches hold it.
    holds: u32,
    /// How often programs have pinned it (`PIN`).
    pins: u32,
}

/// The lists, behind the node's lock.
struct Lists {
    meta: Vec<FrameMeta>,
    free: FrameList,
    spare: FrameList,
    policy: Box<dyn Policy>,
    count: Arc<Counts>,
    /// Frames that programs have pinned, and how many may be.
    pinned_frames: u32,
    pin_limit: u32,
    importing: bool,
    /// The device had none when it was last asked.
    import_dry: bool,
    /// Frames on their way back to the device: an import may not get them yet.
    releasing: u32,
    import_error: Option<DriverError>,
    /// Threads in [`Node::wait`]: nobody is notified when there is none.
    waiters: u32,
    reclaimer: Reclaimer,
}

/// How many frames are in each place: written under the lists' lock, read without it.
struct Counts {
    places: [AtomicU32; NR_PLACES],
    peak_resident: AtomicU32,
    /// Counts the events that [`Node::wait`] waits for.
    changes: Counter,
    /// How often background reclaim has woken up.
    reclaimer_wakeups: Counter,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) device: Arc<dyn Device>,
    capacity: u32,
    watermarks: Watermarks,
    count: Arc<Counts>,
    /// By frame, whether a launch holds it: written under the lists' lock, read without it. A hold
    /// begins under the entry's lock, so who has that and finds none here knows that there is none.
    held: Box<[AtomicBool]>,
    lists: Mutex<Lists, FRAMES_RANK>,
    changed: Condvar,
    /// Where the thread that keeps frames free sleeps.
    work: Condvar,
}

/// A frame that could be evicted, as a policy offers it.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) nr: FrameNr,
    pub(crate) page: PageNr,
    uses: u8,
    /// The page was brought ahead, and has not been used.
    pub(crate) is_ahead: bool,
}

/// What became of asking a device for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Import {
    /// It gave some; others may be quicker to take them.
    Came,
    /// It has none, or none now.
    Nothing,
    /// Another thread is asking: frames may come soon.
    Underway,
}

/// How many frames of a node are where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FrameCounts {
    pub(crate) capacity: u32,
    pub(crate) free: u32,
    pub(crate) active: u32,
    pub(crate) spare: u32,
    pub(crate) pinned: u32,
    pub(crate) in_transit: u32,
    pub(crate) lost: u32,
    pub(crate) peak_resident: u32,
    pub(crate) reclaimer_wakeups: u64,
}

impl Node {
    /// A node that holds no frame yet. Metadata for all frames it can have is made here, so that
    /// nothing is allocated later.
    pub(crate) fn new(
        id: NodeId,
        device: Arc<dyn Device>,
        capacity: u32,
        policy: Box<dyn Policy>,
        config: &Config,
    ) -> Self {
        let absent = FrameMeta {
            owner: PageNr(0),
            place: FramePlace::Absent,
            distrusted: false,
            spare: false,
            expected: false,
            moved_by: MovedBy::new(MoveCause::Fault, None),
            uses: 0,
            holds: 0,
            pins: 0,
        };
        let count = Arc::new(Counts {
            places: [const { AtomicU32::new(0) }; NR_PLACES],
            peak_resident: AtomicU32::new(0),
            changes: Counter::new(),
            reclaimer_wakeups: Counter::new(),
        });
        count.places[FramePlace::Absent as usize].store(capacity, Ordering::Relaxed);
        Self {
            id,
            device,
            capacity,
            watermarks: Watermarks::new(config, capacity),
            count: Arc::clone(&count),
            held: (0..capacity).map(|_| AtomicBool::new(false)).collect(),
            lists: Mutex::new(Lists {
                meta: vec![absent; capacity as usize],
                free: FrameList::with_capacity(capacity),
                spare: FrameList::with_capacity(capacity),
                policy,
                count,
                pinned_frames: 0,
                pin_limit: capacity,
                importing: false,
                import_dry: false,
                releasing: 0,
                import_error: None,
                waiters: 0,
                reclaimer: Reclaimer::default(),
            }),
            changed: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// From now on `policy` says who leaves. It is told of the pages that are here, the best
    /// victims of its predecessor first.
    pub(crate) fn set_policy(&self, mut policy: Box<dyn Policy>) {
        let mut guard = self.lists.lock();
        let lists = &mut *guard;
        lists.policy.victims(&mut |nr| {
            // A policy may offer what it likes.
            let meta = lists.meta.get(nr.0 as usize);
            if let Some(meta) = meta.filter(|meta| meta.place == FramePlace::Active) {
                policy.mapped(nr, meta.owner, Arrival::Returned);
            }
            true
        });
        core::mem::swap(&mut lists.policy, &mut policy);
        // Its memory is given back with no lock held.
        drop(guard);
    }

    fn frame(&self, nr: FrameNr) -> Frame {
        Frame { node: self.id, nr }
    }

    /// A free frame, if there is one now.
    pub(crate) fn pop_free(&self) -> Option<TransitFrame<'_>> {
        self.pop_free_beyond(0, || ())
    }

    /// A free frame, if there are more than `keep`; then `count` runs under the lists' lock.
    pub(crate) fn pop_free_beyond(
        &self,
        keep: u32,
        count: impl FnOnce(),
    ) -> Option<TransitFrame<'_>> {
        let mut lists = self.lists.lock();
        let nr = (lists.free.len() > keep).then(|| lists.free.pop_back()).flatten();
        if let Some(nr) = nr {
            lists.set_place(nr, FramePlace::Transit);
            count();
        }
        self.tell_if_low(&mut lists, nr.is_some());
        nr.map(|nr| TransitFrame { node: self, nr })
    }

    /// Up to `N` and up to `most` free frames, the highest number first, while there are more than
    /// `keep`.
    pub(crate) fn pop_free_run<const N: usize>(
        &self,
        most: u32,
        keep: u32,
    ) -> Batch<TransitFrame<'_>, N> {
        let mut taken = Batch::new();
        let mut lists = self.lists.lock();
        while !taken.is_full() && (taken.len() as u32) < most && lists.free.len() > keep {
            let Some(nr) = lists.free.pop_back() else { break };
            lists.set_place(nr, FramePlace::Transit);
            taken.push(TransitFrame { node: self, nr });
        }
        self.tell_if_low(&mut lists, !taken.is_empty());
        drop(lists);
        highest_first(&mut taken);
        taken
    }

    /// Asks the device for up to `nr_frames` more, unless another thread is asking already.
    /// Holds no list lock meanwhile.
    pub(crate) fn import(&self, nr_frames: u32) -> Import {
        let mut lists = self.lists.lock();
        if lists.importing {
            return Import::Underway;
        }
        let wanted = nr_frames.min(self.count.get(FramePlace::Absent));
        if wanted == 0 {
            return Import::Nothing;
        }
        lists.importing = true;
        drop(lists);
        let mut extents = Batch::new();
        let answer = self.device.import(self.id, wanted, &mut extents);
        let mut lists = self.lists.lock();
        lists.importing = false;
        lists.import_dry = extents.is_empty();
        lists.import_error = answer.err();
        let mut result = Import::Nothing;
        for extent in extents.iter() {
            for nr in extent.start.0..extent.start.0.saturating_add(extent.nr_frames) {
                // A frame that the device does not have, or handed over already, is a broken
                // driver's: it is left alone rather than used twice.
                let known = lists.meta.get(nr as usize).map(|m| m.place);
                if known == Some(FramePlace::Absent) {
                    lists.set_place(FrameNr(nr), FramePlace::Free);
                    lists.free.push_back(FrameNr(nr));
                    result = Import::Came;
                } else {
                    lists.import_error =
                        Some(DriverError::Broken("import gave a frame it does not have"));
                }
            }
        }
        self.announce(&mut lists);
        result
    }

    /// Gives free frames beyond `keep` back to the device.
    pub(crate) fn trim(&self, keep: u32) {
        while let Some(frame) = self.pop_free_beyond(keep, || ()) {
            frame.release();
        }
    }

    /// The frame is a page's until the page goes elsewhere, and then is never used again. The
    /// caller holds the page's entry lock.
    pub(crate) fn distrust(&self, nr: FrameNr) {
        self.lists.lock().meta[nr.0 as usize].distrusted = true;
    }

    /// Takes back a frame that holds `page`'s data, to move or free it; `None` if it is lost. The
    /// caller holds the page's entry lock and has removed the frame from the entry's copies.
    pub(crate) fn take_back(
        &self,
        nr: FrameNr,
        page: PageNr,
        why: Departure,
    ) -> Option<TransitFrame<'_>> {
        let mut lists = self.lists.lock();
        lists.give_up(self.id, nr, page, why).then(|| {
            lists.set_place(nr, FramePlace::Transit);
            TransitFrame { node: self, nr }
        })
    }

    /// Takes back a frame as [`Node::take_back`], and frees it.
    pub(crate) fn free_copy(&self, nr: FrameNr, page: PageNr, why: Departure) {
        let mut lists = self.lists.lock();
        if lists.give_up(self.id, nr, page, why) {
            self.free(&mut lists, nr);
        }
    }

    fn free(&self, lists: &mut MutexGuard<'_, Lists, FRAMES_RANK>, nr: FrameNr) {
        lists.set_place(nr, FramePlace::Free);
        lists.free.push_back(nr);
        self.announce(lists);
    }

    /// The page was mapped once more, or is wanted to stay; `count` runs under the lists' lock.
    pub(crate) fn touch(&self, nr: FrameNr, why: Arrival, count: impl FnOnce()) {
        let mut lists = self.lists.lock();
        count();
        lists.meta[nr.0 as usize].uses = lists.meta[nr.0 as usize].uses.wrapping_add(1);
        let meta = lists.meta[nr.0 as usize];
        lists.meta[nr.0 as usize].expected = false;
        if meta.place == FramePlace::Active && !meta.expected {
            lists.policy.mapped(nr, meta.owner, why);
        }
        self.note_activity(&mut lists);
    }

    /// Runs `count` under the lists' lock.
    pub(crate) fn with_lists(&self, count: impl FnOnce()) {
        let _lists = self.lists.lock();
        count();
    }

    /// The frame's page was brought ahead and is not mapped: its first use is not news.
    pub(crate) fn expect_use(&self, nr: FrameNr) {
        self.lists.lock().meta[nr.0 as usize].expected = true;
    }

    /// Says that another node has (or has no longer) an equal copy of the frame's page, so that
    /// this one can go without losing anything.
    pub(crate) fn set_spare(&self, nr: FrameNr, spare: bool) {
        let mut lists = self.lists.lock();
        lists.meta[nr.0 as usize].spare = spare;
        let meta = lists.meta[nr.0 as usize];
        match (meta.place, spare) {
            (FramePlace::Active, true) => {
                lists.policy.removed(nr, Departure::Aside);
                lists.spare.push_back(nr);
                lists.set_place(nr, FramePlace::Spare);
            }
            (FramePlace::Spare, false) => {
                lists.spare.remove(nr);
                lists.policy.mapped(nr, meta.owner, Arrival::Returned);
                lists.set_place(nr, FramePlace::Active);
            }
            _ => {}
        }
    }

    /// Who brought the page that the frame holds, and whether the frame is pinned.
    pub(crate) fn story(&self, nr: FrameNr) -> (MovedBy, bool) {
        let meta = self.lists.lock().meta[nr.0 as usize];
        (meta.moved_by, meta.place == FramePlace::Pinned)
    }

    /// Frames that could be evicted, with the pages they hold, the best victims first: spare
    /// copies, and active frames unless `spare_only`. Only an offer: by the time the caller has
    /// an entry's lock the frame may be another page's, or have been used.
    pub(crate) fn victims<const N: usize>(&self, spare_only: bool) -> Batch<Offer, N> {
        let mut guard = self.lists.lock();
        let lists = &mut *guard;
        let mut offered = Batch::new();
        for nr in lists.spare.iter().take(N) {
            offered.extend(offer(&lists.meta, nr));
        }
        if !spare_only && !offered.is_full() {
            lists.policy.victims(&mut |nr| {
                offered.extend(offer(&lists.meta, nr));
                !offered.is_full()
            });
        }
        offered
    }

    /// Active frames from the `skip`-th on, in the order in which they would be evicted, as
    /// [`Node::victims`].
    pub(crate) fn victims_after<const N: usize>(&self, skip: u32) -> Batch<Offer, N> {
        let mut guard = self.lists.lock();
        let lists = &mut *guard;
        let (mut offered, mut at) = (Batch::new(), 0);
        lists.policy.victims(&mut |nr| {
            if at >= skip {
                offered.extend(offer(&lists.meta, nr));
            }
            at += 1;
            !offered.is_full()
        });
        offered
    }

    /// Whether a frame that was offered can go: nobody has used or pinned it meanwhile. The caller
    /// holds its page's entry lock.
    pub(crate) fn is_unused_since(&self, offer: Offer) -> bool {
        let lists = self.lists.lock();
        let meta = &lists.meta[offer.nr.0 as usize];
        meta.uses == offer.uses && meta.place != FramePlace::Pinned
    }

    /// How many pages its policy wants evicted at a time, at most.
    pub(crate) fn eviction_batch(&self) -> u32 {
        self.lists.lock().policy.batch()
    }

    /// The number to give to [`Node::wait`]: what happens after this call is not missed.
    pub(crate) fn changes(&self) -> u64 {
        // An old number only makes a wait end at once.
        self.count.changes.get()
    }

    /// Waits until frames have been freed, activated or unpinned since `seen`, or the time is up;
    /// says whether something has changed.
    pub(crate) fn wait(&self, seen: u64, deadline: Deadline, clock: &dyn Clock) -> bool {
        let mut lists = self.lists.lock();
        lists.waiters += 1;
        while self.count.changes.get() == seen {
            let Some(left) = deadline.left(clock) else { break };
            self.changed.wait_timeout(&mut lists, left);
        }
        lists.waiters -= 1;
        self.count.changes.get() != seen
    }

    /// Whether something has changed since `seen`, or a frame is on its way somewhere or being
    /// imported: waiting may help.
    pub(crate) fn is_in_motion(&self, seen: u64) -> bool {
        let lists = self.lists.lock();
        self.count.changes.get() != seen
            || lists.importing
            || lists.releasing > 0
            || self.count.get(FramePlace::Transit) > 0
            || lists.free.len() > 0
    }

    /// Read one by one without a lock: on a node at work a frame on its way from one place to
    /// another may be in neither, or in both.
    pub(crate) fn counts(&self) -> FrameCounts {
        let count = |place| self.count.get(place);
        FrameCounts {
            capacity: self.capacity,
            free: count(FramePlace::Free),
            active: count(FramePlace::Active),
            spare: count(FramePlace::Spare),
            pinned: count(FramePlace::Pinned),
            in_transit: count(FramePlace::Transit),
            lost: count(FramePlace::Lost),
            peak_resident: self.count.peak_resident.load(Ordering::Relaxed),
            reclaimer_wakeups: self.count.reclaimer_wakeups.get(),
        }
    }

    /// The error that says why no frame could be had.
    pub(crate) fn out_of_memory(&self, host_full: bool) -> OutOfMemory {
        let c = self.counts();
        let import_error = self.lists.lock().import_error;
        OutOfMemory {
            node: self.id,
            capacity: c.capacity,
            active: c.active + c.spare,
            pinned: c.pinned,
            in_transit: c.in_transit,
            free: c.free,
            lost: c.lost,
            host_full,
            import_error,
        }
    }

    /// Every frame that holds a page's data, for [`Space::check`](crate::Space::check).
    pub(crate) fn owners(&self) -> Vec<(FrameNr, PageNr, FramePlace)> {
        let lists = self.lists.lock();
        let numbered = lists.meta.iter().enumerate();
        numbered
            .filter(|(_, m)| {
                matches!(m.place, FramePlace::Active | FramePlace::Spare | FramePlace::Pinned)
            })
            .map(|(nr, m)| (FrameNr(nr as u32), m.owner, m.place))
            .collect()
    }

    fn announce(&self, lists: &mut MutexGuard<'_, Lists, FRAMES_RANK>) {
        self.count.changes.add_locked(1);
        if lists.waiters > 0 {
            self.changed.notify_all();
        }
    }
}

impl Lists {
    /// The frame is `page`'s no more; `false` if it is lost. Else the caller puts it somewhere.
    fn give_up(&mut self, node: NodeId, nr: FrameNr, page: PageNr, why: Departure) -> bool {
        let meta = self.meta[nr.0 as usize];
        assert!(
            meta.owner == page && matches!(meta.place, FramePlace::Active | FramePlace::Spare),
            "frame {} of node {node} is {meta:?}, not a movable copy of {page:?}",
            nr.0,
        );
        self.policy.removed(nr, why);
        self.spare.remove(nr);
        if meta.distrusted {
            self.set_place(nr, FramePlace::Lost);
        }
        !meta.distrusted
    }

    /// The frame is pinned from now on, if it was not.
    fn set_aside(&mut self, nr: FrameNr) {
        self.policy.removed(nr, Departure::Aside);
        self.spare.remove(nr);
        self.set_place(nr, FramePlace::Pinned);
    }

    fn set_place(&mut self, nr: FrameNr, place: FramePlace) {
        let old = core::mem::replace(&mut self.meta[nr.0 as usize].place, place);
        self.count.moved(old, place);
    }
}

impl Counts {
    fn get(&self, place: FramePlace) -> u32 {
        self.places[place as usize].load(Ordering::Relaxed)
    }

    /// A frame has gone from one place to another. The caller has the lists' lock, so nobody else
    /// writes.
    fn moved(&self, from: FramePlace, to: FramePlace) {
        let set = |count: &AtomicU32, value| count.store(value, Ordering::Relaxed);
        set(&self.places[from as usize], self.get(from) - 1);
        set(&self.places[to as usize], self.get(to) + 1);
        let resident = [FramePlace::Active, FramePlace::Spare, FramePlace::Pinned];
        let resident = resident.map(|place| self.get(place)).iter().sum();
        if resident > self.peak_resident.load(Ordering::Relaxed) {
            set(&self.peak_resident, resident);
        }
    }
}

/// A policy may offer what it likes; what can't go is left where it is.
fn offer(meta: &[FrameMeta], nr: FrameNr) -> Option<Offer> {
    let meta = meta.get(nr.0 as usize)?;
    Some(Offer { nr, page: meta.owner, uses: meta.uses, is_ahead: meta.expected })
}
