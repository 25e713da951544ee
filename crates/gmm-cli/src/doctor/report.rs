//! What the doctor says, for people and for programs.

use anyhow::Result;
use serde::Serialize;

use super::checks::Check;
use super::fix::Outcome;

/// The whole of it. Its fields are what `--json` prints.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    /// Everything necessary is there.
    can_run: bool,
    checks: Vec<Line<'a>>,
    fixes: &'a [Outcome],
}

/// A check in JSON.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    ok: bool,
    necessary: bool,
    found: &'a str,
    lost: Option<&'a str>,
    fix: Option<&'a str>,
}

impl<'a> Report<'a> {
    pub(super) fn new(checks: &'a [Check], fixes: &'a [Outcome]) -> Self {
        let lines = checks.iter().map(|check| Line {
            name: check.name,
            ok: check.is_ok(),
            necessary: check.necessary,
            found: &check.found,
            lost: check.problem.as_ref().map(|problem| problem.lost.as_str()),
            fix: check.problem.as_ref().map(|problem| problem.fix.as_str()),
        });
        let can_run = checks.iter().all(|check| check.is_ok() || !check.necessary);
        Self { can_run, checks: lines.collect(), fixes }
    }

    /// GMM can run, and what was to be fixed is fixed.
    pub(super) fn is_good(&self) -> bool {
        self.can_run && self.fixes.iter().all(|fix| fix.error.is_none())
    }

    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// A line each. `asked_to_fix`: then it is also said that there was nothing to fix.
    pub(super) fn text(&self, asked_to_fix: bool) -> String {
        let mut text = String::new();
        for fix in self.fixes {
            let unknown = || "?".to_owned();
            let before = fix.before.clone().unwrap_or_else(unknown);
            let after = fix.after.clone().unwrap_or_else(unknown);
            text += &match &fix.error {
                None => format!("fixed     {}: was {before}, is now {after}\n", fix.what),
                Some(error) => format!("NOT FIXED {}: is {after}: {error}\n", fix.what),
            };
        }
        if asked_to_fix && self.fixes.is_empty() {
            text += "nothing to fix that --fix may change\n";
        }
        for line in &self.checks {
            text += &match (line.lost, line.fix) {
                (Some(lost), Some(fix)) => {
                    let verdict = if line.necessary { "MISSING" } else { "not ok" };
                    format!("{verdict:<8}  {}: {}; {lost}; fix: {fix}\n", line.name, line.found)
                }
                _ => format!("{:<8}  {}: {}\n", "ok", line.name, line.found),
            };
        }
        text += if self.can_run {
            "GMM can run here.\n"
        } else {
            "GMM can't run here: see the lines that say MISSING.\n"
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Problem;
    use super::*;

    fn check(necessary: bool, ok: bool) -> Check {
        let problem = Problem { lost: "speed".into(), fix: "sudo make it so".into(), action: None };
        Check {
            name: "thing",
            necessary,
            found: "as found".into(),
            problem: (!ok).then_some(problem),
        }
    }

    fn outcome(error: Option<&str>) -> Outcome {
        Outcome {
            what: "/a/setting".into(),
            before: Some("1".into()),
            after: Some("2".into()),
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn only_what_is_necessary_stops_gmm() {
        for (necessary, ok, can_run) in
            [(true, true, true), (true, false, false), (false, false, true), (false, true, true)]
        {
            assert_eq!(Report::new(&[check(necessary, ok)], &[]).is_good(), can_run);
        }
    }

    #[test]
    fn a_fix_that_failed_is_not_good() {
        let checks = [check(false, true)];
        assert!(Report::new(&checks, &[outcome(None)]).is_good());
        assert!(!Report::new(&checks, &[outcome(Some("refused"))]).is_good());
    }

    #[test]
    fn a_problem_is_one_line_with_loss_and_fix() {
        let text = Report::new(&[check(false, false)], &[]).text(false);
        let line = text.lines().next().unwrap();
        assert_eq!(line, "not ok    thing: as found; speed; fix: sudo make it so");
    }

    #[test]
    fn a_fix_tells_before_and_after() {
        let checks = [check(false, true)];
        let text = Report::new(&checks, &[outcome(None)]).text(true);
        assert!(text.starts_with("fixed     /a/setting: was 1, is now 2\n"), "{text}");
        let text = Report::new(&checks, &[]).text(true);
        assert!(text.starts_with("nothing to fix"), "{text}");
    }

    #[test]
    fn json_says_the_same() {
        let checks = [check(true, false), check(false, true)];
        let json = Report::new(&checks, &[outcome(None)]).json().unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["can_run"], false);
        assert_eq!(json["checks"][0]["ok"], false);
        assert_eq!(json["checks"][0]["fix"], "sudo make it so");
        assert!(json["checks"][1]["fix"].is_null());
        assert_eq!(json["fixes"][0]["after"], "2");
    }
}
