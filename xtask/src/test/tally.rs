//! Counts tests by the closing lines of the runners that ran them.

use std::ops::AddAssign;

use crate::process::plain;

/// How many tests passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Tally {
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
                sum += Self::of_counts(counts.split(';'));
            } else if line.starts_with("Summary [") {
                let counts = line.split_once(" run: ").map_or("", |(_, counts)| counts);
                sum += Self::of_counts(without_parentheses(counts).split(','));
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
    fn other_lines_do_not_count() {
        assert_eq!(Tally::of_output("12 passed, 3 failed\nrunning 4 tests\n"), tally(0, 0, 0));
    }
}
