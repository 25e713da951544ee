//! `READ_MOSTLY`: reads make copies on several nodes, the CPU's as a replica beside a frame that
//! stays in reach; a write leaves one.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Attribute, Error, NodeId, PageRange};
use gmm_driver_tests::array::{AccessError, Call, DeviceOptions};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const B: usize = 2;
const EVERYONE: [usize; 3] = [CPU, A, B];

/// A host whose CPU can map replicas, and two XPUs.
fn world(host_frames: u32) -> World {
    World::builder(host_frames)
        .host(|host| host.with(Capabilities::READ_ONLY_REPLICAS))
        .xpu(DeviceOptions::xpu("a", 4), 1)
        .xpu(DeviceOptions::xpu("b", 4), 1)
        .build()
}

fn read_mostly(world: &World, nr_pages: u64) -> PageRange {
    let range = world.mmap(nr_pages);
    let (addr, len) = (range.start.start(), range.len_bytes());
    world.space.set_attribute(addr, len, Attribute::ReadMostly(true)).unwrap();
    range
}

fn nr_faults(world: &World) -> u64 {
    world.space.snapshot().nodes.iter().map(|n| n.faults).sum()
}

fn nr_copies(world: &World, range: PageRange) -> usize {
    world.space.inspect(range.start.start()).unwrap().copies.len()
}

/// Everyone reads the page.
fn read(world: &World, range: PageRange, value: u64) {
    for who in EVERYONE {
        assert_eq!(world.processors[who].load(word(range.start, 0)), Ok(value), "{who}");
    }
}

#[test]
fn reads_make_copies_everywhere_and_then_no_fault() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    world.processors[CPU].store(word(range.start, 0), 7).unwrap();
    read(&world, range, 7);
    read(&world, range, 7);
    world.assert_sound("shared");
    let faults = nr_faults(&world);
    for _ in 0..5 {
        read(&world, range, 7);
    }
    assert_eq!(nr_faults(&world), faults, "all of them map the page");
    assert_eq!(nr_copies(&world, range), 3);
    assert_eq!(world.space.inspect(range.start.start()).unwrap().mapped.len(), 3);
}

#[test]
fn a_write_leaves_one_copy() {
    for writer in EVERYONE {
        let world = world(16);
        let range = read_mostly(&world, 1);
        for round in 1..4 {
            world.processors[writer].store(word(range.start, 0), round).unwrap();
            assert_eq!(nr_copies(&world, range), 1);
            let info = world.space.inspect(range.start.start()).unwrap();
            assert_eq!(info.mapped.len(), 1, "the writer's");
            world.assert_sound((writer, round, "written"));
            read(&world, range, round);
            read(&world, range, round);
            assert_eq!(nr_copies(&world, range), 3);
            world.assert_sound((writer, round, "read"));
        }
    }
}

/// The frame under a replica is not moved: others copy from it while the CPU reads.
#[test]
fn the_frame_under_a_replica_stays_in_reach() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    world.processors[A].store(word(range.start, 0), 7).unwrap();
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
    let clears = world.machine.calls(Call::Clear);
    assert_eq!(world.processors[B].load(word(range.start, 0)), Ok(7));
    assert_eq!(world.machine.calls(Call::Clear), clears, "nobody had to let go");
    assert!(world.cpu().context.maps(range.start));
    world.assert_sound("copied");
}

#[test]
fn without_the_advice_or_the_capability_the_cpu_takes_the_page() {
    for (advised, capable) in [(false, true), (true, false)] {
        let capability =
            if capable { Capabilities::READ_ONLY_REPLICAS } else { Capabilities::empty() };
        let a = DeviceOptions::xpu("a", 4);
        let world = World::builder(16).host(|host| host.with(capability)).xpu(a, 1).build();
        let range = world.mmap(1);
        let attribute = Attribute::ReadMostly(advised);
        world.space.set_attribute(range.start.start(), 1, attribute).unwrap();
        world.processors[A].store(word(range.start, 0), 7).unwrap();
        assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
        assert_eq!(nr_copies(&world, range), 1);
        world.assert_sound((advised, capable));
    }
}

/// Host memory that runs short drops the frames under replicas: others have the data.
#[test]
fn frames_under_replicas_are_given_up_when_host_memory_is_full() {
    let world = world(6);
    let range = read_mostly(&world, 3);
    for page in range.pages() {
        world.processors[A].store(word(page, 0), page.0).unwrap();
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(page.0));
    }
    let other = world.mmap(6);
    for page in other.pages() {
        world.processors[CPU].store(word(page, 0), 1).unwrap();
    }
    world.assert_sound("full");
    assert!(range.pages().all(|p| !world.cpu().context.maps(p)));
    world.space.munmap(other.start.start(), other.len_bytes()).unwrap();
    for page in range.pages() {
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(page.0));
    }
    world.assert_sound("again");
}

/// An eviction of the XPU's copy leaves the host's, and the CPU's replica of it.
#[test]
fn an_eviction_of_a_read_copy_is_free() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    world.processors[A].store(word(range.start, 0), 7).unwrap();
    assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
    assert_eq!(world.space.evict(NodeId(1), 1), Ok(1));
    assert_eq!(
        (nr_copies(&world, range), world.space.snapshot().nodes[1].evicted_clean_pages),
        (1, 1)
    );
    assert!(world.cpu().context.maps(range.start));
    world.assert_sound("evicted");
    // A write through the replica that is left.
    world.processors[CPU].store(word(range.start, 0), 8).unwrap();
    assert_eq!(world.processors[A].load(word(range.start, 0)), Ok(8));
    world.assert_sound("written");
}

#[test]
fn what_the_application_drops_of_a_replica_is_not_lost() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    world.processors[A].store(word(range.start, 0), 7).unwrap();
    for again in [false, true] {
        assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
        world.cpu().context.discard_behind_the_core(range.start);
        if again {
            assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
        }
        assert_eq!(world.processors[B].load(word(range.start, 0)), Ok(7));
        world.processors[A].store(word(range.start, 0), 7).unwrap();
        world.assert_sound(again);
    }
}

#[test]
fn protection_changes_replicas_too() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    let (addr, len) = (range.start.start(), range.len_bytes());
    world.processors[A].store(addr, 7).unwrap();
    read(&world, range, 7);
    world.space.protect(addr, len, Protection::ReadOnly).unwrap();
    read(&world, range, 7);
    let refused = AccessError::Fault(Error::Protection { addr, access: Access::Write });
    assert_eq!(world.processors[CPU].store(addr, 8), Err(refused));
    world.space.protect(addr, len, Protection::ReadWrite).unwrap();
    world.processors[CPU].store(addr, 8).unwrap();
    read(&world, range, 8);
    world.assert_sound("protected and back");
}

/// A launch on the CPU's node gets the frame itself.
#[test]
fn a_hold_by_the_cpu_takes_the_page_itself() {
    let world = world(16);
    let range = read_mostly(&world, 1);
    world.processors[A].store(word(range.start, 0), 7).unwrap();
    let cpu = world.cpu().processor.clone();
    for access in [Access::Read, Access::Write] {
        read(&world, range, 7);
        let hold = world.space.hold(&cpu, &[range], access).unwrap();
        assert_eq!(world.processors[CPU].load(word(range.start, 0)), Ok(7));
        world.assert_sound(access);
        drop(hold);
    }
    world.processors[B].store(word(range.start, 0), 8).unwrap();
    read(&world, range, 8);
}

#[test]
fn replicas_go_with_munmap_discard_and_prefetch() {
    let world = world(16);
    let range = read_mostly(&world, 3);
    for page in range.pages() {
        world.processors[A].store(word(page, 0), 7).unwrap();
        assert_eq!(world.processors[CPU].load(word(page, 0)), Ok(7));
    }
    let page = |n: u64| range.start.plus(n);
    world.space.discard(page(0).start(), 1 << 21).unwrap();
    assert_eq!(world.processors[CPU].load(word(page(0), 0)), Ok(0));
    world.space.prefetch(page(1).start(), 1, NodeId(2)).unwrap();
    assert_eq!(world.processors[CPU].load(word(page(1), 0)), Ok(7));
    world.space.munmap(page(2).start(), 1).unwrap();
    assert!(!world.cpu().context.maps(page(2)));
    world.assert_sound("all three");
}

/// A context without memory of its own maps host frames: it reads and writes beside the CPU.
#[test]
fn a_second_processor_of_the_host_meets_a_replica() {
    for read_only in [true, false] {
        let mut guest = DeviceOptions { node_frames: vec![], ..DeviceOptions::xpu("guest", 0) };
        if !read_only {
            guest = guest.without(Capabilities::READ_ONLY_MAPPINGS);
        }
        let world = World::builder(16)
            .host(|host| host.with(Capabilities::READ_ONLY_REPLICAS))
            .xpu(DeviceOptions::xpu("a", 4), 1)
            .xpu(guest, 1)
            .build();
        let range = read_mostly(&world, 1);
        let at = word(range.start, 0);
        world.processors[A].store(at, 7).unwrap();
        for round in 7..11 {
            assert_eq!(world.processors[CPU].load(at), Ok(round));
            assert_eq!(world.processors[B].load(at), Ok(round));
            assert_eq!(world.processors[CPU].load(at), Ok(round));
            world.assert_sound((read_only, round, "read"));
            world.processors[B].store(at, round + 1).unwrap();
            assert_eq!(world.processors[A].load(at), Ok(round + 1));
            world.assert_sound((read_only, round, "written"));
        }
    }
}
