//! The steps, in the order they run: what is quick to find comes first.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::tally::Tally;
use super::{Context, Done, bench, instructions, kernels, layers, readme, reference, sizes, tree};
use crate::man;
use crate::process::{self, Finished, Show};

/// One step of `cargo xtask test`.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) run: fn(&Context) -> Result<Done>,
}

pub(super) const STEPS: [Step; 18] = [
    Step { name: "fmt", what: "the code is formatted", run: fmt },
    Step { name: "tree", what: "what no file of the tree may hold", run: tree::step },
    Step { name: "layers", what: "a crate uses only crates below it", run: layers::step },
    Step { name: "sizes", what: "how much code the parts are", run: sizes::step },
    Step { name: "clippy", what: "lints of all targets, none left", run: clippy },
    Step { name: "docs", what: "the documentation builds, links whole", run: docs },
    Step { name: "tests", what: "all tests", run: tests },
    Step {
        name: "held",
        what: "the library's tests, with XPUs that can't replay faults",
        run: held,
    },
    Step { name: "doctests", what: "the examples in the documentation", run: doctests },
    Step { name: "release", what: "the stress tests, optimised", run: release },
    Step {
        name: "instructions",
        what: "a fault takes no more instructions than were recorded",
        run: instructions::step,
    },
    Step { name: "shuttle", what: "interleavings of threads (ci/shuttle.sh)", run: shuttle },
    Step { name: "doctor", what: "gmm doctor runs and its JSON is whole", run: doctor },
    Step { name: "demo", what: "the language model against its reference", run: reference::step },
    Step { name: "bench", what: "gmm bench runs and its JSON is whole", run: bench::step },
    Step {
        name: "readme",
        what: "the commands and the program of README and hints",
        run: readme::step,
    },
    Step { name: "tsan", what: "the thread sanitizer (ci/tsan.sh)", run: tsan },
    Step { name: "asan", what: "the address sanitizer (ci/asan.sh)", run: asan },
];

/// Tests that find more when they run at full speed: package and test file.
const RELEASE_TESTS: [(&str, &str); 2] = [("gmm-memory", "coherence"), ("gmm-hostxpu", "faults")];

/// How long a build or a suite of tests may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The exit code by which a script says that it can't run here.
const CANNOT_RUN_HERE: i32 = 77;

fn fmt(context: &Context) -> Result<Done> {
    succeed(context, &["fmt", "--all", "--check"])
}

fn clippy(context: &Context) -> Result<Done> {
    succeed(context, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn docs(context: &Context) -> Result<Done> {
    let mut command = context.workspace.cargo(&["doc", "--workspace", "--no-deps", "--lib"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    ensure_success(&run(command)?)?;
    let pages = man::write(&context.workspace)?;
    Ok(Done::ok(format!("and {} manual pages", pages.len())))
}

fn tests(context: &Context) -> Result<Done> {
    kernels::build(context, false)?;
    run_tests(context, &["--workspace"], &["--lib", "--bins", "--tests"])
}

/// The same tests with host XPUs whose launches hold what they use, and which map nothing read-only.
fn held(context: &Context) -> Result<Done> {
    kernels::build(context, false)?;
    let mut command = test_command(context, &["--package", "gmm-memory"], &["--tests"]);
    command.env("GMM_TEST_FAULTS", "held");
    let done = run(command)?;
    count(context, &done)
}

fn doctests(context: &Context) -> Result<Done> {
    kernels::build(context, false)?;
    let args = ["test", "--workspace", "--no-fail-fast", "--doc"];
    let done = run(context.workspace.cargo(&args))?;
    count(context, &done)
}

fn release(context: &Context) -> Result<Done> {
    kernels::build(context, true)?;
    let mut args = vec!["--release"];
    let mut targets = Vec::new();
    for (package, test) in RELEASE_TESTS {
        args.extend(["--package", package]);
        targets.extend(["--test", test]);
    }
    run_tests(context, &args, &targets)
}

fn shuttle(context: &Context) -> Result<Done> {
    script(context, "ci/shuttle.sh")
}

fn tsan(context: &Context) -> Result<Done> {
    script(context, "ci/tsan.sh")
}

fn asan(context: &Context) -> Result<Done> {
    script(context, "ci/asan.sh")
}

/// Runs the doctor for people and for programs. It must find that GMM can run here: no test that
/// passed before would mean much otherwise.
fn doctor(context: &Context) -> Result<Done> {
    context.workspace.build_release()?;
    let gmm = context.workspace.gmm();
    let mut command = context.workspace.command(&gmm);
    command.arg("doctor");
    ensure_success(&run(command)?)?;

    let mut command = context.workspace.command(&gmm);
    command.args(["doctor", "--json"]);
    let done = process::run(&mut command, Show::Errors, LIMIT)?;
    ensure_success(&done)?;
    let report: Value = serde_json::from_str(&done.stdout).context("gmm doctor --json")?;
    let checks = report["checks"].as_array().context("gmm doctor --json: no \"checks\"")?;
    for check in checks {
        let whole =
            check["name"].is_string() && check["ok"].is_boolean() && check["found"].is_string();
        ensure!(whole, "gmm doctor --json: not a whole check: {check}");
    }
    let nr_ok = checks.iter().filter(|check| check["ok"] == true).count();
    Ok(Done::ok(format!("{nr_ok} of {} checks ok", checks.len())))
}

/// A script that runs tests, or exits with 77 and its reason on the last line it printed.
fn script(context: &Context, path: &str) -> Result<Done> {
    let done = run(context.workspace.command(Path::new(".").join(path)))?;
    if done.code() == Some(CANNOT_RUN_HERE) {
        let reason = done.stderr.lines().next_back().unwrap_or_default();
        return Ok(Done::skipped(reason.trim_start_matches("SKIPPED: ")));
    }
    count(context, &done)
}

/// Runs tests with nextest where it is installed, which gives each a process, else with cargo's own
/// runner. `args` is what both must be told, `targets` says which kinds of targets hold the tests.
fn run_tests(context: &Context, args: &[&str], targets: &[&str]) -> Result<Done> {
    let done = run(test_command(context, args, targets))?;
    count(context, &done)
}

fn test_command(context: &Context, args: &[&str], targets: &[&str]) -> Command {
    let runner: &[&str] = if has_nextest(context) {
        &["nextest", "run", "--no-fail-fast"]
    } else {
        println!("  cargo-nextest is not installed: cargo's own runner is used");
        &["test", "--no-fail-fast"]
    };
    context.workspace.cargo(&[runner, args, targets].concat())
}

/// Adds what a test runner counted to the sum.
fn count(context: &Context, done: &Finished) -> Result<Done> {
    let tally = Tally::of_output(&done.stdout).plus(Tally::of_output(&done.stderr));
    let sum = context.tally.get().plus(tally);
    context.tally.set(sum);
    let counts = format!("{} passed, {} failed", tally.passed, tally.failed);
    if !done.success() {
        bail!("{counts} ({})", done.how());
    }
    ensure!(tally.passed > 0, "no test was run");
    Ok(Done::ok(counts))
}

pub(super) fn succeed(context: &Context, args: &[&str]) -> Result<Done> {
    ensure_success(&run(context.workspace.cargo(args))?)?;
    Ok(Done::ok(""))
}

pub(super) fn ensure_success(done: &Finished) -> Result<()> {
    ensure!(done.success(), "{}", done.how());
    Ok(())
}

/// Prints the command, then runs it.
pub(super) fn run(mut command: Command) -> Result<Finished> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    println!("$ {}", words.join(" "));
    process::run(&mut command, Show::All, LIMIT)
}

fn has_nextest(context: &Context) -> bool {
    let mut command = context.workspace.cargo(&["nextest", "--version"]);
    let done = process::run(&mut command, Show::Nothing, Duration::from_secs(60));
    done.is_ok_and(|done| done.success())
}
