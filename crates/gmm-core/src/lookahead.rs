//! Look-ahead: when a processor's faults run through consecutive pages, the next ones are brought
//! before they fault.
//!
//! A hit on a mapped page makes no fault, so a run that is followed well would not be heard of any
//! more. The first page of each window is therefore brought but not mapped: touching it is a fault
//! that copies nothing, says that the window was right, and plans the next one, twice as long. A
//! window whose first page nobody touches is the last of its run, and makes those of other runs
//! shorter.
//!
//! The pages are brought by [`Space::look_ahead`], one a call, on a thread that looks for faults
//! between them. It takes frames that are free; it never evicts, imports or waits, and what fails is
//! left to the fault.

use core::time::Duration;
use std::sync::Arc;

use crate::driver::Access;
use crate::entry::Mapping;
use crate::fault::{Cause, Spare, Want};
use crate::node::Node;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Rank};
use crate::{Batch, MAX_PROCESSORS, PageNr, Processor, Result};

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
    /// Pages from here to `ahead` are not evicted for a while.
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

/// A page to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ahead {
    page: PageNr,
    stream: usize,
    direction: i64,
    at: i64,
    /// The first of its window, which stays unmapped, so that its use is heard of.
    is_first: bool,
    writes: bool,
}

impl Streams {
    /// A fault on `page`, which is about to be served. `most` is the longest window; 0 turns
    /// look-ahead off.
    pub(crate) fn note(&self, page: PageNr, access: Access, most: u32, now: impl Fn() -> Duration) {
        if most == 0 {
            return;
        }
        let mut state = self.state.lock();
        if state.note(page.0 as i64, access == Access::Write, most, now) {
            self.live.store(true, Ordering::Release);
            self.planned.store(true, Ordering::Release);
        }
    }

    /// Whether the page was brought ahead a short while ago, and may not have been used yet.
    fn expects(&self, page: PageNr, now: Duration) -> bool {
        let state = self.state.lock();
        state.streams.iter().any(|s| {
            let range = s.from..s.ahead;
            range.contains(&(page.0 as i64 * s.direction)) && now.saturating_sub(s.since) < GRACE
        })
    }

    /// The next page, for the one thread that is at work from here to [`Streams::end`].
    fn begin(&self) -> Option<Ahead> {
        let mut state = self.state.lock();
        if state.at_work {
            return None;
        }
        let ahead = state.take_page();
        state.at_work = ahead.is_some();
        if ahead.is_none() {
            self.planned.store(false, Ordering::Release);
        }
        ahead
    }

    fn end(&self, ahead: Ahead, brought: bool) {
        let mut state = self.state.lock();
        state.at_work = false;
        if !brought {
            state.give_up(ahead);
        }
    }
}

impl State {
    /// Says whether there is a plan.
    fn note(&mut self, page: i64, writes: bool, most: u32, now: impl Fn() -> Duration) -> bool {
        self.now += 1;
        if self.limit == 0 {
            self.limit = most;
        }
        // A run that goes on, before one that only knows the page from earlier.
        let live = |s: &&mut Stream| s.run > 0;
        let fits = self.streams.iter_mut().filter(live).map(|s| (s.fit(page), s));
        let best = fits.filter(|(fit, _)| *fit != Fit::Other).max_by_key(|(fit, _)| *fit);
        if let Some((fit, stream)) = best {
            stream.last_used = self.now;
            stream.writes |= writes;
            if let Fit::Next(direction) = fit {
                if stream.window > 0 {
                    self.limit = (self.limit * 2).min(most);
                }
                stream.go_on(page * direction, direction, self.limit, now);
            }
            return stream.planned > 0;
        }
        let oldest = self.streams.iter_mut().min_by_key(|s| s.last_used).expect("there are some");
        if oldest.window > 0 {
            self.limit = (self.limit / 2).max(1);
        }
        *oldest = Stream { run: 1, next: page, writes, last_used: self.now, ..Stream::default() };
        false
    }

    fn take_page(&mut self) -> Option<Ahead> {
        loop {
            let stream = self.streams.iter().position(|s| s.planned > 0)?;
            let s = &mut self.streams[stream];
            let (direction, at) = (s.direction, s.ahead - i64::from(s.planned));
            s.planned -= 1;
            match u64::try_from(at * direction) {
                Ok(page) => {
                    let (page, is_first, writes) = (PageNr(page), at == s.next, s.writes);
                    return Some(Ahead { page, stream, direction, at, is_first, writes });
                }
                // There is no page below 0.
                Err(_) => s.planned = 0,
            }
        }
    }

    /// The page could not be had, so the others after it aren't brought either: the run's next fault
    /// is there.
    fn give_up(&mut self, ahead: Ahead) {
        let s = &mut self.streams[ahead.stream];
        if s.direction == ahead.direction && s.ahead - i64::from(s.planned) == ahead.at + 1 {
            (s.ahead, s.planned) = (ahead.at, 0);
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
        let known = self.next - 2 * i64::from(self.window) - 1;
        if (self.next..=self.ahead).contains(&at) {
            Fit::Next(self.direction)
        } else if (known..self.next).contains(&at) {
            Fit::Known
        } else {
            Fit::Other
        }
    }

    fn go_on(&mut self, at: i64, direction: i64, limit: u32, now: impl Fn() -> Duration) {
        self.direction = direction;
        self.run = self.run.saturating_add(1);
        if self.run == 2 {
            self.ahead = at;
        }
        // A page that was not brought: look-ahead begins after it.
        self.ahead = self.ahead.max(at + 1);
        if self.run < MIN_RUN {
            (self.from, self.next) = (at, at + 1);
            return;
        }
        self.window = if self.window == 0 { FIRST_WINDOW } else { self.window * 2 }.min(limit);
        self.since = now();
        (self.from, self.next) = (self.next, self.ahead);
        self.ahead += i64::from(self.window);
        self.planned = (self.planned + self.window).min(2 * limit);
    }
}

/// Pages that reclaim spares for now: brought ahead of a use that may not have come yet.
pub(crate) struct Expected {
    by: Batch<Arc<Processor>, MAX_PROCESSORS>,
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
        let all = self.processors().chain(core::iter::once(self.cpu().clone()));
        for processor in all.filter(|p| p.node == node.id && p.streams.live.load(Ordering::Acquire))
        {
            by.push(processor);
        }
        let now = if by.is_empty() { Duration::ZERO } else { self.clock.now() };
        Expected { by, now }
    }

    /// Brings a page that the processor is about to fault on, if its faults so far say so; `false`
    /// if there is none, or another thread is at it. Before it begins `announce` is told which.
    /// Called by a driver when it has no fault to serve, again and again until there is nothing to
    /// do; a fault on the announced page need not be served before this returns. Does not allocate.
    pub fn look_ahead(&self, processor: &Processor, announce: impl FnOnce(PageNr)) -> bool {
        let streams = &processor.streams;
        if !streams.planned.load(Ordering::Acquire) {
            return false;
        }
        let Some(ahead) = streams.begin() else { return false };
        announce(ahead.page);
        let mapper = (!ahead.is_first).then_some(processor);
        let brought = self.bring_ahead(processor, ahead.page, mapper, ahead.writes);
        streams.end(ahead, brought.is_some());
        true
    }

    /// Brings one page; `None` if it can't be had cheaply, and then neither are those after it.
    fn bring_ahead(
        &self,
        processor: &Processor,
        page: PageNr,
        mapper: Option<&Processor>,
        writes: bool,
    ) -> Option<()> {
        let node = self.known_node(processor.node);
        let entry = self.table.get(page)?;
        // Who has the entry is moving the page, or about to.
        let Some(mut m) = entry.try_lock() else { return Some(()) };
        let access = if writes { Access::Write } else { Access::Read };
        // What was advised about a page, the fault knows.
        let may_map = m.is_open() && !m.is_refused_by_some() && !m.is_poisoned() && !m.is_advised();
        if !may_map || !m.protection.allows(access) || processor.is_detached() {
            return None;
        }
        if m.copy_on(node.id).is_some() {
            return Some(());
        }
        if self.is_to_stay(page) {
            return None;
        }
        // A page that nobody has touched is made when it is touched, not before.
        m.source()?;
        self.serve_ahead(&mut m, node, page, mapper, access).ok()?
    }

    fn serve_ahead(
        &self,
        m: &mut Mapping,
        node: &Node,
        page: PageNr,
        mapper: Option<&Processor>,
        access: Access,
    ) -> Result<Option<()>> {
        let Some(frame) = node.pop_free() else { return Ok(None) };
        if m.source().is_some_and(|from| self.needs_bounce(from, frame.frame())) {
            return Ok(None);
        }
        let addr = page.start();
        let want = Want { page, addr, node, processor: mapper, access, cause: Cause::LookAhead };
        let plan = self.plan(m, &want, false);
        self.serve(m, &want, &plan, Spare::with_target(frame))?;
        if let (None, Some(copy)) = (mapper, m.copy_on(node.id)) {
            node.expect_use(copy.nr);
        }
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes faults; says which pages are to be brought after the last.
    fn after(state: &mut State, faults: &[i64]) -> Vec<u64> {
        for &page in faults {
            state.note(page, false, 8, || Duration::ZERO);
        }
        core::iter::from_fn(|| state.take_page()).map(|ahead| ahead.page.0).collect()
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
        for page in [100, 101, 102] {
            after(&mut state, &[page]);
        }
        // 105 .. 109 are planned, two of them brought.
        state.note(103, false, 8, || Duration::ZERO);
        let ahead: Vec<_> = (0..3).map(|_| state.take_page().unwrap()).collect();
        assert_eq!(
            ahead.iter().map(|a| (a.page.0, a.is_first)).collect::<Vec<_>>(),
            [(105, true), (106, false), (107, false)]
        );
        state.give_up(ahead[2]);
        assert_eq!(state.take_page(), None);
        // None: the first page of the window faults in full.
        state.note(107, false, 8, || Duration::ZERO);
        let first = state.take_page().unwrap();
        assert_eq!((first.page.0, first.is_first), (108, true));
        state.give_up(first);
        assert_eq!(after(&mut state, &[108]), list(109..117));
    }

    #[test]
    fn one_thread_is_at_work_at_a_time() {
        let streams = Streams::default();
        for page in [100, 101, 102] {
            streams.note(PageNr(page), Access::Read, 8, || Duration::ZERO);
        }
        let first = streams.begin().unwrap();
        assert_eq!(streams.begin(), None);
        streams.end(first, true);
        let second = streams.begin().unwrap();
        assert_eq!((first.page, second.page), (PageNr(103), PageNr(104)));
        streams.end(second, true);
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
        assert_eq!(expected(Duration::ZERO), [102, 103, 104]);
        assert_eq!(expected(GRACE), []);
    }
}
