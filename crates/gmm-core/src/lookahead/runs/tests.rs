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
