//! What holds for every allocator, whatever a program does.

mod common;

use common::user::{Step, steps};
use common::{ALLOCATORS, Device, User};
use gmm_core::PAGE_SIZE;
use proptest::prelude::*;

const FRAMES: u64 = 32;

fn run(steps: &[Step], lag: u64) {
    for &make in ALLOCATORS {
        let mut user = User::new(make, &Device::new(FRAMES, lag));
        for &step in steps {
            user.step(step).unwrap();
        }
        user.finish(FRAMES * PAGE_SIZE);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Live memory never overlaps and is mapped; nobody uses memory before its last user is done;
    /// nothing is unmapped under work; all of it comes back.
    #[test]
    fn one_stream(steps in steps(1, FRAMES * PAGE_SIZE)) {
        run(&steps, 0);
    }

    #[test]
    fn several_streams_whose_work_ends_late(
        steps in steps(4, FRAMES * PAGE_SIZE),
        lag in prop_oneof![Just(0), 1..20u64, Just(u64::MAX)],
    ) {
        run(&steps, lag);
    }
}
