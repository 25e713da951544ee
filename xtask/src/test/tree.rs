//! Rules that every file of the tree keeps: no unsafe code where none belongs, no path of one
//! machine, no address of a package registry, no file that has grown too long.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::code::code_lines;
use super::{Context, Done};
use crate::process::{self, Show};

/// Crate roots that must say `#![forbid(unsafe_code)]`.
const WITHOUT_UNSAFE: [&str; 5] = [
    "crates/gmm-core/src/lib.rs",
    "crates/gmm-driver-tests/src/lib.rs",
    "crates/gmm-trace/src/lib.rs",
    "crates/gmm-cli/src/main.rs",
    "xtask/src/main.rs",
];

/// Folders that exist on one machine only. Each is looked for as the beginning of a path.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/opt/whe", "els"),
];

/// Where package managers and model hubs fetch from: the clients know, the tree need not.
const REGISTRIES: [&str; 6] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("hugging", "face.co"),
    concat!("artifact", "ory"),
];

/// Written by cargo, with the name of the registry in each entry.
const GENERATED: [&str; 1] = ["Cargo.lock"];

/// A file of code longer than this is reported; whether it is still one idea is for people to say.
const LONG_FILE_LINES: usize = 500;

/// The step `tree`.
pub(super) fn step(context: &Context) -> Result<Done> {
    let root = &context.workspace.root;
    let Some(files) = files(context)? else {
        return Ok(Done::skipped("git can't list the files of this tree"));
    };
    let mut broken = Vec::new();
    for path in WITHOUT_UNSAFE {
        let source = fs::read_to_string(root.join(path)).unwrap_or_default();
        if !code_lines(&source).iter().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
            broken.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
        }
    }
    let mut nr_long = 0;
    for path in &files {
        // What is not text holds no such words; a file that was removed is not in the tree.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let nr_lines = text.lines().count();
        if path.extension().is_some_and(|extension| extension == "rs") && nr_lines > LONG_FILE_LINES
        {
            println!("  warning: {} has {nr_lines} lines: is it still one idea?", path.display());
            nr_long += 1;
        }
        if !GENERATED.iter().any(|generated| path == Path::new(generated)) {
            broken.extend(unwanted_words(path, &text));
        }
    }
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    Ok(Done::ok(match nr_long {
        0 => format!("{} files", files.len()),
        _ => format!("{} files, {nr_long} over {LONG_FILE_LINES} lines", files.len()),
    }))
}

/// The files that are, or could be, committed, relative to the root. None: git doesn't know this
/// tree, as in an unpacked archive.
fn files(context: &Context) -> Result<Option<Vec<PathBuf>>> {
    let mut git = context.workspace.command("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let Ok(done) = process::run(&mut git, Show::Nothing, Duration::from_secs(60)) else {
        return Ok(None);
    };
    let files: Vec<_> =
        done.stdout.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    Ok((done.success() && !files.is_empty()).then_some(files))
}

/// The words that must not stand in a file, each with its place.
fn unwanted_words(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for word in MACHINE_PATHS.into_iter().filter(|word| begins_a_path(line, word)) {
            found.push(format!("{}:{number}: a path of one machine: {word}", path.display()));
        }
        for word in REGISTRIES.into_iter().filter(|word| line.contains(word)) {
            found.push(format!("{}:{number}: the address of a registry: {word}", path.display()));
        }
    }
    found
}

/// Does a path in this line begin with `folder`? In `a/b/` the path does not begin with `/b/`.
fn begins_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "/._-}*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_machine_is_found_where_it_begins() {
        let folder = MACHINE_PATHS[0];
        assert!(begins_a_path(&format!("see {folder}x"), folder));
        assert!(begins_a_path(&format!("\"{folder}x\""), folder));
        assert!(begins_a_path(folder, folder));
        assert!(!begins_a_path(&format!("target{folder}x"), folder));
        assert!(!begins_a_path(&format!("$HOME/x and ${{DIR}}{folder}x"), folder));
    }

    #[test]
    fn each_unwanted_word_is_reported_with_its_line() {
        let path = Path::new("a.md");
        for word in MACHINE_PATHS.into_iter().chain(REGISTRIES) {
            let found = unwanted_words(path, &format!("first\nat {word}/more\n"));
            assert_eq!(found.len(), 1, "{word}");
            assert!(found[0].starts_with("a.md:2: "), "{found:?}");
        }
        assert!(unwanted_words(path, "nothing to see\n/usr/bin/env bash\n").is_empty());
    }
}
