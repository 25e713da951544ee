//! The README and the guide to hints are held to what they say: each command in them is run, or, if
//! it is about a process of the reader's, looked for in the command's own help; and the README's
//! program is a compiled example.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Context, Done, kernels};
use crate::process::{self, Show};

/// The example that is the README's program.
const EXAMPLE: &str = "crates/gmm/examples/readme.rs";

/// What is read for commands.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/hints.md"];

/// A block whose commands are not to be run has this comment on a line before it, with a reason.
const NOT_RUN: &str = "<!-- not run by CI:";

/// Our own command, as sentences name it.
const GMM: &str = "gmm ";

/// Would run this step again.
const OURSELVES: &str = "cargo xtask test";

/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A fenced block of code.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    language: String,
    text: String,
    /// Why its commands are not run, where a comment says so.
    not_run: Option<String>,
}

/// The step `readme`.
pub(super) fn step(context: &Context) -> Result<Done> {
    let root = &context.workspace.root;
    let readme = fs::read_to_string(root.join("README.md")).context("README.md")?;
    let blocks = blocks(&readme);

    let program = blocks.iter().find(|block| block.language == "rust");
    let program = program.context("README.md shows no Rust program")?;
    let example = fs::read_to_string(root.join(EXAMPLE)).context(EXAMPLE)?;
    ensure!(
        program.text.trim() == without_crate_doc(&example).trim(),
        "the program in README.md is not {EXAMPLE}: make them equal"
    );
    kernels::build(context, true)?;
    println!("$ cargo run --example readme      (the program in README.md)");
    let cargo = ["run", "--quiet", "--release", "--package", "gmm-memory", "--example", "readme"];
    run(context.workspace.cargo(&cargo)).context("the program in README.md")?;

    context.workspace.build_release()?;
    let mut nr_run = 0;
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(document)?;
        nr_run += run_commands(context, &text).with_context(|| format!("in {document}"))?;
    }
    Ok(Done::ok(format!("the program and {nr_run} commands")))
}

/// Runs the commands of a text, or sees whether they exist; says how many.
fn run_commands(context: &Context, text: &str) -> Result<u32> {
    let mut nr_run = 0;
    for block in &blocks(text) {
        for command in commands(block) {
            println!("$ {command}");
            if let Some(reason) = &block.not_run {
                println!("  not run: {reason}");
                continue;
            } else if command.starts_with(OURSELVES) {
                println!("  not run: this is it");
                continue;
            } else if command.starts_with(GMM) {
                find_in_help(context, &command).with_context(|| command.clone())?;
            } else {
                let mut shell = context.workspace.command("bash");
                shell.args(["-c", &command]);
                run(shell).with_context(|| command.clone())?;
            }
            nr_run += 1;
        }
    }
    ensure!(nr_run > 0, "there is no command that can be run");
    Ok(nr_run)
}

/// A command in a sentence: it exists, and knows these options.
fn find_in_help(context: &Context, command: &str) -> Result<()> {
    let words: Vec<_> = command.split_whitespace().skip(1).collect();
    let is_name = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase());
    let mut help = context.workspace.command(context.workspace.gmm());
    help.args(words.iter().take_while(is_name)).arg("--help");
    let done = process::run(&mut help, Show::Errors, LIMIT)?;
    ensure!(done.success(), "there is no such command: {}", done.how());
    let unknown = words.iter().find(|word| word.starts_with("--") && !done.stdout.contains(*word));
    ensure!(unknown.is_none(), "its help does not name {}", unknown.unwrap_or(&""));
    Ok(())
}

/// The program without the line that says to which text it belongs.
fn without_crate_doc(source: &str) -> String {
    source.lines().skip_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n")
}

fn run(mut command: std::process::Command) -> Result<()> {
    let done = process::run(&mut command, Show::All, LIMIT)?;
    if !done.success() {
        bail!("{}", done.how());
    }
    Ok(())
}

/// The fenced blocks of a Markdown text, and in a block of its own each command in a sentence:
/// code between backquotes that begins as one.
fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut not_run = None;
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(reason) = line.strip_prefix(NOT_RUN) {
            not_run = Some(reason.trim_end_matches("-->").trim().to_owned());
        } else if let Some(language) = line.strip_prefix("```") {
            let text: Vec<_> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            let language = language.split([' ', ',']).next().unwrap_or_default().to_owned();
            blocks.push(Block { language, text: text.join("\n"), not_run: not_run.take() });
        } else if !line.is_empty() {
            let code = line.split('`').skip(1).step_by(2).filter(|code| is_command(code));
            blocks.extend(code.map(|code| Block {
                language: "sh".into(),
                text: code.into(),
                not_run: not_run.clone(),
            }));
            not_run = None;
        }
    }
    blocks
}

/// Does this code in a sentence show a command?
fn is_command(code: &str) -> bool {
    code.starts_with("cargo ") || code.starts_with(GMM)
}

/// The commands of a block: in `console` the lines after a prompt, in `sh` each line that is no
/// comment. A backslash at the end of a line goes on with the next.
fn commands(block: &Block) -> Vec<String> {
    let prompt = match block.language.as_str() {
        "console" => "$ ",
        "sh" => "",
        _ => return Vec::new(),
    };
    let mut commands = Vec::new();
    let mut lines = block.text.lines();
    while let Some(line) = lines.next() {
        let Some(line) = line.trim().strip_prefix(prompt) else { continue };
        let mut command = line.to_owned();
        while command.ends_with('\\') {
            command.pop();
            command.push_str(lines.next().unwrap_or_default().trim_start());
        }
        if !command.trim().is_empty() && !command.trim_start().starts_with('#') {
            commands.push(command);
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_commands(markdown: &str) -> Vec<String> {
        blocks(markdown).iter().flat_map(commands).collect()
    }

    #[test]
    fn finds_the_commands_after_a_prompt() {
        let text = "Text\n```console\n$ a --b \\\n    c\noutput\n$ d # why\n```\n$ not this\n";
        assert_eq!(all_commands(text), ["a --b c", "d # why"]);
    }

    #[test]
    fn a_shell_block_is_all_commands() {
        assert_eq!(all_commands("```sh\n# why\na\n\nb\n```\n```text\nc\n```\n"), ["a", "b"]);
    }

    #[test]
    fn a_comment_stops_the_block_right_after_it() {
        let text = format!("{NOT_RUN} needs root -->\n\n```sh\na\n```\n```sh\nb\n```\n");
        let blocks = blocks(&text);
        assert_eq!(blocks[0].not_run.as_deref(), Some("needs root"));
        assert_eq!(blocks[1].not_run, None);
    }

    #[test]
    fn a_command_in_a_sentence_is_one() {
        let text = "Try `cargo run -- \"a b\"`, or `cargo`, `gmm.x()` and `x.rs`: `gmm ps --b`.\n";
        assert_eq!(all_commands(text), ["cargo run -- \"a b\"", "gmm ps --b"]);
        let text = format!("{NOT_RUN} needs root -->\n`cargo a`\n`cargo b`\n");
        assert_eq!(blocks(&text)[0].not_run.as_deref(), Some("needs root"));
        assert_eq!(blocks(&text)[1].not_run, None);
    }

    #[test]
    fn the_first_lines_of_the_example_are_not_compared() {
        assert_eq!(without_crate_doc("//! Of the README.\nuse a;\n//! b\n"), "use a;\n//! b");
    }

    #[test]
    fn the_language_is_the_first_word() {
        assert_eq!(blocks("```rust,no_run\nfn main() {}\n```\n")[0].language, "rust");
    }
}
