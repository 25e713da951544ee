//! Several XPUs, and several contexts of one: pages move and are shared between all of them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::*;
use gmm::hostxpu::Death;
use gmm::{Error, Gmm, PAGE_SIZE, PageState, VirtAddr};
use gmm_core::driver::Examine;

fn two_xpus(first: u64, second: u64) -> Gmm {
    Gmm::builder().xpu(xpu_of(first)).xpu(xpu_of(second)).build().unwrap()
}

#[test]
fn pages_move_from_xpu_to_xpu() {
    let _turn = turn();
    let gmm = two_xpus(8, 8);
    let (one, two) = (gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap());
    assert_eq!((one.node(), two.node()), (1, 2));
    const PAGES: usize = 5;
    let memory = mmap(&gmm, PAGES);
    let count = |xpu, rounds| {
        let args = (memory.at(0), PAGES, PAGE, rounds, 0_usize, 1_u64);
        run(xpu, "count_pages", 1, args).unwrap();
    };
    count(&one, 3_u64);
    assert!(
        (0..PAGES).all(|p| memory.state(&gmm, p * PAGE) == PageState::Exclusive(gmm::NodeId(1)))
    );
    count(&two, 4);
    assert!(
        (0..PAGES).all(|p| memory.state(&gmm, p * PAGE) == PageState::Exclusive(gmm::NodeId(2)))
    );
    assert_eq!(migrated(&gmm, 1, 2), (PAGES * PAGE) as u64);
    assert_eq!((migrated(&gmm, 1, 0), migrated(&gmm, 0, 2)), (0, 0), "not by way of the host");
    count(&one, 5);
    assert_eq!(migrated(&gmm, 2, 1), (PAGES * PAGE) as u64);
    assert!((0..PAGES).all(|page| memory.read_word(page * PAGE) == 12));
    check(&gmm);
}

#[test]
fn readers_share_a_page_and_a_write_takes_it() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = two_xpus(4, 4);
    let (one, two) = (gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap());
    let (memory, out) = (mmap(&gmm, 1), mmap(&gmm, 1));
    memory.fill(0, PAGE, 1);
    for xpu in [&one, &two] {
        assert_eq!(memory.sum_on(xpu, 0, out).unwrap(), sum_of(0, PAGE, 1));
    }
    let shared = memory.info(&gmm, 0);
    assert_eq!(shared.state, PageState::Shared);
    assert_eq!(memory.nodes(&gmm, 0), [0, 1, 2]);
    assert!(shared.writable.is_empty());
    for xpu in [&one, &two] {
        assert!(shared.mapped.contains(xpu.context().processor().id()));
    }
    // One writes (the word is the first node's link: the list ends there now).
    memory.touch_on(&two, 1, true);
    let taken = memory.info(&gmm, 0);
    assert_eq!(taken.state, PageState::Exclusive(gmm::NodeId(2)));
    assert_eq!(taken.mapped, gmm_core::ProcessorSet::only(two.context().processor().id()));
    // The other reads what was written.
    assert_eq!(memory.sum_on(&one, 0, out).unwrap(), sum_of(0, 64, 1));
    assert_eq!(memory.nodes(&gmm, 0), [1, 2]);
    // The CPU takes it without a copy of its own, and writes; both see that.
    memory.write_word(8, 77);
    assert_eq!(memory.nodes(&gmm, 0), [0]);
    for xpu in [&one, &two] {
        assert_eq!(memory.sum_on(xpu, 0, out).unwrap(), 77);
    }
    check(&gmm);
}

#[test]
fn two_contexts_of_one_xpu_and_one_of_another_share_a_space() {
    let _turn = turn();
    let gmm = two_xpus(5, 4);
    let one = gmm.xpu(1).unwrap();
    let contexts = [one.new_context().unwrap(), one, gmm.xpu(2).unwrap()];
    const PAGES: usize = 9;
    const ROUNDS: u64 = 20;
    let memory = mmap(&gmm, PAGES);
    // Two indices each, in slots of their own; the CPU counts in the slots after them.
    let launches: Vec<_> = contexts
        .iter()
        .enumerate()
        .map(|(i, xpu)| {
            let args = (memory.at(0), PAGES, PAGE, ROUNDS, 2 * i, i as u64);
            start(xpu, "count_pages", 2, args)
        })
        .collect();
    let args = (memory.at(0), PAGES, PAGE, ROUNDS, 6_usize, 9_u64);
    run_on_cpu("count_pages", 1, args);
    launches.into_iter().for_each(|launch| launch.wait().unwrap());
    for page in 0..PAGES {
        let slots: Vec<_> = (0..8).map(|s| memory.read_word(page * PAGE + s * 8)).collect();
        assert_eq!(slots, [ROUNDS, ROUNDS, ROUNDS, ROUNDS, ROUNDS, ROUNDS, ROUNDS, 0]);
    }
    check(&gmm);
}

#[test]
fn contexts_of_one_xpu_map_the_same_frame() {
    let _turn = turn();
    let gmm = machine(4);
    let one = gmm.xpu(1).unwrap();
    let two = one.new_context().unwrap();
    let memory = mmap(&gmm, 1);
    memory.touch_on(&one, 1, true);
    let moved = migrated(&gmm, 0, 1) + migrated(&gmm, 1, 0);
    let args = (memory.at(0), 1_usize, PAGE, 7_u64, 1_usize, 1_u64);
    run(&two, "count_pages", 1, args).unwrap();
    let info = memory.info(&gmm, 0);
    assert_eq!(info.copies.len(), 1);
    for xpu in [&one, &two] {
        assert!(info.writable.contains(xpu.context().processor().id()), "{info:?}");
    }
    assert_eq!(migrated(&gmm, 0, 1) + migrated(&gmm, 1, 0), moved, "nothing had to be copied");
    assert_eq!(memory.read_word(8), 7);
    check(&gmm);
}

#[test]
fn handles_to_an_xpu_share_a_context() {
    let _turn = turn();
    let gmm = machine(4);
    let (one, again) = (gmm.xpu(1).unwrap(), gmm.xpu(1).unwrap());
    assert_eq!(one.context().pid(), again.context().pid());
    let other = one.new_context().unwrap();
    assert_ne!(one.context().pid(), other.context().pid());
    // A kernel of one context is none of another.
    let kernel = kernel(&one, "wild");
    // SAFETY: it is not launched.
    let launched = unsafe { other.stream().unwrap().launch(&kernel, 1, (0_u64, 0_u64)) };
    let error = launched.err().unwrap().to_string();
    assert!(error.contains("\"wild\"") && error.contains("another context"), "{error}");
}

#[test]
fn a_context_joins_when_regions_exist() {
    let _turn = turn();
    let gmm = machine(4);
    let (memory, out) = (mmap(&gmm, 3), mmap(&gmm, 1));
    memory.fill(0, 3 * PAGE, 1);
    // The first context of the XPU is made now.
    let xpu = gmm.xpu(1).unwrap();
    assert!(xpu.context().refused_regions().is_empty());
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 3 * PAGE, 1));
    let later = xpu.new_context().unwrap();
    assert_eq!(memory.sum_on(&later, PAGE, out).unwrap(), sum_of(PAGE, 2 * PAGE, 1));
    drop(xpu);
    memory.touch_on(&later, 3, true);
    assert_eq!(memory.read_word(PAGE), (PAGE / SMALL) as u64);
    check(&gmm);
}

#[test]
fn where_a_context_refuses_addresses_mmap_finds_others() {
    let _turn = turn();
    let left = Arc::new(AtomicU32::new(0));
    let hook = left.clone();
    let refusing = xpu_of(4).config(|config| {
        config.examine(move |_| {
            let refuse = |n: u32| n.checked_sub(1);
            match hook.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse) {
                Ok(_) => Examine::Refused,
                Err(_) => Examine::Reserved,
            }
        })
    });
    let gmm = Gmm::builder().xpu(xpu_of(4)).xpu(refusing).build().unwrap();
    let (one, two) = (gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap());
    let tries = gmm.core().config().examine_tries;

    left.store(tries - 1, Ordering::SeqCst);
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    assert_eq!(left.load(Ordering::SeqCst), 0);
    memory.fill(0, 2 * PAGE, 1);
    for xpu in [&one, &two] {
        assert_eq!(memory.sum_on(xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1));
    }

    // Refused once more than that, it is an error that says who and how often, and leaves nothing.
    left.store(tries, Ordering::SeqCst);
    let before = picture(&gmm);
    let refused = gmm.mmap::<u8>(1).unwrap_err();
    let id = two.context().processor().id();
    match refused {
        Error::Manager(gmm_core::Error::Refused { processor, tries: n, .. }) => {
            assert_eq!((processor, n), (id, tries));
        }
        other => panic!("{other:?}"),
    }
    let text = refused.to_string();
    assert!(text.contains(&format!("processor {id} refused {tries} ")), "{text}");
    assert_eq!(picture(&gmm), before);
    // What was tried is free again.
    drop(gmm.mmap::<u8>(1).unwrap());
    check(&gmm);
}

#[test]
fn a_context_may_suggest_addresses() {
    let _turn = turn();
    let alignment = 16 * PAGE_SIZE;
    let picky = xpu_of(4).config(|config| {
        config.examine(move |range| match range.start.start().0 % alignment {
            0 => Examine::Reserved,
            _ => {
                let base = VirtAddr(range.start.start().0.next_multiple_of(alignment));
                Examine::Suggest { base, alignment_bytes: alignment }
            }
        })
    });
    let gmm = Gmm::builder().xpu(picky).build().unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let out = mmap(&gmm, 1);
    for _ in 0..3 {
        let memory = mmap(&gmm, 2);
        assert_eq!(memory.addr(0) % alignment, 0);
        memory.fill(0, 2 * PAGE, 1);
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1));
    }
    check(&gmm);
}

#[test]
fn a_region_refused_on_attach_is_an_error_there_and_fine_for_the_others() {
    let Some(_turn) = turn_with_faults() else { return };
    let refuse = Arc::new(AtomicBool::new(true));
    let hook = refuse.clone();
    let refusing = xpu_of(4).config(|config| {
        config.examine(move |_| match hook.load(Ordering::SeqCst) {
            true => Examine::Refused,
            false => Examine::Reserved,
        })
    });
    let gmm = Gmm::builder().xpu(refusing).xpu(xpu_of(4)).build().unwrap();
    let old = gmm.mmap_named::<u64>(PAGE / 8, "old").unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let refused = xpu.context().refused_regions();
    assert_eq!(refused.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["old"]);
    let id = xpu.context().processor().id();
    assert!(gmm.regions()[0].refused_by.contains(id));
    refuse.store(false, Ordering::SeqCst);

    // A region made later is fine.
    let (memory, out) = (mmap(&gmm, 1), mmap(&gmm, 1));
    memory.fill(0, PAGE, 1);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, PAGE, 1));
    // So is the old one for the CPU, for the other XPU, and for this one's next context.
    let old_memory = Memory(old.as_ptr().cast_mut().cast());
    old_memory.fill(0, PAGE, 2);
    for other in [gmm.xpu(2).unwrap(), xpu.new_context().unwrap()] {
        assert_eq!(old_memory.sum_on(&other, 0, out).unwrap(), sum_of(0, PAGE, 2));
    }
    // For this one it is not.
    let (_, death) = death_of(old_memory.sum_on(&xpu, 0, out).map(drop));
    let Death::WildAccess { addr, cause, .. } = death else { panic!("{death:?}") };
    assert_eq!(addr.page(), old.pages().start);
    assert_eq!(cause, gmm_core::Error::RegionRefused { addr, processor: id });
    assert_eq!(old_memory.differences(0, PAGE, 2), 0);
    check(&gmm);
}
