//! The array device, in every combination of capabilities, passes the conformance kit; and the
//! kit keeps the traits itself.
#![cfg(not(shuttle))]

use gmm_core::driver::Capabilities;
use gmm_driver_tests::array::{ArraySubject, Completion, DeviceOptions};
use gmm_driver_tests::kit::{Outcome, run};

fn passes(options: DeviceOptions) {
    let subject = ArraySubject::new(options);
    let report = run(subject.clone());
    assert!(report.broken().next().is_none(), "{report}");
    let violations = subject.violations();
    assert!(violations.is_empty(), "the kit breaks the traits: {violations:?}");
    assert!(report.nr_held() > 20, "{report}");
}

/// XPUs with every set of the optional capabilities.
#[test]
fn every_set_of_capabilities() {
    let optional = [
        Capabilities::REPLAYABLE_FAULTS,
        Capabilities::READ_ONLY_MAPPINGS,
        Capabilities::PEER_COPY,
        Capabilities::COHERENT_LINK,
    ];
    for set in 0..1 << optional.len() {
        let none = DeviceOptions::xpu("xpu", 24).without(Capabilities::all());
        let chosen = (0..optional.len()).filter(|i| set & 1 << i != 0).map(|i| optional[i]);
        passes(chosen.fold(none, DeviceOptions::with).completing(Completion::Halves));
    }
}

/// XPUs whose operations happen at every time they may.
#[test]
fn every_completion() {
    for completion in [Completion::Inline, Completion::AtWait, Completion::Halves] {
        passes(DeviceOptions::xpu("xpu", 24).completing(completion));
    }
}

/// The host, with frames that move and frames that stay.
#[test]
fn every_host() {
    for completion in [Completion::Inline, Completion::AtWait, Completion::Halves] {
        let host = DeviceOptions::host(24).completing(completion);
        passes(host.clone());
        passes(host.clone().with(Capabilities::READ_ONLY_MAPPINGS));
        passes(host.with(Capabilities::COHERENT_LINK | Capabilities::READ_ONLY_REPLICAS));
    }
}

/// Imports of few frames at a time, in no order.
#[test]
fn scattered_and_stingy_imports() {
    let stingy =
        DeviceOptions { import_limit: 3, scattered: true, ..DeviceOptions::xpu("xpu", 24) };
    passes(stingy);
}

/// A device of two frames is checked as far as it goes.
#[test]
fn a_tiny_device_is_checked_as_far_as_it_goes() {
    let subject = ArraySubject::new(DeviceOptions::xpu("xpu", 2));
    let report = run(subject);
    assert!(report.broken().next().is_none(), "{report}");
    let skipped = |name: &str| {
        report.rules.iter().any(|r| r.name == name && matches!(r.outcome, Outcome::Skipped(_)))
    };
    assert!(skipped("batch-of-16") && !skipped("clear-is-final"), "{report}");
}
