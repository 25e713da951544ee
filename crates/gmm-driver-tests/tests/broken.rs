//! Devices broken on purpose: the kit catches each kind and names the rule.
#![cfg(not(shuttle))]

use core::time::Duration;

use gmm_core::driver::Capabilities;
use gmm_driver_tests::array::{ArraySubject, Completion, Defect, DeviceOptions};
use gmm_driver_tests::kit::run_matching;

/// The kit names `rule` for this defect, and says what it saw with `seen` in it.
fn caught(defect: Defect, completion: Completion, rule: &str, seen: &str) {
    let options = DeviceOptions::xpu("xpu", 24).completing(completion).broken(defect);
    let report = run_matching(ArraySubject::new(options).within(Duration::from_secs(3)), rule);
    assert!(report.breaks(rule), "{defect:?} does not break {rule}:\n{report}");
    assert!(report.to_string().contains(&format!("rule {rule}: ")), "{report}");
    assert!(report.to_string().contains(seen), "{report}");
}

macro_rules! defects {
    ($($name:ident: $defect:ident, $completion:ident, $rule:literal, $seen:literal;)+) => {
        $(
            #[test]
            fn $name() {
                caught(Defect::$defect, Completion::$completion, $rule, $seen);
            }
        )+
    };
}

defects! {
    write_through_a_stale_tlb: StaleTlb, Inline, "clear-is-final",
        "`pmap_clear` returned, then a core wrote through the old mapping";
    late_write: LateWrite, Inline, "clear-is-final", "then a store of before it landed";
    late_write_at_release: LateWriteAtRelease, Inline, "release-is-final",
        "`va_release` returned, then a store of before it landed";
    frame_handed_out_twice: FrameTwice, Inline, "import-no-frame-twice", "was handed over twice";
    frame_lost: FrameLost, Inline, "released-frames-come-back", "were released and";
    import_of_too_many: ImportTooMany, Inline, "import-within-request", "2 frames came for 1";
    count_too_high: CountTooHigh, Inline, "partial-is-true", "said 1 were done";
    count_too_low: CountTooLow, Inline, "partial-is-true", "said 0 were done";
    wait_that_hangs: HangInWait, Inline, "copy-is-exact", "it hangs";
    poll_that_never_agrees: PollNever, Inline, "poll-agrees", "it hangs";
    copy_without_its_tail: CopyMissesTail, Inline, "copy-is-exact", "at offset 2097144";
    part_that_writes_beyond: PartWritesBeyond, Inline, "part-is-exact", "1 bytes from offset 0";
    copy_in_the_wrong_direction: CopyBackwards, Inline, "copy-is-exact", "not";
    wait_that_returns_too_early: WaitTooEarly, AtWait, "copy-is-exact", "not";
    batch_of_which_one_happens: BatchFirstOnly, Inline, "batch-all-happen", "operation 1 of 16";
    zero_without_its_head: ZeroMissesHead, Inline, "zero-zeroes", "at offset 0";
    read_only_that_is_not: ReadOnlyIsNot, Inline, "read-only-stops-writes",
        "through a read-only mapping";
    protection_that_does_not_change: ReenterIgnored, Inline, "enter-again-changes-protection",
        "is not writable";
    enter_of_the_wrong_frame: WrongFrame, Inline, "enter-makes-visible", "not";
    enter_of_one_page_of_16: EnterFirstOnly, Inline, "batch-of-16", "page 1 of 16";
    clear_that_does_nothing: ClearIgnored, Inline, "clear-removes", "then a core read";
    clear_of_a_dead_context_fails: ClearFailsWhenDead, Inline, "dead-clear-succeeds", "dead";
    death_that_wipes_frames: DeathWipesFrames, Inline, "dead-data-survives", "not";
    release_that_keeps_mappings: ReleaseKeepsMappings, Inline, "release-unmaps",
        "in a range released";
    reservation_that_leaks: ReservationLeaks, Inline, "reserve-release-reserve", "Refused";
}

/// As [`caught`], for a device that can do more, or that is the host.
fn caught_with(options: DeviceOptions, defect: Defect, rule: &str, seen: &str) {
    let subject = ArraySubject::new(options.broken(defect)).within(Duration::from_secs(3));
    let report = run_matching(subject, rule);
    assert!(report.breaks(rule), "{defect:?} does not break {rule}:\n{report}");
    assert!(report.to_string().contains(seen), "{report}");
}

#[test]
fn mappings_across_nodes_and_replicas() {
    let linked = || DeviceOptions::xpu("xpu", 24).with(Capabilities::COHERENT_LINK);
    let host = || DeviceOptions::host(24).with(Capabilities::READ_ONLY_REPLICAS);
    let cases = [
        (linked(), Defect::HandleOfANeighbour, "handle-is-the-frame", "read at its handle"),
        (linked(), Defect::RemoteIsACopy, "remote-is-the-frame", "the frame was written"),
        (linked(), Defect::RemoteStays, "remote-clear-removes", "then a core read"),
        (linked(), Defect::ReleaseKeepsRemote, "remote-release-removes", "then a core read"),
        (host(), Defect::ReplicaLetsWritesThrough, "replica-stops-writes", "through a replica"),
        (host(), Defect::ReplicaTakesFrame, "replica-is-equal", "moved into the window"),
        (host(), Defect::ReplicaStays, "replica-clear-removes", "then a core read"),
    ];
    for (options, defect, rule, seen) in cases {
        caught_with(options, defect, rule, seen);
    }
}

/// A store that `va_release` does not wait for shows in that rule and in no other.
#[test]
fn the_end_of_a_release_is_checked_by_one_rule() {
    let options = DeviceOptions::xpu("xpu", 24).broken(Defect::LateWriteAtRelease);
    let report = run_matching(ArraySubject::new(options), "");
    let broken: Vec<_> = report.broken().map(|r| r.name).collect();
    assert_eq!(broken, ["release-is-final"], "{report}");
}
