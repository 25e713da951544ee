//! The application's own `madvise(MADV_DONTNEED)` on unified memory: what it discards reads as
//! zero on every processor, the rest is as it was.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::*;

#[test]
fn a_whole_page() {
    let _turn = turn();
    let gmm = machine(8);
    let (memory, out) = (mmap(&gmm, 3), mmap(&gmm, 1));
    let xpu = gmm.xpu(1).unwrap();
    for xpu_first in [true, false] {
        memory.fill(0, 3 * PAGE, 1);
        memory.discard(PAGE, PAGE);
        if xpu_first {
            assert_eq!(memory.sum_on(&xpu, PAGE, out).unwrap(), 0);
            // The list of page 0 goes on in page 1, and ends there now.
            let sum = sum_of(0, PAGE, 1);
            assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum);
        }
        assert_eq!(memory.not_zero(PAGE, PAGE), 0);
        assert_eq!(memory.differences(0, PAGE, 1), 0);
        assert_eq!(memory.differences(2 * PAGE, PAGE, 1), 0);
        assert_eq!(memory.sum_on(&xpu, 2 * PAGE, out).unwrap(), sum_of(2 * PAGE, PAGE, 1));
        memory.fill(PAGE, PAGE, 2);
        assert_eq!(memory.sum_on(&xpu, PAGE, out).unwrap(), sum_of(PAGE, PAGE, 2));
    }
    check(&gmm);
}

#[test]
fn four_kib_of_a_page() {
    let _turn = turn();
    let gmm = machine(8);
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    let xpu = gmm.xpu(1).unwrap();
    let pieces = [0, 7, 8, 300, 511];
    for xpu_first in [true, false] {
        // One list in each piece, so that the XPU can read each by itself.
        (0..1024).for_each(|i| memory.fill(i * SMALL, SMALL, 1));
        pieces.iter().for_each(|&i| memory.discard(i * SMALL, SMALL));
        let is_right = |i: usize| match pieces.contains(&i) {
            true => memory.not_zero(i * SMALL, SMALL) == 0,
            false => memory.differences(i * SMALL, SMALL, 1) == 0,
        };
        if xpu_first {
            for i in [0, 1, 6, 7, 8, 9, 299, 300, 301, 511, 512] {
                let sum = memory.sum_on(&xpu, i * SMALL, out).unwrap();
                let wanted = if pieces.contains(&i) { 0 } else { sum_of(i * SMALL, SMALL, 1) };
                assert_eq!(sum, wanted, "piece {i}");
            }
        }
        assert!((0..1024).all(is_right));
        // And there and back once more, with new contents.
        memory.fill(0, 2 * PAGE, 2);
        assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, 2 * PAGE, 2));
        assert_eq!(memory.differences(0, 2 * PAGE, 2), 0);
    }
    check(&gmm);
}

#[test]
fn memory_that_is_not_on_the_cpu_is_not_the_applications_to_discard() {
    let _turn = turn();
    let gmm = machine(8);
    let (memory, out) = (mmap(&gmm, 2), mmap(&gmm, 1));
    let xpu = gmm.xpu(1).unwrap();
    memory.fill(0, PAGE, 1);
    // Page 0 is on both nodes and mapped by the XPU alone, page 1 on the XPU alone: nothing of
    // them is mapped here, so there is nothing that the kernel could discard.
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, PAGE, 1));
    memory.from(PAGE).touch_on(&xpu, 1, true);
    memory.discard(0, 2 * PAGE);
    memory.discard(SMALL, SMALL);
    assert_eq!(memory.sum_on(&xpu, 0, out).unwrap(), sum_of(0, PAGE, 1));
    assert_eq!(memory.differences(0, PAGE, 1), 0);
    assert!((0..512).all(|i| memory.read_word(PAGE + i * SMALL) == i as u64));
    check(&gmm);
}

#[test]
fn discards_while_others_read_and_pages_move() {
    let _turn = turn();
    let gmm = machine(4);
    const PAGES: usize = 6;
    let memory = mmap(&gmm, PAGES);
    let kept = mmap(&gmm, PAGES);
    kept.fill(0, PAGES * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| {
            let mut random = Random::new(3);
            while !stop.load(Ordering::SeqCst) {
                let page = random.below(PAGES as u64) as usize * PAGE;
                match random.below(3) {
                    0 => memory.discard(page, PAGE),
                    _ => memory.discard(page + random.below(512) as usize * SMALL, SMALL),
                }
            }
        });
        scope.spawn(|| {
            let mut random = Random::new(4);
            while !stop.load(Ordering::SeqCst) {
                let at = random.below((PAGES * 512) as u64) as usize * SMALL;
                // Only what was written, or zero, is ever seen.
                let seen = memory.read_word(at);
                assert!(seen == 0 || seen == (at / SMALL) as u64 || seen == 99, "{seen}");
                memory.write_word(at, 99);
            }
        });
        for _ in 0..12 {
            memory.touch_on(&xpu, PAGES, true);
            kept.touch_on(&xpu, PAGES, false);
        }
    });
    assert_eq!(kept.differences(0, PAGES * PAGE, 1), 0);
    check(&gmm);
}
