//! Frames move between pool and window: huge, with their data, all or the first so many.

mod common;

use common::*;
use gmm_core::driver::{
    Access, Clear, Device, DriverError, Enter, Examine, Mmu, Op, Place, Protection,
};
use gmm_core::{Frame, FrameNr, HostAddr, NodeId, PageNr, PageRange};
use gmm_cpu::CpuDriver;
use std::time::Duration;

struct Bare {
    cpu: CpuDriver,
    memory: Memory,
    frames: Vec<Frame>,
}

/// A driver without a space: nobody serves faults, so only present pages are touched.
fn bare(pages: usize, frames: u32) -> Bare {
    let cpu = CpuDriver::new(options(frames)).unwrap();
    let range = PageRange { nr_pages: pages as u64, ..cpu.window() };
    assert_eq!(cpu.mmu().va_examine(range), Ok(Examine::Reserved));
    let frames = import(&*cpu.host(), frames);
    Bare { memory: Memory(range.start.start().0 as *mut u8), cpu, frames }
}

impl Bare {
    fn run(&self, op: Op) {
        let fence = self.cpu.host().submit(&[op]).unwrap();
        assert!(self.cpu.host().poll(fence));
        self.cpu.host().wait(fence, Duration::ZERO).unwrap();
    }

    fn enter(&self, page: usize, frame: usize, protection: Protection) -> Enter {
        Enter::local(self.memory.page(page), self.frames[frame], protection)
    }

    fn clear(&self, page: usize, frame: usize) -> Clear {
        Clear { page: self.memory.page(page), frame: self.frames[frame], was_empty: true }
    }

    fn slot(&self, frame: usize) -> Memory {
        Memory(self.cpu.host().host_addr(self.frames[frame]).unwrap().0 as *mut u8)
    }
}

#[test]
fn a_page_goes_in_and_out_huge_and_keeps_its_data() {
    let rig = bare(4, 8);
    rig.run(Op::Zero(rig.frames[5]));
    rig.slot(5).fill(0, PAGE, 3);
    for round in 0..3 {
        rig.cpu.mmu().pmap_enter(&[rig.enter(1, 5, Protection::ReadWrite)]).unwrap();
        assert_eq!(rig.memory.at(PAGE) as u64 % PAGE as u64, 0);
        let at = Memory(rig.memory.at(PAGE));
        assert_eq!(at.differences(0, PAGE, 3), 0, "in the window, round {round}");
        if huge_pages_work() {
            assert_eq!(huge_kib(at, PAGE), 2048);
        }
        let mut clear = [rig.clear(1, 5)];
        rig.cpu.mmu().pmap_clear(&mut clear).unwrap();
        assert!(!clear[0].was_empty);
        assert_eq!(rig.slot(5).differences(0, PAGE, 3), 0, "in the slot, round {round}");
        assert_eq!(smaps_kib(at.0 as usize, PAGE, "Rss"), 0);
    }
}

#[test]
fn batches_of_neighbours_and_strangers_move_alike() {
    let rig = bare(8, 8);
    for i in 0..8 {
        rig.run(Op::Zero(rig.frames[i]));
        rig.slot(i).write(77, i as u8 + 1);
    }
    // Two runs of neighbours, and loners.
    let places = [(0, 3), (1, 4), (2, 5), (7, 0), (4, 6), (5, 7), (3, 2)];
    let enters: Vec<_> =
        places.iter().map(|&(p, f)| rig.enter(p, f, Protection::ReadWrite)).collect();
    rig.cpu.mmu().pmap_enter(&enters).unwrap();
    for (page, frame) in places {
        assert_eq!(rig.memory.read(page * PAGE + 77), frame as u8 + 1);
    }
    let mut clears: Vec<_> = places.iter().map(|&(p, f)| rig.clear(p, f)).collect();
    rig.cpu.mmu().pmap_clear(&mut clears).unwrap();
    for (frame, clear) in places.iter().map(|p| p.1).zip(&clears) {
        assert!(!clear.was_empty);
        assert_eq!(rig.slot(frame).read(77), frame as u8 + 1);
    }
}

#[test]
fn a_batch_that_fails_says_how_far_it_got_and_leaves_the_rest() {
    let rig = bare(4, 4);
    (0..3).for_each(|i| rig.run(Op::Zero(rig.frames[i])));
    let nowhere = Frame { node: NodeId::HOST, nr: FrameNr(1000) };
    let bad = Enter { frame: nowhere, ..rig.enter(2, 2, Protection::ReadWrite) };
    let batch = [
        rig.enter(0, 0, Protection::ReadWrite),
        rig.enter(1, 1, Protection::ReadWrite),
        bad,
        rig.enter(3, 2, Protection::ReadWrite),
    ];
    let partial = rig.cpu.mmu().pmap_enter(&batch).unwrap_err();
    assert_eq!(partial.done, 2);
    assert!(matches!(partial.error, DriverError::Broken(_)));
    rig.memory.write(PAGE, 9);
    // Page 3 was not entered: its frame can be elsewhere.
    rig.cpu.mmu().pmap_enter(&[rig.enter(2, 2, Protection::ReadWrite)]).unwrap();
    // Frame 3 is not in the window.
    let mut clears = [rig.clear(0, 0), rig.clear(1, 1), rig.clear(3, 3), rig.clear(2, 2)];
    let partial = rig.cpu.mmu().pmap_clear(&mut clears).unwrap_err();
    assert_eq!(partial.done, 2);
    assert_eq!(rig.slot(1).read(0), 9);
    rig.memory.write(2 * PAGE, 1);
}

#[test]
fn a_stray_touch_of_an_empty_slot_or_a_leftover_in_the_window_does_no_harm() {
    let rig = bare(2, 4);
    rig.run(Op::Zero(rig.frames[0]));
    rig.cpu.mmu().pmap_enter(&[rig.enter(0, 0, Protection::ReadWrite)]).unwrap();
    rig.memory.fill(0, PAGE, 5);
    rig.slot(0).write(SMALL, 0xbb);
    rig.cpu.mmu().pmap_clear(&mut [rig.clear(0, 0)]).unwrap();
    assert_eq!(rig.slot(0).differences(0, PAGE, 5), 0);
    // A page that is poisoned and entered all the same.
    assert!(rig.cpu.mmu().poison(rig.memory.page(0)));
    rig.cpu.mmu().pmap_enter(&[rig.enter(0, 0, Protection::ReadWrite)]).unwrap();
    assert_eq!(rig.memory.differences(0, PAGE, 5), 0);
    // Telling every processor that a page is fit again harms none that maps it.
    rig.cpu.mmu().unpoison(rig.memory.page(0));
    assert_eq!(rig.memory.differences(0, PAGE, 5), 0);
}

#[test]
fn protection_changes_in_place_and_read_only_pages_move() {
    let rig = bare(2, 2);
    rig.run(Op::Zero(rig.frames[0]));
    rig.slot(0).fill(0, PAGE, 1);
    let mmu = rig.cpu.mmu();
    for protection in [Protection::ReadOnly, Protection::ReadWrite, Protection::ReadOnly] {
        mmu.pmap_enter(&[rig.enter(0, 0, protection)]).unwrap();
        assert_eq!(rig.memory.differences(0, PAGE, 1), 0);
        assert_eq!(can_be_written(rig.memory), protection.allows(Access::Write));
    }
    mmu.pmap_clear(&mut [rig.clear(0, 0)]).unwrap();
    assert_eq!(rig.slot(0).differences(0, PAGE, 1), 0);
    // The place is fit for the next, writable page.
    mmu.pmap_enter(&[rig.enter(0, 0, Protection::ReadWrite)]).unwrap();
    rig.memory.fill(0, PAGE, 2);
}

/// Lets the kernel try, which has no signal.
fn can_be_written(memory: Memory) -> bool {
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let value = memory.read(1);
    // SAFETY: if it is written, the byte that was there is put back.
    let n = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), memory.at(1).cast(), 1) };
    if n == 1 {
        memory.write(1, value);
    }
    n == 1
}

#[test]
fn frames_are_zeroed_and_copied_whatever_was_there() {
    let rig = bare(1, 4);
    // Fresh, then used.
    for _ in 0..2 {
        rig.run(Op::Zero(rig.frames[0]));
        assert!((0..PAGE).step_by(64).all(|i| rig.slot(0).read(i) == 0));
        rig.slot(0).fill(0, PAGE, 0xff);
    }
    // Into a slot that has no memory yet, from a frame, then from elsewhere.
    let [a, b] = [Place::Frame(rig.frames[0]), Place::Frame(rig.frames[1])];
    rig.run(Op::Copy { from: a, to: b });
    assert_eq!(rig.slot(1).differences(0, PAGE, 0xff), 0);
    if huge_pages_work() {
        assert!(huge_kib(rig.slot(1), PAGE) >= 2 * 2048, "both slots are huge");
    }
    let elsewhere = vec![0x5a_u8; PAGE];
    rig.run(Op::Copy { from: Place::Host(HostAddr(elsewhere.as_ptr() as u64)), to: b });
    assert!((0..PAGE).all(|i| rig.slot(1).read(i) == 0x5a));
    // What was written into an empty slot by someone else's DMA is zeroed all the same.
    rig.slot(3).write(100, 1);
    rig.run(Op::Zero(rig.frames[3]));
    assert_eq!(rig.slot(3).read(100), 0);
}

#[test]
fn impossible_operations_are_refused_before_any_is_done() {
    let rig = bare(1, 2);
    rig.run(Op::Zero(rig.frames[0]));
    rig.slot(0).write(0, 7);
    let nowhere = Frame { node: NodeId::HOST, nr: FrameNr(2) };
    let refused = rig.cpu.host().submit(&[Op::Zero(rig.frames[0]), Op::Zero(nowhere)]);
    assert!(matches!(refused, Err(DriverError::Broken(_))));
    assert_eq!(rig.slot(0).read(0), 7);
    rig.cpu.mmu().pmap_enter(&[rig.enter(0, 0, Protection::ReadWrite)]).unwrap();
    let from = Place::Frame(rig.frames[0]);
    let copy = Op::Copy { from, to: Place::Frame(rig.frames[1]) };
    assert!(matches!(rig.cpu.host().submit(&[copy]), Err(DriverError::Broken(_))));
}

#[test]
fn frames_are_handed_out_once_and_again_after_release() {
    let cpu = CpuDriver::new(options(10)).unwrap();
    let host = cpu.host();
    let mut all = import(&*host, 4);
    all.extend(import(&*host, 100));
    let numbers: Vec<u32> = all.iter().map(|f| f.nr.0).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert!(import(&*host, 1).is_empty());
    let fence = host.submit(&[Op::Zero(all[3])]).unwrap();
    host.wait(fence, Duration::ZERO).unwrap();
    let slot = host.host_addr(all[3]).unwrap().0 as usize;
    assert!(smaps_kib(slot, PAGE, "Rss") >= 2048);
    let extent = |start, nr_frames| gmm_core::driver::Extent { start: FrameNr(start), nr_frames };
    host.release(NodeId::HOST, &[extent(3, 2), extent(8, 1), extent(2, 1), extent(5, 1)]);
    assert_eq!(smaps_kib(slot, PAGE, "Rss"), 0, "released memory is given back");
    let numbers: Vec<u32> = import(&*host, 100).iter().map(|f| f.nr.0).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 8]);
}

#[test]
fn a_range_outside_the_window_is_refused() {
    let cpu = CpuDriver::new(options(1)).unwrap();
    let window = cpu.window();
    for range in [
        PageRange { start: window.end(), nr_pages: 1 },
        PageRange { start: PageNr(window.start.0 - 1), nr_pages: 2 },
        PageRange { nr_pages: window.nr_pages + 1, ..window },
        PageRange { nr_pages: 0, ..window },
    ] {
        assert_eq!(cpu.mmu().va_examine(range), Ok(Examine::Refused), "{range}");
    }
}
