//! `gmm bench all`: every suite, with sizes that finish in five minutes together.

use anyhow::Context as _;
use clap::{Args, FromArgMatches as _, Subcommand as _};

use super::Suite;
use super::options::{Kernels, Output};
use super::session::Session;

/// What `gmm bench all` takes.
#[derive(Debug, Args)]
pub(super) struct AllArgs {
    /// Sizes so small that only the function is tried, in some seconds: what comes out means nothing
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The command lines, and how each is shortened.
const LINES: [(&str, &str); 20] = [
    ("faults --bytes 128MiB --peers", "--bytes 16MiB --repeats 5"),
    ("faults --bytes 128MiB --order random", "--bytes 16MiB --repeats 5"),
    ("faults --bytes 128MiB --cores 4", "--bytes 16MiB --repeats 5"),
    ("product", "--k 1024,2048 --m 256 --cores 1,2 --repeats 5"),
    (
        "product --k 10240 --m 4096 --types fp16 --cores 1 --blocks 3 --factors 1,1.5,2,4 \
         --policies dip,lru,fifo16 --repeats 5",
        "--k 2048 --m 4096 --factors 1.5 --policies lru --repeats 5",
    ),
    ("latency", "--pages 4 --repeats 5"),
    ("cost --bytes 128MiB", "--bytes 16MiB --repeats 5"),
    (
        "prefetch --bytes 256MiB --chunks 64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB",
        "--bytes 16MiB --chunks 1MiB --repeats 5",
    ),
    (
        "memcpy --bytes 128MiB --chunks 64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,128MiB",
        "--bytes 16MiB --chunks 1MiB --repeats 5",
    ),
    ("coalesce --faults 50000", "--faults 1000 --repeats 5 --threads 2"),
    (
        "oversubscribe --factors 1.25,1.5,2,4 --policies dip,lru",
        "--xpu-memory 8MiB --factors 1.5 --policies dip --sweeps 5",
    ),
    (
        "oversubscribe --xpu-memory 32MiB --factors 2 --policies dip --sweeps 5 --link pcie3x16",
        "--xpu-memory 8MiB",
    ),
    (
        "oversubscribe --xpu-memory 32MiB --factors 2 --policies dip --sweeps 5 --link pcie3x16 --half-duplex",
        "--xpu-memory 8MiB",
    ),
    (
        "oversubscribe --xpu-memory 32MiB --factors 2 --policies dip --sweeps 5 --link 2GiB",
        "--xpu-memory 8MiB",
    ),
    (
        "oversubscribe --xpu-memory 32MiB --factors 2 --policies dip --sweeps 5 --link 2GiB --half-duplex",
        "--xpu-memory 8MiB",
    ),
    ("pagesize", "--bytes 4MiB --repeats 5"),
    ("cpu --bytes 64MiB", "--bytes 4MiB --pairs 6"),
    ("steady", "--bytes 8MiB --iterations 2 --repeats 5"),
    ("scale", "--mapped 2GiB --touched 8 --lookups 1000 --repeats 5"),
    ("switch", "--xpu-memory 16MiB --repeats 5"),
];

/// Suites that load no kernels.
const ON_THE_CPU: [&str; 3] = ["coalesce", "cpu", "pagesize"];

/// Runs all suites, those after one that failed too.
pub(super) fn run(args: &AllArgs, session: &mut Session) -> anyhow::Result<()> {
    if args.short {
        session.caution("Measured with --short: sizes so small that only the function is tried. These figures mean nothing.");
    }
    let mut failed = Vec::new();
    for (nth, (line, shorter)) in LINES.into_iter().enumerate() {
        session.part(nth + 1, LINES.len());
        let words = words(line, if args.short { shorter } else { "" });
        let result = suite(&words, &args.kernels).and_then(|suite| suite.run(session));
        if session.reader_gone() {
            return result;
        }
        failed.extend(result.err().map(|error| format!("{}: {error:#}", words.join(" "))));
    }
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// The words of a command line, of which options of `shorter` replace those of the same name.
fn words<'a>(line: &'a str, shorter: &'a str) -> Vec<&'a str> {
    let shorter: Vec<_> = shorter.split_whitespace().collect();
    let mut words = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if shorter.contains(&word) {
            all.next();
        } else {
            words.push(word);
        }
    }
    words.extend(shorter);
    words
}

fn suite(words: &[&str], kernels: &Kernels) -> anyhow::Result<Suite> {
    let command = Suite::augment_subcommands(clap::Command::new("gmm bench"));
    let mut line: Vec<std::ffi::OsString> = vec!["gmm bench".into()];
    line.extend(words.iter().map(Into::into));
    if !words.first().is_some_and(|suite| ON_THE_CPU.contains(suite)) {
        line.extend(["--kernels".into(), kernels.kernels.clone().into()]);
    }
    let matches = command.try_get_matches_from(line)?;
    Suite::from_arg_matches(&matches).with_context(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_one_that_its_suite_takes() {
        let kernels = Kernels { kernels: "libgmm_kernels.so".into() };
        for (line, shorter) in LINES {
            suite(&words(line, ""), &kernels).unwrap();
            suite(&words(line, shorter), &kernels).unwrap();
        }
    }

    #[test]
    fn every_suite_is_there() {
        let command = Suite::augment_subcommands(clap::Command::new("gmm bench"));
        for suite in command.get_subcommands().map(clap::Command::get_name) {
            let there = LINES.iter().any(|(line, _)| line.split(' ').next() == Some(suite));
            assert!(there, "{suite} is not part of all");
        }
    }

    #[test]
    fn shorter_options_replace_their_like() {
        assert_eq!(words("a --b 1 --c --d 2", "--d 3 --b 4"), ["a", "--c", "--d", "3", "--b", "4"]);
    }
}
