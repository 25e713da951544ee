//! When the kernel allows this process no more mappings.

mod common;
mod stand_in;

use common::{PAGE, SMALL, in_child, report_signal, signal_of};
use gmm_core::driver::{DriverError, Mmu, Protection};
use stand_in::{At, stand_in};

/// Mappings, as many as are allowed, until dropped.
struct All(*mut libc::c_void, usize);

impl All {
    fn take() -> Self {
        let pages = 2 * gmm_cpu::probe::max_map_count().unwrap() as usize + 2;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, whose every second page gets another protection.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), pages * SMALL, 0, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let split = |n: usize| libc::mprotect(at.byte_add(n * SMALL), SMALL, 1) == 0;
            assert!((1..pages).step_by(2).any(|n| !split(n)), "there is a limit");
            Self(at, pages * SMALL)
        }
    }
}

impl Drop for All {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

#[test]
fn what_can_not_be_unmapped_is_a_signal_and_no_hang() {
    let output = in_child("what_can_not_be_unmapped_is_a_signal_and_no_hang", || {
        let rig = common::Rig::with_window(8, 3);
        let memory = rig.mmap(3, Protection::ReadWrite);
        memory.fill(0, 3 * PAGE, 1);
        let all = All::take();
        rig.space.munmap(memory.addr(PAGE), PAGE as u64).unwrap();
        drop(all);
        assert_eq!(memory.differences(0, PAGE, 1), 0);
        assert_eq!(memory.differences(2 * PAGE, PAGE, 1), 0);
        // The addresses are good for a new region.
        let again = rig.mmap(1, Protection::ReadWrite);
        assert_eq!(again.0, memory.at(PAGE));
        assert_eq!(again.read(5), 0);
        again.write(5, 5);
        let _all = All::take();
        rig.space.munmap(again.addr(0), PAGE as u64).unwrap();
        report_signal(libc::SIGBUS);
        again.read(5);
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(40), "{text} {:?} {output:?}", signal_of(&output));
}

#[test]
fn a_remote_page_comes_and_goes_once_there_is_room() {
    let output = in_child("a_remote_page_comes_and_goes_once_there_is_room", || {
        let (_cpu, _handlers, core, memory) = stand_in(3);
        (0..3).for_each(|n| memory.fill(n * PAGE, PAGE, 1));
        core.go(1, At::Slot);
        let all = All::take();
        let refused = core.mmu.pmap_enter(&[core.mapping(1, At::Remote)]).unwrap_err();
        assert_eq!((refused.done, refused.error), (0, DriverError::NoMemory));
        assert_eq!(memory.differences(PAGE, PAGE, 1), 0, "a touch is an event as before");
        drop(all);
        core.go(1, At::Remote);
        let all = All::take();
        memory.write(PAGE, 77);
        let refused = core.mmu.pmap_clear(&mut [core.clear(1, At::Remote)]);
        if let Err(refused) = refused {
            assert_eq!((refused.done, refused.error), (0, DriverError::NoMemory));
            assert_eq!(memory.read(PAGE), 77, "it is as it was");
            drop(all);
            core.go(1, At::Local);
            assert_eq!(memory.read(PAGE), 77);
        }
        println!("done");
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("done"), "{output:?}");
}
