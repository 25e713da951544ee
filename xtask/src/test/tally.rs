//! Counts tests by the closing lines of the runners that ran them.

use anyhow::Result;

use super::Done;
use crate::process::plain;

/// How many tests passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Tally {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// What a step counts for that ran these tests and ended so. A step that failed counts as
    /// failed though no test of it did: what it builds may not compile.
    pub(super) fn of_step(mut self, result: &Result<Done>) -> Self {
        match result {
            Err(_) => self.failed = self.failed.max(1),
            Ok(done) if done.skipped => self.skipped += 1,
            Ok(_) if self == Self::default() => self.passed = 1,
            Ok(_) => {}
        }
        self
    }

    /// The sum of the closing lines in a runner's output: of cargo's own
    /// (`test result: ok. 5 passed; 0 failed; 1 ignored; ...`) and of nextest
    /// (`Summary [ 0.1s] 6 tests run: 5 passed (1 slow), 1 timed out, 2 skipped`).
    pub(super) fn of_output(output: &str) -> Self {
        let mut sum = Self::default();
        for line in plain(output).lines() {
            let line = line.trim();
            if let Some((_, counts)) =
                line.strip_prefix("test result: ").and_then(|l| l.split_once(". "))
            {
                sum = sum.plus(Self::of_counts(counts.split(';')));
            } else if line.starts_with("Summary [") {
                let counts = line.split_once(" run: ").map_or("", |(_, counts)| counts);
                sum = sum.plus(Self::of_counts(without_parentheses(counts).split(',')));
            }
        }
        sum
    }

    fn of_counts<'a>(counts: impl Iterator<Item = &'a str>) -> Self {
        let mut tally = Self::default();
        for count in counts {
            let Some((number, word)) = count.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match word.trim() {
                "passed" => tally.passed += number,
                "skipped" | "ignored" => tally.skipped += number,
                "failed" | "timed out" | "exec failed" => tally.failed += number,
                _ => {}
            }
        }
        tally
    }
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0u32;
    let outside = |c: &char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    text.chars().filter(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally { passed, failed, skipped }
    }

    #[test]
    fn adds_cargos_lines() {
        let output = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
            noise\n\
            test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Tally::of_output(output), tally(7, 4, 1));
    }

    #[test]
    fn reads_nextests_line() {
        let line = "     Summary [   1.003s] 9 tests run: 6 passed (1 slow, 1 flaky), 2 failed, 1 timed out, 3 skipped\n";
        assert_eq!(Tally::of_output(line), tally(6, 3, 3));
        let line =
            "\u{1b}[32;1m     Summary\u{1b}[0m [   0.003s] 1 test run: 1 passed, 0 skipped\n";
        assert_eq!(Tally::of_output(line), tally(1, 0, 0));
        let line = "     Summary [   0.003s] 2/9 tests run: 1 passed, 1 failed, 0 skipped\n";
        assert_eq!(Tally::of_output(line), tally(1, 1, 0));
    }

    #[test]
    fn a_step_counts_for_one_if_it_ran_no_test() {
        let (ok, skipped) = (Ok(Done::ok("")), Ok(Done::skipped("")));
        let failed = Err(anyhow::anyhow!("no"));
        let (none, some) = (Tally::default(), tally(5, 0, 1));
        assert_eq!(none.of_step(&ok), tally(1, 0, 0));
        assert_eq!(none.of_step(&skipped), tally(0, 0, 1));
        assert_eq!(none.of_step(&failed), tally(0, 1, 0));
        assert_eq!(some.of_step(&ok), some);
        assert_eq!(some.of_step(&failed), tally(5, 1, 1));
        assert_eq!(tally(5, 2, 1).of_step(&failed), tally(5, 2, 1));
    }

    #[test]
    fn other_lines_do_not_count() {
        assert_eq!(Tally::of_output("12 passed, 3 failed\nrunning 4 tests\n"), tally(0, 0, 0));
    }
}
