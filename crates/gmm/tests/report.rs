//! What the counters say adds up, and the report says the same in words.

mod common;

use common::*;
use gmm::{Advice, Gmm, NodeId, PAGE_SIZE, Protection, Snapshot};

const N: usize = 10;
const FRAMES: usize = 4;

/// What must be true of the counters of any quiet space.
fn assert_adds_up(gmm: &Gmm, regions: &[(Memory, usize)]) -> Snapshot {
    check(gmm);
    let snapshot = gmm.snapshot();
    let pages =
        || regions.iter().flat_map(|&(memory, pages)| (0..pages).map(move |p| memory.at(p * PAGE)));
    let usage = gmm.core().usage();
    for node in &snapshot.nodes {
        let in_regions = usage.iter().map(|u| u.resident_pages[usize::from(node.node.0)]);
        assert_eq!(in_regions.sum::<u64>(), u64::from(node.resident_frames), "{usage:?}");
        let copies = pages()
            .flat_map(|page| gmm.inspect(page).unwrap().copies)
            .filter(|copy| copy.node == node.node);
        assert_eq!(u64::from(node.resident_frames), copies.count() as u64, "{node:?}");
        assert!(node.resident_frames + node.free_frames <= node.capacity_frames, "{node:?}");
        assert!(node.peak_resident_frames >= node.resident_frames, "{node:?}");
        assert!(node.peak_resident_frames <= node.capacity_frames, "{node:?}");
        assert!(node.evicted_clean_pages <= node.evicted_pages, "{node:?}");
        assert!(node.pinned_frames <= node.resident_frames, "{node:?}");
        assert_eq!((node.in_transit_frames, node.lost_frames), (0, 0), "{node:?}");
    }
    assert!(
        snapshot
            .migrated_bytes
            .iter()
            .all(|(from, to, bytes)| { from != to && *bytes > 0 && bytes % PAGE_SIZE == 0 })
    );
    snapshot
}

#[test]
fn each_step_of_a_story_is_counted() {
    let Some(_turn) = turn_with_faults() else { return };
    // Each page comes by a fault of its own.
    let xpu = xpu_of(FRAMES as u64).cores(1);
    let gmm = Gmm::builder().xpu(xpu).config(|c| c.look_ahead = 0).build().unwrap();
    // It is known who leaves.
    gmm.core().set_policy(NodeId(1), |n| gmm_core::EvictionPolicy::Lru.make(n)).unwrap();
    let memory = mmap(&gmm, N);
    let regions = [(memory, N)];
    let xpu = gmm.xpu(1).unwrap();
    let pages = |bytes| bytes / PAGE_SIZE;
    let (n, frames) = (N as u64, FRAMES as u64);

    // The CPU makes N pages.
    (0..N).for_each(|page| memory.write(page * PAGE, 1));
    // (The last fault is counted after its thread goes on.)
    wait_until("the faults are counted", || gmm.snapshot().nodes[0].faults == n);
    let host = &assert_adds_up(&gmm, &regions).nodes[0];
    let seen = [host.zeroed_pages, host.touched_pages, host.resident_frames.into()];
    assert_eq!(seen, [n, n, n]);

    // The XPU reads them all, in order: each is copied once; those that go are clean.
    run(&xpu, "touch", 1, (memory.at(0), N * PAGE, false)).unwrap();
    let snapshot = assert_adds_up(&gmm, &regions);
    assert_eq!(pages(migrated(&gmm, 0, 1)), n);
    assert_eq!(migrated(&gmm, 1, 0), 0);
    let node = &snapshot.nodes[1];
    assert_eq!([node.faults, node.touched_pages, node.zeroed_pages], [n, n, 0]);
    assert_eq!([node.evicted_pages, node.evicted_clean_pages], [n - frames, n - frames]);
    assert_eq!(node.peak_resident_frames, FRAMES as u32);
    let counters = xpu.context().counters();
    assert_eq!([counters.faults, counters.coalesced_faults], [n, 0]);

    // It writes them all, in order: each is copied again, but for none (the first pages are the
    // ones that had gone); those that go are dirty, but for the clean ones from before.
    run(&xpu, "touch", 1, (memory.at(0), N * PAGE, true)).unwrap();
    let snapshot = assert_adds_up(&gmm, &regions);
    let node = &snapshot.nodes[1];
    assert_eq!(pages(migrated(&gmm, 0, 1)), 2 * n);
    assert_eq!([node.faults, node.touched_pages], [2 * n, n]);
    assert_eq!([node.evicted_pages, node.evicted_clean_pages], [2 * n - frames, n]);
    assert_eq!(pages(migrated(&gmm, 1, 0)), n - frames, "each dirty one was copied");

    // The CPU takes all back: those on the XPU are copied.
    assert!((0..N * 512).all(|i| memory.read_word(i * SMALL) == i as u64));
    let snapshot = assert_adds_up(&gmm, &regions);
    assert_eq!(pages(migrated(&gmm, 1, 0)), n);
    assert_eq!(snapshot.nodes[1].resident_frames, 0);
    assert_eq!(snapshot.nodes[0].zeroed_pages, n);

    // Hints.
    gmm.advise(memory.at(0), 3 * PAGE_SIZE, Advice::WillNeed, 1).unwrap();
    gmm.advise(memory.at(0), 2 * PAGE_SIZE, Advice::DontNeed, 0).unwrap();
    let snapshot = assert_adds_up(&gmm, &regions);
    assert_eq!(snapshot.nodes[1].prefetched_pages, 3);
    let discarded: Vec<_> = snapshot.nodes.iter().map(|node| node.discarded_pages).collect();
    assert_eq!(discarded, [2, 2], "both copies of both pages");

    // What was touched is remembered when its region goes.
    memory.unmap(&gmm, N);
    let snapshot = assert_adds_up(&gmm, &[]);
    assert_eq!([0, 1].map(|i| snapshot.nodes[i].touched_pages), [n, n]);
    assert_eq!([0, 1].map(|i| snapshot.nodes[i].resident_frames), [0, 0]);
}

#[test]
fn failures_are_counted_too() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let xpu = gmm.xpu(1).unwrap();
    let memory = mmap_as(&gmm, 1, Protection::ReadOnly);
    death_of(run(&xpu, "wild", 1, (memory.at(0), 1_u64)));
    let snapshot = assert_adds_up(&gmm, &[(memory, 1)]);
    assert_eq!([0, 1].map(|i| snapshot.nodes[i].failed_faults), [0, 1]);
    assert_eq!([0, 1].map(|i| snapshot.nodes[i].faults), [0, 0]);
}

#[test]
fn many_at_once_add_up_in_the_end() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(4)).xpu(xpu_of(4)).build().unwrap();
    let memory = mmap(&gmm, N);
    let contexts = [gmm.xpu(1).unwrap(), gmm.xpu(2).unwrap()];
    let launches = contexts.each_ref().map(|xpu| {
        let slot = usize::from(xpu.node());
        let args = (memory.at(0), N, PAGE, 10_u64, 2 * slot, 5_u64);
        start(xpu, "count_pages", 2, args)
    });
    run_on_cpu("count_pages", 1, (memory.at(0), N, PAGE, 10_u64, 0_usize, 3_u64));
    launches.into_iter().for_each(|launch| launch.wait().unwrap());
    let snapshot = assert_adds_up(&gmm, &[(memory, N)]);
    for xpu in &contexts {
        let (node, counters) = (&snapshot.nodes[usize::from(xpu.node())], xpu.context().counters());
        assert_eq!(node.faults, counters.faults);
        assert_eq!(node.coalesced_faults, counters.coalesced_faults);
        assert_eq!(node.touched_pages, N as u64);
    }
    // Each page was made once, somewhere.
    let zeroed: u64 = snapshot.nodes.iter().map(|node| node.zeroed_pages).sum();
    assert_eq!(zeroed, N as u64);
}

#[test]
fn the_report_says_it_in_words() {
    let Some(_turn) = turn_with_faults() else { return };
    let named = xpu_of(4).config(|config| config.name("test accelerator"));
    let gmm = Gmm::builder().xpu(named).host_memory(64 * gmm::MIB).build().unwrap();
    let memory = mmap(&gmm, 6);
    memory.fill(0, 6 * PAGE, 1);
    run(&gmm.xpu(1).unwrap(), "touch", 1, (memory.at(0), 6 * PAGE, false)).unwrap();
    let report = gmm.report();
    assert_eq!(*report.snapshot(), gmm.snapshot());
    let _other = gmm.mmap_named::<u8>(1, "untouched").unwrap();
    let text = gmm.report().to_string();
    let backing = &gmm.frame_backing()[0];
    assert_eq!(backing.0, NodeId(1));
    let wanted = [
        "node 0 (host memory)",
        &format!("node 1 (test accelerator, {})", backing.1),
        "12.0 MiB resident of 64.0 MiB (peak 12.0 MiB, pinned 0 B)",
        "8.0 MiB resident of 8.0 MiB (peak 8.0 MiB, pinned 0 B)",
        "evicted   2 pages, 2 of them clean (without a copy)",
        "moved 12.0 MiB from node 0 to node 1",
        "region test: 12.0 MiB, 12.0 MiB on node 0, 8.0 MiB on node 1\n",
        "region untouched: 2.0 MiB\n",
    ];
    for line in wanted {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    assert!(!text.contains("from node 1 to node 0"), "{text}");
}
