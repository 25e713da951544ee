//! Random operations of eight processors on tiny nodes, against the reference model: at least
//! 100,000 of them in each fault mode. After each operation the space checks its invariants and the
//! devices say whether the core kept the rules; after each sequence every byte is looked at by
//! every processor. `GMM_TEST_CASES` sets how many sequences there are of each kind.
#![cfg(not(shuttle))]

mod model;

use std::cell::Cell;

use model::{Faults, Machine, Model, Op, machine, op};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

fn sequence(machine: &Machine, ops: &[Op]) -> Result<(), String> {
    let mut model = Model::new(machine);
    model.apply(&Op::Mmap { nr_pages: 3, read_only: false })?;
    model.apply(&Op::Mmap { nr_pages: 2, read_only: false })?;
    for (i, op) in ops.iter().enumerate() {
        model.apply(op).map_err(|what| format!("operation {i}, {op:?}: {what}"))?;
    }
    model.finish()
}

fn against_the_model(faults: Faults) {
    let asked = std::env::var("GMM_TEST_CASES").ok();
    let cases = asked.map_or(250, |n| n.parse().expect("GMM_TEST_CASES is a number"));
    let config =
        Config { cases, failure_persistence: None, max_shrink_time: 20_000, ..Config::default() };
    let strategy = (machine(faults), prop::collection::vec(op(), 0..500));
    let nr_ops = Cell::new(0);
    let result = TestRunner::new(config).run(&strategy, |(machine, ops)| {
        nr_ops.set(nr_ops.get() + ops.len());
        sequence(&machine, &ops).map_err(TestCaseError::fail)
    });
    if let Err(TestError::Fail(what, (machine, ops))) = &result {
        let ops: Vec<String> = ops.iter().map(|op| format!("{op:?}")).collect();
        panic!("{what}\n{machine:?}\n{}", ops.join("\n"));
    }
    assert!(result.is_ok(), "{result:?}");
    assert!(nr_ops.get() >= 100 * cases as usize, "only {} operations were done", nr_ops.get());
}

#[test]
fn random_operations_where_faults_are_replayed() {
    against_the_model(Faults::Replayed);
}

#[test]
fn random_operations_where_launches_hold_what_they_use() {
    against_the_model(Faults::Held);
}

#[test]
fn random_operations_where_some_faults_are_replayed() {
    against_the_model(Faults::Mixed);
}
