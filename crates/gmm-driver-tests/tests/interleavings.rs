//! The entry protocol under the shuttle scheduler, which tries many interleavings of the core's
//! and the devices' steps. Run with
//! `RUSTFLAGS='--cfg shuttle' cargo test -p gmm-driver-tests --test interleavings`
//! and a target directory of its own.
#![cfg(shuttle)]

use std::sync::Arc;

use gmm_core::driver::{Access, Capabilities};
use gmm_core::{Attribute, Error, NodeId, PAGE_SIZE, PageRange, Stop, Stopped, VirtAddr};
use gmm_driver_tests::array::{AccessError, Completion, DeviceOptions};
use gmm_driver_tests::{World, word};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

const SCHEDULES: usize = 300;

/// Runs `body` under many schedules, chosen at random and by priorities.
fn explore(body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // A space is made on the stack, and is more than shuttle's default has room for.
    config.stack_size = 1 << 20;
    let body = Arc::new(body);
    let again = body.clone();
    Runner::new(RandomScheduler::new(SCHEDULES), config.clone()).run(move || body());
    Runner::new(PctScheduler::new(3, SCHEDULES), config).run(move || again());
}

/// An XPU `a` with two contexts and so many frames, an XPU `b` with one context and one frame.
fn world(a_frames: u32) -> Arc<World> {
    let halves = |name: &str, n| DeviceOptions::xpu(name, n).completing(Completion::Halves);
    let world = World::builder(8)
        .host(|h| h.completing(Completion::Halves))
        .xpu(halves("a", a_frames), 2)
        .xpu(halves("b", 2), 1)
        .slow_clock()
        .build();
    Arc::new(world)
}

const CPU: usize = 0;
const A1: usize = 1;
const A2: usize = 2;
const B: usize = 3;

fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    body: impl FnOnce(&World) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let world = world.clone();
    thread::spawn(move || body(&world))
}

fn adder(world: &Arc<World>, who: usize, range: PageRange, page: u64) -> thread::JoinHandle<()> {
    spawn(world, move |w| {
        for at in 0..2 {
            let added = w.processors[who].add(word(range.start.plus(page), at), 1);
            added.expect("every access goes on");
        }
    })
}

fn join<T>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|t| t.join().expect("no thread fails")).collect()
}

fn expect_count(world: &World, range: PageRange, page: u64, wanted: u64) {
    for at in 0..2 {
        let seen = world.cpu().load(word(range.start.plus(page), at)).expect("at rest");
        assert_eq!(seen, wanted, "word {at} of page {page}");
    }
    world.assert_sound("at the end");
}

#[test]
fn two_processors_write_one_page() {
    for (one, two) in [(A1, B), (A1, A2), (CPU, A1)] {
        explore(move || {
            let world = world(2);
            let range = world.mmap(1);
            join(vec![adder(&world, one, range, 0), adder(&world, two, range, 0)]);
            expect_count(&world, range, 0, 2);
        });
    }
}

#[test]
fn three_nodes_write_one_page() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(1);
        let all = [CPU, A1, B].map(|who| adder(&world, who, range, 0));
        join(all.into());
        expect_count(&world, range, 0, 3);
    });
}

/// A reader sees the second of two words only after the first, whoever writes them where.
#[test]
fn a_reader_never_sees_stale_data() {
    for (writer, reader) in [(A1, B), (B, A1), (CPU, A1), (A1, CPU), (A1, A2)] {
        explore(move || {
            let world = world(2);
            let range = world.mmap(1);
            let page = range.start;
            // Both have it to begin with.
            world.processors[reader].load(word(page, 0)).expect("a load");
            let write = spawn(&world, move |w| {
                w.processors[writer].store(word(page, 0), 1).expect("a store");
                w.processors[writer].store(word(page, 1), 1).expect("a store");
            });
            let read = spawn(&world, move |w| {
                let second = w.processors[reader].load(word(page, 1)).expect("a load");
                let first = w.processors[reader].load(word(page, 0)).expect("a load");
                assert!(first >= second, "the second store was seen, the first was not");
            });
            write.join().expect("the writer");
            read.join().expect("the reader");
            expect_count(&world, range, 0, 1);
        });
    }
}

/// One frame, two pages, contexts that want both: each fault evicts the other's page.
#[test]
fn reclaim_against_fault() {
    explore(|| {
        let world = world(1);
        let range = world.mmap(2);
        join(vec![adder(&world, A1, range, 0), adder(&world, A2, range, 1)]);
        expect_count(&world, range, 0, 1);
        expect_count(&world, range, 1, 1);
    });
}

/// The loop that keeps frames free, beside faults, an unmapping, and laundering; and it ends when it
/// is told to, wherever it is.
#[test]
fn background_reclaim_against_fault_and_unmap() {
    explore(|| {
        let halves = DeviceOptions::xpu("a", 8).completing(Completion::Halves);
        let world = World::builder(32).xpu(halves, 2).slow_clock().build();
        let world = Arc::new(world);
        let range = world.mmap(10);
        for page in range.pages().take(7) {
            world.processors[A1].store(word(page, 7), 7).expect("a store");
        }
        let stop = Arc::new(Stop::new());
        let (node, told) = (world.node(A1), stop.clone());
        let reclaimer = spawn(&world, move |w| w.space.reclaim_in_background(node, &told));
        let launder = spawn(&world, move |w| w.space.launder(node));
        let unmap = spawn(&world, move |w| w.space.munmap(range.start.start(), PAGE_SIZE));
        let all = [adder(&world, A1, range, 7), adder(&world, A2, range, 8)];
        join(all.into());
        assert_eq!(unmap.join().expect("the unmap"), Ok(()));
        launder.join().expect("the laundering").expect("a node");
        world.space.stop_background(&stop);
        assert_eq!(reclaimer.join().expect("the loop"), Ok(()));
        expect_count(&world, range, 7, 1);
        expect_count(&world, range, 8, 1);
        for page in range.pages().skip(1).take(6) {
            assert_eq!(world.cpu().load(word(page, 7)), Ok(7), "{page:?} lost its mark");
        }
    });
}

/// A page is evicted from one node while another node takes it away.
#[test]
fn reclaim_against_migration() {
    explore(|| {
        let world = world(1);
        let range = world.mmap(2);
        world.processors[A1].add(word(range.start, 0), 1).expect("an add");
        world.processors[A1].add(word(range.start, 1), 1).expect("an add");
        let all =
            [adder(&world, A2, range, 1), adder(&world, B, range, 0), adder(&world, CPU, range, 0)];
        join(all.into());
        expect_count(&world, range, 0, 3);
        expect_count(&world, range, 1, 1);
    });
}

/// Evictions from two nodes at once, both out of frames, each page wanted on the other node:
/// where openEuler's faulter and evictor took the same two locks in opposite orders.
#[test]
fn two_evictors_and_two_faulters() {
    explore(|| {
        let world = world(1);
        let range = world.mmap(3);
        for page in 0..2 {
            world.processors[B].store(word(range.start.plus(page), 7), 7).expect("a store");
        }
        world.processors[A1].store(word(range.start.plus(2), 7), 7).expect("a store");
        let all =
            [adder(&world, A1, range, 0), adder(&world, B, range, 2), adder(&world, A2, range, 1)];
        join(all.into());
        for page in 0..3 {
            expect_count(&world, range, page, 1);
            let marked = world.cpu().load(word(range.start.plus(page), 7));
            assert_eq!(marked, Ok(7), "page {page} lost its mark");
        }
    });
}

#[test]
fn unmap_against_fault() {
    for who in [CPU, A1] {
        explore(move || {
            let world = world(2);
            let range = world.mmap(2);
            world.processors[B].store(word(range.start, 0), 5).expect("a store");
            let fault = spawn(&world, move |w| w.processors[who].add(word(range.start, 0), 1));
            let unmap = spawn(&world, move |w| w.space.munmap(range.start.start(), PAGE_SIZE));
            let added = fault.join().expect("the fault");
            assert_eq!(unmap.join().expect("the unmap"), Ok(()));
            match added {
                Ok(5) | Err(AccessError::Fault(Error::NotMapped { .. })) => {}
                other => panic!("a fault against munmap: {other:?}"),
            }
            let after = world.processors[who].load(word(range.start, 0));
            assert!(matches!(after, Err(AccessError::Fault(Error::NotMapped { .. }))), "{after:?}");
            assert_eq!(resident(&world), 0, "frames of a page that is gone");
            world.assert_sound("after munmap");
        });
    }
}

/// An unmap that fails is one that nobody has seen.
#[test]
fn unmap_of_a_held_page_against_fault() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(2);
        let held = PageRange { start: range.start.plus(1), nr_pages: 1 };
        let processor = world.processors[A1].processor.clone();
        let hold = world.space.hold(&processor, &[held], Access::Write).expect("two frames");
        let fault = adder(&world, B, range, 0);
        let unmap = spawn(&world, move |w| w.space.munmap(range.start.start(), 2 * PAGE_SIZE));
        let wanted = Error::PageHeld { addr: held.start.start(), node: world.node(A1) };
        assert_eq!(unmap.join().expect("the unmap"), Err(wanted));
        fault.join().expect("the fault");
        drop(hold);
        expect_count(&world, range, 0, 1);
    });
}

#[test]
fn unmap_against_eviction() {
    explore(|| {
        let world = world(1);
        let range = world.mmap(2);
        world.processors[A1].store(word(range.start, 0), 5).expect("a store");
        let evict = adder(&world, A2, range, 1);
        let unmap = spawn(&world, move |w| w.space.munmap(range.start.start(), PAGE_SIZE));
        assert_eq!(unmap.join().expect("the unmap"), Ok(()));
        evict.join().expect("the fault");
        expect_count(&world, range, 1, 1);
        assert_eq!(resident(&world), 1, "frames of a page that is gone");
    });
}

#[test]
fn detach_against_fault() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(1);
        let fault = spawn(&world, move |w| w.processors[A1].add(word(range.start, 0), 1));
        let other = adder(&world, A2, range, 0);
        let detach = spawn(&world, |w| w.space.detach(&w.processors[A1].processor));
        let added = fault.join().expect("the fault");
        other.join().expect("the other context");
        detach.join().expect("the detach");
        let mine = match added {
            Ok(_) => 1,
            Err(AccessError::Fault(Error::NotAttached { .. })) => 0,
            other => panic!("a fault against detach: {other:?}"),
        };
        assert!(!world.processors[A1].context.maps(range.start), "mapped after detach");
        assert_eq!(world.cpu().load(word(range.start, 0)), Ok(1 + mine));
        world.assert_sound("after detach");
    });
}

#[test]
fn discard_against_fault() {
    for who in [CPU, A1] {
        explore(move || {
            let world = world(2);
            let range = world.mmap(1);
            world.processors[B].store(word(range.start, 0), 5).expect("a store");
            let fault = spawn(&world, move |w| w.processors[who].add(word(range.start, 0), 1));
            let discard = spawn(&world, move |w| w.space.discard(range.start.start(), PAGE_SIZE));
            let old = fault.join().expect("the fault").expect("the add goes on");
            assert_eq!(discard.join().expect("the discard"), Ok(()));
            let seen = world.cpu().load(word(range.start, 0)).expect("at rest");
            // Before the discard the add saw 5, and then its result was dropped; or it came after.
            assert!(matches!((old, seen), (5, 0) | (0, 1)), "saw {old}, left {seen}");
            world.assert_sound("after discard");
        });
    }
}

#[test]
fn hold_against_eviction_and_migration() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(3);
        let hold = spawn(&world, move |w| {
            let one = PageRange { start: range.start, nr_pages: 1 };
            let processor = w.processors[A1].processor.clone();
            let held = w.space.hold(&processor, &[one], Access::Write).expect("two frames");
            assert!(w.processors[A1].context.maps(range.start), "held and not mapped");
            drop(held);
        });
        let all = [adder(&world, A2, range, 1), adder(&world, A2, range, 2)];
        join(all.into());
        hold.join().expect("the hold");
        expect_count(&world, range, 1, 1);
        expect_count(&world, range, 2, 1);
    });
}

#[test]
fn prefetch_against_fault() {
    explore(|| {
        let world = world(1);
        let range = world.mmap(2);
        let node = world.node(A1);
        let prefetch =
            spawn(&world, move |w| w.space.prefetch(range.start.start(), 2 * PAGE_SIZE, node));
        join(vec![adder(&world, B, range, 0), adder(&world, A2, range, 1)]);
        assert!(prefetch.join().expect("the prefetch").is_ok());
        expect_count(&world, range, 0, 1);
        expect_count(&world, range, 1, 1);
    });
}

/// Whoever faults on a page that a prefetch is bringing waits for it: each page is copied once.
#[test]
fn faults_join_a_prefetch() {
    explore(|| {
        let world = world(4);
        let range = world.mmap(2);
        for page in range.pages() {
            world.cpu().store(word(page, 7), 7).expect("a store");
        }
        let node = world.node(A1);
        let prefetch =
            spawn(&world, move |w| w.space.prefetch(range.start.start(), 2 * PAGE_SIZE, node));
        join(vec![adder(&world, A1, range, 0), adder(&world, A2, range, 1)]);
        let came = prefetch.join().expect("the prefetch").expect("room for two");
        assert_eq!((came.brought + came.resident, came.left), (2, 0));
        let moved = world.space.snapshot().migrated_bytes;
        let to_a = moved.iter().find(|m| (m.0, m.1) == (NodeId::HOST, node)).map(|m| m.2);
        assert_eq!(to_a, Some(2 * PAGE_SIZE), "a page was copied twice, or not at all");
        expect_count(&world, range, 0, 1);
        expect_count(&world, range, 1, 1);
    });
}

/// An unmapping ends a prefetch of its pages, wherever its two workers are, and leaves no frame.
#[test]
fn unmap_cancels_a_prefetch() {
    explore(|| {
        let world = world(4);
        let range = world.mmap(3);
        for page in range.pages() {
            world.cpu().store(word(page, 7), 7).expect("a store");
        }
        let (addr, node) = (range.start.start(), world.node(A1));
        let job = world.space.begin_prefetch(addr, range.len_bytes(), node).expect("mapped");
        let job = Arc::new(job);
        let workers = [0, 1].map(|_| {
            let job = job.clone();
            spawn(&world, move |w| w.space.work_on(&job))
        });
        let unmap = spawn(&world, move |w| w.space.munmap(addr, range.len_bytes()));
        assert_eq!(unmap.join().expect("the unmap"), Ok(()));
        join(workers.into());
        let came = job.outcome().expect("no page failed");
        let is_whole = came.left == 0 && came.stopped.is_none();
        assert!(is_whole || came.stopped == Some(Stopped::Cancelled), "{came:?}");
        assert_eq!(resident(&world), 0, "frames of pages that are gone");
        world.assert_sound("after munmap");
    });
}

/// A copy of part of a page, beside processors that count in other words of both pages.
#[test]
fn memcpy_against_faults() {
    for node in [0, 1] {
        explore(move || {
            let world = world(4);
            let range = world.mmap(2);
            let [src, dst] = [range.start, range.start.plus(1)];
            world.cpu().store(word(src, 0), 5).expect("a store");
            world.processors[B].store(word(dst, 0), 6).expect("a store");
            let copy =
                spawn(&world, move |w| w.space.memcpy(dst.start(), src.start(), 16, NodeId(node)));
            // The last word of each, which is not copied.
            let add = |who: usize, page| {
                spawn(&world, move |w| w.processors[who].add(word(page, 7), 1).map(drop))
            };
            let all = join(vec![add(A1, src), add(A2, dst), add(CPU, dst), add(B, src)]);
            assert!(all.iter().all(Result::is_ok), "{all:?}");
            assert_eq!(copy.join().expect("the copy"), Ok(()));
            for (page, counted) in [(src, 2), (dst, 2)] {
                assert_eq!(world.cpu().load(word(page, 0)), Ok(5));
                assert_eq!(world.cpu().load(word(page, 7)), Ok(counted), "{page:?}");
            }
            world.assert_sound("after a copy");
        });
    }
}

/// A page is copied whole, to a new frame, while others read it and the one it comes from.
#[test]
fn memcpy_of_a_page_against_readers() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(2);
        let [src, dst] = [range.start, range.start.plus(1)];
        world.cpu().store(word(src, 0), 5).expect("a store");
        world.processors[B].store(word(dst, 0), 6).expect("a store");
        let node = world.node(A1);
        let copy =
            spawn(&world, move |w| w.space.memcpy(dst.start(), src.start(), PAGE_SIZE, node));
        let load = |who: usize, page| {
            spawn(&world, move |w| w.processors[who].load(word(page, 0)).expect("a load"))
        };
        let [from_src, one, other] = [load(A1, src), load(A2, dst), load(CPU, dst)];
        assert_eq!(from_src.join().expect("the reader"), 5);
        for reader in [one, other] {
            let seen = reader.join().expect("the reader");
            assert!([5, 6].contains(&seen), "{seen}");
        }
        assert_eq!(copy.join().expect("the copy"), Ok(()));
        assert_eq!(world.processors[B].load(word(dst, 0)), Ok(5));
        world.assert_sound("after a copy");
    });
}

/// Two copies that cross, each the source of the other, end.
#[test]
fn copies_that_cross() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(2);
        let [one, two] = [range.start.start(), range.start.plus(1).start()];
        world.cpu().store(word(range.start, 0), 5).expect("a store");
        let half = PAGE_SIZE / 2;
        let (a, b) = (world.node(A1), world.node(B));
        // The first halves one way, the second halves the other.
        let there = spawn(&world, move |w| w.space.memcpy(two, one, half, a));
        let back = spawn(&world, move |w| {
            w.space.memcpy(VirtAddr(one.0 + half), VirtAddr(two.0 + half), half, b)
        });
        assert_eq!(there.join().expect("the copy"), Ok(()));
        assert_eq!(back.join().expect("the copy"), Ok(()));
        assert_eq!(world.cpu().load(word(range.start.plus(1), 0)), Ok(5));
        world.assert_sound("after two copies");
    });
}

/// Eight processors on four nodes, each once.
#[test]
fn eight_processors_write_one_page() {
    for held in [false, true] {
        explore(move || {
            let world = wide_world(held, false);
            let range = world.mmap(1);
            let all = (0..8).map(|who| {
                spawn(&world, move |w| {
                    let processor = w.processors[who].processor.clone();
                    let _hold = held.then(|| {
                        w.space.hold(&processor, &[range], Access::Write).expect("a frame each")
                    });
                    w.processors[who].add(word(range.start, 0), 1).expect("every access goes on");
                })
            });
            join(all.collect());
            assert_eq!(world.cpu().load(word(range.start, 0)), Ok(8));
            world.assert_sound("after eight");
        });
    }
}

/// A page is made clean while it is written and taken away.
#[test]
fn laundering_against_faults() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(2);
        world.processors[A1].add(word(range.start, 0), 1).expect("an add");
        world.processors[A1].add(word(range.start, 1), 1).expect("an add");
        let node = world.node(A1);
        let launder = spawn(&world, move |w| w.space.launder(node));
        join(vec![adder(&world, A2, range, 0), adder(&world, B, range, 0)]);
        assert!(launder.join().expect("laundering").is_ok());
        expect_count(&world, range, 0, 3);
    });
}

#[test]
fn background_reclaim_against_faults() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(3);
        let node = world.node(A1);
        let reclaim = spawn(&world, move |w| w.space.reclaim_now(node));
        let all =
            [adder(&world, A1, range, 0), adder(&world, A2, range, 1), adder(&world, B, range, 0)];
        join(all.into());
        assert_eq!(reclaim.join().expect("reclaim"), Ok(()));
        expect_count(&world, range, 0, 2);
        expect_count(&world, range, 1, 1);
    });
}

#[test]
fn pin_against_fault() {
    explore(|| {
        let world = world(2);
        let range = world.mmap(1);
        let (addr, node) = (range.start.start(), world.node(A1));
        world.space.set_pin_limit(node, 1).expect("a node");
        let pin = spawn(&world, move |w| w.space.pin(addr, PAGE_SIZE, node));
        let fault = spawn(&world, move |w| w.processors[B].add(addr, 1));
        assert_eq!(pin.join().expect("the pin"), Ok(()));
        let added = match fault.join().expect("the fault") {
            Ok(0) => 1,
            Err(AccessError::Fault(Error::PagePinned { .. })) => 0,
            other => panic!("a fault against a pin: {other:?}"),
        };
        assert!(world.space.inspect(addr).is_some_and(|i| i.copies.iter().any(|c| c.node == node)));
        assert_eq!(world.processors[A1].load(addr), Ok(added));
        assert_eq!(world.space.unpin(addr, PAGE_SIZE, node), Ok(()));
        expect_one(&world, range, added);
    });
}

/// The CPU maps the page where it is while others take it away.
#[test]
fn remote_mapping_against_migration() {
    explore(|| {
        let world = wide_world(false, true);
        let range = world.mmap(1);
        let (addr, len) = (range.start.start(), PAGE_SIZE);
        let map = Attribute::AccessedBy(NodeId::HOST, true);
        assert_eq!(world.space.set_attribute(addr, len, map), Ok(()));
        world.processors[1].add(addr, 1).expect("an add");
        let all = [0, 3].map(|who| {
            spawn(&world, move |w| {
                w.processors[who].add(addr, 1).expect("every access goes on");
            })
        });
        let advise = Attribute::ReadMostly(true);
        let hint = spawn(&world, move |w| w.space.set_attribute(addr, len, advise));
        let read = spawn(&world, move |w| w.processors[0].load(addr).expect("a load"));
        join(all.into());
        assert_eq!(hint.join().expect("the hint"), Ok(()));
        assert!((1..=3).contains(&read.join().expect("the reader")));
        expect_one(&world, range, 3);
    });
}

/// The CPU, two contexts on each of three XPUs, and one more on the first: eight processors.
fn wide_world(held: bool, coherent: bool) -> Arc<World> {
    let xpu = |name: &str| {
        let options = DeviceOptions::xpu(name, 2).completing(Completion::Halves);
        if held { options.without(Capabilities::REPLAYABLE_FAULTS) } else { options }
    };
    let link = Capabilities::COHERENT_LINK | Capabilities::READ_ONLY_REPLICAS;
    let world = World::builder(8)
        .host(|h| if coherent { h.with(link) } else { h })
        .xpu(xpu("a"), 3)
        .xpu(xpu("b"), 2)
        .xpu(xpu("c"), 2)
        .slow_clock()
        .build();
    Arc::new(world)
}

fn expect_one(world: &World, range: PageRange, wanted: u64) {
    assert_eq!(world.cpu().load(word(range.start, 0)), Ok(wanted));
    world.assert_sound("at the end");
}

fn resident(world: &World) -> u32 {
    world.space.snapshot().nodes.iter().map(|n| n.resident_frames).sum()
}
