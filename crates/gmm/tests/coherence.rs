//! The protocol under load: CPU threads and XPU cores count in words of their own on pages that
//! all of them use, with far fewer frames than pages. If a page were ever written in two places,
//! or an old copy used, a count would be lost.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use gmm::hostxpu::Backing;
use gmm::{Gmm, Xpu};

const PAGES: usize = 13;
const CPU_THREADS: usize = 2;
/// Indices of each context's launch.
const INDICES: usize = 3;

/// Everyone counts `rounds` times in every page, in bouts, so that launches begin and end
/// meanwhile. The contexts' counts are in the slots after the CPU's.
fn count_everywhere(contexts: &[Xpu], memory: Memory, rounds: u64, bouts: u64) {
    std::thread::scope(|scope| {
        for thread in 0..CPU_THREADS {
            scope.spawn(move || {
                for bout in 0..bouts {
                    let seed = 1000 * bout + thread as u64;
                    let args = (memory.at(0), PAGES, PAGE, rounds / bouts, thread, seed);
                    run_on_cpu("count_pages", 1, args);
                }
            });
        }
        for (i, xpu) in contexts.iter().enumerate() {
            scope.spawn(move || {
                let first = CPU_THREADS + i * INDICES;
                for bout in 0..bouts {
                    let seed = 77 * bout + i as u64;
                    let args = (memory.at(0), PAGES, PAGE, rounds / bouts, first, seed);
                    run(xpu, "count_pages", INDICES as u64, args).unwrap();
                }
            });
        }
    });
    let slots = CPU_THREADS + contexts.len() * INDICES;
    for page in 0..PAGES {
        for slot in 0..slots {
            let counted = memory.read_word(page * PAGE + slot * 8);
            assert_eq!(counted, rounds, "page {page}, slot {slot}");
        }
        assert_eq!(memory.read_word(page * PAGE + slots * 8), 0, "page {page}");
    }
}

/// Two contexts of one XPU and one of another, each of four or five frames.
fn two_xpus(change: impl Fn(gmm::HostXpu) -> gmm::HostXpu) -> (Gmm, [Xpu; 3]) {
    let gmm = Gmm::builder().xpu(change(xpu_of(4))).xpu(change(xpu_of(5))).build().unwrap();
    let one = gmm.xpu(1).unwrap();
    let contexts = [one.new_context().unwrap(), one, gmm.xpu(2).unwrap()];
    (gmm, contexts)
}

#[test]
fn no_count_is_lost() {
    let _turn = turn();
    let (gmm, contexts) = two_xpus(|xpu| xpu);
    let memory = mmap(&gmm, PAGES);
    count_everywhere(&contexts, memory, 60, 6);
    // It was a contest, in every direction.
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        assert!(migrated(&gmm, from, to) > 0, "nothing went from node {from} to node {to}");
    }
    let nodes = gmm.snapshot().nodes;
    assert!(nodes[1].evicted_pages > 0 && nodes[2].evicted_pages > 0, "{nodes:?}");
    check(&gmm);
}

#[test]
fn no_count_is_lost_with_slow_messages_and_clears() {
    let _turn = turn();
    let (gmm, contexts) = two_xpus(|xpu| {
        xpu.config(|config| {
            config
                .message_latency(Duration::from_micros(150))
                .clear_cost(Duration::from_micros(300))
                .spin(Duration::ZERO)
        })
    });
    let memory = mmap(&gmm, PAGES);
    count_everywhere(&contexts, memory, 12, 2);
    check(&gmm);
}

#[test]
fn no_count_is_lost_with_small_pages_and_without_read_only_mappings() {
    let _turn = turn();
    let (gmm, contexts) = two_xpus(|xpu| {
        xpu.config(|config| config.backing(Backing::SmallPages).read_only_mappings(false))
    });
    let memory = mmap(&gmm, PAGES);
    count_everywhere(&contexts, memory, 8, 2);
    check(&gmm);
}

#[test]
fn no_count_is_lost_while_pages_are_prefetched_and_protection_comes_and_goes() {
    let _turn = turn();
    let (gmm, contexts) = two_xpus(|xpu| xpu);
    let (memory, kept) = (mmap(&gmm, PAGES), mmap(&gmm, 6));
    kept.fill(0, 6 * PAGE, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(11);
            while !done.load(Ordering::SeqCst) {
                let page = random.below(PAGES as u64) as usize;
                let node = random.below(3) as u8;
                let at = memory.at(page * PAGE);
                // (A node whose frames are all in use just now can't have it.)
                let _ = gmm.advise(at, PAGE as u64, gmm::Advice::WillNeed, node);
                // Memory that is only read changes between read-only and not.
                let protection = match random.below(2) {
                    0 => gmm::Protection::ReadOnly,
                    _ => gmm::Protection::ReadWrite,
                };
                gmm.protect(kept.at(page % 6 * PAGE), PAGE as u64, protection).unwrap();
                assert_eq!(kept.differences(page % 6 * PAGE, SMALL, 1), 0);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _done = SetOnDrop(&done);
        count_everywhere(&contexts, memory, 16, 2);
    });
    assert_eq!(kept.differences(0, 6 * PAGE, 1), 0);
    check(&gmm);
}
