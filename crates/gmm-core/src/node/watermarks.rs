//! When the thread that keeps a node's frames free has something to do, and how it is told.
//!
//! All of it happens under the frame-list lock. A thread that takes a frame looks at one flag,
//! which is set only while the reclaimer sleeps.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::{FRAMES_RANK, FramePlace, Lists, Node};
use crate::background::Stop;
use crate::sync::{Deadline, MutexGuard};
use crate::{Clock, Config};

/// How many frames are kept free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watermarks {
    /// With fewer than this reclaim begins,
    low: u32,
    /// and it ends with this many.
    high: u32,
}

impl Watermarks {
    pub(super) fn new(config: &Config, capacity: u32) -> Self {
        let high = config.high_watermark.unwrap_or((capacity / 128).clamp(1, 16));
        // Of a node that small nothing is kept free.
        let high = high.min(capacity / 8);
        Self { low: config.low_watermark.min(high), high }
    }
}

/// The thread that keeps frames free, as the others see it.
#[derive(Debug, Default)]
pub(super) struct Reclaimer {
    present: bool,
    /// It sleeps and is to be told when frames are few.
    asleep: bool,
    /// It sleeps and is to be told of the next mapping event, too.
    wants_activity: bool,
    /// Frames that it is about to free.
    coming: u32,
    /// Counts mapping events.
    activity: u64,
}

/// What the reclaimer is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Evict so many pages.
    Reclaim { nr_frames: u32 },
    /// Nothing has happened for a while: launder. The number is for [`Rest::laundered`].
    Launder { activity: u64 },
}

/// What the reclaimer knows between two tasks.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// It is on its way from the low to the high watermark.
    filling: bool,
    /// The last eviction freed nothing: not again before someone is in need.
    pub(crate) futile: bool,
    /// Everything was laundered when so many mapping events had happened.
    pub(crate) laundered: u64,
    /// Since when there were how many mapping events.
    quiet_since: Option<(u64, Duration)>,
}

impl Node {
    /// Whether this thread is now the one that keeps frames free; there is one at most.
    pub(crate) fn become_reclaimer(&self) -> bool {
        !core::mem::replace(&mut self.lists.lock().reclaimer.present, true)
    }

    /// Wakes the reclaimer, so that it looks at its [`Stop`].
    pub(crate) fn wake_reclaimer(&self) {
        drop(self.lists.lock());
        self.work.notify_all();
    }

    /// How many frames are to be freed so that the high watermark is reached, if fewer than the low
    /// one are free.
    pub(crate) fn shortfall(&self) -> u32 {
        let lists = self.lists.lock();
        if self.is_low(&lists) { self.watermarks.high - lists.free.len() } else { 0 }
    }

    /// With fewer free frames than this background reclaim begins, if there is any.
    pub(crate) fn kept_free(&self) -> u32 {
        if self.lists.lock().reclaimer.present { self.watermarks.low } else { 0 }
    }

    /// How many frames are free or with the device.
    pub(crate) fn nr_obtainable(&self) -> u32 {
        let lists = self.lists.lock();
        let absent = if lists.import_dry { 0 } else { lists.nr_absent() };
        lists.free.len() + absent
    }

    /// Sleeps until there is something to do; `None` when it is to stop, and then there is no
    /// reclaimer any more.
    pub(crate) fn next_task(
        &self,
        rest: &mut Rest,
        stop: &Stop,
        clock: &dyn Clock,
        launder_after: Option<Duration>,
    ) -> Option<Task> {
        let mut lists = self.lists.lock();
        loop {
            lists.reclaimer.coming = 0;
            if stop.is_set() {
                let activity = lists.reclaimer.activity;
                lists.reclaimer = Reclaimer { activity, ..Reclaimer::default() };
                return None;
            }
            let free = lists.free.len();
            rest.filling = free < self.watermarks.high && (rest.filling || self.is_low(&lists));
            if rest.filling && !rest.futile {
                let nr_frames = self.watermarks.high - free;
                lists.reclaimer.coming = nr_frames;
                return Some(Task::Reclaim { nr_frames });
            }
            let activity = lists.reclaimer.activity;
            // Of a node too small for watermarks every page is in use.
            let launder_after =
                launder_after.filter(|_| self.watermarks.high > 0 && lists.is_full());
            let left = match launder_after {
                Some(after) if rest.laundered != activity => {
                    match quiet_for(&mut rest.quiet_since, activity, after, clock) {
                        None => return Some(Task::Launder { activity }),
                        left => left,
                    }
                }
                _ => None,
            };
            lists.reclaimer.asleep = true;
            lists.reclaimer.wants_activity = launder_after.is_some() && left.is_none();
            match left {
                Some(left) => self.work.wait_timeout(&mut lists, left),
                None => self.work.wait(&mut lists),
            }
            self.count.reclaimer_wakeups.add_locked(1);
            // If it was told that frames are few, someone is in need.
            rest.futile &= lists.reclaimer.asleep;
            lists.reclaimer.asleep = false;
            lists.reclaimer.wants_activity = false;
        }
    }

    /// Whether there were mapping events since the laundering began that `activity` is from.
    pub(crate) fn is_active_since(&self, activity: u64) -> bool {
        self.lists.lock().reclaimer.activity != activity
    }

    /// Waits for the frames that the reclaimer is about to free, if there are enough for all who
    /// wait; says whether something has changed.
    pub(crate) fn wait_for_reclaimer(&self, seen: u64, end: Deadline, clock: &dyn Clock) -> bool {
        let lists = self.lists.lock();
        let enough = lists.reclaimer.coming > lists.waiters;
        drop(lists);
        enough && self.wait(seen, end, clock)
    }

    /// A frame was taken, or there was none: tells the reclaimer if it sleeps and they are few.
    pub(super) fn tell_if_low(&self, lists: &mut MutexGuard<'_, Lists, FRAMES_RANK>, taken: bool) {
        if lists.reclaimer.asleep && self.is_low(lists) {
            lists.reclaimer.asleep = false;
            // Who finds none evicts for himself.
            lists.reclaimer.coming = if taken { self.watermarks.high } else { 0 };
            self.work.notify_all();
        }
    }

    /// A page was mapped.
    pub(super) fn note_activity(&self, lists: &mut MutexGuard<'_, Lists, FRAMES_RANK>) {
        lists.reclaimer.activity += 1;
        if lists.reclaimer.wants_activity {
            lists.reclaimer.wants_activity = false;
            self.work.notify_all();
        }
    }

    fn is_low(&self, lists: &Lists) -> bool {
        lists.free.len() < self.watermarks.low && lists.is_full()
    }
}

impl Lists {
    fn nr_absent(&self) -> u32 {
        self.count.places[FramePlace::Absent as usize].load(Ordering::Relaxed)
    }

    /// Whether the device has no more frames to give.
    fn is_full(&self) -> bool {
        self.import_dry || self.nr_absent() == 0
    }
}

/// What is left until nothing has happened for as long as `after`; `None` if it is so long.
fn quiet_for(
    since: &mut Option<(u64, Duration)>,
    activity: u64,
    after: Duration,
    clock: &dyn Clock,
) -> Option<Duration> {
    let now = clock.now();
    match since {
        Some((seen, start)) if *seen == activity => {
            after.checked_sub(now - *start).filter(|left| !left.is_zero())
        }
        _ => {
            *since = Some((activity, now));
            Some(after)
        }
    }
}
