//! What came out of a run of the kit.

use std::fmt;

/// How one rule came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The driver keeps it.
    Held,
    /// The driver has no use for it: why.
    Skipped(String),
    /// The driver breaks it: what was seen.
    Broken(String),
}

/// One rule and how it came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleReport {
    /// Its name, which does not change.
    pub name: &'static str,
    /// The rule in one sentence.
    pub statement: &'static str,
    /// How it came out.
    pub outcome: Outcome,
}

/// All rules and how they came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The driver's name.
    pub subject: String,
    /// The rules, in the order in which they were checked.
    pub rules: Vec<RuleReport>,
}

impl Report {
    /// The rules that the driver breaks.
    pub fn broken(&self) -> impl Iterator<Item = &RuleReport> {
        self.rules.iter().filter(|r| matches!(r.outcome, Outcome::Broken(_)))
    }

    /// How many rules it keeps.
    pub fn nr_held(&self) -> usize {
        self.rules.iter().filter(|r| r.outcome == Outcome::Held).count()
    }

    /// Whether it breaks the rule of that name.
    pub fn breaks(&self, name: &str) -> bool {
        self.broken().any(|r| r.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nr_broken = self.broken().count();
        writeln!(f, "{}: {} rules kept, {nr_broken} broken", self.subject, self.nr_held())?;
        for rule in &self.rules {
            match &rule.outcome {
                Outcome::Held => {}
                Outcome::Skipped(why) => writeln!(f, "  skipped {}: {why}", rule.name)?,
                Outcome::Broken(seen) => {
                    writeln!(f, "  rule {}: {seen}", rule.name)?;
                    writeln!(f, "    ({})", rule.statement)?;
                }
            }
        }
        Ok(())
    }
}
