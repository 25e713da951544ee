//! Reclaim off the fault path and laundering: what they do, what they leave alone, and that they
//! sleep when there is nothing to do.
#![cfg(not(shuttle))]

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use gmm_core::driver::{Access, Capabilities, DriverError};
use gmm_core::{Config, EvictionPolicy, NodeStats, PAGE_SIZE, PageRange, PageState, Stop};
use gmm_driver_tests::array::{Call, Completion, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

const A: usize = 1;
const FRAMES: u32 = 16;

fn world(change: impl FnOnce(DeviceOptions) -> DeviceOptions) -> World {
    let xpu = change(DeviceOptions::xpu("a", FRAMES).completing(Completion::Halves));
    World::builder(64).xpu(xpu, 1).wall_clock().config(two_free_by_lru).build()
}

fn two_free_by_lru(config: &mut Config) {
    config.policy = EvictionPolicy::Lru;
    config.high_watermark = Some(2);
}

fn stats(world: &World) -> NodeStats {
    world.space.snapshot().nodes.swap_remove(1)
}

/// The XPU writes the first word of each page.
fn write(world: &World, range: PageRange) {
    for page in range.pages() {
        world.processors[A].store(word(page, 0), page.0).expect("a store");
    }
}

fn expect_written(world: &World, range: PageRange) {
    for page in range.pages() {
        assert_eq!(world.cpu().load(word(page, 0)), Ok(page.0), "{page:?}");
    }
    world.assert_sound("written");
}

fn first(range: PageRange, nr_pages: u64) -> PageRange {
    PageRange { nr_pages, ..range }
}

/// Waits for something that another thread is about to do.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

/// Runs `body` beside the loop of node 1; the loop has ended when this returns.
fn with_reclaimer<T>(world: &World, body: impl FnOnce() -> T) -> T {
    let stop = Stop::new();
    thread::scope(|s| {
        let reclaimer =
            s.spawn(|| world.space.reclaim_in_background(world.node(A), &stop).expect("a node"));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        world.space.stop_background(&stop);
        reclaimer.join().expect("the loop");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn frames_are_kept_free_only_when_the_device_has_no_more() {
    let world = world(|a| DeviceOptions { import_limit: 4, ..a });
    let range = world.mmap(20);
    let now = |pages: core::ops::Range<u64>| {
        let start = range.start.plus(pages.start);
        write(&world, PageRange { start, nr_pages: pages.end - pages.start });
        world.space.reclaim_now(world.node(A)).expect("a node");
        (stats(&world).free_frames, stats(&world).evicted_pages)
    };
    assert_eq!(now(0..4), (0, 0), "the device has twelve more");
    assert_eq!(now(4..15), (1, 0), "one is free");
    assert_eq!(now(15..16), (2, 2));
    assert_eq!(now(16..18), (2, 4));
    assert_eq!(stats(&world).frames_reclaimed, 0);
    expect_written(&world, first(range, 18));
}

#[test]
fn a_fault_finds_a_free_frame_while_the_loop_runs() {
    let world = world(|a| a);
    let range = world.mmap(64);
    with_reclaimer(&world, || {
        for page in range.pages() {
            world.processors[A].store(word(page, 0), page.0).expect("a store");
            until("a frame is free", || stats(&world).free_frames > 0);
        }
    });
    let stats = stats(&world);
    assert_eq!((stats.frames_found_free, stats.frames_reclaimed), (64, 0));
    assert!(stats.reclaimer_wakeups <= 64, "{stats:?}");
    expect_written(&world, range);
}

#[test]
fn nothing_wakes_up_when_nothing_happens() {
    let world = World::builder(128)
        .xpu(DeviceOptions::xpu("a", FRAMES), 1)
        .wall_clock()
        .config(|c| c.launder_after = Some(Duration::from_millis(20)))
        .build();
    let range = world.mmap(64);
    with_reclaimer(&world, || {
        write(&world, range);
        // One in four, without those that left.
        until("laundered", || stats(&world).laundered_pages >= 4);
        until("asleep", || {
            let before = stats(&world).reclaimer_wakeups;
            thread::sleep(Duration::from_millis(60));
            stats(&world).reclaimer_wakeups == before
        });
        let before = stats(&world).reclaimer_wakeups;
        // Neither time, nor the other node, nor hits wake it.
        thread::sleep(Duration::from_millis(200));
        let other = world.mmap(4);
        other.pages().for_each(|p| world.cpu().store(word(p, 0), 1).expect("a store"));
        for page in range.pages().filter(|&p| world.processors[A].context.maps(p)) {
            world.processors[A].load(word(page, 0)).expect("a hit");
        }
        assert_eq!(stats(&world).reclaimer_wakeups, before);
    });
    expect_written(&world, range);
}

#[test]
fn a_loop_that_can_do_nothing_sleeps() {
    let world = world(|a| a);
    let range = world.mmap(u64::from(FRAMES));
    with_reclaimer(&world, || {
        let hold = world.space.hold(&world.processors[A].processor, &[range], Access::Write);
        let hold = hold.expect("all frames");
        // The last hold took the last frame: the loop was told, found that nothing can go,
        until("it was told", || stats(&world).reclaimer_wakeups > 0);
        thread::sleep(Duration::from_millis(50));
        // and does not try again by itself.
        assert!(stats(&world).reclaimer_wakeups <= 2, "{:?}", stats(&world));
        drop(hold);
    });
    world.assert_sound("held");
}

#[test]
fn one_loop_a_node_and_the_next_when_it_has_ended() {
    let world = world(|a| a);
    with_reclaimer(&world, || {
        until("the loop runs", || stats(&world).reclaimer_wakeups == 0);
        let stop = Stop::new();
        thread::scope(|s| {
            // Whichever comes first; the other returns.
            s.spawn(|| world.space.reclaim_in_background(world.node(A), &stop).expect("a node"));
            world.space.stop_background(&stop);
        });
    });
    let range = world.mmap(32);
    with_reclaimer(&world, || write(&world, range));
    expect_written(&world, range);
}

/// The second victim is hinted while room is made for the first: it stays.
#[test]
fn a_victim_that_was_hinted_meanwhile_is_spared() {
    let world = World::builder(64)
        .host(|h| DeviceOptions { import_limit: 1, ..h })
        .xpu(DeviceOptions::xpu("a", FRAMES), 1)
        .wall_clock()
        .config(two_free_by_lru)
        .build();
    let range = world.mmap(u64::from(FRAMES));
    write(&world, range);
    let second = range.start.plus(1);
    let (space, node) = (world.space.clone(), world.node(A));
    let hook = move |call| {
        if call == Call::Import {
            let space = space.clone();
            let hint = thread::spawn(move || space.prefetch(second.start(), PAGE_SIZE, node));
            hint.join().expect("the hint").expect("it is there already");
        }
    };
    world.machine.set_hook(Some(Arc::new(hook)));
    world.space.reclaim_now(node).expect("a node");
    world.machine.set_hook(None);
    let maps = |n| world.processors[A].context.maps(range.start.plus(n));
    assert_eq!([0, 1, 2, 3].map(maps), [false, true, false, true]);
    expect_written(&world, range);
}

#[test]
fn laundered_pages_leave_without_a_copy_and_a_write_costs_no_copy() {
    let world = world(|a| a);
    let range = world.mmap(u64::from(FRAMES));
    write(&world, range);
    let node = world.node(A);
    assert_eq!(world.space.launder(node), Ok(4), "a quarter");
    assert_eq!(world.space.launder(node), Ok(0), "they are clean now");
    for (n, page) in range.pages().enumerate() {
        let state = world.space.inspect(page.start()).expect("mapped").state;
        let wanted = if n < 4 { PageState::Shared } else { PageState::Exclusive(node) };
        assert_eq!(state, wanted, "page {n}");
    }
    let copied = || world.space.snapshot().migrated_bytes;
    let before = copied();
    // A read hits; a write makes the host's copy go.
    assert_eq!(world.processors[A].load(word(range.start, 0)), Ok(range.start.0));
    let faults = stats(&world).faults;
    world.processors[A].store(word(range.start, 0), range.start.0).expect("a store");
    assert_eq!((copied(), stats(&world).faults), (before.clone(), faults + 1));
    // Two clean ones, the coldest, leave.
    world.space.reclaim_now(node).expect("a node");
    assert_eq!((stats(&world).evicted_pages, stats(&world).evicted_clean_pages), (2, 2));
    assert_eq!(copied(), before);
    expect_written(&world, range);
}

#[test]
fn what_cannot_be_laundered_is_left_alone() {
    let node_of = |world: &World| world.node(A);
    // Without read-only mappings a clean page would have to be unmapped.
    let writable = world(|a| a.without(Capabilities::READ_ONLY_MAPPINGS));
    let range = writable.mmap(u64::from(FRAMES));
    write(&writable, range);
    assert_eq!(writable.space.launder(node_of(&writable)), Ok(0));
    // Nobody maps these any more.
    writable.processors[A].context.kill();
    writable.space.detach(&writable.processors[A].processor);
    assert_eq!(writable.space.launder(node_of(&writable)), Ok(4));
    expect_written(&writable, range);
    // Held pages, and the host itself.
    let held = world(|a| a);
    let range = held.mmap(4);
    let hold = held.space.hold(&held.processors[A].processor, &[range], Access::Write);
    assert_eq!(held.space.launder(node_of(&held)), Ok(0));
    assert_eq!(held.space.launder(held.node(0)), Ok(0));
    drop(hold);
    held.assert_sound("held");
}

/// An eighth of host memory is not used for spare copies, and those that there are make way.
#[test]
fn spare_copies_push_out_nothing() {
    let world = World::builder(16)
        .xpu(DeviceOptions::xpu("a", FRAMES), 1)
        .config(|c| c.launder_share = 1)
        .build();
    let cpu = world.mmap(10);
    cpu.pages().for_each(|p| world.cpu().store(word(p, 0), p.0).expect("a store"));
    let range = world.mmap(u64::from(FRAMES));
    write(&world, range);
    assert_eq!(world.space.launder(world.node(A)), Ok(4), "2 of 16 stay free");
    // The CPU gets all that it asks for.
    let more = world.mmap(6);
    more.pages().for_each(|p| world.cpu().store(word(p, 0), p.0).expect("a store"));
    for page in range.pages() {
        let state = world.space.inspect(page.start()).expect("mapped").state;
        assert_eq!(state, PageState::Exclusive(world.node(A)));
    }
    world.assert_sound("full");
}

#[test]
fn laundering_that_fails_changes_nothing() {
    for (call, first) in [(Call::Enter, 0), (Call::Enter, 3), (Call::Submit, 0), (Call::Wait, 0)] {
        for failure in [Failure::Error(DriverError::NoMemory), Failure::Hang, Failure::Death] {
            let world = world(|a| a);
            let range = world.mmap(u64::from(FRAMES));
            write(&world, range);
            world.machine.inject(Some(Trigger { call: Some(call), first, times: 1, failure }));
            let laundered = world.space.launder(world.node(A)).expect("a node");
            assert!(laundered <= 4, "{laundered}");
            world.machine.inject(None);
            if world.processors[A].context.is_dead() {
                world.space.detach(&world.processors[A].processor);
            }
            world.assert_sound((call, failure));
            expect_written(&world, range);
        }
    }
}

/// Everything at once, and nothing is lost.
#[test]
fn loops_beside_faults_unmapping_and_hints() {
    let world = World::builder(96)
        .host(|h| h.completing(Completion::Halves))
        .xpu(DeviceOptions::xpu("a", FRAMES).completing(Completion::Halves), 2)
        .wall_clock()
        .config(|c| c.launder_after = Some(Duration::ZERO))
        .build();
    let range = world.mmap(24);
    with_reclaimer(&world, || {
        thread::scope(|s| {
            for (seed, who) in world.processors.iter().enumerate() {
                s.spawn(move || {
                    for n in 0..600_u64 {
                        let page = range.start.plus((n * 7 + seed as u64 * 5) % range.nr_pages);
                        who.add(word(page, n % 3), 1).expect("an add");
                    }
                });
            }
            s.spawn(|| {
                for _ in 0..50 {
                    let own = world.mmap(4);
                    write(&world, own);
                    world.space.munmap(own.start.start(), own.len_bytes()).expect("munmap");
                }
            });
            s.spawn(|| {
                for n in 0..100 {
                    let addr = range.start.plus(n % range.nr_pages).start();
                    world.space.prefetch(addr, PAGE_SIZE, world.node(A)).expect("a hint");
                }
            });
        });
    });
    let words = range.pages().flat_map(|p| (0..3).map(move |w| word(p, w)));
    let total: u64 = words.map(|addr| world.cpu().load(addr).expect("a load")).sum();
    assert_eq!(total, 3 * 600);
    world.assert_sound("at rest");
}
