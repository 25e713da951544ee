//! Read-only memory: reads work on both sides, a write is SIGSEGV on the CPU and a launch error
//! on the XPU, and protection can be changed back and forth, also of a part of a region.

mod common;

use common::child::*;
use common::*;
use gmm::hostxpu::Death;
use gmm::{Access, Gmm, PAGE_SIZE, Protection, Xpu};

/// Whether the kernel may write a byte here, which is no signal if it may not.
fn is_writable(memory: Memory, offset: usize) -> bool {
    let mut pipe = [0; 2];
    let byte = memory.read(offset);
    // SAFETY: makes a pipe, puts into it the byte that is there, reads it back to there (or that
    // is an error), closes both ends.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], (&raw const byte).cast(), 1), 1);
        let read = libc::read(pipe[0], memory.at(offset).cast(), 1);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        read == 1
    }
}

/// An XPU's write is refused, with the address.
fn assert_refused(xpu: &Xpu, memory: Memory, offset: usize) {
    let (kernel, death) = death_of(run(xpu, "wild", 1, (memory.at(offset), 7_u64)));
    assert_eq!(kernel, "wild");
    let Death::WildAccess { addr, access, cause, .. } = death else { panic!("{death:?}") };
    assert_eq!((addr.0, access), (memory.addr(offset), Access::Write));
    assert_eq!(cause, gmm_core::Error::Protection { addr, access });
}

fn protect(gmm: &Gmm, memory: Memory, pages: usize, protection: Protection) {
    gmm.protect(memory.at(0), (pages * PAGE) as u64, protection).unwrap();
}

/// Where the pages of a region are before something is done to them.
#[derive(Clone, Copy, Debug)]
enum Place {
    Cpu,
    Xpu,
    Both,
}

fn put(xpu: &Xpu, memory: Memory, place: Place) {
    memory.fill(0, 2 * PAGE, 1);
    match place {
        Place::Cpu => {}
        Place::Both => memory.touch_on(xpu, 2, false),
        Place::Xpu => {
            // Counts in words that the pattern leaves alone.
            let args = (memory.at(16), 2_usize, PAGE, 1_u64, 0_usize, 1_u64);
            run(xpu, "count_pages", 1, args).unwrap();
        }
    }
}

#[test]
fn reads_work_and_writes_do_not_on_both_sides() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(8);
    let out = mmap(&gmm, 1);
    for place in [Place::Cpu, Place::Xpu, Place::Both] {
        let memory = mmap(&gmm, 2);
        put(&gmm.xpu(1).unwrap(), memory, place);
        protect(&gmm, memory, 2, Protection::ReadOnly);
        assert_eq!(gmm.inspect(memory.at(0)).unwrap().protection, Protection::ReadOnly);
        // Not even where it was writable when the protection changed.
        assert_refused(&gmm.xpu(1).unwrap(), memory, PAGE + 8);
        let xpu = gmm.xpu(1).unwrap();
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1), "{place:?}");
        assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);
        assert!(!is_writable(memory, 0) && !is_writable(memory, PAGE + 100), "{place:?}");
        // After the CPU has had it, too.
        assert_refused(&xpu, memory, 8);
        assert_eq!(memory.differences(0, 2 * PAGE, 1), 0);

        protect(&gmm, memory, 2, Protection::ReadWrite);
        let xpu = gmm.xpu(1).unwrap();
        run(&xpu, "wild", 1, (memory.at(PAGE + 8), 7_u64)).unwrap();
        assert_eq!(memory.read_word(PAGE + 8), 7);
        assert!(is_writable(memory, 0) && is_writable(memory, PAGE + 100));
        memory.fill(0, 2 * PAGE, 3);
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 3), "{place:?}");
    }
    check(&gmm);
}

#[test]
fn a_cpu_write_is_a_signal_with_the_address() {
    let _turn = turn();
    for (name, place) in [("cpu", Place::Cpu), ("xpu", Place::Xpu), ("both", Place::Both)] {
        // Each child is this test again, with the place in its environment.
        let key = "GMM_TEST_PLACE";
        if std::env::var(key).is_ok_and(|wanted| wanted != name) {
            continue;
        }
        // SAFETY: the turn is ours, no other thread reads or changes the environment.
        unsafe { std::env::set_var(key, name) };
        let ended = in_child("a_cpu_write_is_a_signal_with_the_address", || {
            let gmm = machine(8);
            let memory = mmap(&gmm, 2);
            put(&gmm.xpu(1).unwrap(), memory, place);
            protect(&gmm, memory, 2, Protection::ReadOnly);
            assert_eq!(memory.differences(0, PAGE, 1), 0);
            expect_signal(memory.at(PAGE + 123));
            memory.write(PAGE + 123, 1);
        });
        ended.assert_signal(libc::SIGSEGV);
        // SAFETY: as above.
        unsafe { std::env::remove_var(key) };
    }
}

#[test]
fn memory_may_be_read_only_from_the_start() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(8);
    let (memory, out) = (mmap_as(&gmm, 2, Protection::ReadOnly), mmap(&gmm, 1));
    assert_eq!(memory.not_zero(0, PAGE), 0);
    let xpu = gmm.xpu(1).unwrap();
    assert_eq!(memory.sum_on(&xpu, PAGE, out).unwrap(), 0);
    assert!(!is_writable(memory, 0) && !is_writable(memory, PAGE));
    assert_refused(&xpu, memory, PAGE);
    // To be filled and sealed, as weights are.
    protect(&gmm, memory, 2, Protection::ReadWrite);
    memory.fill(0, 2 * PAGE, 1);
    protect(&gmm, memory, 2, Protection::ReadOnly);
    let xpu = gmm.xpu(1).unwrap();
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1));
    assert!(!is_writable(memory, 0));
    check(&gmm);
}

#[test]
fn a_part_of_a_region_can_be_read_only() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(8);
    let memory = mmap(&gmm, 5);
    memory.fill(0, 5 * PAGE, 1);
    memory.touch_on(&gmm.xpu(1).unwrap(), 5, false);
    // Part of a page is all of it; pages 1 to 3.
    gmm.protect(memory.at(2 * PAGE - 1), PAGE_SIZE + 2, Protection::ReadOnly).unwrap();
    let sealed = |page: usize| (1..=3).contains(&page);
    for page in 0..5 {
        assert_eq!(is_writable(memory, page * PAGE + 77), !sealed(page), "page {page}");
        let xpu = gmm.xpu(1).unwrap();
        match sealed(page) {
            true => assert_refused(&xpu, memory, page * PAGE + 8),
            false => run(&xpu, "wild", 1, (memory.at(page * PAGE + 16), 7_u64)).unwrap(),
        }
    }
    assert_eq!(memory.differences(0, 5 * PAGE, 1), 0);
    let protections: Vec<_> = gmm.regions().iter().map(|r| r.protection).collect();
    assert!(protections.contains(&Protection::ReadOnly));
    // Back, over the bounds; and away, over the bounds.
    protect(&gmm, memory, 5, Protection::ReadWrite);
    memory.touch_on(&gmm.xpu(1).unwrap(), 5, true);
    assert!((0..5 * 512).all(|i| memory.read_word(i * SMALL) == i as u64));
    gmm.protect(memory.at(PAGE), PAGE_SIZE, Protection::ReadOnly).unwrap();
    memory.unmap(&gmm, 5);
    assert!(gmm.regions().is_empty());
    check(&gmm);
}

#[test]
fn protection_changes_under_a_running_kernel() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    const PAGES: usize = 6;
    let (memory, out) = (mmap(&gmm, PAGES), mmap(&gmm, 1));
    let xpu = gmm.xpu(1).unwrap();
    let reader = xpu.new_context().unwrap();
    let args = (memory.at(0), PAGES, PAGE, 1_u64 << 40, 0_usize, 1_u64);
    let launch = start(&xpu, "count_pages", 1, args);
    wait_until("it is at work", || xpu.context().counters().faults > 20);
    protect(&gmm, memory, PAGES, Protection::ReadOnly);
    // From here on nothing changes, whatever the kernel tries.
    let counts: Vec<_> = (0..PAGES).map(|page| memory.read_word(page * PAGE)).collect();
    let (_, death) = death_of(launch.wait());
    let Death::WildAccess { access, cause, .. } = death else { panic!("{death:?}") };
    assert_eq!(access, Access::Write);
    assert!(matches!(cause, gmm_core::Error::Protection { .. }), "{cause}");
    assert!(counts.iter().all(|&n| n > 0 && n.abs_diff(counts[0]) <= 1), "{counts:?}");
    assert!((0..PAGES).all(|page| memory.read_word(page * PAGE) == counts[page]));
    assert_eq!(memory.sum_on(&reader, 64, out).unwrap(), 0);
    check(&gmm);
}
