//! The language model on the host XPU, at several sizes of its memory and several numbers of
//! cores: the embeddings must be those of the reference, and the same to the last bit.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{Context, Done, demo_report};
use crate::model;
use crate::process::{self, Show};

/// What other software computed, in double precision, for the same texts and weights.
const REFERENCE: &str = "crates/gmm-cli/tests/data/minilm_reference.json";

const XPU_MEMORY: [&str; 4] = ["16MiB", "24MiB", "64MiB", "1GiB"];
const CORES: [&str; 3] = ["1", "2", "8"];

/// How far a component of an embedding may be from the reference.
const TOLERANCE: f64 = 1e-4;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Texts with their embeddings.
#[derive(Debug)]
struct Cases(Vec<(String, Vec<f64>)>);

/// The step `demo`.
pub(super) fn step(context: &Context) -> Result<Done> {
    let workspace = &context.workspace;
    let reference_path = workspace.root.join(REFERENCE);
    let reference = read(&reference_path)?;
    workspace.build_release()?;
    let model = model::fetch(workspace);
    if let Err(error) = &model {
        println!("  THE MODEL CAN'T BE FETCHED: {error:#}");
        println!("  Random weights are used: only that all runs agree is checked.");
    }

    let mut first: Option<Cases> = None;
    let mut worst = 0.0_f64;
    for memory in XPU_MEMORY {
        for cores in CORES {
            let mut command = workspace.command(workspace.gmm());
            command.args(["demo", "--json", "--xpu-memory", memory, "--xpu-cores", cores]);
            match &model {
                Ok(folder) => {
                    command.arg("--model").arg(folder);
                    command.arg("--reference").arg(&reference_path);
                }
                Err(_) => {
                    command.args(["--random-weights", "--"]);
                    command.args(reference.0.iter().map(|(text, _)| text));
                }
            }
            let at = format!("{memory} of XPU memory, {cores} core(s)");
            let begun = Instant::now();
            let done = process::run(&mut command, Show::Errors, LIMIT).context(at.clone())?;
            ensure!(done.success(), "{at}: gmm demo: {}", done.how());
            let report: Value = serde_json::from_str(&done.stdout)
                .with_context(|| format!("{at}: standard output is not one JSON object"))?;
            demo_report::check(&report, model.is_ok()).context(at.clone())?;
            let cases = Cases::of(&report).context(at.clone())?;
            let error = match &model {
                Ok(_) => {
                    let error = cases.distance(&reference).context(at.clone())?;
                    ensure!(error <= TOLERANCE, "{at}: {error:.2e} from the reference");
                    worst = worst.max(error);
                    format!("{error:.2e} from the reference")
                }
                Err(_) => "random weights".to_owned(),
            };
            println!("  {at}: {error}, {:.1?}", begun.elapsed());
            match &first {
                Some(first) => cases.same_bits(first).context(at)?,
                None => first = Some(cases),
            }
        }
    }
    let nr_runs = XPU_MEMORY.len() * CORES.len();
    Ok(Done::ok(match model {
        Ok(_) => format!("{nr_runs} runs bit-identical, at most {worst:.2e} from the reference"),
        Err(_) => format!("{nr_runs} runs bit-identical; NO MODEL: the reference was not compared"),
    }))
}

fn read(path: &Path) -> Result<Cases> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Cases::of(&serde_json::from_str(&text)?).with_context(|| path.display().to_string())
}

impl Cases {
    /// Reads `{"cases": [{"text": ..., "embedding": [...]}]}`.
    fn of(json: &Value) -> Result<Self> {
        let list = json["cases"].as_array().context("no \"cases\"")?;
        let mut cases = Vec::new();
        for case in list {
            let text = case["text"].as_str().context("a case without \"text\"")?;
            let embedding = case["embedding"].as_array().context("a case without \"embedding\"")?;
            let embedding: Option<Vec<f64>> = embedding.iter().map(Value::as_f64).collect();
            let embedding = embedding.context("an embedding that is not all numbers")?;
            ensure!(!embedding.is_empty(), "an empty embedding");
            cases.push((text.to_owned(), embedding));
        }
        ensure!(!cases.is_empty(), "no case");
        Ok(Self(cases))
    }

    /// Pairs of components of the same place. The texts must be the same and in the same order.
    fn pairs<'a>(&'a self, other: &'a Self) -> Result<Vec<(&'a str, usize, f64, f64)>> {
        ensure!(self.0.len() == other.0.len(), "{} cases, not {}", self.0.len(), other.0.len());
        let mut pairs = Vec::new();
        for ((text, a), (other_text, b)) in self.0.iter().zip(&other.0) {
            ensure!(text == other_text, "the text {text:?} stands where {other_text:?} should");
            ensure!(a.len() == b.len(), "{text:?}: {} components, not {}", a.len(), b.len());
            pairs.extend(a.iter().zip(b).enumerate().map(|(i, (a, b))| (text.as_str(), i, *a, *b)));
        }
        Ok(pairs)
    }

    /// The largest difference of two components. A component that is no number is infinitely far.
    fn distance(&self, other: &Self) -> Result<f64> {
        let far = |(_, _, a, b): (&str, usize, f64, f64)| {
            let distance = (a - b).abs();
            if distance.is_nan() { f64::INFINITY } else { distance }
        };
        Ok(self.pairs(other)?.into_iter().map(far).fold(0.0, f64::max))
    }

    /// Fails with the first component of which a bit differs.
    fn same_bits(&self, other: &Self) -> Result<()> {
        for (text, i, a, b) in self.pairs(other)? {
            if a.to_bits() != b.to_bits() {
                bail!("{text:?}: component {i} is {a:e}, but was {b:e} in the first run");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cases(embedding: &[f64]) -> Cases {
        Cases::of(&json!({"cases": [{"text": "a", "embedding": embedding}]})).unwrap()
    }

    #[test]
    fn distance_is_the_largest_of_the_components() {
        let distance = cases(&[1.0, 2.0, 3.0]).distance(&cases(&[1.0, 2.5, 2.9])).unwrap();
        assert_eq!(distance, 0.5);
    }

    #[test]
    fn one_bit_is_noticed() {
        let one = cases(&[1.0, 0.5]);
        one.same_bits(&cases(&[1.0, 0.5])).unwrap();
        let other = cases(&[1.0, f64::from_bits(0.5_f64.to_bits() + 1)]);
        let error = one.same_bits(&other).unwrap_err().to_string();
        assert!(error.contains("component 1"), "{error}");
    }

    #[test]
    fn other_texts_and_lengths_do_not_compare() {
        assert!(cases(&[1.0]).distance(&cases(&[1.0, 2.0])).is_err());
        let other = json!({"cases": [{"text": "b", "embedding": [1.0]}]});
        assert!(cases(&[1.0]).distance(&Cases::of(&other).unwrap()).is_err());
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for json in [
            json!({}),
            json!({"cases": []}),
            json!({"cases": [{"text": "a"}]}),
            json!({"cases": [{"text": "a", "embedding": []}]}),
            json!({"cases": [{"text": "a", "embedding": [1.0, null]}]}),
        ] {
            assert!(Cases::of(&json).is_err(), "{json}");
        }
    }
}
