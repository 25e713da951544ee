//! Which sentences to run.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

/// The sentences of a demo that was given none: three pairs that say nearly the same.
pub const BUILT_IN: [&str; 6] = [
    "The program ran out of memory on the accelerator.",
    "My GPU has no memory left for this job.",
    "A cat is asleep on the warm window sill.",
    "The kitten naps in the sun by the window.",
    "Boil the pasta for nine minutes, then drain it.",
    "Cook the noodles in hot water and pour the water off.",
];

/// Reads a file of sentences, a line each. Blank lines are skipped.
///
/// # Errors
/// If the file can't be read, is not UTF-8 (the line is named), or has no sentence.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        anyhow!(
            "{} is not UTF-8: see line {line}, byte {} of the file",
            path.display(),
            valid.len()
        )
    })?;
    let texts: Vec<String> = text
        .trim_start_matches('\u{feff}')
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    ensure!(!texts.is_empty(), "{} has no texts: it needs one a line", path.display());
    Ok(texts)
}
