//! How many instructions the core takes for a lookup and for faults, on a device that does nothing
//! (`gmm-driver-tests/examples/instructions.rs`), counted by callgrind: the same however busy the
//! machine is. More than was recorded, by over a tenth, is a failure.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::{Context, Done, steps};
use crate::process::{self, Show};

/// What was recorded: the compiler, and instructions by case.
const RECORD: &str = "docs/instructions.json";

const CASES: [&str; 3] = ["lookup", "fault-usable", "fault-move"];

/// A case runs so often, and so much more often: the difference is free of what is done once.
const TIMES: [u64; 2] = [1_000, 11_000];

/// So much more than was recorded is a failure.
const GROWTH: f64 = 1.1;

const LIMIT: Duration = Duration::from_secs(5 * 60);

pub(super) fn step(context: &Context) -> Result<Done> {
    let mut valgrind = context.workspace.command("valgrind");
    let found = process::run(valgrind.arg("--version"), Show::Nothing, LIMIT);
    if !found.is_ok_and(|found| found.success()) {
        return Ok(Done::skipped("valgrind, which counts, is not installed (Debian: valgrind)"));
    }
    let example = ["--package", "gmm-driver-tests", "--example", "instructions"];
    steps::succeed(context, &[&["build", "--release"], &example[..]].concat())?;
    let mut counted = Map::new();
    for case in CASES {
        let [few, many] = TIMES.map(|times| count(context, case, times));
        let each = many?.saturating_sub(few?) / (TIMES[1] - TIMES[0]);
        ensure!(each > 0, "callgrind counted nothing for {case}");
        println!("  {case:<14} {each:>6} instructions");
        counted.insert(case.into(), each.into());
    }
    let compiler = compiler(context)?;
    let path = context.workspace.root.join(RECORD);
    let recorded = fs::read_to_string(&path).with_context(|| RECORD)?;
    let recorded: Value = serde_json::from_str(&recorded).with_context(|| RECORD)?;
    let now = json!({ "compiler": compiler, "instructions": counted });
    if recorded["compiler"] != now["compiler"] {
        return Ok(Done::skipped(format!(
            "{RECORD} is of {}, this is {compiler}: a compiler changes the counts; to record: {now}",
            recorded["compiler"],
        )));
    }
    for (case, each) in &counted {
        let before = recorded["instructions"][case].as_u64();
        let before = before.with_context(|| format!("{RECORD} has no {case}"))?;
        let each = each.as_u64().unwrap_or(u64::MAX);
        ensure!(
            each as f64 <= before as f64 * GROWTH,
            "{case} takes {each} instructions, {before} were recorded in {RECORD}. If that is what \
             the change is worth, record: {now}"
        );
    }
    let counts: Vec<_> = counted.iter().map(|(case, each)| format!("{case} {each}")).collect();
    Ok(Done::ok(counts.join(", ")))
}

/// The instructions of the whole program.
fn count(context: &Context, case: &str, times: u64) -> Result<u64> {
    let example = context.workspace.target.join("release/examples/instructions");
    let mut command = context.workspace.command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(example).args([case, &times.to_string()]);
    let done = process::run(&mut command, Show::Nothing, LIMIT)?;
    ensure!(done.success(), "valgrind: {}: {}", done.how(), done.stderr);
    let collected = done.stderr.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = collected.context("callgrind printed no line \"Collected\"")?;
    number.trim().parse().with_context(|| format!("callgrind counted {number:?}"))
}

/// The compiler's version, as `1.95.0 x86_64-unknown-linux-gnu`.
fn compiler(context: &Context) -> Result<String> {
    let mut command = context.workspace.command("rustc");
    let done = process::run(command.arg("-vV"), Show::Nothing, LIMIT)?;
    let of = |key: &str| {
        let line = done.stdout.lines().find_map(|line| line.strip_prefix(key));
        line.map(str::to_owned).with_context(|| format!("rustc -vV says nothing of {key}"))
    };
    Ok(format!("{} {}", of("release: ")?, of("host: ")?))
}
