//! Hints that stay, on the real CPU and a real host XPU: pins, read-mostly, preferred and
//! accessed-by pages, and subscribers.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use gmm::{
    Advice, Error, Gmm, NodeId, PageState, Remap, RemapAnswer, RemapCause, RemapSubscriber, Xpu,
};
use gmm_core::Error as Core;

const HOST: PageState = PageState::Exclusive(NodeId(0));
const ON_XPU: PageState = PageState::Exclusive(NodeId(1));

fn advise(gmm: &Gmm, memory: Memory, pages: usize, advice: Advice, node: u8) -> gmm::Result<()> {
    gmm.advise(memory.at(0), (pages * PAGE) as u64, advice, node)
}

/// A machine on which pages move only when asked for.
fn still(frames: u64) -> Gmm {
    Gmm::builder().xpu(xpu_of(frames)).config(|c| c.launder_after = None).build().unwrap()
}

/// Everything leaves the XPU that can.
fn press(gmm: &Gmm) {
    gmm.core().evict(NodeId(1), 64).unwrap();
}

/// What the XPU wrote with `touch` is of no interest: it writes what was there.
fn fill_on_the_xpu(gmm: &Gmm, xpu: &Xpu, memory: Memory, pages: usize, seed: u64) {
    memory.fill(0, pages * PAGE, seed);
    memory.touch_on(xpu, pages, true);
    (0..pages).for_each(|page| assert_eq!(memory.state(gmm, page * PAGE), ON_XPU));
}

#[test]
fn pinned_pages_stay_and_are_limited() {
    let _turn = turn();
    let gmm = still(8);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 3), mmap(&gmm, 1));
    memory.fill(0, 3 * PAGE, 1);
    advise(&gmm, memory, 3, Advice::Pin, 1).unwrap();
    let copies = |page: usize| memory.info(&gmm, page * PAGE).copies;
    let on_xpu = |page: usize| copies(page).into_iter().find(|c| c.node == NodeId(1)).unwrap();
    let before: Vec<_> = (0..3).map(on_xpu).collect();
    press(&gmm);
    assert_eq!((0..3).map(on_xpu).collect::<Vec<_>>(), before);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 3 * PAGE, 1));
    let attributes = gmm.attributes(memory.at(0), 1).unwrap();
    assert_eq!(attributes[0].1.pinned, Some((NodeId(1), 1)));

    let more = mmap(&gmm, 4);
    let refused = advise(&gmm, more, 4, Advice::Pin, 1).unwrap_err();
    let limit = Core::PinLimit { node: NodeId(1), limit: 6, pinned: 3, asked: 4 };
    assert!(matches!(refused, Error::Manager(error) if error == limit), "{refused}");
    gmm.set_pin_limit(1, 7).unwrap();
    advise(&gmm, more, 4, Advice::Pin, 1).unwrap();
    assert!(matches!(
        advise(&gmm, memory, 3, Advice::DontNeed, 1),
        Err(Error::Manager(Core::PagePinned { .. }))
    ));

    advise(&gmm, memory, 3, Advice::Unpin, 1).unwrap();
    assert!(matches!(
        advise(&gmm, memory, 3, Advice::Unpin, 1),
        Err(Error::Manager(Core::NotPinned { .. }))
    ));
    // Pins end with the memory.
    more.unmap(&gmm, 4);
    let buffer = gmm.mmap::<u64>(6 * PAGE / 8).unwrap();
    buffer.pin(1).unwrap();
    drop(buffer);
    press(&gmm);
    assert_eq!(gmm.snapshot().nodes[1].pinned_frames, 0);
    check(&gmm);
}

/// The CPU maps a pinned page where it is, through the coherent link.
#[test]
fn the_cpu_uses_a_page_that_is_pinned_on_the_xpu() {
    let _turn = turn();
    let gmm = still(8);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    fill_on_the_xpu(&gmm, &xpu, memory, 2, 1);
    advise(&gmm, memory, 2, Advice::Pin, 1).unwrap();
    assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);
    memory.fill(0, 2 * PAGE, 2);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 2));
    assert_eq!((memory.state(&gmm, 0), memory.state(&gmm, PAGE)), (ON_XPU, ON_XPU));
    // The CPU goes on before its fault is counted, which is before the page can be looked at.
    assert_eq!(out.state(&gmm, 0), HOST);
    assert_eq!(migrated(&gmm, 1, 0), PAGE as u64, "the result alone");
    advise(&gmm, memory, 2, Advice::Unpin, 1).unwrap();
    check(&gmm);
}

#[test]
fn accessed_by_maps_pages_where_they_are() {
    let _turn = turn();
    let gmm = still(4);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    fill_on_the_xpu(&gmm, &xpu, memory, 2, 1);
    advise(&gmm, memory, 2, Advice::AccessedBy, 0).unwrap();
    for seed in 1..4 {
        assert_eq!(memory.differences(0, 2 * PAGE, seed), 0);
        memory.fill(0, 2 * PAGE, seed + 1);
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, seed + 1));
        assert_eq!(memory.state(&gmm, PAGE), ON_XPU);
    }
    // Evicted, it waits in host memory, which is the CPU's own.
    press(&gmm);
    assert_eq!(memory.state(&gmm, 0), HOST);
    assert_eq!(memory.differences(0, 2 * PAGE, 4), 0);
    check(&gmm);
    // Once the advice is gone it moves, as it does without.
    memory.touch_on(&xpu, 2, true);
    advise(&gmm, memory, 2, Advice::NotAccessedBy, 0).unwrap();
    assert_eq!(memory.differences(0, 2 * PAGE, 4), 0);
    assert_eq!(memory.state(&gmm, 0), HOST);
    check(&gmm);
}

#[test]
fn preferred_pages_are_made_and_fetched_where_they_should_be() {
    let _turn = turn();
    let gmm = still(4);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    advise(&gmm, memory, 2, Advice::Preferred, 1).unwrap();
    memory.fill(0, 2 * PAGE, 1);
    assert_eq!((memory.state(&gmm, 0), memory.state(&gmm, PAGE)), (ON_XPU, ON_XPU));
    assert_eq!(migrated(&gmm, 0, 1) + migrated(&gmm, 1, 0), 0);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1));
    press(&gmm);
    assert_eq!(memory.state(&gmm, 0), HOST);
    assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);
    assert_eq!((memory.state(&gmm, 0), memory.state(&gmm, PAGE)), (ON_XPU, ON_XPU));
    check(&gmm);
}

#[test]
fn read_mostly_pages_are_read_by_both_at_once() {
    let _turn = turn();
    let gmm = still(4);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    advise(&gmm, memory, 2, Advice::ReadMostly, 0).unwrap();
    for seed in 1..4 {
        memory.fill(0, 2 * PAGE, seed);
        assert_eq!(memory.state(&gmm, 0), HOST, "a write leaves one copy");
        // The XPU's copies, and the CPU's replicas.
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, seed));
        assert_eq!(memory.differences(0, 2 * PAGE, seed), 0);
        let copied = migrated(&gmm, 0, 1);
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, seed));
        assert_eq!(memory.differences(0, 2 * PAGE, seed), 0);
        assert_eq!(memory.nodes(&gmm, PAGE), [0, 1]);
        // The word that the XPU writes comes and goes; the two pages stay.
        assert!(migrated(&gmm, 0, 1) - copied <= PAGE as u64);
        check(&gmm);
    }
    // A write by the XPU ends the CPU's replica.
    memory.touch_on(&xpu, 2, true);
    assert_eq!(memory.state(&gmm, 0), ON_XPU);
    assert_eq!(memory.differences(0, 2 * PAGE, 3), 0);
    check(&gmm);
}

/// Keeps what it is told to, and counts.
#[derive(Default)]
struct Keeper {
    told: AtomicU64,
    keeps: AtomicU64,
}

impl RemapSubscriber for Keeper {
    fn before_remap(&self, remap: Remap) -> RemapAnswer {
        self.told.fetch_add(1, Ordering::SeqCst);
        let keeps = self.keeps.load(Ordering::SeqCst) > 0 && remap.cause != RemapCause::Unmap;
        if keeps { RemapAnswer::Keep } else { RemapAnswer::Proceed }
    }
}

#[test]
fn a_subscriber_is_asked_before_pages_go() {
    let _turn = turn();
    let gmm = still(4);
    let xpu = gmm.xpu(1).unwrap();
    let (memory, keeper) = (mmap(&gmm, 1), Arc::new(Keeper::default()));
    memory.touch_on(&xpu, 1, true);
    let subscription = gmm.subscribe(memory.at(0), 1, keeper.clone()).unwrap();
    keeper.keeps.store(1, Ordering::SeqCst);
    press(&gmm);
    assert_eq!(memory.state(&gmm, 0), ON_XPU);
    let refused = advise(&gmm, memory, 1, Advice::WillNeed, 0);
    assert!(matches!(refused, Err(Error::Manager(Core::PageKept { .. }))), "{refused:?}");
    keeper.keeps.store(0, Ordering::SeqCst);
    press(&gmm);
    assert_eq!(memory.state(&gmm, 0), HOST);
    let told = keeper.told.load(Ordering::SeqCst);
    drop(subscription);
    memory.touch_on(&xpu, 1, true);
    assert_eq!(keeper.told.load(Ordering::SeqCst), told);
    check(&gmm);
}
