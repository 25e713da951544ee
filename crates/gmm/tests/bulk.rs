//! What moves much at once, on the real CPU and host XPUs: prefetches that go on beside the program,
//! and `gmemcpy`, byte by byte.

mod common;

use common::*;
use gmm::{Gmm, PageState, Stopped, Unified};

fn value(i: usize) -> u8 {
    (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[5]
}

fn filled(gmm: &Gmm, len: usize) -> Unified<u8> {
    let mut data = gmm.mmap::<u8>(len).unwrap();
    data.iter_mut().enumerate().for_each(|(i, byte)| *byte = value(i));
    data
}

fn faults(gmm: &Gmm) -> u64 {
    gmm.snapshot().nodes.iter().map(|n| n.faults).sum()
}

#[test]
fn a_prefetch_beside_the_program_brings_everything() {
    let _turn = turn();
    let gmm = machine(24);
    let data = filled(&gmm, 16 * PAGE);
    let coming = data.will_need_async(1).unwrap();
    // The program's faults on pages that are just coming wait for them, or take them back.
    assert_eq!(data[3 * PAGE], value(3 * PAGE));
    let came = coming.wait().unwrap();
    assert_eq!((came.brought + came.resident, came.left), (16, 0), "{came:?}");
    assert!(data.iter().enumerate().all(|(i, &byte)| byte == value(i)));
    check(&gmm);
}

#[test]
fn a_prefetch_brings_what_fits_and_says_so() {
    let _turn = turn();
    let gmm = machine(8);
    let data = filled(&gmm, 20 * PAGE);
    let came = data.will_need(1).unwrap();
    assert!(came.brought >= 6 && came.brought <= 8, "{came:?}");
    assert_eq!(came.left, 20 - came.brought);
    assert!(matches!(came.stopped, Some(Stopped::NoRoom(_))), "{came:?}");
    assert_eq!(gmm.snapshot().nodes[1].evicted_pages, 0, "it pushed out its own");
    assert!(data.iter().enumerate().all(|(i, &byte)| byte == value(i)));
    check(&gmm);
}

#[test]
fn what_is_dropped_or_unmapped_is_cancelled() {
    let _turn = turn();
    let gmm = machine(40);
    for round in 0..6 {
        let data = filled(&gmm, 32 * PAGE);
        let coming = data.will_need_async(1).unwrap();
        if round % 2 == 0 {
            drop(coming);
        } else {
            drop(data);
            let came = coming.wait().unwrap();
            let is_whole = came.left == 0 && came.stopped.is_none();
            assert!(is_whole || came.stopped == Some(Stopped::Cancelled), "{came:?}");
        }
    }
    check(&gmm);
}

#[test]
fn every_byte_is_copied_at_any_alignment_and_no_other() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(16)).xpu(xpu_of(16)).build().unwrap();
    let len = 4 * PAGE;
    let plain: Vec<u8> = (0..len).map(|i| value(i) ^ 0x55).collect();
    let source = filled(&gmm, len);
    for (nr, (from, to, n)) in [
        (0, 0, len),
        (0, PAGE, 2 * PAGE),
        (1, 0, PAGE),
        (5, 9, 3 * PAGE + 17),
        (PAGE - 3, PAGE + 250, 70),
        (17, PAGE, 2 * PAGE),
        (123, 123, 3 * PAGE),
    ]
    .into_iter()
    .enumerate()
    {
        for node in 0..3u8 {
            source.will_need((nr as u8 + node) % 3).unwrap();
            for is_plain in [false, true] {
                let mut target = filled(&gmm, len);
                target.will_need((node + 1) % 3).unwrap();
                let src: &[u8] = if is_plain { &plain } else { &source };
                target.copy_from(to, &src[from..from + n], node).unwrap();
                let first = (to / PAGE) * PAGE;
                let info = gmm.inspect(target.as_ptr().wrapping_add(first)).unwrap();
                assert_eq!(info.state, PageState::Exclusive(gmm::NodeId(node)));
                let before = faults(&gmm);
                let wanted = |i: usize| match i.checked_sub(to).filter(|&k| k < n) {
                    Some(k) => value(from + k) ^ if is_plain { 0x55 } else { 0 },
                    None => value(i),
                };
                if node == 0 {
                    assert!((to..to + n).all(|i| target[i] == wanted(i)));
                    assert_eq!(faults(&gmm), before, "an access to the destination faulted");
                }
                let what = format!("{n} bytes from {from} to {to} on {node}, plain {is_plain}");
                assert!((0..len).all(|i| target[i] == wanted(i)), "{what}");
                let mut back = vec![0; n];
                target.copy_to(to, &mut back, 0).unwrap();
                assert!(back.iter().enumerate().all(|(k, &b)| b == wanted(to + k)), "{what}");
            }
        }
    }
    check(&gmm);
}

#[test]
fn what_can_not_be_copied_is_an_error() {
    let _turn = turn();
    let gmm = machine(8);
    let mut data = filled(&gmm, 2 * PAGE);
    let at = data.as_mut_ptr();
    // SAFETY: nothing is copied.
    let copy =
        |dst: *mut u8, src: *const u8, len, node| unsafe { gmm.gmemcpy(dst, src, len, node) };
    assert!(copy(at, at.wrapping_add(5), 6, 1).is_err(), "an overlap");
    assert!(copy(at.wrapping_add(2 * PAGE - 1), at, 2, 1).is_err(), "beyond the end");
    assert!(copy(at, at.wrapping_add(PAGE), 1, 7).is_err(), "no such node");
    copy(at, at.wrapping_add(PAGE), 0, 1).unwrap();
    assert!(data.iter().enumerate().all(|(i, &byte)| byte == value(i)));
    check(&gmm);
}
