//! XPUs that can do less (no replayable faults, no read-only mappings, 4 KiB pages for frames)
//! give the same results.

mod common;

use std::time::Duration;

use common::*;
use gmm::hostxpu::{Backing, Death, HostXpuConfig};
use gmm::{Error, Gmm, NodeId, PageRange, PageState, Protection, VirtAddr};

fn machine_as(frames: u64, change: impl FnOnce(HostXpuConfig) -> HostXpuConfig) -> Gmm {
    Gmm::builder().xpu(xpu_of(frames).config(change)).build().unwrap()
}

/// Something of everything that fits the XPU's memory, and what came of it.
fn exercise(gmm: &Gmm) -> Vec<u64> {
    let mut results = Vec::new();
    let xpu = gmm.xpu(1).unwrap();
    let out = mmap(gmm, 1);
    // Numbers, larger than the XPU in all, but not at a time.
    for chunk in 0..4_u64 {
        let mut data = gmm.mmap::<f32>(3 * PAGE / 4 - 11).unwrap();
        data.iter_mut().enumerate().for_each(|(i, x)| *x = (i as u64 + chunk) as f32 * 0.37);
        run(&xpu, "square", 5, (data.as_mut_ptr(), data.len())).unwrap();
        data[7] = -1.0;
        run(&xpu, "square", 64, (data.as_mut_ptr(), data.len())).unwrap();
        results
            .push(data.iter().fold(0, |sum, x| sum * 31_u64 % 1_000_003 + u64::from(x.to_bits())));
    }
    // Counting in turns with the CPU.
    let memory = mmap(gmm, 4);
    for round in 0..6 {
        let args = (memory.at(0), 4_usize, PAGE, round, 0_usize, round);
        run(&xpu, "count_pages", 3, args).unwrap();
        run_on_cpu("count_pages", 2, args);
    }
    results.extend((0..4).flat_map(|p| [0, 8, 16, 24].map(|s| memory.read_word(p * PAGE + s))));
    // A list, in pages that are read, written, read.
    let list = mmap(gmm, 3);
    for seed in 1..4 {
        list.fill(0, 3 * PAGE, seed);
        results.push(list.sum_on(&xpu, 0, out).unwrap());
    }
    // Read-only memory can be read.
    gmm.protect(list.at(0), 3 * PAGE as u64, Protection::ReadOnly).unwrap();
    results.push(list.sum_on(&xpu, PAGE, out).unwrap());
    results.push(list.differences(0, 3 * PAGE, 3) as u64);
    // Fresh memory reads as zero, discarded memory, too.
    let fresh = mmap(gmm, 2);
    results.push(fresh.sum_on(&xpu, PAGE, out).unwrap());
    fresh.fill(0, 2 * PAGE, 1);
    fresh.discard(PAGE, SMALL);
    results.push(fresh.sum_on(&xpu, PAGE, out).unwrap());
    results.push(fresh.sum_on(&xpu, PAGE + SMALL, out).unwrap());
    // Two contexts at once, in slots of their own.
    let other = xpu.new_context().unwrap();
    let launches = [(&xpu, 0_usize), (&other, 1)].map(|(xpu, slot)| {
        let args = (fresh.at(PAGE / 2), 2_usize, PAGE, 50_u64, slot, 1_u64);
        start(xpu, "count_pages", 1, args)
    });
    launches.into_iter().for_each(|launch| launch.wait().unwrap());
    results.extend([0, 8].map(|s| fresh.read_word(PAGE / 2 + s)));
    check(gmm);
    results
}

#[test]
fn every_mode_gives_the_same_results() {
    let _turn = turn();
    let usual = exercise(&machine(6));
    let counts = &usual[4..8];
    assert_eq!(counts, [30, 30, 15, 0], "15 rounds each, by whom");
    type Change = fn(HostXpuConfig) -> HostXpuConfig;
    let modes: [(&str, Change); 6] = [
        ("without replay", |c| c.replayable_faults(false)),
        ("without read-only mappings", |c| c.read_only_mappings(false)),
        ("without both", |c| c.replayable_faults(false).read_only_mappings(false)),
        ("4 KiB pages", |c| c.backing(Backing::SmallPages)),
        ("one copy engine, no spinning", |c| c.copy_engines(1).spin(Duration::ZERO)),
        ("sixteen cores", |c| c.cores(16)),
    ];
    for (name, change) in modes {
        assert_eq!(exercise(&machine_as(6, change)), usual, "{name}");
    }
}

#[test]
fn without_replay_a_launch_holds_the_regions_of_its_arguments() {
    let _turn = turn();
    let gmm = machine_as(6, |c| c.replayable_faults(false));
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 3), mmap(&gmm, 1));
    memory.fill(0, 3 * PAGE, 1);
    // A pointer into the middle of a region stands for all of it.
    assert_eq!(memory.sum_on(&xpu, PAGE, out).unwrap(), sum_of(PAGE, 2 * PAGE, 1));
    assert!((0..3).all(|page| memory.nodes(&gmm, page * PAGE).contains(&1)));
    wait_until("nothing is held", || gmm.snapshot().nodes[1].pinned_frames == 0);

    // While it runs the pages stay; unmapping them is refused, and the CPU waits.
    let (stream, spin) = (xpu.stream().unwrap(), kernel(&xpu, "spin"));
    let range =
        |memory: Memory, nr_pages| PageRange { start: VirtAddr(memory.addr(0)).page(), nr_pages };
    // SAFETY: it touches nothing.
    let endless = unsafe {
        stream.launch_using(&spin, 1, (0_u64, u64::MAX, 0_u64), &[range(memory, 2)]).unwrap()
    };
    assert_eq!(gmm.snapshot().nodes[1].pinned_frames, 2);
    let before = picture(&gmm);
    let error = gmm.unmap(memory.at(PAGE), PAGE as u64).unwrap_err();
    let held = gmm_core::Error::PageHeld { addr: VirtAddr(memory.addr(PAGE)), node: NodeId(1) };
    assert!(matches!(&error, Error::Manager(e) if *e == held), "{error:?}");
    assert!(error.to_string().contains("held there by a running launch"), "{error}");
    let error = gmm.advise(memory.at(0), PAGE as u64, gmm::Advice::DontNeed, 0).unwrap_err();
    assert!(matches!(error, Error::Manager(gmm_core::Error::PageHeld { .. })), "{error:?}");
    assert_eq!(picture(&gmm), before);
    // The launch's end frees them, whatever the end.
    xpu.context().kill();
    death_of(endless.wait());
    wait_until("nothing is held", || gmm.snapshot().nodes[1].pinned_frames == 0);
    assert_eq!(memory.differences(0, 3 * PAGE, 1), 0);
    memory.unmap(&gmm, 3);
    check(&gmm);
}

#[test]
fn without_replay_more_than_fits_is_an_error_before_the_launch() {
    let _turn = turn();
    let gmm = machine_as(4, |c| c.replayable_faults(false));
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 6), mmap(&gmm, 1));
    memory.fill(0, 6 * PAGE, 1);
    let (stream, sum) = (xpu.stream().unwrap(), kernel(&xpu, "sum_list"));
    let before = picture(&gmm);
    // SAFETY: the kernel's own arguments.
    let launched = unsafe { stream.launch(&sum, 1, (memory.at(0), out.at(0))) };
    let error = launched.err().unwrap();
    let text = error.to_string();
    let clear = "7 pages can't be held on node 1 at a time: it has 4 frames";
    assert!(text.contains(clear), "{text}");
    assert!(xpu.context().is_alive());
    assert_eq!(picture(&gmm), before, "nothing has moved");
    assert_eq!(memory.differences(0, 6 * PAGE, 1), 0);

    // The part that is used, named, fits.
    let part = |page: usize, nr_pages| PageRange {
        start: VirtAddr(memory.addr(page * PAGE)).page(),
        nr_pages,
    };
    let sum_part = PageRange { start: VirtAddr(out.addr(0)).page(), nr_pages: 1 };
    let args = (memory.at(3 * PAGE), out.at(0));
    // SAFETY: as above.
    let launch = unsafe { stream.launch_using(&sum, 1, args, &[part(3, 3), sum_part]).unwrap() };
    launch.wait().unwrap();
    assert_eq!(out.read_word(0), sum_of(3 * PAGE, 3 * PAGE, 1));
    // What is used and not named, and happens not to be there, is an error that says so.
    memory.fill(3 * PAGE, 3 * PAGE, 1);
    // SAFETY: as above.
    let launch = unsafe { stream.launch_using(&sum, 1, args, &[part(3, 2), sum_part]).unwrap() };
    let (kernel, death) = death_of(launch.wait());
    assert_eq!(kernel, "sum_list");
    let Death::NotHeld { addr, .. } = &death else { panic!("{death:?}") };
    assert_eq!(addr.page(), part(5, 1).start);
    assert!(death.to_string().contains("in no range that its launch named"), "{death}");
    assert_eq!(memory.differences(0, 6 * PAGE, 1), 0);
    check(&gmm);
}

#[test]
fn without_replay_a_pointer_within_a_list_needs_its_region_named() {
    let _turn = turn();
    let gmm = machine_as(6, |c| c.replayable_faults(false));
    let xpu = gmm.xpu(1).unwrap();
    let (first, second, out) = (mmap(&gmm, 1), mmap(&gmm, 1), mmap(&gmm, 1));
    second.fill(0, SMALL, 1);
    first.write_word(0, second.addr(0));
    first.write_word(8, 5);
    let ranges = [first, second, out]
        .map(|memory| PageRange { start: VirtAddr(memory.addr(0)).page(), nr_pages: 1 });
    let (stream, sum) = (xpu.stream().unwrap(), kernel(&xpu, "sum_list"));
    let args = (first.at(0), out.at(0));
    // SAFETY: the kernel's own arguments.
    unsafe { stream.launch_using(&sum, 1, args, &ranges).unwrap().wait().unwrap() };
    assert_eq!(out.read_word(0), sum_of(0, SMALL, 1).wrapping_add(5));
    second.fill(0, SMALL, 1); // The CPU takes the page back.
    // SAFETY: as above.
    let result = unsafe { stream.launch(&sum, 1, args).unwrap().wait() };
    let (_, death) = death_of(result);
    assert!(matches!(death, Death::NotHeld { addr, .. } if addr.page() == ranges[1].start));
    check(&gmm);
}

#[test]
fn without_read_only_mappings_nothing_is_shared() {
    let _turn = turn();
    let gmm = machine_as(6, |c| c.read_only_mappings(false));
    let xpu = gmm.xpu(1).unwrap();
    let (memory, out) = (mmap(&gmm, 1), mmap(&gmm, 1));
    memory.fill(0, PAGE, 1);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, PAGE, 1));
    assert_eq!(memory.state(&gmm, 0), PageState::Exclusive(NodeId(1)));
    check(&gmm);
}

#[test]
fn frames_say_how_they_are_backed() {
    let _turn = turn();
    let small = machine_as(4, |c| c.backing(Backing::SmallPages));
    let memory = mmap(&small, 2);
    memory.touch_on(&small.xpu(1).unwrap(), 2, true);
    assert_eq!(small.frame_backing(), [(NodeId(1), "4 KiB shmem".to_owned())]);
    assert!(small.report().to_string().contains("4 KiB shmem"));
    let backing = small.xpu(1).unwrap().context().device().frame_backing();
    assert!(backing.small_shmem >= 2 && backing.huge_shmem == 0, "{backing:?}");
}
