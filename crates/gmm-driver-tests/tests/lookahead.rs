//! Look-ahead on the array device: which pages it brings, what it leaves alone, and that a wrong
//! guess and a failure change nothing but time.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, DriverError};
use gmm_core::{EvictionPolicy, NodeStats, PAGE_SIZE, PageRange, PageState};
use gmm_driver_tests::array::{Call, Completion, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;

fn world(frames: u32) -> World {
    let xpu = DeviceOptions::xpu("a", frames).completing(Completion::Halves);
    World::builder(96)
        .host(|h| h.completing(Completion::Halves))
        .xpu(xpu, 1)
        .config(|c| (c.policy, c.look_ahead) = (EvictionPolicy::Lru, 8))
        .build()
}

/// A region that the CPU has written, and as many frames of the XPU free as it has.
fn written(world: &World, nr_pages: u64) -> PageRange {
    let range = world.mmap(nr_pages);
    for page in range.pages() {
        world.cpu().store(word(page, 0), page.0).expect("a store");
        while world.space.look_ahead(&world.cpu().processor, |_| {}) {}
    }
    let node = world.node(A);
    if u64::from(stats(world).free_frames) < nr_pages {
        let other = world.mmap(nr_pages);
        world.space.prefetch(other.start.start(), other.len_bytes(), node).expect("a prefetch");
        world.space.munmap(other.start.start(), other.len_bytes()).expect("munmap");
    }
    range
}

/// Two such regions, the second right behind the first.
fn side_by_side(world: &World, nr_pages: u64) -> (PageRange, PageRange) {
    let both = written(world, 2 * nr_pages);
    world.space.munmap(both.start.start(), both.len_bytes()).expect("munmap");
    let regions = [(), ()].map(|()| world.mmap(nr_pages));
    for page in regions.iter().flat_map(|range| range.pages()) {
        world.cpu().store(word(page, 0), page.0).expect("a store");
        while world.space.look_ahead(&world.cpu().processor, |_| {}) {}
    }
    let [first, second] = regions;
    assert_eq!(first.start.plus(nr_pages), second.start);
    (first, second)
}

fn stats(world: &World) -> NodeStats {
    world.space.snapshot().nodes.swap_remove(1)
}

/// An access, and then what the driver's thread does.
fn read(world: &World, who: usize, range: PageRange, nth: u64) {
    let page = range.start.plus(nth);
    assert_eq!(world.processors[who].load(word(page, 0)), Ok(page.0));
    while world.space.look_ahead(&world.processors[who].processor, |_| {}) {}
    world.assert_sound(nth);
}

/// Which pages of the range the processor maps.
fn mapped(world: &World, who: usize, range: PageRange) -> Vec<u64> {
    let maps = |&n: &u64| world.processors[who].context.maps(range.start.plus(n));
    (0..range.nr_pages).filter(maps).collect()
}

fn state(world: &World, range: PageRange, nth: u64) -> PageState {
    world.space.inspect(range.start.plus(nth).start()).expect("mapped").state
}

#[test]
fn a_run_faults_once_a_window() {
    for who in [CPU, A] {
        let world = world(40);
        let range = written(&world, 40);
        if who == CPU {
            let node = world.node(A);
            world.space.prefetch(range.start.start(), range.len_bytes(), node).expect("room");
            for page in range.pages() {
                world.processors[A].store(word(page, 0), page.0).expect("a store");
            }
        }
        let node = usize::from(world.node(who).0);
        let faults = || world.space.snapshot().nodes[node].faults;
        let before = faults();
        (0..3).for_each(|nth| read(&world, who, range, nth));
        // The window is there, but not mapped.
        assert_eq!(mapped(&world, who, range), [0, 1, 2], "processor {who}");
        let elsewhere = PageState::Exclusive(world.node(1 - who));
        assert!((3..5).all(|nth| state(&world, range, nth) != elsewhere));
        assert_eq!(state(&world, range, 5), elsewhere);
        // Its first fault maps all of it.
        read(&world, who, range, 3);
        assert_eq!(mapped(&world, who, range), [0, 1, 2, 3, 4], "processor {who}");
        (4..40).for_each(|nth| read(&world, who, range, nth));
        // Faults on 0, 1, 2, 3, 5, 9, 17, 25, 33.
        assert_eq!(faults() - before, 9, "processor {who}");
        assert_eq!(mapped(&world, who, range), (0..40).collect::<Vec<_>>());
    }
}

#[test]
fn pages_of_a_run_of_writes_come_for_writing() {
    let world = world(16);
    let range = written(&world, 16);
    let before = stats(&world).faults;
    for page in range.pages() {
        world.processors[A].store(word(page, 1), 1).expect("a store");
        while world.space.look_ahead(&world.processors[A].processor, |_| {}) {}
    }
    assert_eq!(stats(&world).faults - before, 6, "0, 1, 2, 3, 5, 9");
    assert!((0..16).all(|nth| state(&world, range, nth) == PageState::Exclusive(world.node(A))));
    world.assert_sound("written");
}

#[test]
fn a_run_ends_with_its_region() {
    let world = world(40);
    let (first, second) = side_by_side(&world, 12);
    let xpu = &world.processors[A];
    let ahead = || while world.space.look_ahead(&xpu.processor, |_| {}) {};
    for page in first.pages() {
        xpu.store(word(page, 1), 1).expect("a store");
        ahead();
    }
    // What was written says nothing of what lies behind it.
    let at_home = PageState::Exclusive(world.node(CPU));
    assert!((0..12).all(|nth| state(&world, second, nth) == at_home));
    // And when that is read in turn, its data stays where it was, too.
    (0..12).for_each(|nth| read(&world, A, second, nth));
    let taken = PageState::Exclusive(world.node(A));
    assert!((0..12).all(|nth| state(&world, second, nth) != taken));
    assert_eq!(mapped(&world, A, second), (0..12).collect::<Vec<_>>());
    // The same downwards: the last of the first region is not touched by a run through the second.
    let (first, second) = side_by_side(&world, 6);
    for page in second.pages().collect::<Vec<_>>().into_iter().rev() {
        xpu.store(word(page, 1), 1).expect("a store");
        ahead();
    }
    assert!((0..6).all(|nth| state(&world, first, nth) == at_home));
}

#[test]
fn it_takes_only_free_frames_and_evicts_nothing() {
    let world = world(8);
    let range = written(&world, 20);
    assert_eq!(stats(&world).free_frames, 8);
    let evicted = stats(&world).evicted_pages;
    (0..4).for_each(|nth| read(&world, A, range, nth));
    // 0 to 3 by faults, 4 ahead, and 5 to 7 of the next window.
    assert_eq!((stats(&world).free_frames, stats(&world).evicted_pages), (0, evicted));
    // With none free each fault is one of its own, and the run is still followed.
    for nth in 4..20 {
        let before = stats(&world).evicted_pages;
        read(&world, A, range, nth);
        assert!(stats(&world).evicted_pages <= before + 1, "a fault evicts one at a time");
    }
    // And it imports nothing.
    let world = World::builder(96)
        .config(|c| c.look_ahead = 8)
        .xpu(DeviceOptions { import_limit: 1, ..DeviceOptions::xpu("a", 40) }, 1)
        .build();
    let range = world.mmap(8);
    range.pages().for_each(|p| world.cpu().store(word(p, 0), p.0).expect("a store"));
    (0..8).for_each(|nth| read(&world, A, range, nth));
    assert_eq!((stats(&world).faults, world.machine.nr_imported(world.node(A))), (8, 8));
}

#[test]
fn what_was_brought_ahead_is_spared_until_it_is_used() {
    let world = world(80);
    let range = written(&world, 40);
    // The fault on 5 maps its window, and has the next one brought; then the run ends.
    (0..6).for_each(|nth| read(&world, A, range, nth));
    [30, 35].into_iter().for_each(|nth| read(&world, A, range, nth));
    assert_eq!(mapped(&world, A, range), [0, 1, 2, 3, 4, 5, 6, 7, 8, 30, 35]);
    let elsewhere = PageState::Exclusive(world.node(CPU));
    let here = || (0..40).filter(|&nth| state(&world, range, nth) != elsewhere).collect::<Vec<_>>();
    assert_eq!(here(), [(0..17).collect::<Vec<_>>(), vec![30, 35]].concat());
    // A round of ten: the oldest go, those that were used among them, and not what may be next.
    assert_eq!(world.space.evict(world.node(A), 10), Ok(10));
    assert_eq!(mapped(&world, A, range), [35]);
    assert_eq!(stats(&world).resident_frames, 9);
    world.assert_sound("evicted");
}

#[test]
fn what_it_leaves_alone() {
    let world = world(40);
    let range = written(&world, 8);
    // Pages that nobody has touched are made when they are touched.
    let fresh = world.mmap(8);
    for nth in 0..4 {
        world.processors[A].store(word(fresh.start.plus(nth), 0), 1).expect("a store");
        while world.space.look_ahead(&world.processors[A].processor, |_| {}) {}
    }
    assert!((4..8).all(|nth| state(&world, fresh, nth) == PageState::Empty));
    // A page that a launch holds on the CPU ends the window, and so does the end of the region.
    let held = PageRange { start: range.start.plus(4), nr_pages: 1 };
    let hold = world.space.hold(&world.cpu().processor, &[held], Access::Write).expect("room");
    (0..4).for_each(|nth| read(&world, A, range, nth));
    assert_eq!(mapped(&world, A, range), [0, 1, 2, 3]);
    drop(hold);
    (4..8).for_each(|nth| read(&world, A, range, nth));
    // Beyond what a region allows nothing is asked for.
    let protected = written(&world, 8);
    let half = PageRange { start: protected.start.plus(4), nr_pages: 4 };
    world
        .space
        .protect(half.start.start(), half.len_bytes(), gmm_core::driver::Protection::ReadOnly)
        .expect("protect");
    for nth in 0..4 {
        world.processors[A].store(word(protected.start.plus(nth), 0), 1).expect("a store");
        while world.space.look_ahead(&world.processors[A].processor, |_| {}) {}
    }
    assert!(
        (4..8).all(|nth| state(&world, protected, nth) == PageState::Exclusive(world.node(CPU)))
    );
    world.assert_sound("left alone");
}

#[test]
fn it_can_be_turned_off() {
    let world =
        World::builder(64).xpu(DeviceOptions::xpu("a", 40), 1).config(|c| c.look_ahead = 0).build();
    let range = written(&world, 20);
    let before = stats(&world).faults;
    (0..20).for_each(|nth| read(&world, A, range, nth));
    assert_eq!(stats(&world).faults - before, 20);
}

/// Each driver call of it is made to fail: the page stays where it was, and its own fault brings
/// it.
#[test]
fn a_failure_is_left_to_the_fault() {
    for call in [Call::Submit, Call::Wait, Call::Enter, Call::Clear] {
        for first in 0..6 {
            let error = Failure::Error(DriverError::NoMemory);
            for failure in [error, Failure::Hang] {
                let world = world(40);
                let range = written(&world, 20);
                for nth in 0..20 {
                    let page = range.start.plus(nth);
                    assert_eq!(world.processors[A].load(word(page, 0)), Ok(page.0));
                    world.machine.inject(Some(Trigger {
                        call: Some(call),
                        first,
                        times: 1,
                        failure,
                    }));
                    while world.space.look_ahead(&world.processors[A].processor, |_| {}) {}
                    world.machine.inject(None);
                    world.assert_sound((call, first, failure, nth));
                }
                let lost = stats(&world).lost_frames;
                assert!(lost == 0 || failure == Failure::Hang, "{lost}");
            }
        }
    }
}

/// Pages brought ahead are not the victims of the next eviction.
#[test]
fn pages_that_are_about_to_be_used_are_spared() {
    let world = world(8);
    let range = written(&world, 5);
    (0..3).for_each(|nth| read(&world, A, range, nth));
    let other = world.mmap(8);
    for page in other.pages().take(6) {
        world.processors[A].store(word(page, 0), 1).expect("a store");
    }
    // Of eight frames these are the coldest by now, and nobody maps them.
    let resident =
        |nth| world.space.inspect(range.start.plus(nth).start()).expect("mapped").copies.len() == 2;
    assert!(resident(3) && resident(4), "{:?}", stats(&world));
    world.space.munmap(other.start.start(), 8 * PAGE_SIZE).expect("munmap");
    world.assert_sound("spared");
}
