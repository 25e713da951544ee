//! Claiming addresses, several spaces in one process, and leaving nothing behind.

mod common;

use common::*;
use gmm_core::driver::Protection;
use gmm_core::{PageNr, PageRange};
use gmm_cpu::{CpuDriver, Options, SetupError, Window};

#[test]
fn a_range_in_use_is_an_error_and_stays_as_it_is() {
    let range = unused_window();
    let window = Window::claim(range).unwrap();
    let again = Window::claim(range);
    assert!(matches!(again, Err(SetupError::WindowInUse { window }) if window == range));
    let inside = PageRange { start: range.start.plus(3), nr_pages: 1 };
    assert!(matches!(Window::claim(inside), Err(SetupError::WindowInUse { .. })));
    drop(window);
    drop(Window::claim(range).unwrap());
}

#[test]
fn impossible_windows_are_named() {
    for (start, nr_pages) in [(1 << 26, 1), ((1 << 26) - 1, 2), (u64::MAX, 2), (5, 0), (0, 1)] {
        let range = PageRange { start: PageNr(start), nr_pages };
        assert!(matches!(Window::claim(range), Err(SetupError::BadWindow { .. })), "{range:?}");
    }
    let none = CpuDriver::new(options(0)).unwrap_err();
    assert!(matches!(none, SetupError::EmptyPool));
}

#[test]
fn the_default_places_follow_one_another_and_end() {
    let first = Window::default_range(0);
    for k in 0..4 {
        let range = Window::default_range(k);
        assert_eq!(range.start.0, first.start.0 + u64::from(k) * first.nr_pages);
    }
    let drivers: Vec<_> = (0..4)
        .map(|_| {
            let options = Options { capacity_frames: Some(1), ..Options::default() };
            CpuDriver::new(options).unwrap()
        })
        .collect();
    for (k, driver) in drivers.iter().enumerate() {
        assert_eq!(driver.window(), Window::default_range(k as u32));
    }
    assert!(matches!(Window::claim_default(), Err(SetupError::NoWindow { places: 4, .. })));
    drop(drivers);
    assert_eq!(Window::claim_default().unwrap().range(), first);
}

#[test]
fn two_spaces_live_side_by_side() {
    let (a, b) = (Rig::new(4), Rig::new(4));
    let (x, y) = (a.mmap(2, Protection::ReadWrite), b.mmap(2, Protection::ReadWrite));
    x.fill(0, 2 * PAGE, 1);
    y.fill(0, 2 * PAGE, 2);
    drop(a);
    assert_eq!(y.differences(0, 2 * PAGE, 2), 0);
}

#[test]
fn what_is_mapped_is_named_not_inherited_and_gone_after_the_drop() {
    let rig = Rig::new(4);
    let memory = rig.mmap(2, Protection::ReadWrite);
    memory.write(0, 1);
    let window = rig.cpu.window();
    let (start, len) = (window.start.start().0 as usize, window.len_bytes() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let mut flags = 0;
    for line in smaps.lines() {
        if let Some((from, _)) = line.split(' ').next().unwrap().split_once('-')
            && let Ok(from) = usize::from_str_radix(from, 16)
        {
            inside = (start..start + len).contains(&from);
            // The name needs CONFIG_ANON_VMA_NAME.
            let named = !inside || line.contains("[anon:gmm:window]") || !smaps.contains("[anon:");
            assert!(named, "{line}");
        } else if inside && let Some(vm_flags) = line.strip_prefix("VmFlags:") {
            assert!(vm_flags.contains(" dc"), "not inherited by a child: {line}");
            flags += 1;
        }
    }
    assert!(flags >= 2, "a region and the rest of the window");
    drop(rig);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(&format!("{start:x}-")), "{maps}");
}
