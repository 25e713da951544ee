//! The ping-pong guard: pages stay for as long as is configured, and a page that two nodes keep
//! taking from each other is noticed. On the virtual clock.
#![cfg(not(shuttle))]

use core::time::Duration;

use gmm_core::driver::{Access, Capabilities};
use gmm_core::{PAGE_SIZE, PageNr, PageState, Resolved};
use gmm_driver_tests::array::DeviceOptions;
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const B: usize = 2;

/// A clock that goes on by 10 µs each time it is read.
fn world(minimum_residency: Duration) -> World {
    World::builder(16)
        .xpu(DeviceOptions::xpu("a", 8), 1)
        .xpu(DeviceOptions::xpu("b", 8), 1)
        .clock_step(Duration::from_micros(10))
        .config(|c| c.minimum_residency = minimum_residency)
        .build()
}

fn fault(world: &World, who: usize, page: PageNr) -> Resolved {
    let processor = &world.processors[who].processor;
    world.space.fault(processor, page.start(), Access::Write).expect("a fault")
}

/// As [`world`], with a CPU that maps frames of XPUs.
fn linked_world() -> World {
    World::builder(16)
        .host(|host| host.with(Capabilities::COHERENT_LINK))
        .xpu(DeviceOptions::xpu("a", 8), 1)
        .xpu(DeviceOptions::xpu("b", 8), 1)
        .clock_step(Duration::from_micros(10))
        .build()
}

/// The CPU and A take the page from each other until it is A's and thrashing.
fn thrash(world: &World, page: PageNr) {
    fault(world, A, page);
    for who in [CPU, A, CPU, A] {
        assert_eq!(fault(world, who, page), Resolved::Entered);
    }
    assert_eq!(world.space.thrashing_pages().len(), 1);
}

fn state(world: &World, page: PageNr) -> PageState {
    world.space.inspect(page.start()).expect("a page").state
}

fn throttled(world: &World) -> u64 {
    world.space.snapshot().nodes.iter().map(|n| n.delayed_faults).sum()
}

#[test]
fn a_page_stays_for_as_long_as_is_configured() {
    let world = world(Duration::from_millis(100));
    let page = world.mmap(1).start;
    assert_eq!(fault(&world, A, page), Resolved::Entered);
    // Its own node's processors are not kept from it, others are.
    assert_eq!(fault(&world, A, page), Resolved::AlreadyUsable);
    assert_eq!(fault(&world, B, page), Resolved::Again);
    assert_eq!(fault(&world, CPU, page), Resolved::Again);
    assert_eq!(throttled(&world), 2);
    assert!(world.processors[A].context.maps(page));
    world.clock.advance(Duration::from_millis(100));
    assert_eq!(fault(&world, B, page), Resolved::Entered);
    assert_eq!(fault(&world, A, page), Resolved::Again);
    // A page that nobody maps is nobody's.
    world.space.evict(world.node(B), 1).expect("a node");
    assert_eq!(fault(&world, A, page), Resolved::Entered);
    world.assert_sound("throttled");
}

#[test]
fn by_default_nothing_stays_that_does_not_thrash() {
    let world = world(Duration::ZERO);
    let page = world.mmap(1).start;
    for who in [A, B, CPU, A, B, CPU] {
        assert_eq!(fault(&world, who, page), Resolved::Entered);
        world.clock.advance(Duration::from_micros(600));
    }
    assert!(world.space.thrashing_pages().is_empty());
    assert_eq!(throttled(&world), 0);
}

#[test]
fn a_page_that_moves_back_and_forth_is_noticed_and_slowed_down() {
    let world = world(Duration::ZERO);
    let range = world.mmap(2);
    let [page, other] = [range.start, range.start.plus(1)];
    fault(&world, A, page);
    fault(&world, A, other);
    let mut entered = 0;
    while world.space.thrashing_pages().is_empty() {
        for who in [B, A] {
            assert_eq!(fault(&world, who, page), Resolved::Entered);
            entered += 1;
        }
        assert!(entered < 10, "never noticed");
    }
    let [worst] = world.space.thrashing_pages()[..] else { panic!("one page") };
    assert_eq!((worst.page, worst.moves), (page, entered));
    let counted: u64 = world.space.snapshot().nodes.iter().map(|n| n.thrashing_pages).sum();
    assert_eq!(counted, 1);
    // It is served after its time, not at once.
    let before = throttled(&world);
    let start = world.clock.peek();
    assert_eq!(fault(&world, B, page), Resolved::Entered);
    assert_eq!(throttled(&world), before + 1);
    assert!(world.clock.peek() - start > Duration::from_micros(300));
    // The others are not; nor is it, unless it goes on like that.
    assert_eq!(fault(&world, B, other), Resolved::Entered);
    assert!(world.space.thrashing_pages().is_empty());
    for who in [A, B] {
        assert_eq!(fault(&world, who, page), Resolved::Entered);
    }
    assert_eq!(throttled(&world), before + 1);
    // After a second of quiet it is a page like any other.
    world.clock.advance(Duration::from_millis(1_100));
    assert!(world.space.thrashing_pages().is_empty());
    assert_eq!(fault(&world, A, page), Resolved::Entered);
    assert_eq!(fault(&world, B, page), Resolved::Entered);
    assert_eq!(throttled(&world), before + 1);
    for who in [A, B, CPU] {
        world.processors[who].load(word(page, 0)).expect("a load");
    }
    world.assert_sound("quiet");
}

#[test]
fn what_the_loser_can_map_where_it_goes_is_mapped_there_and_not_held_up() {
    let world = linked_world();
    let page = world.mmap(1).start;
    thrash(&world, page);
    let on_a = PageState::Exclusive(world.node(A));
    assert_eq!(fault(&world, CPU, page), Resolved::Entered);
    assert_eq!(state(&world, page), on_a);
    assert!([CPU, A].iter().all(|&who| world.processors[who].context.maps(page)));
    assert_eq!(throttled(&world), 0);
    // For a while, however long it is not wanted: then it moves again.
    let evict_and_take = |after| {
        world.space.evict(world.node(A), 1).expect("a node");
        assert_eq!(fault(&world, A, page), Resolved::Entered);
        world.clock.advance(Duration::from_millis(after));
        assert_eq!(fault(&world, CPU, page), Resolved::Entered);
        state(&world, page)
    };
    assert_eq!(evict_and_take(40), on_a);
    assert_eq!(evict_and_take(120), PageState::Exclusive(world.node(CPU)));
    world.assert_sound("after a while");
}

/// As in a program that launches, reads the result, and does something else before it launches
/// again.
#[test]
fn a_page_that_is_wanted_later_moves() {
    let world = linked_world();
    let page = world.mmap(1).start;
    thrash(&world, page);
    world.clock.advance(Duration::from_millis(1));
    let of_cpu = PageState::Exclusive(world.node(CPU));
    assert_eq!((fault(&world, CPU, page), state(&world, page)), (Resolved::Entered, of_cpu));
    assert!(world.space.thrashing_pages().is_empty());
    for _ in 0..8 {
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(fault(&world, A, page), Resolved::Entered);
        assert_eq!((fault(&world, CPU, page), state(&world, page)), (Resolved::Entered, of_cpu));
    }
    assert_eq!(throttled(&world), 0);
    world.assert_sound("in turns");
}

#[test]
fn nodes_that_read_a_page_together_take_it_from_nobody() {
    let mut builder = World::builder(16).clock_step(Duration::from_micros(10));
    for name in ["a", "b", "c", "d", "e", "f"] {
        builder = builder.xpu(DeviceOptions::xpu(name, 8), 1);
    }
    let world = builder.build();
    let page = world.mmap(1).start;
    fault(&world, A, page);
    for who in 2..=6 {
        let reader = &world.processors[who].processor;
        let read = world.space.fault(reader, page.start(), Access::Read);
        assert_eq!(read, Ok(Resolved::Entered));
    }
    assert!(world.space.thrashing_pages().is_empty());
    world.assert_sound("read by all");
}

/// Where the driver can: the page is mapped where it is, by both for writing, and moves no more.
#[test]
fn a_page_that_is_thrashing_is_mapped_remotely_where_that_can_be() {
    for (other, link, handles) in [
        (CPU, true, true),
        (B, true, true),
        (CPU, false, true),
        (B, false, true),
        (CPU, true, false),
    ] {
        let linked = |options: DeviceOptions| match link {
            true => options.with(Capabilities::COHERENT_LINK),
            false => options,
        };
        let a = DeviceOptions { handles, ..DeviceOptions::xpu("a", 8) };
        let world = World::builder(16)
            .host(linked)
            .xpu(a, 1)
            .xpu(linked(DeviceOptions::xpu("b", 8)), 1)
            .clock_step(Duration::from_micros(10))
            .build();
        let page = world.mmap(1).start;
        fault(&world, A, page);
        while world.space.thrashing_pages().is_empty() {
            assert_eq!(fault(&world, other, page), Resolved::Entered);
            assert_eq!(fault(&world, A, page), Resolved::Entered);
        }
        let moved =
            || world.space.snapshot().migrated_bytes.iter().map(|m| m.2 / PAGE_SIZE).sum::<u64>();
        let (copies, delayed) = (moved(), throttled(&world));
        assert_eq!(fault(&world, other, page), Resolved::Entered);
        let is_remote = link && handles;
        let info = world.space.inspect(page.start()).expect("mapped");
        let at = world.node(if is_remote { A } else { other });
        let mappers = if is_remote { 2 } else { 1 };
        let what = format!("{other} link {link} handles {handles}: {info:?}");
        assert_eq!(
            (info.state, info.writable.len()),
            (PageState::Exclusive(at), mappers),
            "{what}"
        );
        assert_eq!(moved() - copies, u64::from(!is_remote), "{what}");
        assert_eq!(throttled(&world) - delayed, u64::from(!is_remote), "{what}");
        for who in [A, other] {
            world.processors[who].add(word(page, 0), 1).expect("an add");
        }
        assert_eq!(world.processors[A].load(word(page, 0)), Ok(2), "{what}");
        world.assert_sound(&what);
        // After a second of quiet it moves again, once its mapping has gone.
        world.clock.advance(Duration::from_millis(1_100));
        world.space.evict(world.node(A), 1).expect("a node");
        for who in [A, other] {
            assert_eq!(fault(&world, who, page), Resolved::Entered);
            let info = world.space.inspect(page.start()).expect("mapped");
            assert_eq!(info.state, PageState::Exclusive(world.node(who)), "{what}");
        }
        world.assert_sound(&what);
    }
}
