//! Running the rules, each on a fresh device and within a deadline.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use super::env::{Env, Stop};
use super::rules::{self, Rule};
use super::{Outcome, Report, RuleReport, Subject};

/// Checks every rule.
///
/// # Panics
/// If the driver breaks one; the message names each rule that it breaks and what was seen.
pub fn conformance(subject: impl Subject + 'static) {
    let report = run(subject);
    println!("{report}");
    assert!(report.broken().next().is_none(), "{report}");
}

/// Checks every rule and says how each came out.
pub fn run(subject: impl Subject + 'static) -> Report {
    run_matching(subject, "")
}

/// Checks the rules whose name contains `part`: for work on one of them.
pub fn run_matching(subject: impl Subject + 'static, part: &str) -> Report {
    let subject: Arc<dyn Subject> = Arc::new(subject);
    let rules = rules::all()
        .filter(|rule| rule.name.contains(part))
        .map(|rule| {
            let Rule { name, statement, .. } = rule;
            RuleReport { name, statement, outcome: check(&subject, rule) }
        })
        .collect();
    Report { subject: subject.name(), rules }
}

fn check(subject: &Arc<dyn Subject>, rule: Rule) -> Outcome {
    let (send, receive) = channel();
    let theirs = subject.clone();
    let body = move || {
        let checked = catch_unwind(AssertUnwindSafe(|| (rule.check)(&Env::new(theirs.bench()))));
        // Nobody listens any more if the deadline has passed.
        let _ = send.send(match checked {
            Ok(Ok(())) => Outcome::Held,
            Ok(Err(Stop::Skip(why))) => Outcome::Skipped(why),
            Ok(Err(Stop::Broken(seen))) => Outcome::Broken(seen),
            Err(panic) => Outcome::Broken(format!("it panicked: {}", message(&*panic))),
        });
    };
    if let Err(error) = thread::Builder::new().name(rule.name.into()).spawn(body) {
        return Outcome::Broken(format!("no thread to check it on: {error}"));
    }
    let deadline = subject.deadline();
    receive.recv_timeout(deadline).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => {
            Outcome::Broken(format!("no end within {deadline:?}: it hangs"))
        }
        RecvTimeoutError::Disconnected => Outcome::Broken("its thread vanished".into()),
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no message)")
}
