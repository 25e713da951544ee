//! `gmm bench compare OLD NEW`: what got slower beyond noise, what got faster, what is missing.
//!
//! Records are compared by their ratios, since what disturbs a machine disturbs subject and baseline
//! alike. A case got slower (or faster) if both hold:
//! - the rank-sum test says that ratios of one kind would differ so much in less than 1% of runs;
//! - the medians differ by more than the tolerance. Two runs differ by more than the repeats within
//!   one: memory lies elsewhere, neighbours are others. No test on the repeats sees that.
//!
//! With fewer than five repeats on a side nothing is said. What is left of them is one, their median,
//! in a file that does not have the ratio of each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::rank_sum;
use super::record::{Record, significant};
use super::session::print_line;

/// How many repeats a side must have.
const LEAST_REPEATS: usize = 5;

/// Sizes of a setting, as records have them. Of other sizes a case is another one.
const SIZES: [&str; 8] = [
    "bytes",
    "mapped_bytes",
    "touched_pages",
    "operand_bytes",
    "xpu_memory_bytes",
    "model_bytes",
    "n",
    "m",
];

/// At which probability a difference is no accident.
const SIGNIFICANT: f64 = 0.01;

/// What `gmm bench compare` takes.
#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// What `gmm bench ... --json` wrote before
    old: PathBuf,
    /// What it wrote now
    new: PathBuf,
    /// By how many percent a median may differ from one run to the next
    #[arg(long, default_value_t = 5.0, value_parser = parse_percent)]
    tolerance: f64,
    /// One JSON object a line: every case, and what became of it
    #[arg(long)]
    json: bool,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..100.0).contains(percent));
    percent.ok_or_else(|| "a number from 0 to below 100".into())
}

/// What became of a case. The worst is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Slower,
    MissingInNew,
    MissingInOld,
    /// Measured of another size: not compared.
    OtherSize,
    /// There are fewer repeats than a difference can be told by.
    TooFew,
    Faster,
    AsBefore,
}

/// A case, on both sides.
#[derive(Debug, Serialize)]
struct Compared {
    verdict: Verdict,
    suite: String,
    case: String,
    parameter: String,
    baseline: String,
    old_ratio: Option<f64>,
    new_ratio: Option<f64>,
    /// How much greater the new median is, in percent.
    change_percent: Option<f64>,
    /// How likely such a difference is without a change.
    p_value: Option<f64>,
    /// Which size differs, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_size: Option<&'static str>,
}

/// Compares: 1 if something got slower, 2 if nothing could be compared.
pub(super) fn run(args: &CompareArgs) -> ExitCode {
    match compare_files(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gmm: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing got slower.
fn compare_files(args: &CompareArgs) -> anyhow::Result<bool> {
    let (old, new) = (read(&args.old)?, read(&args.new)?);
    ensure!(
        old.keys().any(|key| new.contains_key(key)),
        "{} and {} have no case in common: nothing to compare",
        args.old.display(),
        args.new.display()
    );
    let compared = compare(&old, &new, args.tolerance / 100.0);
    for one in &compared {
        if args.json {
            print_line(&serde_json::to_string(one)?)?;
        } else if one.verdict != Verdict::AsBefore {
            print_line(&one.text())?;
        }
    }
    let count = |verdict| compared.iter().filter(|one| one.verdict == verdict).count();
    let nr_slower = count(Verdict::Slower);
    if !args.json {
        let missing = count(Verdict::MissingInNew) + count(Verdict::MissingInOld);
        print_line(&format!(
            "{nr_slower} slower, {} faster, {} as before, {} with too few repeats to tell, {} of other sizes, \
             {missing} on one side only",
            count(Verdict::Faster),
            count(Verdict::AsBefore),
            count(Verdict::TooFew),
            count(Verdict::OtherSize),
        ))?;
    }
    Ok(nr_slower == 0)
}

type Key = (String, String, String, String);

/// The records of a file. Of one case measured more than once, all repeats together.
fn read(path: &Path) -> anyhow::Result<BTreeMap<Key, Record>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let records = parse(&text).with_context(|| path.display().to_string())?;
    ensure!(!records.is_empty(), "{} holds no results of gmm bench --json", path.display());
    Ok(records)
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<Key, Record>> {
    let mut records = BTreeMap::<Key, Record>::new();
    for (nr, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let mut record: Record = serde_json::from_str(line).with_context(|| {
            format!("line {nr} is no result of gmm bench --json: {:.60}", line.trim())
        })?;
        let key = [&record.suite, &record.case, &record.parameter, &record.baseline];
        let [suite, case, parameter, baseline] = key.map(String::clone);
        let key = (suite, case, parameter, baseline);
        if let Some(before) = records.get(&key) {
            ensure!(
                !before.ratios.is_empty() && !record.ratios.is_empty(),
                "line {nr}: {} {} is there twice, without the ratios of each repeat",
                key.0,
                key.1
            );
            if let Some(size) = other_size(before, &record) {
                bail!("line {nr}: {} {} is there twice, of other {size}", key.0, key.1);
            }
            let ratios = before.ratios.iter().chain(&record.ratios).copied().collect();
            let more = before.more.clone();
            record = Record { more, ..Record::new(&key.0, &*key.1, &*key.2, &key.3, ratios) };
        }
        records.insert(key, record);
    }
    Ok(records)
}

fn compare(
    old: &BTreeMap<Key, Record>,
    new: &BTreeMap<Key, Record>,
    tolerance: f64,
) -> Vec<Compared> {
    let only_new = new.keys().filter(|key| !old.contains_key(*key));
    let mut compared: Vec<Compared> = old
        .keys()
        .chain(only_new)
        .map(|key| Compared::new(key, old.get(key), new.get(key), tolerance))
        .collect();
    compared.sort_by_key(|one| one.verdict);
    compared
}

impl Compared {
    fn new(key: &Key, old: Option<&Record>, new: Option<&Record>, tolerance: f64) -> Self {
        let both = old.zip(new);
        let change = both.map(|(old, new)| new.ratio / old.ratio - 1.0);
        let other_size = both.and_then(|(old, new)| other_size(old, new));
        let p_value = both
            .filter(|_| other_size.is_none())
            .filter(|(old, new)| old.ratios.len().min(new.ratios.len()) >= LEAST_REPEATS)
            .map(|(old, new)| rank_sum::p_value(&old.ratios, &new.ratios));
        let verdict = match (change, p_value) {
            (Some(_), None) if other_size.is_some() => Verdict::OtherSize,
            (Some(_), None) => Verdict::TooFew,
            (Some(change), Some(p)) if p < SIGNIFICANT && change < -tolerance => Verdict::Slower,
            (Some(change), Some(p)) if p < SIGNIFICANT && change > tolerance => Verdict::Faster,
            (Some(_), _) => Verdict::AsBefore,
            _ if old.is_some() => Verdict::MissingInNew,
            _ => Verdict::MissingInOld,
        };
        let (suite, case, parameter, baseline) = key.clone();
        Self {
            verdict,
            suite,
            case,
            parameter,
            baseline,
            old_ratio: old.map(|record| record.ratio),
            new_ratio: new.map(|record| record.ratio),
            change_percent: change.map(|change| change * 100.0),
            p_value,
            other_size,
        }
    }

    fn text(&self) -> String {
        let Self { suite, case, parameter, baseline, .. } = self;
        let what = match self.verdict {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::AsBefore => "as before",
            Verdict::MissingInNew => "missing in the new file",
            Verdict::MissingInOld => "missing in the old file",
            Verdict::TooFew => "too few repeats to tell",
            Verdict::OtherSize => "not compared",
        };
        let name = format!("{what}: {suite} {case} ({parameter}), times {baseline}");
        match (self.old_ratio, self.new_ratio, self.change_percent, self.p_value) {
            (Some(old), Some(new), Some(change), Some(p)) => format!(
                "{name}: {} before, {} now ({change:+.1}%, p = {})",
                significant(old),
                significant(new),
                significant(p),
            ),
            _ => match self.other_size {
                Some(size) => format!("{name}: {size} differ"),
                None => name,
            },
        }
    }
}

/// The size in which the settings of two records differ, as far as both have it.
fn other_size(old: &Record, new: &Record) -> Option<&'static str> {
    let differs = |size: &&str| matches!((old.number(size), new.number(size)), (Some(old), Some(new)) if old != new);
    SIZES.into_iter().find(differs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(cases: &[(&str, &[f64])]) -> BTreeMap<Key, Record> {
        let record = |(case, ratios): &(&str, &[f64])| {
            let record = Record::new("faults", *case, "sequential", "raw copy", ratios.to_vec());
            serde_json::to_string(&record).unwrap()
        };
        parse(&cases.iter().map(record).collect::<Vec<_>>().join("\n")).unwrap()
    }

    fn verdict(old: &[f64], new: &[f64]) -> Verdict {
        compare(&file(&[("a", old)]), &file(&[("a", new)]), 0.05)[0].verdict
    }

    const BEFORE: [f64; 5] = [0.90, 0.91, 0.92, 0.93, 0.94];

    #[test]
    fn slower_and_faster_are_told() {
        let faster = BEFORE.map(|ratio| ratio * 1.1);
        assert_eq!(verdict(&BEFORE, &faster), Verdict::Faster);
        assert_eq!(verdict(&faster, &BEFORE), Verdict::Slower);
        assert_eq!(verdict(&BEFORE, &BEFORE), Verdict::AsBefore);
    }

    #[test]
    fn a_difference_within_the_spread_or_the_tolerance_is_none() {
        // The median falls by a fifth, but so do single repeats of the old run.
        assert_eq!(
            verdict(&[0.7, 0.9, 0.9, 0.9, 0.9], &[0.9, 0.7, 0.7, 0.7, 0.9]),
            Verdict::AsBefore
        );
        // All are lower, by less than runs differ.
        assert_eq!(verdict(&BEFORE, &BEFORE.map(|ratio| ratio * 0.954)), Verdict::AsBefore);
    }

    #[test]
    fn what_is_on_one_side_only_is_missing_on_the_other() {
        let old = file(&[("a", &BEFORE), ("b", &BEFORE)]);
        let new = file(&[("b", &BEFORE), ("c", &BEFORE)]);
        let verdicts: Vec<_> =
            compare(&old, &new, 0.05).iter().map(|c| (c.verdict, c.case.clone())).collect();
        let wanted =
            [(Verdict::MissingInNew, "a"), (Verdict::MissingInOld, "c"), (Verdict::AsBefore, "b")];
        assert_eq!(verdicts, wanted.map(|(verdict, case)| (verdict, case.to_owned())));
    }

    #[test]
    fn a_median_without_its_repeats_is_too_little() {
        let line = |ratio: f64| {
            format!(
                "{{\"suite\":\"s\",\"case\":\"c\",\"parameter\":\"p\",\"baseline\":\"b\",\"ratio\":{ratio},\
                 \"ratio_min\":{ratio},\"ratio_max\":{ratio},\"repeats\":9}}"
            )
        };
        let (old, new) = (parse(&line(0.8)).unwrap(), parse(&line(0.5)).unwrap());
        let compared = compare(&old, &new, 0.05);
        assert_eq!((compared[0].verdict, compared[0].p_value), (Verdict::TooFew, None));
        assert!(parse(&format!("{}\n{}", line(0.8), line(0.8))).is_err());
    }

    #[test]
    fn few_repeats_and_other_sizes_are_not_called_as_before() {
        assert_eq!(verdict(&BEFORE[..4], &BEFORE), Verdict::TooFew);
        let mut old = file(&[("a", &BEFORE)]);
        let mut new = old.clone();
        for (records, bytes) in [(&mut old, 1 << 20), (&mut new, 2 << 20)] {
            records.values_mut().for_each(|r| *r = r.clone().with("bytes", bytes));
        }
        let compared = compare(&old, &new, 0.05);
        assert_eq!(compared[0].verdict, Verdict::OtherSize);
        assert!(compared[0].text().ends_with("bytes differ"), "{}", compared[0].text());
        assert_eq!(compare(&old, &old, 0.05)[0].verdict, Verdict::AsBefore);
    }

    #[test]
    fn repeats_of_one_case_are_taken_together() {
        let twice = file(&[("a", &BEFORE), ("a", &BEFORE)]);
        assert_eq!(twice.values().next().unwrap().repeats, 10);
    }

    #[test]
    fn what_is_no_result_is_named_by_its_line() {
        let error = parse("\n{\"suite\": 1}\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2"), "{error}");
    }
}
