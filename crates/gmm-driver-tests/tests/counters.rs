//! Each counter counts what it says: a scenario for each.
#![cfg(not(shuttle))]

use std::sync::{Arc, Mutex};
use std::thread;

use gmm_core::driver::Access;
use gmm_core::{
    FaultCounts, MoveCause, NodeId, PAGE_SIZE, PageRange, PageState, ProcessorId, Snapshot,
};
use gmm_driver_tests::array::{Call, DeviceOptions, Failure, Trigger};
use gmm_driver_tests::{World, word};

const HOST: NodeId = NodeId(0);
const XPU: NodeId = NodeId(1);
/// The XPU's context among the world's processors.
const A: usize = 1;

/// A host with 16 frames, an XPU with 4 and one context.
fn world() -> World {
    World::builder(16).xpu(DeviceOptions::xpu("xpu", 4), 1).build()
}

fn store(world: &World, who: usize, range: PageRange) {
    for page in range.pages() {
        world.processors[who].store(word(page, 0), 1).expect("a store");
    }
}

fn load(world: &World, who: usize, range: PageRange) {
    for page in range.pages() {
        world.processors[who].load(word(page, 0)).expect("a load");
    }
}

/// Pages moved: from, to, why, how many.
fn moves(snapshot: &Snapshot) -> Vec<(u8, u8, MoveCause, u64)> {
    let moves = snapshot.moves.iter();
    moves
        .map(|m| {
            assert_eq!(m.bytes, m.pages * PAGE_SIZE);
            (m.from.0, m.to.0, m.cause, m.pages)
        })
        .collect()
}

fn faults(snapshot: &Snapshot, who: usize, access: Access) -> FaultCounts {
    let of = snapshot.processors[who];
    assert_eq!(of.processor, ProcessorId(who as u8));
    if access == Access::Read { of.reads } else { of.writes }
}

fn counts(c: FaultCounts) -> [u64; 6] {
    [c.served, c.zero_filled, c.upgraded, c.coalesced, c.throttled, c.failed]
}

#[test]
fn faults_by_processor_kind_and_outcome() {
    let world = world();
    let range = world.mmap(3);
    store(&world, 0, range);
    load(&world, A, range);
    store(&world, A, PageRange { nr_pages: 1, ..range });
    let s = world.space.snapshot();
    assert_eq!(counts(faults(&s, 0, Access::Write)), [3, 3, 0, 0, 0, 0]);
    assert_eq!(counts(faults(&s, 0, Access::Read)), [0; 6]);
    assert_eq!(counts(faults(&s, A, Access::Read)), [3, 0, 0, 0, 0, 0]);
    assert_eq!(counts(faults(&s, A, Access::Write)), [1, 0, 1, 0, 0, 0]);
    assert_eq!([s.nodes[0].faults, s.nodes[1].faults], [3, 4]);
    assert_eq!(s.nodes[0].zeroed_pages, 3);
    assert_eq!(moves(&s), [(0, 1, MoveCause::Fault, 3)]);
    assert_eq!(s.migrated_bytes, [(HOST, XPU, 3 * PAGE_SIZE)]);
    world.assert_sound("counted");
}

#[test]
fn coalesced_and_failed_faults() {
    let world = world();
    let range = world.mmap(1);
    let (addr, processor) = (word(range.start, 0), &world.processors[A].processor);
    store(&world, A, range);
    world.space.fault(processor, addr, Access::Read).expect("mapped already");
    world.space.fault(processor, word(range.end(), 0), Access::Read).expect_err("not mapped");
    let copy = Trigger { call: Some(Call::Submit), first: 0, times: 1, failure: Failure::Hang };
    world.machine.inject(Some(copy));
    world.cpu().load(addr).expect_err("the copy fails");
    let s = world.space.snapshot();
    assert_eq!(counts(faults(&s, A, Access::Read)), [0, 0, 0, 1, 0, 1]);
    assert_eq!(counts(faults(&s, 0, Access::Read)), [0, 0, 0, 0, 0, 1]);
    let node =
        |n: usize| [s.nodes[n].faults, s.nodes[n].coalesced_faults, s.nodes[n].failed_faults];
    assert_eq!([node(0), node(1)], [[0, 0, 1], [1, 1, 1]]);
    assert_eq!(moves(&s), [], "what failed was not moved");
}

#[test]
fn a_fault_that_has_to_wait_for_a_launch_is_throttled() {
    let world = world();
    let range = world.mmap(1);
    let addr = word(range.start, 0);
    let hold = world.space.hold(&world.processors[A].processor, &[range], Access::Write);
    let hold = hold.expect("a held page");
    let again = world.space.fault(world.space.cpu(), addr, Access::Read);
    again.expect("the access is to be tried again");
    let s = world.space.snapshot();
    assert_eq!(counts(faults(&s, 0, Access::Read)), [0, 0, 0, 0, 1, 0]);
    assert_eq!((s.nodes[0].throttled_faults, s.nodes[0].faults), (1, 0));
    assert_eq!((s.nodes[1].pinned_frames, s.nodes[1].resident_frames), (1, 1));
    drop(hold);
    world.cpu().load(addr).expect("a load");
    let s = world.space.snapshot();
    assert_eq!((s.nodes[0].throttled_faults, s.nodes[0].faults), (1, 1));
    assert_eq!(s.nodes[1].pinned_frames, 0);
}

#[test]
fn copies_have_their_causes() {
    let world = world();
    let range = world.mmap(6);
    let part = |skip, nr_pages| PageRange { start: range.start.plus(skip), nr_pages };
    store(&world, 0, range);
    let hold = world.space.hold(&world.processors[A].processor, &[part(0, 1)], Access::Write);
    drop(hold.expect("a held page"));
    world.space.prefetch(part(1, 2).start.start(), 2 * PAGE_SIZE, XPU).expect("a prefetch");
    store(&world, A, part(3, 1));
    let s = world.space.snapshot();
    let causes = [(MoveCause::Fault, 1), (MoveCause::Prefetch, 2), (MoveCause::Hold, 1)];
    assert_eq!(moves(&s), causes.map(|(cause, pages)| (0, 1, cause, pages)));
    assert_eq!(s.nodes[1].prefetched_pages, 2);
    // The XPU is full: what it has written is copied out, what it has only read is not.
    store(&world, A, part(4, 2));
    let s = world.space.snapshot();
    let evicted = (s.nodes[1].evicted_pages, s.nodes[1].evicted_clean_pages);
    let out = moves(&s).iter().find(|m| m.2 == MoveCause::Eviction).map_or(0, |m| m.3);
    assert_eq!(evicted.0, evicted.1 + out);
    assert_eq!(evicted.0, 2);
    assert!(out >= 1, "the held page was written");
}

#[test]
fn touched_pages_are_counted_once_a_mapping() {
    let world = world();
    for round in 1..=2 {
        let range = world.mmap(3);
        (0..2).for_each(|_| store(&world, 0, range));
        load(&world, A, PageRange { nr_pages: 2, ..range });
        let s = world.space.snapshot();
        assert_eq!([0, 1].map(|n| s.nodes[n].touched_pages), [3 * round, 2 * round]);
        world.space.munmap(range.start.start(), range.len_bytes()).expect("unmapped");
        let after = world.space.snapshot();
        assert_eq!([0, 1].map(|n| after.nodes[n].touched_pages), [3 * round, 2 * round]);
    }
}

#[test]
fn frames_by_place() {
    let world = world();
    let range = world.mmap(4);
    store(&world, 0, range);
    load(&world, A, PageRange { nr_pages: 3, ..range });
    let s = world.space.snapshot();
    let places = |n: usize| {
        let n = &s.nodes[n];
        [n.active_frames, n.spare_frames, n.pinned_frames, n.resident_frames]
    };
    assert_eq!([places(0), places(1)], [[1, 3, 0, 4], [3, 0, 0, 3]]);
    assert_eq!([0, 1].map(|n| s.nodes[n].peak_resident_frames), [4, 3]);
    world.space.discard(range.start.start(), 2 * PAGE_SIZE).expect("dropped");
    let s = world.space.snapshot();
    assert_eq!([0, 1].map(|n| s.nodes[n].discarded_pages), [2, 2]);
    assert_eq!([0, 1].map(|n| s.nodes[n].resident_frames), [2, 1]);
    assert_eq!([0, 1].map(|n| s.nodes[n].peak_resident_frames), [4, 3]);
    assert_eq!(s.nodes[1].capacity_frames, 4);
    assert_eq!(s.nodes[1].free_frames, 3);
}

#[test]
fn service_times_are_those_of_served_faults() {
    let world = world();
    let range = world.mmap(2);
    store(&world, 0, range);
    world.space.fault(world.space.cpu(), word(range.start, 0), Access::Write).expect("coalesced");
    let times = &world.space.snapshot().nodes[0].fault_service;
    assert_eq!(times.count(), 2);
    // The clock goes on by a millisecond each time it is read: at the beginning and at the end.
    assert_eq!(times.max_ns, 1_000_000);
    assert!(times.percentile_ns(50).abs_diff(1_000_000) <= 1_000_000 / 16);
}

#[test]
fn a_context_that_comes_after_another_begins_at_zero() {
    let mut world = world();
    let range = world.mmap(2);
    store(&world, A, range);
    world.space.detach(&world.processors[A].processor);
    assert_eq!(world.space.snapshot().processors.len(), 1, "the CPU");
    let b = world.attach(0, 0).expect("another context");
    load(&world, b, PageRange { nr_pages: 1, ..range });
    let s = world.space.snapshot();
    assert_eq!(s.processors[1].processor, ProcessorId(1));
    assert_eq!(counts(s.processors[1].reads), [1, 0, 1, 0, 0, 0]);
    assert_eq!(counts(s.processors[1].writes), [0; 6]);
    assert_eq!(s.nodes[1].faults, 3, "its node remembers");
}

#[test]
fn residency_in_runs_of_pages_alike() {
    let world = world();
    let range = world.mmap(6);
    let part = |skip, nr_pages| PageRange { start: range.start.plus(skip), nr_pages };
    store(&world, 0, part(0, 3));
    load(&world, A, part(2, 1));
    let hold = world.space.hold(&world.processors[A].processor, &[part(3, 2)], Access::Write);
    let runs = world.space.residency(range.start.start(), range.len_bytes()).expect("mapped");
    let seen: Vec<_> = runs.iter().map(|run| (run.range, run.state.expect("quiet"))).collect();
    let wanted = [
        (part(0, 2), PageState::Exclusive(HOST)),
        (part(2, 1), PageState::Shared),
        (part(3, 2), PageState::Exclusive(XPU)),
        (part(5, 1), PageState::Empty),
    ];
    assert_eq!(seen, wanted);
    let copies = |run: usize| {
        let copies = runs[run].copies.iter();
        copies.map(|c| (c.node.0, c.pinned, format!("{:?}", c.moved_by))).collect::<Vec<_>>()
    };
    assert_eq!(copies(0), [(0, false, "fault of 0".to_owned())]);
    let both = [(0, false, "fault of 0".to_owned()), (1, false, "fault of 1".to_owned())];
    assert_eq!(copies(1), both);
    assert_eq!(copies(2), [(1, true, "hold of 1".to_owned())]);
    assert_eq!(runs[2].writable.iter().map(|p| p.0).collect::<Vec<_>>(), [1]);
    drop(hold);
    // Part of a page is the page; what is in no region is an error.
    let one = world.space.residency(word(part(3, 1).start, 1), 8).expect("mapped");
    assert_eq!(one.iter().map(|run| run.range).collect::<Vec<_>>(), [part(3, 1)]);
    assert!(!one[0].copies[0].pinned);
    world.space.residency(range.start.start(), range.len_bytes() + 1).expect_err("too long");
}

/// Neither question waits for a copy under way.
#[test]
fn a_page_in_motion_holds_nobody_up() {
    let world = world();
    let range = world.mmap(2);
    store(&world, 0, range);
    let seen = Arc::new(Mutex::new(None));
    let (space, answer) = (world.space.clone(), seen.clone());
    world.machine.set_hook(Some(Arc::new(move |call| {
        if call != Call::Wait {
            return;
        }
        let space = space.clone();
        let ask =
            move || (space.residency(range.start.start(), range.len_bytes()), space.snapshot());
        // By another thread: this one has the first page's entry locked.
        *answer.lock().expect("no panic") = Some(thread::spawn(ask).join().expect("no panic"));
    })));
    load(&world, A, PageRange { nr_pages: 1, ..range });
    world.machine.set_hook(None);
    let (runs, s) = seen.lock().expect("no panic").take().expect("a copy was waited for");
    let states: Vec<_> = runs.expect("mapped").iter().map(|run| run.state).collect();
    assert_eq!(states, [None, Some(PageState::Exclusive(HOST))]);
    assert_eq!((s.nodes[1].in_transit_frames, s.nodes[1].faults), (1, 0));
    assert_eq!(world.space.snapshot().nodes[1].faults, 1);
}
