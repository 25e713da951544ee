//! What the policies are held to, and that `docs/policies.md` says what they do.
#![cfg(not(shuttle))]

mod simulation;

use std::fs;
use std::path::Path;

use simulation::Contender;
use simulation::document::{
    Row, SWEEPS, measure_changing, measure_steady, plot, table_of_changing, table_of_steady,
};

const HOW: &str = "run `cargo run -p gmm-sim --example policies -- --write`";

#[test]
fn sweeps_cost_little_more_than_they_must_and_nothing_more_than_under_lru() {
    let rows = measure_steady();
    let table = table_of_steady(&rows);
    println!("{table}");
    let (sweeps, others) = rows.split_at(SWEEPS.len());
    sweeps.iter().for_each(sweep_costs_little_more_than_it_must);
    others.iter().for_each(costs_no_more_than_under_lru);
    assert!(document("policies.md").contains(&table), "a table of docs/policies.md: {HOW}");
    assert_eq!(document("policies.svg"), plot(&rows), "docs/policies.svg: {HOW}");
}

#[test]
fn changes_are_over_within_three_passes() {
    let rows = measure_changing();
    let table = table_of_changing(&rows);
    println!("{table}");
    rows.iter().for_each(change_is_over_within_three_passes);
    assert!(document("policies.md").contains(&table), "a table of docs/policies.md: {HOW}");
}

fn sweep_costs_little_more_than_it_must(row: &Row) {
    let (name, optimum) = (&row.workload.name, row.steady_optimum());
    let limit = if name == "sweep 1.05" { 1.30 } else { 1.10 };
    for (contender, limit) in [(Contender::DIP, limit), (Contender::NextUse, 1.02)] {
        let moved = row.steady(contender);
        let who = contender.name();
        assert!(moved <= limit * optimum, "{name}: {who} moves {moved}, the optimum is {optimum}");
        assert!(moved >= 0.99 * optimum, "{name}: {who} can't move less than the optimum");
    }
    let lru = row.steady(Contender::LRU);
    assert_eq!(lru, row.workload.nr_pages() as f64, "{name}: lru moves every page");
}

fn costs_no_more_than_under_lru(row: &Row) {
    let (dip, lru) = (row.steady(Contender::DIP), row.steady(Contender::LRU));
    assert!(dip <= 1.02 * lru, "{}: dip moves {dip}, lru {lru}", row.workload.name);
}

/// The fourth pass costs what is normal for the new order: little more than the optimum for a
/// sweep; what this policy moves later for two at a time; what LRU moves where order is random.
fn change_is_over_within_three_passes(row: &Row) {
    let name = &row.workload.name;
    let fourth = |contender| row.of(contender).moved[row.workload.changes_at + 3] as f64;
    let limit = if name.contains("uniform") || name.contains("Zipf") {
        1.02 * fourth(Contender::LRU)
    } else if name.contains("interleaved") {
        1.10 * row.steady(Contender::DIP)
    } else {
        1.10 * row.steady_optimum()
    };
    let fourth = fourth(Contender::DIP);
    assert!(fourth <= limit, "{name}: the fourth pass moves {fourth} pages, more than {limit}");
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
