//! How many pages repeated sweeps move on a host XPU, beside the fewest possible.

mod common;

use common::*;
use gmm::{EvictionPolicy, Gmm, PAGE_SIZE};
use gmm_sim::{Workload, optimum};

const FRAMES: u64 = 128;

/// The sweeps that are not counted, and those that are: enough that a page more or less in one of
/// them, as cores take turns, does not matter.
const SETTLING: usize = 3;
const COUNTED: usize = 10;

fn pages_of(factor: f64) -> usize {
    Workload::sweep(FRAMES, factor, 1).nr_pages() as usize
}

/// So many pages that the CPU has written.
fn written(gmm: &Gmm, pages: usize) -> Memory {
    let memory = mmap(gmm, pages);
    (0..pages).for_each(|page| memory.write(page * PAGE, 1));
    memory
}

/// How many pages an XPU's sweeps over `memory` move, once they have settled.
fn moved(gmm: &Gmm, memory: Memory, pages: usize) -> u64 {
    let xpu = gmm.xpu(1).unwrap();
    let sweep = |_| memory.touch_on(&xpu, pages, false);
    (0..SETTLING).for_each(sweep);
    let before = migrated(gmm, 0, 1);
    (0..COUNTED).for_each(sweep);
    (migrated(gmm, 0, 1) - before) / PAGE_SIZE
}

fn fewest(factor: f64) -> u64 {
    let passes = Workload::sweep(FRAMES, factor, SETTLING + COUNTED).passes;
    optimum(&passes, FRAMES as usize)[SETTLING..].iter().sum()
}

#[test]
fn sweeps_move_little_more_than_they_must() {
    let _turn = turn();
    for (factor, limit) in [(1.05, 2.0), (1.25, 1.25), (1.5, 1.25), (2.0, 1.25), (4.0, 1.25)] {
        // One core: of several, one may be kept waiting by the machine while the others go on, and
        // then it is no sweep.
        let gmm = Gmm::builder().xpu(xpu_of(FRAMES).cores(1)).build().unwrap();
        let pages = pages_of(factor);
        let memory = written(&gmm, pages);
        let (moved, fewest) = (moved(&gmm, memory, pages), fewest(factor));
        println!("{factor} times the memory: {moved} pages moved, {fewest} at least");
        assert!(moved >= fewest, "{factor}: {moved} pages moved, {fewest} had to be");
        assert!(
            moved as f64 <= limit * fewest as f64,
            "{factor} times the memory: {moved} pages moved, {fewest} had to be"
        );
        memory.unmap(&gmm, pages);
        check(&gmm);
    }
}

#[test]
fn the_policy_can_be_chosen_and_an_order_followed() {
    let _turn = turn();
    let builder = Gmm::builder().xpu(xpu_of(FRAMES)).policy(EvictionPolicy::Lru);
    // Which keeps what a sweep is about to reach, whatever the policy.
    let gmm = builder.config(|c| c.look_ahead = 0).build().unwrap();
    let pages = pages_of(1.25);
    let memory = written(&gmm, pages);
    let all = (COUNTED * pages) as u64;
    let by_lru = moved(&gmm, memory, pages);
    // Two cores change places now and then.
    assert!(by_lru * 10 >= all * 9, "lru moves {by_lru} of {all}");
    gmm.follow_order(1, (0..pages).map(|page| memory.at(page * PAGE).cast_const())).unwrap();
    let by_order = moved(&gmm, memory, pages);
    assert!(by_order * 10 <= fewest(1.25) * 12, "by order {by_order} of {all}");
    gmm.follow_order(1, []).unwrap();
    assert!(gmm.follow_order(7, []).is_err());
    memory.unmap(&gmm, pages);
    check(&gmm);
}
