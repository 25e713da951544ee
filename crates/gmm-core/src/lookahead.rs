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
//! ([`Space::map_window`]). Should it come to a plan before anyone has begun that, as it does where threads
//! wait for a processor, the fault brings the window itself. A window whose first page nobody touches is the last of its run, and
//! makes those of other runs shorter.
//!
//! The pages are brought by [`Space::look_ahead`], a window a call, on a thread that looks for faults
//! between them. It takes frames that are free, but for the low watermark's, which are for faults: on
//! a full node of few frames it brings nothing. It never evicts, imports or waits, and what fails is
//! left to the fault.

mod loners;

use core::time::Duration;

use crate::bulk::{Aim, BATCH, Flight, Locked};
use crate::driver::Access;
use crate::entry::Mapping;
use crate::fault::Cause;
use crate::node::Node;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Rank, Shared};
use loners::{Age, Loners, Reach};

use crate::{Batch, MAX_PROCESSORS, PageNr, PageRange, Processor};

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
    nr_pages: u32,
    writes: bool,
    /// Somebody has begun to bring it.
    is_begun: bool,
}

impl Window {
    pub(crate) fn is_begun(self) -> bool {
        self.is_begun
    }

    fn pages(self) -> impl Iterator<Item = PageNr> {
        (0..i64::from(self.nr_pages)).map(move |n| PageNr(((self.at + n) * self.direction) as u64))
    }

    /// The same pages, by address.
    fn range(self) -> PageRange {
        let last = self.at + i64::from(self.nr_pages) - 1;
        let start = PageNr((self.at * self.direction).min(last * self.direction) as u64);
        PageRange { start, nr_pages: self.nr_pages.into() }
    }

    fn access(self) -> Access {
        if self.writes { Access::Write } else { Access::Read }
    }
}

/// A window to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ahead {
    stream: usize,
    window: Window,
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

    fn publish(&self, state: &State) {
        for (stream, reach) in state.streams.iter().zip(&self.reach).filter(|(s, _)| s.run > 0) {
            reach.set(stream.reach(), stream.age);
        }
    }

    /// Whether the page was brought ahead a short while ago, and may not have been used yet.
    fn expects(&self, page: PageNr, now: Duration) -> bool {
        let state = self.state.lock();
        state.streams.iter().any(|s| {
            let range = s.from..s.ahead - i64::from(s.planned);
            range.contains(&(page.0 as i64 * s.direction)) && now.saturating_sub(s.since) < GRACE
        })
    }

    /// The fault that came to a plan has brought so many pages of it: what comes next is planned.
    fn end_late(&self, window: Window, done: u32) {
        let mut state = self.state.lock();
        state.end_late(window, done);
        self.publish(&state);
        self.planned.store(true, Ordering::Release);
    }

    /// The next window, for the one thread that is at work from here to [`Streams::end`].
    fn begin(&self) -> Option<Ahead> {
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
    fn end(&self, ahead: Ahead, done: u32) {
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
        for processor in self
            .all_processors()
            .filter(|p| p.node == node.id && p.streams.live.load(Ordering::Acquire))
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
        if !streams.planned.load(Ordering::Acquire) {
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
            if let Some(m) = entry.try_lock() {
                if !self.may_follow(&m, page, processor, window) {
                    break;
                }
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
        let Some(mapper) = self.processor_by(page.0, processor.id) else { return false };
        let (node, mappers) = (self.known_node(processor.node), [mapper]);
        let mut flight = Flight::new(ahead(node, &mappers, processor));
        for page in window.pages() {
            let Some(entry) = self.table.get(page) else { break };
            let Some(m) = entry.try_lock() else { continue };
            // Two that share a node's frames are a matter for the fault.
            let is_shared = self.mappers_on(&m, node.id).next().is_some();
            if is_shared || !self.may_follow(&m, page, processor, window) {
                continue;
            }
            let mut l = Locked::new(page, m);
            if self.set_up_here(&mut l, node.id, exclusive(processor, window)) {
                flight.pages.push(l);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_jump_about_take_no_lock() {
        let streams = Streams::default();
        let note = |page| streams.note(PageNr(page), Access::Read, 8, || Duration::ZERO);
        let held = streams.state.lock();
        for page in [50, 7, 100] {
            note(page);
        }
        drop(held);
        assert!(streams.state.lock().streams.iter().all(|stream| stream.run == 0));
        for page in [101, 102] {
            note(page);
        }
        assert!(streams.planned.load(Ordering::Acquire), "three in a row are a run");
        // After many others it is one no more.
        streams.planned.store(false, Ordering::Release);
        for n in 0..8 {
            note(1000 + 10 * n);
        }
        let held = streams.state.lock();
        note(103);
        drop(held);
        note(104);
        assert!(streams.state.lock().streams.iter().any(|stream| stream.run == 2));
    }

    /// Notes faults; says which pages are to be brought after the last.
    fn after(state: &mut State, faults: &[i64]) -> Vec<u64> {
        for &page in faults {
            state.note(page, false, 8, Age::default(), || Duration::ZERO);
        }
        core::iter::from_fn(|| state.take_window())
            .flat_map(|ahead| ahead.window.pages())
            .map(|page| page.0)
            .collect()
    }

    fn list(range: core::ops::Range<u64>) -> Vec<u64> {
        range.collect()
    }

    #[test]
    fn a_run_is_followed_with_windows_that_double() {
        let mut state = State::default();
        assert_eq!(after(&mut state, &[100, 101]), []);
        assert_eq!(after(&mut state, &[102]), [103, 104]);
        // Nothing new before the first page of the window is touched.
        assert_eq!(after(&mut state, &[102, 101]), []);
        assert_eq!(after(&mut state, &[103]), list(105..109));
        assert_eq!(after(&mut state, &[105]), list(109..117));
        assert_eq!(after(&mut state, &[109]), list(117..125));
        // A core that is further on says as much.
        assert_eq!(after(&mut state, &[120, 118]), list(125..133));
    }

    #[test]
    fn downwards_as_upwards() {
        let mut state = State::default();
        assert_eq!(after(&mut state, &[52, 51, 50]), [49, 48]);
        assert_eq!(after(&mut state, &[49]), [47, 46, 45, 44]);
        // And not below page 0.
        assert_eq!(after(&mut State::default(), &[3, 2, 1]), [0]);
    }

    #[test]
    fn several_runs_at_once() {
        let mut state = State::default();
        for step in 0..2 {
            for core in 0..NR_STREAMS as i64 {
                assert_eq!(after(&mut state, &[core * 1000 + step]), []);
            }
        }
        for core in 0..NR_STREAMS as i64 {
            let page = core as u64 * 1000;
            assert_eq!(after(&mut state, &[core * 1000 + 2]), [page + 3, page + 4]);
        }
    }

    #[test]
    fn a_run_is_not_held_up_by_one_that_was_there_before() {
        let mut state = State::default();
        (100..120).for_each(|page| drop(after(&mut state, &[page])));
        let planned: Vec<u64> = (80..110).flat_map(|page| after(&mut state, &[page])).collect();
        assert!(planned.is_sorted() && planned[0] == 83 && planned.len() >= 27, "{planned:?}");
    }

    #[test]
    fn no_run_no_plan() {
        let mut state = State::default();
        assert_eq!(after(&mut state, &[5, 9, 1, 7, 3, 30, 20, 10, 9, 30, 5, 60]), []);
        assert_eq!(after(&mut state, &[200, 202, 204, 206, 208, 207, 200]), []);
    }

    #[test]
    fn windows_shrink_when_runs_end_early() {
        let mut state = State::default();
        for run in 0..NR_STREAMS as i64 * 4 {
            after(&mut state, &[run * 50, run * 50 + 1, run * 50 + 2]);
        }
        assert_eq!(state.limit, 1);
        // A run that goes on makes up for it.
        assert_eq!(after(&mut state, &[5000, 5001, 5002]), [5003]);
        assert_eq!(after(&mut state, &[5003]), [5004, 5005]);
        assert_eq!(after(&mut state, &[5004]), list(5006..5010));
    }

    #[test]
    fn what_could_not_be_brought_is_where_the_run_goes_on() {
        let mut state = State::default();
        assert_eq!(after(&mut state, &[100, 101, 102]), [103, 104]);
        state.note(103, false, 8, Age::default(), || Duration::ZERO);
        let ahead = state.take_window().unwrap();
        assert_eq!(ahead.window.range(), PageRange { start: PageNr(105), nr_pages: 4 });
        state.give_up(ahead, 2);
        assert_eq!(state.take_window(), None);
        // None: the first page of the window faults in full.
        assert_eq!(reached(&mut state, 105), list(105..107));
        let next = state.take_window().unwrap();
        assert_eq!(next.window.range(), PageRange { start: PageNr(107), nr_pages: 8 });
        state.give_up(next, 0);
        assert_eq!(reached(&mut state, 107), []);
        assert_eq!(after(&mut state, &[]), list(108..116));
    }

    /// Which pages a fault is the first of.
    fn reached(state: &mut State, page: i64) -> Vec<u64> {
        let window = state.note(page, false, 8, Age::default(), || Duration::ZERO).reached;
        window.into_iter().flat_map(Window::pages).map(|page| page.0).collect()
    }

    #[test]
    fn the_first_fault_in_a_window_is_told_which_pages_were_brought() {
        let mut state = State::default();
        for page in [100, 101, 102] {
            assert_eq!(reached(&mut state, page), []);
        }
        // Nobody has begun to bring it: this fault does, and others what comes next.
        let late = state.note(103, false, 8, Age::default(), || Duration::ZERO).reached;
        assert!(late.is_some_and(|window| !window.is_begun()));
        assert_eq!(late.map(Window::range), Some(PageRange { start: PageNr(103), nr_pages: 2 }));
        assert_eq!(after(&mut state, &[]), []);
        state.end_late(late.unwrap(), 2);
        assert_eq!(after(&mut state, &[]), list(105..109));
        let begun = state.note(106, false, 8, Age::default(), || Duration::ZERO).reached;
        assert!(begun.is_some_and(Window::is_begun));
        assert_eq!(begun.map(Window::range), Some(PageRange { start: PageNr(105), nr_pages: 4 }));
        assert_eq!(reached(&mut state, 107), []);
        // In the middle of a plan it is the rest of it; what can't be had is where the run goes on.
        let late = state.note(111, false, 8, Age::default(), || Duration::ZERO).reached;
        assert_eq!(late.map(Window::range), Some(PageRange { start: PageNr(111), nr_pages: 6 }));
        state.end_late(late.unwrap(), 2);
        assert_eq!(after(&mut state, &[]), []);
        assert_eq!(after(&mut state, &[113]), list(114..122));
        // Downwards in the order of the run.
        let mut state = State::default();
        after(&mut state, &[52, 51, 50]);
        assert_eq!(reached(&mut state, 49), [49, 48]);
    }

    #[test]
    fn one_thread_is_at_work_at_a_time() {
        let streams = Streams::default();
        for page in [100, 101, 102] {
            streams.note(PageNr(page), Access::Read, 8, || Duration::ZERO);
        }
        let first = streams.begin().unwrap();
        streams.note(PageNr(103), Access::Read, 8, || Duration::ZERO);
        assert_eq!(streams.begin(), None);
        streams.end(first, 2);
        let second = streams.begin().unwrap();
        assert_eq!(first.window.range(), PageRange { start: PageNr(103), nr_pages: 2 });
        assert_eq!(second.window.range(), PageRange { start: PageNr(105), nr_pages: 4 });
        streams.end(second, 4);
        assert_eq!(streams.begin(), None);
        assert!(!streams.planned.load(Ordering::Acquire));
    }

    #[test]
    fn pages_brought_ahead_are_expected_for_a_while() {
        let streams = Streams::default();
        for page in [100, 101, 102] {
            streams.note(PageNr(page), Access::Read, 8, || Duration::ZERO);
        }
        let expected =
            |now| -> Vec<u64> { (90..120).filter(|&p| streams.expects(PageNr(p), now)).collect() };
        // Those that nobody has begun to bring are not.
        assert_eq!(expected(Duration::ZERO), []);
        streams.end(streams.begin().unwrap(), 2);
        assert_eq!(expected(Duration::ZERO), [103, 104]);
        assert_eq!(expected(GRACE), []);
        // What was used is a victim like others.
        streams.note(PageNr(104), Access::Read, 8, || Duration::ZERO);
        assert_eq!(expected(Duration::ZERO), []);
    }
}
