//! What callers and drivers may say that makes no sense, or can't be had.
#![cfg(not(shuttle))]

use gmm_core::driver::{Access, DriverError, Examine, Protection};
use gmm_core::{Error, PAGE_SIZE, PageNr, PageRange, ProcessorId, VirtAddr};
use gmm_driver_tests::World;
use gmm_driver_tests::array::{Call, DeviceOptions, Failure, Trigger};

fn world() -> World {
    World::builder(4).xpu(DeviceOptions::xpu("a", 2), 1).build()
}

#[test]
fn ranges_without_an_end_are_errors() {
    let world = world();
    world.mmap(1);
    let processor = world.processors[1].processor.clone();
    for (start, nr_pages) in [(u64::MAX, 2), (1, u64::MAX), (u64::MAX, 0)] {
        let range = PageRange { start: PageNr(start), nr_pages };
        let is_overflow = |e: &Error| matches!(e, Error::AddressOverflow { .. });
        let checked = world.space.check_mapped(range).expect_err("no such range");
        assert!(is_overflow(&checked), "{checked}");
        let held = world.space.hold(&processor, &[range, range], Access::Read);
        let held = held.err().expect("no such range");
        assert!(is_overflow(&held), "{held}");
    }
}

/// A context that fails is one that refuses, and says why; the CPU is not asked again.
#[test]
fn the_cause_of_a_refusal_is_told() {
    let world = world();
    let cause = DriverError::Os { call: "mmap", errno: 12 };
    let mmap = |world: &World, times, first| {
        let failure = Failure::Error(cause);
        let trigger = Trigger { call: Some(Call::Examine), first, times, failure };
        world.machine.inject(Some(trigger));
        world.space.mmap(PAGE_SIZE, Protection::ReadWrite, "refused")
    };
    // The context is asked first, and again about other addresses.
    match mmap(&world, 10, 0) {
        Err(Error::Refused { processor: ProcessorId(1), tries: 10, cause: Some(c), .. }) => {
            assert_eq!(c, cause);
        }
        other => panic!("a context that fails: {other:?}"),
    }
    let error = mmap(&world, 1, 1).expect_err("the CPU fails");
    match error {
        Error::Refused { processor: ProcessorId::CPU, tries: 1, cause: Some(c), .. } => {
            assert_eq!(c, cause);
        }
        other => panic!("a CPU that fails: {other:?}"),
    }
    assert!(error.to_string().ends_with(": mmap failed with errno 12"), "{error}");
    assert!(mmap(&world, 0, 0).is_ok());
    world.assert_sound("refused");
}

/// A suggestion that can't be followed is no reason to give up.
#[test]
fn a_suggestion_beyond_the_window_is_not_the_end() {
    let world = world();
    let window = world.space.config().window;
    let first = PageRange { start: window.start, nr_pages: 1 };
    let base = VirtAddr(window.end().start().0);
    let answer = Examine::Suggest { base, alignment_bytes: PAGE_SIZE };
    world.processors[1].context.refuse(first, answer);
    let range = world.space.mmap(PAGE_SIZE, Protection::ReadWrite, "elsewhere").expect("room");
    assert_ne!(range, first);
    world.assert_sound("elsewhere");
}
