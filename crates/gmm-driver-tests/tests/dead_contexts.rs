//! Contexts that are dead, or detached, stand in nobody's way.
#![cfg(not(shuttle))]

use std::sync::Arc;

use gmm_core::driver::Protection;
use gmm_core::{Error, PAGE_SIZE};
use gmm_driver_tests::array::{AccessError, DeviceOptions};
use gmm_driver_tests::{World, word};

const A1: usize = 1;
const A2: usize = 2;
const B: usize = 3;

/// Two contexts of an XPU and one of another; the first has written a page and is dead, and
/// nobody has detached it yet.
fn with_a_dead_writer() -> (World, gmm_core::PageRange) {
    let world = World::builder(12)
        .xpu(DeviceOptions::xpu("a", 2), 2)
        .xpu(DeviceOptions::xpu("b", 2), 1)
        .build();
    let range = world.mmap(2);
    world.processors[A1].store(word(range.start, 0), 7).expect("a store");
    world.processors[A1].context.kill();
    assert_eq!(world.processors[A1].load(word(range.start, 0)), Err(AccessError::Dead));
    (world, range)
}

#[test]
fn its_data_is_read_by_everyone() {
    for reader in [0, A2, B] {
        let (world, range) = with_a_dead_writer();
        assert_eq!(world.processors[reader].load(word(range.start, 0)), Ok(7), "by {reader}");
        world.assert_sound(reader);
        world.space.detach(&world.processors[A1].processor);
        assert_eq!(world.processors[reader].load(word(range.start, 0)), Ok(7), "by {reader}");
        world.assert_sound(reader);
    }
}

#[test]
fn its_page_is_protected_and_evicted_and_unmapped() {
    let (world, range) = with_a_dead_writer();
    let (addr, len) = (range.start.start(), 2 * PAGE_SIZE);
    assert_eq!(world.space.protect(addr, len, Protection::ReadOnly), Ok(()));
    let refused = world.processors[B].store(word(range.start, 0), 1);
    assert!(matches!(refused, Err(AccessError::Fault(Error::Protection { .. }))), "{refused:?}");
    assert_eq!(world.space.protect(addr, len, Protection::ReadWrite), Ok(()));
    assert_eq!(world.processors[B].store(word(range.start, 0), 8), Ok(()));
    world.assert_sound("protected");
    assert_eq!(world.space.munmap(addr, len), Ok(()));
    world.assert_sound("unmapped");
}

#[test]
fn it_does_not_refuse_addresses() {
    let (world, _) = with_a_dead_writer();
    let made = world.space.mmap(PAGE_SIZE, Protection::ReadWrite, "after a death");
    assert!(made.is_ok(), "{made:?}");
    world.assert_sound("mmap");
}

#[test]
fn prefetch_to_its_node_serves_the_living() {
    let (world, range) = with_a_dead_writer();
    let node = world.node(A1);
    assert_eq!(world.space.prefetch(range.start.start(), 2 * PAGE_SIZE, node).map(drop), Ok(()));
    range.pages().for_each(|p| assert!(world.processors[A2].context.maps(p)));
    world.assert_sound("prefetch");
}

/// Its contexts being dead is no reason for the node not to have the page.
#[test]
fn prefetch_to_a_node_of_dead_contexts_brings_the_page() {
    let (world, range) = with_a_dead_writer();
    world.processors[A2].context.kill();
    world.processors[B].store(word(range.start, 0), 8).expect("a store");
    let node = world.node(A1);
    assert_eq!(world.space.prefetch(range.start.start(), 2 * PAGE_SIZE, node).map(drop), Ok(()));
    for page in range.pages() {
        let copies = world.space.inspect(page.start()).expect("a page").copies;
        assert!(copies.iter().any(|c| c.node == node), "{page:?} has copies {copies:?}");
    }
    world.assert_sound("prefetch");
}

/// Its driver's context ends in a set-up operation, on no thread that serves faults.
#[test]
fn what_a_driver_made_ends_in_a_set_up_operation() {
    let mut world = World::builder(12).xpu(DeviceOptions::xpu("a", 2), 0).build();
    let nr = world.attach(0, 0).expect("a context");
    let context = Arc::downgrade(&world.processors[nr].context);
    world.space.detach(&world.processors[nr].processor);
    let last = world.processors.pop().expect("the context");
    last.context.serve(None);
    // As a thread that serves a fault may have it in its hands.
    drop(last);
    assert!(context.upgrade().is_some(), "it ended where the last use of it did");
    world.mmap(1);
    assert!(context.upgrade().is_none(), "it is kept for ever");
}

#[test]
fn a_detached_context_leaves_no_poison_behind() {
    let (mut world, range) = with_a_dead_writer();
    world.space.detach(&world.processors[A2].processor);
    let addr = word(range.start, 0);
    for _ in 0..2 {
        let gone = world.processors[A2].load(addr);
        assert!(matches!(gone, Err(AccessError::Fault(Error::NotAttached { .. }))), "{gone:?}");
    }
    let next = world.attach(0, 0).expect("a new context");
    assert_eq!(world.processors[next].load(addr), Ok(7));
    world.assert_sound("attached again");
}
