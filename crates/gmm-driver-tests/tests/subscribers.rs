//! Whoever asked is told before a frame goes, and may keep it.
#![cfg(not(shuttle))]

use std::sync::{Arc, Mutex, PoisonError};

use gmm_core::{
    Error, NodeId, PAGE_SIZE, PageRange, Remap, RemapAnswer, RemapCause, RemapSubscriber,
    Subscription,
};
use gmm_driver_tests::array::{AccessError, DeviceOptions};
use gmm_driver_tests::{World, word};

const CPU: usize = 0;
const A: usize = 1;
const NODE_A: NodeId = NodeId(1);

fn world() -> World {
    World::builder(16).xpu(DeviceOptions::xpu("a", 4), 1).build()
}

/// Writes down what it is told, and says what it was told to say.
struct Listener {
    told: Mutex<Vec<Remap>>,
    answer: Mutex<RemapAnswer>,
}

impl Listener {
    fn new() -> Arc<Self> {
        Arc::new(Self { told: Mutex::default(), answer: Mutex::new(RemapAnswer::Proceed) })
    }

    fn answer(&self, answer: RemapAnswer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// What it was told since the last time: why, and from which node.
    fn heard(&self) -> Vec<(RemapCause, NodeId)> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.drain(..).map(|remap| (remap.cause, remap.from.node)).collect()
    }
}

impl RemapSubscriber for Listener {
    fn before_remap(&self, remap: Remap) -> RemapAnswer {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(remap);
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(world: &World, range: PageRange, listener: &Arc<Listener>) -> Subscription {
    world.space.subscribe(range, listener.clone()).unwrap()
}

#[test]
fn every_way_a_frame_goes_is_told() {
    let world = world();
    let (range, listener) = (world.mmap(1), Listener::new());
    let subscription = watch(&world, range, &listener);
    let at = word(range.start, 0);
    world.processors[CPU].store(at, 1).unwrap();
    assert_eq!(listener.heard(), []);
    // A copy more: nothing goes.
    assert_eq!(world.processors[A].load(at), Ok(1));
    assert_eq!(listener.heard(), []);
    world.processors[A].store(at, 2).unwrap();
    assert_eq!(listener.heard(), [(RemapCause::Move, NodeId::HOST)]);
    assert_eq!(world.space.evict(NODE_A, 1), Ok(1));
    assert_eq!(listener.heard(), [(RemapCause::Eviction, NODE_A)]);
    world.space.prefetch(at, 1, NODE_A).unwrap();
    world.processors[CPU].store(at, 3).unwrap();
    assert_eq!(listener.heard(), [(RemapCause::Move, NODE_A)]);
    world.cpu().context.discard_behind_the_core(range.start);
    assert_eq!(world.processors[A].load(at), Ok(0));
    assert_eq!(listener.heard(), [(RemapCause::Discard, NodeId::HOST)]);
    world.space.discard(range.start.start(), PAGE_SIZE).unwrap();
    assert_eq!(listener.heard(), [(RemapCause::Discard, NODE_A)]);
    world.processors[A].store(at, 4).unwrap();
    world.space.munmap(range.start.start(), PAGE_SIZE).unwrap();
    assert_eq!(listener.heard(), [(RemapCause::Unmap, NODE_A)]);
    world.assert_sound("unmapped");
    drop(subscription);
}

#[test]
fn a_page_that_is_kept_stays() {
    let world = world();
    let (range, listener) = (world.mmap(1), Listener::new());
    let subscription = watch(&world, range, &listener);
    let at = word(range.start, 0);
    world.processors[A].store(at, 1).unwrap();
    let home = world.space.inspect(at).unwrap().copies;
    listener.answer(RemapAnswer::Keep);
    // Reclaim takes others.
    world.processors[A].store(word(world.mmap(1).start, 0), 1).unwrap();
    assert_eq!(world.space.evict(NODE_A, 4), Ok(1));
    assert_eq!(world.space.inspect(at).unwrap().copies, home);
    assert!(listener.heard().contains(&(RemapCause::Eviction, NODE_A)));
    let addr = range.start.start();
    let kept = Error::PageKept { addr, node: NODE_A };
    assert_eq!(world.processors[CPU].load(at), Err(AccessError::Fault(kept)));
    assert_eq!(world.space.discard(addr, PAGE_SIZE), Err(kept));
    assert_eq!(world.processors[A].load(at), Ok(1));
    world.assert_sound("kept");
    listener.answer(RemapAnswer::Proceed);
    world.processors[A].store(word(world.mmap(1).start, 0), 1).unwrap();
    world.heal(CPU, at).unwrap();
    assert_eq!(world.processors[CPU].load(at), Ok(1));
    // `munmap` asks for no permission.
    listener.answer(RemapAnswer::Keep);
    world.space.munmap(addr, PAGE_SIZE).unwrap();
    world.assert_sound("unmapped");
    drop(subscription);
}

#[test]
fn a_subscription_ends_when_dropped_and_with_the_region() {
    let world = world();
    let (range, first, second) = (world.mmap(5), Listener::new(), Listener::new());
    let one = watch(&world, range, &first);
    let two = watch(&world, PageRange { nr_pages: 2, ..range }, &second);
    let touch = |page: u64| {
        world.processors[A].store(word(range.start.plus(page), 0), 1).unwrap();
        world.processors[CPU].store(word(range.start.plus(page), 0), 1).unwrap();
        (first.heard().len(), second.heard().len())
    };
    assert_eq!((touch(0), touch(3)), ((1, 1), (1, 0)));
    world.assert_sound("two");
    drop(one);
    world.assert_sound("one");
    assert_eq!((touch(0), touch(3)), ((0, 2), (0, 0)));
    drop(two);
    world.assert_sound("none");
    assert_eq!((touch(0), touch(3)), ((0, 0), (0, 0)));
    // A hole, mapped again: only what was there is watched.
    let three = watch(&world, range, &first);
    world.space.munmap(range.start.plus(2).start(), PAGE_SIZE).unwrap();
    assert_eq!(first.heard().len(), 0, "it had no frame");
    let rest = world.space.config().window.nr_pages - 5;
    world.mmap(rest);
    assert_eq!(world.mmap(1).start, range.start.plus(2));
    world.assert_sound("mapped again");
    assert_eq!(touch(2), (0, 0));
    assert_eq!(touch(3).0, 2);
    drop(three);
    world.assert_sound("none again");
}

#[test]
fn subscribing_to_nothing_is_an_error() {
    let world = world();
    let range = world.mmap(2);
    let subscribe = |range| world.space.subscribe(range, Listener::new()).err();
    assert_eq!(subscribe(PageRange { nr_pages: 0, ..range }), Some(Error::ZeroLength));
    let beyond = PageRange { nr_pages: 3, ..range };
    assert_eq!(subscribe(beyond), Some(Error::NotMapped { addr: range.end().start() }));
    world.assert_sound("nobody");
}
