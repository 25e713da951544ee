//! Out of memory is an error that names the node and the amounts, and never a hang.

mod common;

use std::time::{Duration, Instant};

use common::child::*;
use common::*;
use gmm::hostxpu::Death;
use gmm::{Access, Advice, Error, Gmm, NodeId, OutOfMemory, PAGE_SIZE, PageRange, VirtAddr};

fn pages(memory: Memory, nr_pages: u64) -> PageRange {
    PageRange { start: VirtAddr(memory.addr(0)).page(), nr_pages }
}

/// What a launch ran out of.
fn out_of_memory(result: gmm::Result<()>) -> (String, OutOfMemory) {
    let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    match death_of(result).1 {
        Death::FaultFailed { cause: gmm_core::Error::OutOfMemory(what), .. } => (text, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_xpu_memory_is_held() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let holder = gmm.xpu(1).unwrap();
    let (held, more) = (mmap(&gmm, 4), mmap(&gmm, 1));
    let hold =
        gmm.core().hold(holder.context().processor(), &[pages(held, 4)], Access::Write).unwrap();
    assert_eq!(gmm.snapshot().nodes[1].pinned_frames, 4);

    let victim = holder.new_context().unwrap();
    let begun = Instant::now();
    let (text, what) = out_of_memory(run(&victim, "touch", 1, (more.at(0), PAGE, true)));
    assert!(begun.elapsed() < Duration::from_secs(20), "a second, and what a busy machine adds");
    let OutOfMemory { node, capacity, pinned, free, host_full, .. } = what;
    assert_eq!((node, capacity, pinned, free, host_full), (NodeId(1), 4, 4, 0, false));
    let named = ["\"touch\"", "out of memory on node 1", "of 4 frames (8 MiB)", "4 pinned"];
    assert!(named.iter().all(|n| text.contains(n)), "{text}");
    // The same by hint, and by a second hold, which hold nothing then.
    let ahead = gmm.advise(more.at(0), 1, Advice::WillNeed, 1).unwrap_err();
    let by_hint = matches!(ahead, Error::Manager(gmm_core::Error::OutOfMemory(w)) if w.pinned == 4);
    assert!(by_hint, "{ahead:?}");
    let processor = holder.context().processor();
    assert!(gmm.core().hold(processor, &[pages(more, 1)], Access::Read).is_err());

    // The CPU may use the page that did not fit; the holder works; and all is well afterwards.
    more.fill(0, PAGE, 1);
    run(&holder, "touch", 4, (held.at(0), 4 * PAGE, true)).unwrap();
    drop(hold);
    assert_eq!(gmm.snapshot().nodes[1].pinned_frames, 0);
    let out = mmap(&gmm, 1);
    assert_eq!(more.sum_on(&holder, 0, out).unwrap(), sum_of(0, PAGE, 1));
    assert!((0..4 * PAGE / SMALL).all(|i| held.read_word(i * SMALL) == (i % 2048) as u64));
    check(&gmm);
}

#[test]
fn more_than_the_xpu_has_cannot_be_held() {
    let _turn = turn();
    let gmm = machine(4);
    let xpu = gmm.xpu(1).unwrap();
    let memory = mmap(&gmm, 6);
    memory.fill(0, 6 * PAGE, 1);
    let before = picture(&gmm);
    let result = gmm.core().hold(xpu.context().processor(), &[pages(memory, 6)], Access::Write);
    let wanted = gmm_core::Error::HoldTooLarge { node: NodeId(1), capacity: 4, asked: 6 };
    assert_eq!(result.map(drop), Err(wanted));
    assert_eq!(picture(&gmm), before, "nothing has moved");
    assert_eq!(memory.differences(0, 6 * PAGE, 1), 0);
    check(&gmm);
}

#[test]
fn sixty_four_cores_get_on_with_eight_frames() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(8).cores(64)).build().unwrap();
    const PAGES: usize = 40;
    const ROUNDS: u64 = 3;
    let memory = mmap(&gmm, PAGES);
    let xpu = gmm.xpu(1).unwrap();
    let args = (memory.at(0), PAGES, PAGE, ROUNDS, 0_usize, 3_u64);
    run(&xpu, "count_pages", 64, args).unwrap();
    for page in 0..PAGES {
        let slots = (0..65).map(|slot| memory.read_word(page * PAGE + slot * 8));
        assert!(slots.take(64).all(|n| n == ROUNDS), "page {page}");
        assert_eq!(memory.read_word(page * PAGE + 64 * 8), 0);
    }
    assert!(gmm.snapshot().nodes[1].peak_resident_frames <= 8);
    check(&gmm);
}

#[test]
fn frames_that_are_on_their_way_are_not_out_of_memory() {
    let _turn = turn();
    for _ in 0..3 {
        // As many frames as pages; all cores want one at once, and the first to fault has to get
        // them from the device, which takes longer than the others like to wait for a frame.
        let gmm = Gmm::builder()
            .xpu(xpu_of(16).cores(16))
            .config(|config| config.frame_wait = Duration::from_millis(1))
            .build()
            .unwrap();
        let memory = mmap(&gmm, 16);
        memory.touch_on(&gmm.xpu(1).unwrap(), 16, true);
        assert!((0..16 * 512).all(|i| memory.read_word(i * SMALL) == i as u64));
        check(&gmm);
    }
}

#[test]
fn too_little_host_memory_is_a_signal_to_the_cpu_and_the_page_is_usable_later() {
    let _turn = turn();
    let ended = in_child(
        "too_little_host_memory_is_a_signal_to_the_cpu_and_the_page_is_usable_later",
        || {
            let gmm = Gmm::builder().host_memory(4 * PAGE_SIZE).build().unwrap();
            let memory = mmap(&gmm, 6);
            memory.fill(0, 4 * PAGE, 1);
            // The kernel is told, too: no system call hangs on the page.
            assert!(!memory.is_readable(4 * PAGE));
            assert!(memory.info(&gmm, 4 * PAGE).poisoned);
            // With room it is served when it is asked for; until then it is an error.
            gmm.advise(memory.at(0), PAGE_SIZE, Advice::DontNeed, 0).unwrap();
            assert!(!memory.is_readable(4 * PAGE));
            gmm.advise(memory.at(4 * PAGE), 1, Advice::WillNeed, 0).unwrap();
            memory.write(4 * PAGE, 1);
            assert_eq!(memory.differences(PAGE, 3 * PAGE, 1), 0);
            expect_signal(memory.at(5 * PAGE + 24));
            memory.read(5 * PAGE + 24);
        },
    );
    ended.assert_signal(libc::SIGBUS);
}

#[test]
fn the_error_of_a_full_host_names_node_0() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = Gmm::builder().host_memory(4 * PAGE_SIZE).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, 12);
    memory.fill(0, 4 * PAGE, 1);
    // Fresh pages of the XPU's fill it; one more has nowhere to push any of them.
    let xpu = gmm.xpu(1).unwrap();
    memory.from(4 * PAGE).touch_on(&xpu, 4, true);
    let begun = Instant::now();
    let fifth = memory.at(8 * PAGE);
    let (text, what) = out_of_memory(run(&xpu, "touch", 1, (fifth, PAGE, true)));
    assert!(begun.elapsed() < Duration::from_secs(20), "a second, and what a busy machine adds");
    let OutOfMemory { node, capacity, active, host_full, .. } = what;
    assert_eq!((node, capacity, active, host_full), (NodeId(1), 4, 4, true));
    let named = ["out of memory on node 1", "node 0 (host memory) has no frame to evict to"];
    assert!(named.iter().all(|n| text.contains(n)), "{text}");

    // Asked to bring a page to the host, the host is what is named.
    let error = gmm.advise(memory.at(5 * PAGE), 1, Advice::WillNeed, 0).unwrap_err();
    let Error::Manager(gmm_core::Error::OutOfMemory(what)) = error else { panic!("{error:?}") };
    assert_eq!((what.node, what.capacity, what.active), (NodeId(0), 4, 4));
    assert!(error.to_string().contains("out of memory on node 0: of 4 frames (8 MiB)"), "{error}");

    // Nothing is lost, and with room everything goes on.
    assert_eq!(memory.differences(0, 4 * PAGE, 1), 0);
    memory.unmap(&gmm, 4);
    let pieces = 4 * PAGE / SMALL;
    let fresh = memory.from(4 * PAGE);
    assert!((0..pieces).all(|i| fresh.read_word(i * SMALL) == (i % pieces) as u64));
    let xpu = gmm.xpu(1).unwrap();
    memory.from(8 * PAGE).touch_on(&xpu, 4, true);
    check(&gmm);
}

#[test]
fn copies_that_an_xpu_duplicates_make_room_on_a_full_host() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = Gmm::builder().host_memory(4 * PAGE_SIZE).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, 7);
    let out = memory.from(6 * PAGE);
    memory.fill(0, 3 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 3 * PAGE, 1));
    // Three pages are on both nodes, one is the sum's on the host: three more fit there.
    memory.fill(3 * PAGE, 3 * PAGE, 2);
    assert_eq!(memory.differences(3 * PAGE, 3 * PAGE, 2), 0);
    let shared = (0..3).filter(|page| memory.nodes(&gmm, page * PAGE) == [1]).count();
    assert_eq!(shared, 3, "they are on the XPU alone now");
    check(&gmm);
}
