//! One pointer on every processor: what the CPU writes the XPU reads, and the other way round,
//! whatever is in it and however much it is.

mod common;

use std::ptr::{null, null_mut};

use common::*;
use gmm::{Advice, Gmm, PageState, Protection, VirtAddr};
use gmm_kernels::samples::{ListNode, NOT_FOUND, TreeNode};

#[test]
fn fill_on_the_cpu_launch_and_read() {
    let _turn = turn();
    let gmm = machine(8);
    let mut data = gmm.mmap::<f32>(3 * PAGE / 4).unwrap();
    assert!(data.iter().all(|x| *x == 0.0), "it reads as zero at first");
    data.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 * 0.001);
    let mut same: Vec<f32> = data.to_vec();

    let xpu = gmm.xpu(1).unwrap();
    run(&xpu, "square", 64, (data.as_mut_ptr(), data.len())).unwrap();
    run_on_cpu("square", 64, (same.as_mut_ptr(), same.len()));
    assert!(data.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits()));
    // And the same function with the same pointer, called here.
    run_on_cpu("square", 64, (data.as_mut_ptr(), data.len()));
    run_on_cpu("square", 64, (same.as_mut_ptr(), same.len()));
    assert!(data.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits()));
    check(&gmm);
}

#[test]
fn a_buffer_larger_than_the_xpu_is_swept_again_and_again() {
    let _turn = turn();
    let gmm = machine(4);
    const PAGES: usize = 19;
    let mut data = gmm.mmap::<f32>(PAGES * PAGE / 4).unwrap();
    let value = |i: usize| (i % 1000) as f32 / 8.0;
    data.iter_mut().enumerate().for_each(|(i, x)| *x = value(i));
    let xpu = gmm.xpu(1).unwrap();
    for _ in 0..2 {
        run(&xpu, "square", 32, (data.as_mut_ptr(), data.len())).unwrap();
    }
    let fourth = |x: f32| (x * x) * (x * x);
    assert!(data.iter().enumerate().all(|(i, x)| *x == fourth(value(i))));
    let xpu_node = &gmm.snapshot().nodes[1];
    assert!(xpu_node.peak_resident_frames <= 4, "{xpu_node:?}");
    assert!(xpu_node.evicted_pages >= (PAGES - 4) as u64, "{xpu_node:?}");
    check(&gmm);
}

#[test]
fn a_list_built_by_the_cpu_is_walked_by_the_xpu() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    const PAGES: usize = 7;
    const NODES: usize = 700;
    let memory = mmap(&gmm, PAGES + 1);
    let out = memory.from(PAGES * PAGE);
    // Each node lies in another page than the one before it, and at another place there.
    let place = |i: usize| memory.at(i % PAGES * PAGE + (i * 37 % NODES) * 64).cast::<ListNode>();
    let mut head: *const ListNode = null();
    for i in 0..NODES {
        // SAFETY: places of different `i` are different, in the region, and aligned.
        unsafe { place(i).write(ListNode { next: head, value: (i * i) as u64 }) };
        head = place(i);
    }
    let sum: u64 = (0..NODES as u64).map(|i| i * i).sum();
    let xpu = gmm.xpu(1).unwrap();
    run(&xpu, "sum_list", 1, (head, out.at(0))).unwrap();
    assert_eq!(out.read_word(0), sum);
    out.write_word(0, 0);
    run_on_cpu("sum_list", 1, (head, out.at(0)));
    assert_eq!(out.read_word(0), sum);
    check(&gmm);
}

/// Inserts a node into a search tree.
fn insert(root: &mut *mut TreeNode, node: *mut TreeNode) {
    let mut at = root;
    // SAFETY: nodes of the test's tree, which nobody else uses now; links that are not null
    // were made here.
    unsafe {
        while !at.is_null() {
            let here = &mut **at;
            let link = if (*node).key < here.key { &mut here.left } else { &mut here.right };
            at = &mut *(&raw mut *link).cast::<*mut TreeNode>();
        }
    }
    *at = node;
}

#[test]
fn a_tree_built_by_the_cpu_is_searched_by_the_xpu() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    const PAGES: usize = 6;
    const KEYS: usize = 150;
    let memory = mmap(&gmm, PAGES);
    let mut random = Random::new(7);
    let mut root: *mut TreeNode = null_mut();
    for i in 0..KEYS {
        let node = memory.at(i % PAGES * PAGE + i * 64).cast::<TreeNode>();
        let key = random.below(1 << 40) * 2;
        // SAFETY: in the region, aligned, and of this `i` alone.
        unsafe { node.write(TreeNode { left: null(), right: null(), key, value: !key }) };
        insert(&mut root, node);
    }
    let mut random = Random::new(7);
    let mut keys = gmm.mmap::<u64>(2 * KEYS).unwrap();
    let mut found = gmm.mmap::<u64>(2 * KEYS).unwrap();
    for pair in keys.chunks_mut(2) {
        // A key that is there, and one that is not.
        let key = random.below(1 << 40) * 2;
        pair.copy_from_slice(&[key, key + 1]);
    }
    let wanted: Vec<_> = keys.chunks(2).flat_map(|pair| [!pair[0], NOT_FOUND]).collect();
    let xpu = gmm.xpu(1).unwrap();
    run(&xpu, "tree", 16, (root, keys.as_ptr(), found.as_mut_ptr(), keys.len())).unwrap();
    assert_eq!(*found, *wanted);
    found.fill(0);
    run_on_cpu("tree", 16, (root, keys.as_ptr(), found.as_mut_ptr(), keys.len()));
    assert_eq!(*found, *wanted);
    check(&gmm);
}

#[test]
fn regions_have_names_and_go_with_their_buffers() {
    let _turn = turn();
    let gmm = machine(4);
    let weights = gmm.mmap_named::<u8>(PAGE + 1, "weights").unwrap();
    let other = gmm.mmap::<u16>(1).unwrap();
    let regions = gmm.regions();
    let names: Vec<_> = regions.iter().map(|r| (r.name.as_str(), r.range.nr_pages)).collect();
    assert_eq!(names, [("weights", 2), ("", 1)]);
    assert_eq!(regions[0].range, weights.pages());
    assert_eq!(regions[0].protection, Protection::ReadWrite);
    assert_eq!((weights.len(), weights.len_bytes()), (PAGE + 1, PAGE as u64 + 1));
    drop(weights);
    assert_eq!(gmm.regions().len(), 1);
    drop(other);
    assert!(gmm.regions().is_empty());
}

#[test]
fn willneed_brings_pages_ahead_of_use_and_rounds_outward() {
    let _turn = turn();
    let gmm = machine(8);
    let memory = mmap(&gmm, 6);
    memory.fill(0, 6 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    let advise = |offset, len: usize, node| {
        gmm.advise(memory.at(offset), len as u64, Advice::WillNeed, node).unwrap();
    };
    // The last byte of page 1 to the first of page 4.
    advise(2 * PAGE - 1, 2 * PAGE + 2, 1);
    let on_xpu = |page: usize| memory.nodes(&gmm, page * PAGE).contains(&1);
    assert_eq!([0, 1, 2, 3, 4, 5].map(on_xpu), [false, true, true, true, true, false]);
    assert_eq!(gmm.snapshot().nodes[1].prefetched_pages, 4);
    let maps = memory.info(&gmm, 2 * PAGE).mapped;
    assert!(maps.contains(xpu.context().processor().id()), "they are mapped, too: {maps:?}");
    let faults = xpu.context().counters().faults;
    run(&xpu, "touch", 4, (memory.at(PAGE), 4 * PAGE, false)).unwrap();
    assert_eq!(xpu.context().counters().faults, faults, "nothing is left to fault");

    advise(0, 6 * PAGE, 0);
    assert!((0..6).all(|page| memory.nodes(&gmm, page * PAGE) == [0]));
    assert_eq!(memory.differences(0, 6 * PAGE, 1), 0);
    // More than the XPU holds: the last ones stay.
    let large = mmap(&gmm, 12);
    gmm.advise(large.at(0), 12 * PAGE as u64, Advice::WillNeed, 1).unwrap();
    assert_eq!(large.not_zero(0, 12 * PAGE), 0);
    check(&gmm);
}

#[test]
fn dontneed_drops_whole_pages_on_every_node_and_rounds_inward() {
    let _turn = turn();
    let gmm = machine(8);
    let memory = mmap(&gmm, 5);
    let out = mmap(&gmm, 1);
    memory.fill(0, 5 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    memory.touch_on(&xpu, 5, false);
    let advise = |offset, len: usize| {
        gmm.advise(memory.at(offset), len as u64, Advice::DontNeed, 0).unwrap();
    };
    // Less than a page, even across the end of one, frees nothing.
    advise(PAGE - 1, 2);
    advise(1, PAGE - 1);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 5 * PAGE, 1));
    // All but a byte of page 0 to all but a byte of page 4: pages 1 to 3.
    advise(1, 5 * PAGE - 2);
    assert_eq!(memory.state(&gmm, 2 * PAGE), PageState::Empty);
    assert!(memory.info(&gmm, 2 * PAGE).mapped.is_empty());
    assert_eq!(memory.sum_on(&xpu, 2 * PAGE, out).unwrap(), 0);
    assert_eq!(memory.not_zero(PAGE, 3 * PAGE), 0);
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    assert_eq!(memory.sum_on(&xpu, 4 * PAGE, out).unwrap(), sum_of(4 * PAGE, PAGE, 1));
    check(&gmm);
}

#[test]
fn parts_of_a_region_are_unmapped_and_the_neighbours_stay() {
    let _turn = turn();
    let gmm = machine(8);
    let xpu = gmm.xpu(1).unwrap();
    let out = mmap(&gmm, 1);
    for (first, nr_pages) in [(0, 2), (2, 3), (5, 2), (1, 6), (0, 7)] {
        let memory = mmap(&gmm, 7);
        memory.fill(0, 7 * PAGE, 3);
        // Some pages on the XPU, some shared, some on the CPU.
        memory.touch_on(&xpu, 4, false);
        memory.from(2 * PAGE).touch_on(&xpu, 1, true);
        memory.fill(2 * PAGE, PAGE, 3);
        let len = (nr_pages * PAGE) as u64;
        // The length is rounded up to whole pages.
        gmm.unmap(memory.at(first * PAGE), len - 7).unwrap();

        let is_left = |page: usize| !(first..first + nr_pages).contains(&page);
        for page in 0..7 {
            let there = gmm
                .regions()
                .iter()
                .any(|r| r.range.contains(VirtAddr(memory.addr(page * PAGE)).page()));
            assert_eq!(there, is_left(page), "page {page} of {first} and {nr_pages} more");
            if is_left(page) {
                let what = "a page whose neighbour was unmapped";
                assert_eq!(memory.differences(page * PAGE, PAGE, 3), 0, "{what}");
                memory.fill(page * PAGE, PAGE, 9);
                let sum = memory.sum_on(&xpu, page * PAGE, out).unwrap();
                assert_eq!(sum, sum_of(page * PAGE, PAGE, 9), "{what}, on the XPU");
            } else {
                assert!(!memory.is_readable(page * PAGE));
            }
        }
        // What is left goes piece by piece; the addresses can be used again.
        for page in (0..7).filter(|&page| is_left(page)) {
            memory.from(page * PAGE).unmap(&gmm, 1);
        }
        assert_eq!(gmm.regions().len(), 1);
        check(&gmm);
    }
    // The sum's goes back and forth, and is left on the XPU if that is too fast.
    let left = u32::from(out.nodes(&gmm, 0).contains(&1));
    assert_eq!(gmm.snapshot().nodes[1].resident_frames, left, "all frames but the sum's are free");
}

#[test]
fn many_threads_use_many_regions_at_once() {
    let _turn = turn();
    let gmm = machine(6);
    let xpu = gmm.xpu(1).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (gmm, xpu) = (gmm.clone(), xpu.clone());
            scope.spawn(move || {
                for round in 0..8 {
                    let mut data = gmm.mmap::<f32>(2 * PAGE / 4 + 1).unwrap();
                    let value = (thread * 8 + round) as f32;
                    data.fill(value);
                    run(&xpu, "square", 4, (data.as_mut_ptr(), data.len())).unwrap();
                    assert!(data.iter().all(|x| *x == value * value));
                }
            });
        }
    });
    assert!(gmm.regions().is_empty());
    check(&gmm);
}

#[test]
fn one_element_is_prefetched_from_many_threads_while_a_kernel_uses_it() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(4)).xpu(xpu_of(4)).build().unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let mut one = gmm.mmap::<u64>(1).unwrap();
    let (addr, words) = (one.as_ptr().cast::<u8>(), one.as_mut_ptr());
    let memory = Memory(words.cast());
    std::thread::scope(|scope| {
        for node in [0, 1, 2, 0] {
            let gmm = &gmm;
            scope.spawn(move || {
                (0..100).for_each(|_| {
                    gmm.advise(memory.at(0), 8, Advice::WillNeed, node).unwrap();
                });
            });
        }
        for seed in 0..50_u64 {
            run(&xpu, "count_pages", 1, (words, 1_usize, PAGE, 2_u64, 0_usize, seed)).unwrap();
        }
    });
    assert_eq!((one[0], one.len(), one.len_bytes()), (100, 1, 8));
    drop(one);
    assert!(gmm.inspect(addr).is_none_or(|info| info.state == PageState::Closed));
    check(&gmm);
}

#[test]
fn many_small_buffers_take_a_page_each_and_give_it_back() {
    let _turn = turn();
    let gmm = machine(4);
    let xpu = gmm.xpu(1).unwrap();
    let mut buffers: Vec<_> = (0..40).map(|_| gmm.mmap::<f32>(100).unwrap()).collect();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(i as f32);
        run(&xpu, "square", 1, (buffer.as_mut_ptr(), buffer.len())).unwrap();
    }
    // Every second goes; what is left keeps its contents.
    let mut i = 0;
    buffers.retain(|_| {
        i += 1;
        i % 2 == 0
    });
    for (i, buffer) in buffers.iter().enumerate() {
        let value = (2 * i + 1) as f32;
        assert!(buffer.iter().all(|x| *x == value * value));
    }
    buffers.clear();
    let nodes = gmm.snapshot().nodes;
    assert!(nodes.iter().all(|node| node.resident_frames == 0), "{nodes:?}");
    check(&gmm);
}
