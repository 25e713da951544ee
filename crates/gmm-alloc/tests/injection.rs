//! Each call to the back end fails, once: everything stays consistent and usable.

mod common;

use common::user::{Step, steps};
use common::{ALLOCATORS, Device, Make, User};
use gmm_alloc::Error;
use gmm_core::PAGE_SIZE;
use proptest::prelude::*;

const FRAMES: u64 = 24;

/// Runs the program with the call number `failing` failing; whether there was such a call.
fn run(make: Make, steps: &[Step], failing: u64) -> bool {
    let device = Device::new(FRAMES, u64::MAX);
    let mut user = User::new(make, &device);
    device.fail_after(failing);
    for &step in steps {
        let failed_before = device.has_failed();
        if let Err(error) = user.step(step) {
            assert!(matches!(error, Error::Backend { .. }), "{error}");
            assert!(device.has_failed() && !failed_before, "{error}, but nothing failed");
        }
    }
    let failed = device.has_failed();
    device.never_fail();
    user.finish(FRAMES * PAGE_SIZE);
    failed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_call_may_fail(steps in steps(3, FRAMES * PAGE_SIZE)) {
        for &make in ALLOCATORS {
            let nr_calls = (0..).find(|&failing| !run(make, &steps, failing));
            prop_assert!(nr_calls.is_some());
        }
    }
}
