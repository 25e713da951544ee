//! `cargo xtask test`: everything that CI runs, in steps, with a table at the end.
//!
//! A step that fails does not keep the others from running. The last line counts the tests; a step
//! that runs none counts as one.

mod bench;
mod code;
mod demo_report;
mod instructions;
mod kernels;
mod layers;
mod readme;
mod reference;
mod sizes;
mod steps;
mod tally;
mod tree;

use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process;
use crate::workspace::Workspace;
use steps::{STEPS, Step};
use tally::Tally;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// List the steps and what each does.
    #[arg(long)]
    list: bool,
    /// Run this step only; may be given several times.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Leave this step out; may be given several times.
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
}

/// What a step may use.
struct Context {
    workspace: Workspace,
    /// The tests that the step ran so far.
    tally: Cell<Tally>,
}

/// How a step ended that did not fail.
struct Done {
    skipped: bool,
    note: String,
}

impl Done {
    fn ok(note: impl Into<String>) -> Self {
        Self { skipped: false, note: note.into() }
    }

    /// It can't be done here. The reason is printed where the step ran, and in the table.
    fn skipped(reason: impl Into<String>) -> Self {
        Self { skipped: true, note: reason.into() }
    }
}

/// A row of the table at the end.
struct Row {
    name: &'static str,
    result: Result<Done>,
    tally: Tally,
    took: Duration,
    /// The processor time of all commands of the step: unlike `took` it says the same when the
    /// machine has other things to do.
    cpu: Duration,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        for step in &STEPS {
            println!("{:<12} {}", step.name, step.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(&args.only, &args.skip)?;
    let context = Context { workspace: Workspace::find()?, tally: Cell::default() };
    let begun = Instant::now();
    let mut rows = Vec::new();
    for (number, step) in (1..).zip(&chosen) {
        println!("\n=== [{number}/{}] {}: {}", chosen.len(), step.name, step.what);
        let (begun, cpu_before) = (Instant::now(), process::cpu_of_children());
        let result = (step.run)(&context);
        let took = begun.elapsed();
        let cpu = process::cpu_of_children().saturating_sub(cpu_before);
        let tally = context.tally.take().of_step(&result);
        match &result {
            Ok(done) if done.skipped => println!("--- {}: SKIPPED: {}", step.name, done.note),
            Ok(_) => println!("--- {}: ok, {:.1} s", step.name, took.as_secs_f64()),
            Err(error) => println!("--- {}: FAILED: {error:#}", step.name),
        }
        rows.push(Row { name: step.name, result, tally, took, cpu });
    }
    let ok = close(&rows, begun.elapsed());
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The steps to run. A name that is no step's is an error, not a step that silently never runs.
fn chosen(only: &[String], skip: &[String]) -> Result<Vec<&'static Step>> {
    for name in only.iter().chain(skip) {
        if !STEPS.iter().any(|step| step.name == name) {
            bail!("there is no step {name:?}: `cargo xtask test --list` names them");
        }
    }
    let is_in = |list: &[String], step: &Step| list.iter().any(|name| name == step.name);
    let chosen =
        STEPS.iter().filter(|step| (only.is_empty() || is_in(only, step)) && !is_in(skip, step));
    Ok(chosen.collect())
}

/// Prints the table and the closing lines; true if no step failed. The last line stands alone and
/// counts the tests, in the form that readers of logs know.
fn close(rows: &[Row], took: Duration) -> bool {
    println!("\n=== what came out, in how much time and processor time");
    for row in rows {
        let (verdict, note) = match &row.result {
            Ok(done) if done.skipped => ("skipped", done.note.clone()),
            Ok(done) => ("ok", done.note.clone()),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        let note = note.lines().next().unwrap_or_default();
        let (took, cpu) = (row.took.as_secs_f64(), row.cpu.as_secs_f64());
        println!("{verdict:<8} {:<12} {took:>7.1} s {cpu:>7.1} s  {note}", row.name);
    }
    let failed: Vec<_> = rows.iter().filter(|row| row.result.is_err()).map(|r| r.name).collect();
    let nr_skipped = rows.iter().filter(|r| r.result.as_ref().is_ok_and(|d| d.skipped)).count();
    let tally = rows.iter().map(|row| row.tally).fold(Tally::default(), Tally::plus);
    println!(
        "{} step{} in {:.0} s, {} not ok{}{}, {nr_skipped} left out",
        rows.len(),
        if rows.len() == 1 { "" } else { "s" },
        took.as_secs_f64(),
        failed.len(),
        if failed.is_empty() { "" } else { ": " },
        failed.join(", "),
    );
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    failed.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], skip: &[&str]) -> Vec<&'static str> {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        chosen(&list(only), &list(skip)).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_are_chosen_by_name() {
        assert_eq!(names(&[], &[]).len(), STEPS.len());
        assert_eq!(names(&["layers", "fmt"], &[]), ["fmt", "layers"]);
        assert_eq!(names(&["layers", "fmt"], &["fmt"]), ["layers"]);
        assert!(!names(&[], &["fmt"]).contains(&"fmt"));
    }

    #[test]
    fn an_unknown_step_is_an_error() {
        assert!(chosen(&["lint".into()], &[]).is_err());
        assert!(chosen(&[], &["lint".into()]).is_err());
    }

    #[test]
    fn no_two_steps_share_a_name() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn one_failed_step_fails_the_run() {
        let row = |result| {
            let tally = Tally::default().of_step(&result);
            Row { name: "a", result, tally, took: Duration::ZERO, cpu: Duration::ZERO }
        };
        let good = [row(Ok(Done::ok("")))];
        assert!(close(&good, Duration::ZERO));
        let bad =
            [row(Ok(Done::ok(""))), row(Err(anyhow::anyhow!("no"))), row(Ok(Done::skipped("x")))];
        assert!(!close(&bad, Duration::ZERO));
    }
}
