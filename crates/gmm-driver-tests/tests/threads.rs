//! Real threads on the array device. Nothing here depends on timing: what is asserted holds for
//! every schedule.
#![cfg(not(shuttle))]

use core::time::Duration;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gmm_core::driver::{Access, Capabilities};
use gmm_core::{Attribute, Error, NodeId, PAGE_SIZE, PageRange, Stop, VirtAddr};
use gmm_driver_tests::array::{AccessError, Completion, DeviceOptions, FRAME_WORDS};
use gmm_driver_tests::{TestProcessor, World, word};

/// The words of a range, added up, as the CPU sees them.
fn total(world: &World, range: PageRange) -> u64 {
    let words = range.pages().flat_map(|p| (0..FRAME_WORDS as u64).map(move |w| word(p, w)));
    words.map(|addr| world.cpu().load(addr).expect("the CPU reads at rest")).sum()
}

/// Adds 1 to words of the range in an order that differs from thread to thread.
fn count(who: &TestProcessor, range: PageRange, seed: u64, n: u64) -> Result<(), AccessError> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for _ in 0..n {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = range.start.plus((x >> 33) % range.nr_pages);
        let addr = word(page, (x >> 50) % FRAME_WORDS as u64);
        // Some reads, so that pages are shared as well.
        if x >> 61 == 0 {
            who.load(addr)?;
        }
        who.add(addr, 1)?;
    }
    Ok(())
}

fn none_lost(world: World, nr_pages: u64, threads_each: u64, n: u64) {
    let range = world.mmap(nr_pages);
    let start = Barrier::new(world.processors.len() * threads_each as usize);
    thread::scope(|s| {
        for (i, who) in world.processors.iter().enumerate() {
            for t in 0..threads_each {
                let start = &start;
                s.spawn(move || {
                    start.wait();
                    count(who, range, 1 + i as u64 * 100 + t, n).expect("every access goes on");
                });
            }
        }
    });
    let wanted = world.processors.len() as u64 * threads_each * n;
    assert_eq!(total(&world, range), wanted, "increments were lost");
    world.assert_sound("after counting");
}

#[test]
fn no_count_is_lost_between_a_cpu_and_two_xpus() {
    for completion in [Completion::Inline, Completion::Halves] {
        let world = World::builder(16)
            .host(|h| h.completing(completion))
            .xpu(DeviceOptions::xpu("a", 3).completing(completion), 2)
            .xpu(DeviceOptions::xpu("b", 3).completing(completion), 1)
            .wall_clock()
            .build();
        none_lost(world, 6, 2, 1_500);
    }
}

#[test]
fn no_count_is_lost_without_read_only_mappings_and_over_a_fabric() {
    let plain = |name: &str| {
        let options = DeviceOptions::xpu(name, 3).without(Capabilities::READ_ONLY_MAPPINGS);
        options.with(Capabilities::PEER_COPY).completing(Completion::AtWait)
    };
    let world = World::builder(16).xpu(plain("a"), 2).xpu(plain("b"), 2).wall_clock().build();
    none_lost(world, 6, 2, 1_500);
}

/// One access; where faults are not replayed, as a launch that names its page.
fn launched(world: &World, who: &TestProcessor, addr: VirtAddr) -> Result<(), AccessError> {
    loop {
        match who.add(addr, 1) {
            Err(AccessError::Unserved) => {}
            // A page that is pinned or held just now, on a node or with frames of others.
            Err(AccessError::Held) => continue,
            done => return done.map(drop),
        }
        let range = PageRange { start: addr.page(), nr_pages: 1 };
        match world.space.hold(&who.processor, &[range], Access::Write) {
            Ok(held) => {
                let done = who.add(addr, 1).map(drop);
                drop(held);
                return done;
            }
            Err(Error::OutOfMemory(_) | Error::Thrashing { .. }) => thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Eight processors on four nodes count, some by launches that hold what they use, while pages
/// are prefetched, evicted, laundered, advised and reclaimed in the background.
fn eight_processors(held: [bool; 3], coherent: bool) {
    let xpu = |name: &str, held| {
        let options = DeviceOptions::xpu(name, 5).completing(Completion::Halves);
        if held { options.without(Capabilities::REPLAYABLE_FAULTS) } else { options }
    };
    let link = Capabilities::COHERENT_LINK | Capabilities::READ_ONLY_REPLICAS;
    let world = World::builder(24)
        .host(|h| if coherent { h.with(link) } else { h })
        .xpu(xpu("a", held[0]), 3)
        .xpu(xpu("b", held[1]), 2)
        .xpu(xpu("c", held[2]), 2)
        .wall_clock()
        .config(|c| (c.high_watermark, c.launder_share) = (Some(2), 1))
        .build();
    const COUNTS: u64 = 300;
    let range = world.mmap(9);
    let (stop, done) = (Stop::new(), AtomicBool::new(false));
    thread::scope(|s| {
        let (world, stop, done) = (&world, &stop, &done);
        for node in (1..4).map(NodeId) {
            s.spawn(move || world.space.reclaim_in_background(node, stop).expect("a node"));
        }
        s.spawn(move || {
            let mut n = 0u64;
            while !done.load(Ordering::SeqCst) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (addr, node) =
                    (range.start.plus((n >> 33) % 9).start(), NodeId((n >> 40) as u8 % 4));
                let space = &world.space;
                let attribute = match n >> 50 & 3 {
                    0 => Attribute::ReadMostly(n >> 60 & 1 == 0),
                    1 => Attribute::AccessedBy(node, n >> 60 & 1 == 0),
                    _ => Attribute::Preferred((n >> 60 & 1 == 0).then_some(node)),
                };
                // What is in use just now may be in the way.
                match n >> 45 & 7 {
                    0 => drop(space.prefetch(addr, PAGE_SIZE, node)),
                    1 => drop(space.evict(node, 2)),
                    2 => drop(space.launder(node)),
                    3 => drop(space.withdraw(node, 1)),
                    _ => space.set_attribute(addr, PAGE_SIZE, attribute).expect("a page"),
                }
                thread::yield_now();
            }
        });
        let counters: Vec<_> = (world.processors.iter().zip(0..))
            .map(|(who, i)| {
                s.spawn(move || {
                    for n in 0..COUNTS {
                        let page = range.start.plus((n * 7 + i) % 9);
                        let addr = word(page, (n + i) % FRAME_WORDS as u64);
                        launched(world, who, addr).expect("every access goes on");
                    }
                })
            })
            .collect();
        let results: Vec<_> = counters.into_iter().map(|t| t.join()).collect();
        done.store(true, Ordering::SeqCst);
        world.space.stop_background(stop);
        assert!(results.iter().all(Result::is_ok), "a thread failed");
    });
    assert_eq!(total(&world, range), 8 * COUNTS, "increments were lost");
    world.assert_sound("after eight processors");
}

#[test]
fn no_count_is_lost_between_eight_processors() {
    eight_processors([false; 3], false);
}

#[test]
fn no_count_is_lost_between_eight_processors_whose_launches_hold() {
    eight_processors([true; 3], false);
}

#[test]
fn no_count_is_lost_between_eight_processors_of_all_kinds() {
    eight_processors([true, false, false], true);
}

#[test]
fn sixty_four_threads_fault_on_eight_frames() {
    let world = World::builder(48).xpu(DeviceOptions::xpu("a", 8), 4).wall_clock().build();
    let range = world.mmap(32);
    let start = Barrier::new(64);
    thread::scope(|s| {
        for t in 0..64u64 {
            let (who, start) = (&world.processors[1 + t as usize % 4], &start);
            s.spawn(move || {
                start.wait();
                count(who, range, t, 100).expect("every access goes on");
            });
        }
    });
    assert_eq!(total(&world, range), 64 * 100);
    world.assert_sound("after 64 threads");
}

#[test]
fn out_of_memory_names_the_node_when_every_frame_is_held() {
    let world = World::builder(48)
        .xpu(DeviceOptions::xpu("a", 8), 4)
        .wall_clock()
        .config(|c| c.frame_wait = Duration::from_millis(50))
        .build();
    let range = world.mmap(16);
    let held = PageRange { start: range.start, nr_pages: 8 };
    let processor = world.processors[1].processor.clone();
    let hold = world.space.hold(&processor, &[held], Access::Write).expect("eight frames");
    thread::scope(|s| {
        for t in 0..64u64 {
            let who = &world.processors[1 + t as usize % 4];
            s.spawn(move || {
                let result = who.store(word(range.start.plus(8 + t % 8), 0), t);
                match result {
                    Err(AccessError::Fault(Error::OutOfMemory(why))) => {
                        assert_eq!((why.node, why.capacity, why.pinned), (NodeId(1), 8, 8));
                        assert!(why.to_string().contains("8 pinned"), "{why}");
                    }
                    // Another thread's fault on the page failed first.
                    Err(AccessError::Poisoned) => {}
                    other => panic!("a store with every frame held: {other:?}"),
                }
            });
        }
    });
    world.assert_sound("out of memory");
    drop(hold);
    for t in 0..8 {
        let addr = word(range.start.plus(8 + t), 0);
        world.heal(1, addr).expect("frames are free again");
        world.processors[1].store(addr, t).expect("frames are free again");
    }
    world.assert_sound("after the hold");
}

#[test]
fn a_context_that_dies_loses_no_count_of_anyone() {
    for round in 0..20 {
        let world = World::builder(16)
            .xpu(DeviceOptions::xpu("a", 3).completing(Completion::Halves), 2)
            .xpu(DeviceOptions::xpu("b", 3), 1)
            .wall_clock()
            .build();
        let range = world.mmap(5);
        let counted = thread::scope(|s| {
            let threads: Vec<_> = (world.processors.iter().enumerate())
                .map(|(i, who)| {
                    s.spawn(move || {
                        (0..200)
                            .take_while(|&n| {
                                let addr = word(range.start.plus((n + i as u64) % 5), n % 8);
                                match who.add(addr, 1) {
                                    Ok(_) => true,
                                    Err(AccessError::Dead) if i == 1 => false,
                                    Err(error) => panic!("processor {i}: {error}"),
                                }
                            })
                            .count() as u64
                    })
                })
                .collect();
            // Killed at a moment that differs from round to round and run to run.
            (0..round * 50).for_each(|_| thread::yield_now());
            world.processors[1].context.kill();
            world.space.detach(&world.processors[1].processor);
            threads.into_iter().map(|t| t.join().expect("no thread fails")).sum::<u64>()
        });
        assert_eq!(total(&world, range), counted, "in round {round}");
        world.assert_sound(("after a death in round", round));
    }
}
