//! What memory that XPUs can see costs a program on the CPU: first touches against those of the
//! kernel's own huge pages, programs in memory that was touched before, and programs that take memory
//! and give it back all the time.

use std::time::Instant;

use anyhow::ensure;
use clap::{Args, ValueEnum as _};
use gmm::{Gmm, MIB, Unified, display_bytes};

use super::distribution::{Distribution, Pairs, in_turn};
use super::options::Output;
use super::ordinary::{Ordinary, Pages};
use super::programs::{self, Program};
use super::record::Record;
use super::room;
use super::session::Session;
use super::storms::{self, Storm};

/// What `gmm bench cpu` takes.
#[derive(Debug, Args)]
pub(super) struct CpuArgs {
    /// How much memory is used, at least 2MiB; rounded up to 2 MiB pages
    #[arg(long, default_value = "64MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    /// How many pairs are measured, at least 6 (plus one to warm up); from 20 on the interval of the
    /// median says something
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// With how many threads programs run
    #[arg(long, value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Which programs run [default: all, if no storm is named]
    #[arg(long, value_enum, value_delimiter = ',')]
    programs: Vec<Program>,
    /// Which storms of allocations run, on heaps of 32 MiB a thread at least [default: all,
    /// if no program is named]
    #[arg(long, value_enum, value_delimiter = ',')]
    storms: Vec<Storm>,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &CpuArgs, session: &mut Session) -> anyhow::Result<()> {
    ensure!(args.bytes >= 2 * MIB, "--bytes is {}; it must be at least {}", args.bytes, 2 * MIB);
    // Unified and ordinary memory, and the reference; of storms two heaps a thread, and what they store.
    let threads = args.threads.iter().max().map_or(1, |threads| u64::from(*threads));
    room::check(
        args.bytes.max(threads * storms::LEAST_BYTES).saturating_mul(3),
        "--bytes or --threads",
    )?;
    let gmm = Gmm::builder().build()?;
    let mut ordinary = Ordinary::new(args.bytes, Pages::Huge)?;
    let mut unified: Unified<u64> = gmm.mmap_named(ordinary.len(), "bench data")?;
    // Who names some of the one kind does not ask for the other.
    let (programs, storms) = match (&args.programs[..], &args.storms[..]) {
        ([], []) => (&Program::ALL[..], Storm::value_variants()),
        some => some,
    };
    let cases = 1 + (programs.len() + storms.len()) * args.threads.len();
    session.begin("cpu", cases as u64 * u64::from(args.pairs + 1));

    session.doing("first touches");
    session.put(first_touches(args, &mut unified, &mut ordinary, session)?)?;
    ordinary.check_pages(Pages::Huge)?;
    for &program in programs {
        for &threads in &args.threads {
            session.doing(format!("{} with {threads} threads", program.name()));
            let record =
                run_program(args, program, threads as usize, &mut unified, &mut ordinary, session)?;
            session.put(record)?;
        }
    }
    drop((unified, ordinary));
    for &storm in storms {
        for &threads in &args.threads {
            session.doing(format!("{storm:?} with {threads} threads"));
            let (threads, pairs) = (threads as usize, args.pairs);
            let record = storms::measure(storm, args.bytes, threads, pairs, &gmm, session)?;
            session.put(with_interval(record))?;
        }
    }
    Ok(())
}

/// A pass that touches every page for the first time, and writes every word. Of words that were not
/// zero it makes others than [`check_pass`] wants.
fn write_pass(words: &mut [u64]) -> f64 {
    let start = Instant::now();
    words.iter_mut().enumerate().for_each(|(nr, word)| *word = word.wrapping_add(nr as u64 ^ 1));
    start.elapsed().as_secs_f64()
}

fn check_pass(words: &[u64]) -> anyhow::Result<()> {
    let wrong = words.iter().enumerate().find(|(nr, word)| **word != *nr as u64 ^ 1);
    let Some((nr, word)) = wrong else { return Ok(()) };
    anyhow::bail!("word {nr} is {word:#x} after a pass over fresh memory, not {:#x}", nr as u64 ^ 1)
}

fn first_touches(
    args: &CpuArgs,
    unified: &mut Unified<u64>,
    ordinary: &mut Ordinary,
    session: &Session,
) -> anyhow::Result<Record> {
    let mut pairs = Pairs::default();
    for round in 0..=args.pairs {
        unified.discard()?;
        let subject = write_pass(unified);
        ordinary.discard()?;
        let baseline = write_pass(ordinary);
        check_pass(unified)?;
        check_pass(ordinary)?;
        // The first is of memory that is not in use yet.
        if round > 0 {
            pairs.push_seconds(subject, baseline);
        }
        session.step();
    }
    let bytes = ordinary.len() as u64 * 8;
    let name = "a fault of the kernel's own huge pages, and the same pass";
    Ok(with_interval(pairs.record_of_bytes("cpu", "zero-fill", display_bytes(bytes), name, bytes)))
}

fn run_program(
    args: &CpuArgs,
    program: Program,
    threads: usize,
    unified: &mut [u64],
    ordinary: &mut [u64],
    session: &Session,
) -> anyhow::Result<Record> {
    let timed = |memory: &mut [u64]| {
        programs::prepare(memory);
        let start = Instant::now();
        let result = program.run(memory, threads);
        (start.elapsed().as_secs_f64(), (result, programs::checksum(memory)))
    };
    let mut reference = vec![0; ordinary.len()];
    let (_, wanted) = timed(&mut reference);
    drop(reference);
    let mut pairs = Pairs::default();
    for round in 0..=args.pairs {
        let (subject, baseline) = in_turn(round, || timed(unified), || timed(ordinary));
        for (result, memory) in [(subject.1, "unified"), (baseline.1, "ordinary")] {
            ensure!(
                result == wanted,
                "{} with {threads} threads in {memory} memory gives {result:x?}, not {wanted:x?}",
                program.name()
            );
        }
        if round > 0 {
            pairs.push_seconds(subject.0, baseline.0);
        }
        session.step();
    }
    let parameter = format!("threads={threads}");
    let record = pairs.record("cpu", program.name(), parameter, "the same in ordinary huge pages");
    Ok(with_interval(record.with("bytes", ordinary.len() as u64 * 8).with("threads", threads)))
}

/// Adds the interval that holds the median with at least 95%.
fn with_interval(record: Record) -> Record {
    match Distribution::new(record.ratios.clone()).median_interval_95() {
        Some((low, high)) => record.with("ratio_low_95", low).with("ratio_high_95", high),
        None => record,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_over_memory_that_is_not_zero_is_noticed() {
        let mut words = vec![0; 100];
        write_pass(&mut words);
        check_pass(&words).unwrap();
        words[40] = 0;
        write_pass(&mut words);
        assert!(check_pass(&words).unwrap_err().to_string().starts_with("word 0"));
        let mut words = vec![0; 100];
        words[40] = 1;
        write_pass(&mut words);
        assert!(check_pass(&words).unwrap_err().to_string().starts_with("word 40"));
    }
}
