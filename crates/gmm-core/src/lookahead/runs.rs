//! Runs of faults: which pages a processor is expected to fault on, as far as that can be told from
//! those before. Plans windows of pages, and hears what became of them.

use core::time::Duration;

use super::loners::{Age, Loners, Reach};
use crate::bulk::BATCH;
use crate::driver::Access;
use crate::entry::Mapping;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Rank};
use crate::{PageNr, PageRange};

/// How many runs of one processor are followed at once: its cores have one each, or several.
const NR_STREAMS: usize = 8;

/// How many faults in a row make a run.
const MIN_RUN: u32 = 3;

/// How many pages the first window of a run has.
const FIRST_WINDOW: u32 = 2;

/// For how long pages that were brought ahead are spared by reclaim, should the run not go on.
const GRACE: Duration = Duration::from_millis(100);

/// The runs of one processor.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State, { Rank::Frames as u8 }>,
    /// Whether there is a plan that nobody has begun: read without the lock.
    planned: AtomicBool,
    /// Whether there was ever one.
    live: AtomicBool,
    /// Faults that are no run's so far.
    loners: Loners,
    /// Where faults that the streams know may be: written under the lock, read without it.
    reach: [Reach; NR_STREAMS],
}

#[derive(Debug, Default)]
struct State {
    streams: [Stream; NR_STREAMS],
    /// Counts faults, to find the stream that was used least recently.
    now: u64,
    /// The most pages in a window: fewer after windows that were wrong; 0 before the first.
    limit: u32,
    /// A thread is bringing pages.
    at_work: bool,
}

/// One run. Its pages are at *positions*, which grow in the direction of the run: the page number
/// for a run upwards, its negative for one downwards.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// 1 or -1; 0 before the second fault.
    direction: i64,
    /// How many faults of it there were; 0 if this is no stream.
    run: u32,
    /// After the last fault. What was brought from here on has not been used yet, for all that is
    /// known, and is not evicted for a while.
    from: i64,
    /// The first page of the current window. A fault here or further on says that the run goes on.
    next: i64,
    /// The first page beyond the window.
    ahead: i64,
    window: u32,
    /// How many pages before `ahead` nobody has begun to bring.
    planned: u32,
    writes: bool,
    last_used: u64,
    age: Age,
    /// When the window was planned.
    since: Duration,
}

/// What a fault's page is to a stream, the best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Other,
    /// It is one that the stream knows.
    Known,
    /// It goes on, upwards or downwards.
    Next(i64),
}

/// Pages that a run goes through, in its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Where its first page is.
    at: i64,
    direction: i64,
    pub(super) nr_pages: u32,
    pub(super) writes: bool,
    /// Somebody has begun to bring it.
    is_begun: bool,
}

impl Window {
    pub(crate) fn is_begun(self) -> bool {
        self.is_begun
    }

    pub(super) fn pages(self) -> impl Iterator<Item = PageNr> {
        (0..i64::from(self.nr_pages)).map(move |n| PageNr(((self.at + n) * self.direction) as u64))
    }

    /// The same pages, by address.
    pub(super) fn range(self) -> PageRange {
        let last = self.at + i64::from(self.nr_pages) - 1;
        let start = PageNr((self.at * self.direction).min(last * self.direction) as u64);
        PageRange { start, nr_pages: self.nr_pages.into() }
    }

    /// Whether its pages up to that of `m` are of more than one region: it goes upwards, and begins
    /// behind what has faulted.
    pub(super) fn has_left_region(self, m: &Mapping) -> bool {
        self.direction > 0 && m.is_first()
    }

    pub(super) fn access(self) -> Access {
        if self.writes { Access::Write } else { Access::Read }
    }
}

/// A window to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ahead {
    stream: usize,
    pub(super) window: Window,
}

impl Streams {
    /// A fault on `page`, which is about to be served. `most` is the longest window. If it is the
    /// first in a window, says which.
    pub(crate) fn note(
        &self,
        page: PageNr,
        access: Access,
        most: u32,
        now: impl Fn() -> Duration,
    ) -> Option<Window> {
        let age = self.loners.age();
        let is_of_run = self.reach.iter().any(|reach| reach.contains(page, age));
        let before = if is_of_run { None } else { Some(self.loners.neighbour(page)?) };
        // A fault does not wait for another's: one that goes unnoticed is made up for by the next.
        let mut state = self.state.try_lock()?;
        let (writes, most) = (access == Access::Write, most.min(BATCH as u32));
        if let Some(before) = before {
            state.note(before.0 as i64, writes, most, age, &now);
        }
        let Noted { planned, reached } = state.note(page.0 as i64, writes, most, age, now);
        self.publish(&state);
        if planned {
            self.live.store(true, Ordering::Release);
            self.planned.store(true, Ordering::Release);
        }
        reached
    }

    /// A fault on the first page of a region, which is no run's next page, but may be a run's first.
    pub(crate) fn note_first(&self, page: PageNr) {
        self.loners.remember(page);
        let age = self.loners.age();
        if self.reach.iter().any(|reach| reach.contains(page, age))
            && let Some(mut state) = self.state.try_lock()
        {
            state.end_below(page.0 as i64);
        }
    }

    /// Whether there is a plan that nobody has begun.
    pub(super) fn has_plan(&self) -> bool {
        self.planned.load(Ordering::Acquire)
    }

    /// Whether there was ever one.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    fn publish(&self, state: &State) {
        for (stream, reach) in state.streams.iter().zip(&self.reach).filter(|(s, _)| s.run > 0) {
            reach.set(stream.reach(), stream.age);
        }
    }

    /// Whether the page was brought ahead a short while ago, and may not have been used yet.
    pub(super) fn expects(&self, page: PageNr, now: Duration) -> bool {
        let state = self.state.lock();
        state.streams.iter().any(|s| {
            let range = s.from..s.ahead - i64::from(s.planned);
            range.contains(&(page.0 as i64 * s.direction)) && now.saturating_sub(s.since) < GRACE
        })
    }

    /// The fault that came to a plan has brought so many pages of it: what comes next is planned.
    pub(super) fn end_late(&self, window: Window, done: u32) {
        let mut state = self.state.lock();
        state.end_late(window, done);
        self.publish(&state);
        self.planned.store(true, Ordering::Release);
    }

    /// The next window, for the one thread that is at work from here to [`Streams::end`].
    pub(super) fn begin(&self) -> Option<Ahead> {
        let mut state = self.state.lock();
        if state.at_work {
            return None;
        }
        let ahead = state.take_window();
        state.at_work = ahead.is_some();
        if ahead.is_none() {
            self.planned.store(false, Ordering::Release);
        }
        ahead
    }

    /// So many pages of it need not be brought any more.
    pub(super) fn end(&self, ahead: Ahead, done: u32) {
        let mut state = self.state.lock();
        state.at_work = false;
        if done < ahead.window.nr_pages {
            state.give_up(ahead, done);
            self.publish(&state);
        }
    }
}

/// What a fault has come to.
#[derive(Default)]
struct Noted {
    /// There is a plan.
    planned: bool,
    /// The window that it is the first in.
    reached: Option<Window>,
}

impl State {
    fn note(
        &mut self,
        page: i64,
        writes: bool,
        most: u32,
        age: Age,
        now: impl Fn() -> Duration,
    ) -> Noted {
        self.now += 1;
        if self.limit == 0 {
            self.limit = most;
        }
        // A run that goes on, before one that only knows the page from earlier.
        let live = |s: &&mut Stream| s.run > 0 && !age.is_past(s.age);
        let fits = self.streams.iter_mut().filter(live).map(|s| (s.fit(page), s));
        let best = fits.filter(|(fit, _)| *fit != Fit::Other).max_by_key(|(fit, _)| *fit);
        if let Some((fit, stream)) = best {
            (stream.last_used, stream.age) = (self.now, age);
            stream.writes |= writes;
            let mut reached = None;
            if let Fit::Next(direction) = fit {
                if stream.window > 0 {
                    self.limit = (self.limit * 2).min(most);
                }
                reached = stream.go_on(page * direction, direction, self.limit, now);
            }
            return Noted { planned: stream.planned > 0, reached };
        }
        let oldest = self.streams.iter_mut().min_by_key(|s| s.last_used).expect("there are some");
        if oldest.window > 0 {
            self.limit = (self.limit / 2).max(1);
        }
        let last_used = self.now;
        *oldest = Stream { run: 1, next: page, writes, last_used, age, ..Stream::default() };
        Noted::default()
    }

    /// Ends the runs that come to a page from below.
    fn end_below(&mut self, page: i64) {
        let comes = |s: &&mut Stream| s.run > 0 && s.fit(page) == Fit::Next(1);
        self.streams.iter_mut().filter(comes).for_each(|s| *s = Stream::default());
    }

    fn take_window(&mut self) -> Option<Ahead> {
        loop {
            let stream = self.streams.iter().position(|s| s.planned > 0)?;
            let s = &mut self.streams[stream];
            let (direction, at) = (s.direction, s.ahead - i64::from(s.planned));
            let planned = core::mem::take(&mut s.planned).min(BATCH as u32);
            let nr_pages = existing(direction, at, planned);
            s.ahead = at + i64::from(planned);
            if nr_pages > 0 {
                let window = Window { at, direction, nr_pages, writes: s.writes, is_begun: true };
                return Some(Ahead { stream, window });
            }
        }
    }

    fn end_late(&mut self, window: Window, done: u32) {
        let end = window.at + i64::from(window.nr_pages);
        let of_window =
            |s: &Stream| (s.direction, s.ahead, s.planned) == (window.direction, end, 0);
        let Some(stream) = self.streams.iter().position(of_window) else { return };
        if done < window.nr_pages {
            // The first page is the fault's own affair.
            return self.give_up(Ahead { stream, window }, done.max(1));
        }
        let s = &mut self.streams[stream];
        s.planned = s.window.min(self.limit);
        s.ahead += i64::from(s.planned);
    }

    /// From some page on the window could not be had: the run's next fault is there.
    fn give_up(&mut self, Ahead { stream, window }: Ahead, done: u32) {
        let s = &mut self.streams[stream];
        let end = window.at + i64::from(window.nr_pages);
        if s.direction == window.direction && s.ahead - i64::from(s.planned) == end {
            (s.ahead, s.planned) = (window.at + i64::from(done), 0);
            s.next = s.next.min(s.ahead);
        }
    }
}

impl Stream {
    fn fit(&self, page: i64) -> Fit {
        if self.run == 1 {
            return match page - self.next {
                0 => Fit::Known,
                step @ (1 | -1) => Fit::Next(step),
                _ => Fit::Other,
            };
        }
        let at = page * self.direction;
        let known = self.known_from();
        if (self.next..=self.ahead).contains(&at) {
            Fit::Next(self.direction)
        } else if (known..self.next).contains(&at) {
            Fit::Known
        } else {
            Fit::Other
        }
    }

    /// The first position that is of the run.
    fn known_from(&self) -> i64 {
        self.next - 2 * i64::from(self.window) - 1
    }

    /// The lowest and the highest page that [`Stream::fit`] has to do with.
    fn reach(&self) -> (PageNr, PageNr) {
        let ends = match self.run {
            1 => [self.next - 1, self.next + 1],
            _ => [self.known_from() * self.direction, self.ahead * self.direction],
        };
        let page = |at: i64| PageNr(at.max(0) as u64);
        (page(ends[0].min(ends[1])), page(ends[0].max(ends[1])))
    }

    /// A fault at `at` goes on with the run. If it is in the window, says what of that was begun.
    fn go_on(
        &mut self,
        at: i64,
        direction: i64,
        limit: u32,
        now: impl Fn() -> Duration,
    ) -> Option<Window> {
        self.direction = direction;
        self.run = self.run.saturating_add(1);
        if self.run < MIN_RUN {
            (self.from, self.next, self.ahead) = (at + 1, at + 1, at + 1);
            return None;
        }
        let begun = self.ahead - i64::from(self.planned);
        let is_begun = at < begun;
        // Who has come to a plan before anyone began it brings what is left of it.
        let (first, end) = match is_begun {
            true => (self.next, begun),
            false if self.window > 0 => (at, self.ahead.min(at + BATCH as i64)),
            false => (at, at),
        };
        let nr_pages = existing(direction, first, (end - first).max(0) as u32);
        let reached = Window { at: first, direction, nr_pages, writes: self.writes, is_begun };
        self.window = if self.window == 0 { FIRST_WINDOW } else { self.window * 2 }.min(limit);
        self.since = now();
        if !is_begun && nr_pages > 0 {
            // Whether that can be had is to be seen.
            (self.from, self.next, self.ahead, self.planned) = (at + 1, end, end, 0);
            return Some(reached);
        }
        // What nobody has begun to bring, and need not any more, is left out.
        let next = begun.max(at + 1);
        let left = (self.ahead - next).max(0) as u32;
        self.planned = (left + self.window).min(limit);
        (self.from, self.next, self.ahead) = (at + 1, next, next + i64::from(self.planned));
        (nr_pages > 0).then_some(reached)
    }
}

/// How many of so many pages there are: there is none below 0.
fn existing(direction: i64, at: i64, nr_pages: u32) -> u32 {
    if direction < 0 { (1 - at).clamp(0, nr_pages.into()) as u32 } else { nr_pages }
}

#[cfg(test)]
mod tests;
