//! `PORTING.md` is true: the driver that it shows passes the kit, each piece of code in it is
//! from that driver, and each rule that it names exists.
#![cfg(not(shuttle))]

#[expect(unreachable_pub, reason = "it is a driver's public face, included here")]
#[path = "../examples/tiny_xpu.rs"]
mod tiny_xpu;

use std::sync::LazyLock;

use gmm_driver_tests::kit::{Outcome, Report, run};

const GUIDE: &str = include_str!("../../../PORTING.md");
const EXAMPLE: &str = include_str!("../examples/tiny_xpu.rs");

static REPORT: LazyLock<Report> = LazyLock::new(|| run(&tiny_xpu::Tiny));

#[test]
fn the_example_passes_the_kit() {
    let report = &*REPORT;
    assert!(report.broken().next().is_none(), "{report}");
    assert!(report.nr_held() >= 25, "{report}");
    let skipped = report.rules.iter().filter(|r| matches!(r.outcome, Outcome::Skipped(_)));
    let skipped: Vec<_> = skipped.map(|r| r.name).collect();
    let is_far =
        |name: &&&str| ["handle", "remote", "replica"].iter().any(|what| name.starts_with(what));
    assert_eq!(skipped.iter().filter(is_far).count(), 7, "{skipped:?}");
    let others: Vec<_> = skipped.iter().filter(|name| !is_far(name)).collect();
    assert_eq!(others, [&"partial-is-true", &"counting-in-a-space"]);
}

#[test]
fn the_guide_quotes_the_example() {
    let blocks: Vec<&str> =
        GUIDE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5, "only {} pieces of code", blocks.len());
    for block in blocks {
        let lines: Vec<&str> = block.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let example: Vec<&str> = EXAMPLE.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let quoted = example.windows(lines.len()).any(|window| window == lines);
        assert!(quoted, "not in examples/tiny_xpu.rs:\n{block}");
    }
}

#[test]
fn the_guide_names_every_rule() {
    for rule in &REPORT.rules {
        assert!(GUIDE.contains(&format!("`{}`", rule.name)), "{} is missing", rule.name);
    }
}
