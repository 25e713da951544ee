//! What the size of pages does to programs: the same work in memory that is mapped with 2 MiB pages
//! and with 4 KiB pages. No manager takes part: this is why one that moves 4 KiB pages, or leaves
//! such mappings behind, slows down what runs later.

use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use gmm::MIB;

use super::distribution::Pairs;
use super::options::{Output, Repeats};
use super::ordinary::{Ordinary, Pages};
use super::programs::{self, Program};
use super::room;
use super::session::Session;

/// What `gmm bench pagesize` takes.
#[derive(Debug, Args)]
pub(super) struct PagesizeArgs {
    /// How much memory is used, at least 2MiB; rounded up to 2 MiB pages
    #[arg(long, default_value = "64MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &PagesizeArgs, session: &mut Session) -> anyhow::Result<()> {
    ensure!(args.bytes >= 2 * MIB, "--bytes is {}; it must be at least {}", args.bytes, 2 * MIB);
    room::check(args.bytes.saturating_mul(2), "--bytes")?;
    let mut huge = Ordinary::new(args.bytes, Pages::Huge)?;
    let mut small = Ordinary::new(args.bytes, Pages::Small)?;
    let rounds = args.repeats.repeats + 1;
    session.begin("pagesize", Program::ALL.len() as u64 * u64::from(rounds));
    for program in Program::ALL {
        session.doing(program.name());
        let mut pairs = Pairs::default();
        for round in 0..rounds {
            let (subject, got) = timed(program, &mut huge);
            let (baseline, wanted) = timed(program, &mut small);
            ensure!(
                got == wanted,
                "{} gives {got:x?} with 2 MiB pages and {wanted:x?} with 4 KiB pages",
                program.name()
            );
            if round > 0 {
                pairs.push_seconds(subject, baseline);
            }
            session.step();
        }
        huge.check_pages(Pages::Huge)?;
        small.check_pages(Pages::Small)?;
        let name = "the same with 4 KiB pages";
        let record = pairs.record("pagesize", program.name(), "2 MiB pages", name);
        session.put(record.with("bytes", huge.len() as u64 * 8))?;
    }
    Ok(())
}

fn timed(program: Program, memory: &mut [u64]) -> (f64, (u64, u64)) {
    programs::prepare(memory);
    let start = Instant::now();
    let result = program.run(memory, 1);
    (start.elapsed().as_secs_f64(), (result, programs::checksum(memory)))
}
