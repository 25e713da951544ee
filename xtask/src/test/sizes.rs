//! How much code the parts of GMM are that others will write again or must trust: counted, and
//! printed by CI, beside the goals that the design set.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::code::code_lines;
use super::{Context, Done};

/// A part, the files or folders it consists of, and how many lines of code it should be.
struct Part {
    name: &'static str,
    paths: &'static [&'static str],
    goal: Option<usize>,
}

/// A driver's memory management is what implements `Device` and `Mmu`, which whoever writes a
/// driver has to write too. The rest of `drivers/cpu` is access to userfaultfd and its events; the
/// rest of `drivers/hostxpu` is the hardware itself, its queues and its worker.
const PARTS: [Part; 7] = [
    Part { name: "gmm-core", paths: &["crates/gmm-core/src"], goal: Some(3_500) },
    Part {
        name: "drivers/cpu: memory management",
        paths: &["drivers/cpu/src/host.rs", "drivers/cpu/src/pool.rs", "drivers/cpu/src/mmu.rs"],
        goal: Some(500),
    },
    Part { name: "drivers/cpu, all of it", paths: &["drivers/cpu/src"], goal: None },
    Part {
        name: "drivers/hostxpu: memory management",
        paths: &[
            "drivers/hostxpu/src/device.rs",
            "drivers/hostxpu/src/memory.rs",
            "drivers/hostxpu/src/mmu.rs",
        ],
        goal: Some(500),
    },
    Part { name: "drivers/hostxpu, all of it", paths: &["drivers/hostxpu/src"], goal: None },
    Part { name: "gmm-alloc", paths: &["crates/gmm-alloc/src"], goal: None },
    Part { name: "gmm-trace: readers, writers", paths: &["crates/gmm-trace/src"], goal: None },
];

/// The step `sizes`. It reports; a goal that is missed is no failure.
pub(super) fn step(context: &Context) -> Result<Done> {
    println!("  lines of code without tests, comments and blank lines:");
    let mut notes = Vec::new();
    for part in &PARTS {
        let mut files = Vec::new();
        for path in part.paths {
            let path = context.workspace.root.join(path);
            collect(&path, &mut files)
                .with_context(|| format!("{}: {}", part.name, path.display()))?;
        }
        let mut lines = 0;
        for file in &files {
            lines += code_lines(&fs::read_to_string(file)?).len();
        }
        let goal = match part.goal {
            Some(goal) if lines > goal => format!(", over the goal of {goal}"),
            Some(goal) => format!(", goal {goal}"),
            None => String::new(),
        };
        println!("  {:<36} {lines:>6} in {:>2} files{goal}", part.name, files.len());
        if part.goal.is_some() {
            notes.push(format!("{} {lines}", part.name.split(':').next().unwrap_or_default()));
        }
    }
    Ok(Done::ok(notes.join(", ")))
}

/// Adds the Rust sources at `path`: itself, or all in the folder. Files named `tests.rs` hold tests.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        fs::metadata(path)?;
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let tests = path.file_stem().is_some_and(|stem| stem == "tests");
        if !tests && (path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        {
            collect(&path, files)?;
        }
    }
    Ok(())
}
