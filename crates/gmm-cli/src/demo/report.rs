//! What the demo prints.

use std::io::{self, Write};

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;

use super::alike;
use super::memory::MemoryUse;
use super::reference::TOLERANCE;
use super::size::show;

/// How many pairs of sentences are shown.
const NR_PAIRS: usize = 3;

/// How many letters of a sentence are shown.
const SHOWN_CHARS: usize = 60;

/// One sentence and its vector.
#[derive(Debug, Serialize)]
pub struct Case {
    /// The sentence.
    pub text: String,
    /// How many tokens it has.
    pub nr_tokens: usize,
    /// Its vector, of length 1.
    pub embedding: Vec<f32>,
    /// The largest difference from the reference, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_abs_error: Option<f64>,
}

/// All that the demo found out; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where the weights came from.
    pub weights: String,
    /// The bytes of all weights.
    pub weights_bytes: u64,
    /// The sentences.
    pub cases: Vec<Case>,
    /// The largest difference of all cases that have a reference.
    pub max_abs_error: Option<f64>,
    /// Time for reading the weights, in seconds.
    pub load_seconds: f64,
    /// Time for all sentences, in seconds.
    pub seconds: f64,
    /// How many cores the XPU has.
    pub xpu_cores: usize,
    /// The fewest pages that had to be moved to the XPU, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_optimum: Option<u64>,
    /// What happened to memory.
    #[serde(flatten)]
    pub memory: MemoryUse,
}

impl Report {
    /// Writes one JSON object.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes what people read.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let rate = self.cases.len() as f64 / self.seconds.max(1e-9);
        writeln!(
            out,
            "{} {} in {:.2} s ({rate:.1} a second); weights read in {:.2} s\n",
            self.cases.len(),
            if self.cases.len() == 1 { "sentence" } else { "sentences" },
            self.seconds,
            self.load_seconds
        )?;
        self.write_alike(out)?;
        self.write_errors(out)?;
        self.write_memory(out)
    }

    fn write_alike(&self, out: &mut dyn Write) -> io::Result<()> {
        let vectors: Vec<Vec<f32>> = self.cases.iter().map(|case| case.embedding.clone()).collect();
        let pairs = alike::pairs(&vectors, NR_PAIRS);
        if pairs.is_empty() {
            return Ok(());
        }
        let mut table = table(&["alike", "sentences"]);
        for pair in pairs {
            let text = |number: usize| shorten(&self.cases[number].text);
            let both = format!("{}\n{}", text(pair.first), text(pair.second));
            table.add_row([right(format!("{:.3}", pair.cosine)), Cell::new(both)]);
        }
        writeln!(out, "Most alike\n{table}\n")
    }

    fn write_errors(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(worst) = self.max_abs_error else {
            return Ok(());
        };
        let mut table = table(&["largest error", "tokens", "sentence"]);
        for case in &self.cases {
            let error =
                case.max_abs_error.map_or("no reference".to_owned(), |x| format!("{x:.1e}"));
            table.add_row([right(error), right(case.nr_tokens), Cell::new(shorten(&case.text))]);
        }
        let verdict = if worst <= TOLERANCE { "within" } else { "BEYOND" };
        writeln!(out, "Compared with the reference\n{table}")?;
        writeln!(out, "The largest error, {worst:.1e}, is {verdict} the {TOLERANCE:e} allowed.\n")
    }

    fn write_memory(&self, out: &mut dyn Write) -> io::Result<()> {
        let memory = &self.memory;
        let mut nodes = table(&["node", "faults", "pages touched", "most resident"]);
        let names: std::collections::BTreeSet<&String> =
            memory.touched_bytes.keys().chain(memory.peak_resident_bytes.keys()).collect();
        for name in names {
            let (what, faults) = match name.as_str() {
                "0" => ("CPU", memory.faults.cpu),
                _ => ("XPU", memory.faults.xpu),
            };
            let bytes = |map: &std::collections::BTreeMap<String, u64>| {
                right(show(map.get(name).copied().unwrap_or(0)))
            };
            nodes.add_row([
                Cell::new(format!("{name} ({what})")),
                right(faults),
                bytes(&memory.touched_bytes),
                bytes(&memory.peak_resident_bytes),
            ]);
        }
        writeln!(out, "Memory\n{nodes}")?;
        if !memory.migrated_bytes.is_empty() {
            let mut moves = table(&["moved", "bytes"]);
            for (direction, bytes) in &memory.migrated_bytes {
                moves.add_row([Cell::new(direction), right(show(*bytes))]);
            }
            writeln!(out, "{moves}")?;
        }
        if memory.xpu_memory_bytes == 0 {
            return writeln!(out, "No XPU: the CPU ran the same kernels in ordinary memory.");
        }
        writeln!(
            out,
            "{} pages were evicted from the XPU, {} of them clean: another copy was valid, nothing was copied.",
            memory.evicted_pages, memory.evicted_clean_pages
        )?;
        if let Some(optimum) = self.pages_optimum {
            let moved = memory.migrated_bytes.get("0->1").copied().unwrap_or(0) / gmm::PAGE_SIZE;
            writeln!(
                out,
                "{moved} pages were moved to the XPU; had the order been known, {optimum} would have been enough."
            )?;
        }
        self.write_oversubscription(out)
    }

    /// The weights are not what counts: of the table of words, few pages are ever touched.
    fn write_oversubscription(&self, out: &mut dyn Write) -> io::Result<()> {
        let memory = &self.memory;
        let times = |bytes: u64| bytes as f64 / memory.xpu_memory_bytes as f64;
        let touched: u64 = memory
            .touched_bytes
            .iter()
            .filter(|(node, _)| *node != "0")
            .map(|(_, bytes)| bytes)
            .sum();
        writeln!(
            out,
            "The XPU has {} ({} cores, frames: {}).",
            show(memory.xpu_memory_bytes),
            self.xpu_cores,
            memory.frame_backing
        )?;
        writeln!(
            out,
            "  All weights are {}, {:.2} times that.",
            show(self.weights_bytes),
            times(self.weights_bytes)
        )?;
        writeln!(
            out,
            "  The pages it touched are {}, {:.2} times that: this is how far it was truly oversubscribed.",
            show(touched),
            times(touched)
        )
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(header);
    table
}

fn right(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::memory::Faults;

    fn report() -> Report {
        let case = |text: &str, x: f32, max_abs_error| Case {
            text: text.to_owned(),
            nr_tokens: 4,
            embedding: vec![x, (1.0 - x * x).sqrt()],
            max_abs_error,
        };
        Report {
            weights: "test".to_owned(),
            weights_bytes: 48 << 20,
            cases: vec![case("one", 1.0, Some(2e-7)), case("naïve ".repeat(20).trim(), 0.6, None)],
            max_abs_error: Some(2e-7),
            load_seconds: 0.25,
            seconds: 0.5,
            xpu_cores: 2,
            pages_optimum: Some(41),
            memory: MemoryUse {
                xpu_memory_bytes: 24 << 20,
                touched_bytes: [("0".to_owned(), 96 << 20), ("1".to_owned(), 36 << 20)].into(),
                peak_resident_bytes: [("1".to_owned(), 22 << 20)].into(),
                faults: Faults { cpu: 11, xpu: 77 },
                migrated_bytes: [("0->1".to_owned(), 100 << 20)].into(),
                evicted_pages: 33,
                evicted_clean_pages: 30,
                frame_backing: "huge".to_owned(),
            },
        }
    }

    #[test]
    fn json_is_one_object_with_the_promised_fields() {
        let mut out = Vec::new();
        report().write_json(&mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["cases"][0]["text"], "one");
        assert_eq!(json["cases"][0]["embedding"][0], 1.0);
        assert_eq!(json["cases"][0]["max_abs_error"], 2e-7);
        assert!(json["cases"][1].get("max_abs_error").is_none());
        assert_eq!(json["max_abs_error"], 2e-7);
        assert_eq!(json["weights_bytes"], 48 << 20);
        assert_eq!(json["xpu_memory_bytes"], 24 << 20);
        assert_eq!(json["touched_bytes"]["1"], 36 << 20);
        assert_eq!(json["peak_resident_bytes"]["1"], 22 << 20);
        assert_eq!(json["seconds"], 0.5);
        assert_eq!(json["faults"]["cpu"], 11);
        assert_eq!(json["faults"]["xpu"], 77);
        assert_eq!(json["migrated_bytes"]["0->1"], 100 << 20);
        assert_eq!(json["evicted_pages"], 33);
        assert_eq!(json["evicted_clean_pages"], 30);
        assert_eq!(json["frame_backing"], "huge");
    }

    #[test]
    fn the_text_says_both_figures_of_oversubscription() {
        let mut out = Vec::new();
        report().write_text(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "2.00 times",
            "1.50 times",
            "33 pages",
            "30 of them clean",
            "50 pages were moved to the XPU; had the order been known, 41 would",
            "0->1",
            "0.600",
            "2.0e-7",
            "within",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
