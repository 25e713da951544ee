//! `cargo xtask demo`: from a fresh checkout to a language model running on an XPU.

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{model, needs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed to `gmm demo`, such as `--xpu-memory 16MiB "a text" "another"`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The options of `gmm demo` that say which weights to use; with one of them nothing is fetched.
const NAMES_WEIGHTS: [&str; 2] = ["--model", "--random-weights"];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let begun = Instant::now();

    eprintln!("[1/4] what this machine has");
    needs::check(&workspace)?;

    eprintln!("[2/4] building in release mode: the first time takes a few minutes");
    workspace.build_release()?;

    eprintln!("[3/4] the model");
    let mut demo = Command::new(workspace.gmm());
    demo.arg("demo");
    let fetches = !args.args.iter().any(|arg| names_weights(arg));
    if !fetches {
        eprintln!("  named on the command line: nothing to fetch");
    } else {
        match model::fetch(&workspace) {
            Ok(folder) => {
                demo.arg("--model").arg(folder);
            }
            Err(error) => {
                eprintln!("  THE MODEL CAN'T BE FETCHED: {error:#}");
                eprintln!(
                    "  The same network runs with random weights: what it says of the memory"
                );
                eprintln!("  holds, what it says of the texts means nothing.");
                demo.arg("--random-weights");
            }
        }
    }
    demo.args(&args.args);

    eprintln!("[4/4] set up in {:.1?}; running {}", begun.elapsed(), shown(&demo));
    let status = demo.status().with_context(|| format!("can't run {}", shown(&demo)))?;
    Ok(match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => {
            eprintln!("xtask: gmm demo ended by {status}");
            ExitCode::FAILURE
        }
    })
}

fn names_weights(arg: &str) -> bool {
    NAMES_WEIGHTS.contains(&arg.split('=').next().unwrap_or_default())
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words = words.map(|word| {
        let word = word.to_string_lossy();
        let simple = |c: char| c.is_ascii_alphanumeric() || "-_./=:,".contains(c);
        if !word.is_empty() && word.chars().all(simple) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_weights_are_recognised() {
        assert!(names_weights("--model"));
        assert!(names_weights("--model=here"));
        assert!(names_weights("--random-weights"));
        assert!(!names_weights("--models"));
        assert!(!names_weights("a text about --model"));
    }

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = Command::new("gmm");
        command.args(["demo", "--cores", "2", "it's a text"]);
        assert_eq!(shown(&command), r"gmm demo --cores 2 'it'\''s a text'");
    }
}
