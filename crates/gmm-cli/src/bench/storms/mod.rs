//! Storms of allocations: programs that take memory and give it back all the time, on a heap of their
//! own. The same heap lies in unified memory and in the kernel's huge pages; pages that are free again
//! go back to the manager, or to the kernel, and are zero-filled when they are next touched.

mod blocks;
mod dedup;
mod heap;
mod map_reduce;
mod memory;

use std::time::Instant;

use anyhow::ensure;
use clap::ValueEnum;
use gmm::Gmm;

use super::distribution::{Pairs, in_turn};
use super::record::Record;
use super::session::Session;
use heap::Heap;
use memory::{InOrdinary, InUnified, Memory};

/// What a thread's heap has at least.
pub(super) const LEAST_BYTES: u64 = 32 << 20;

/// What is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(in crate::bench) enum Storm {
    /// A deduplicating pipeline: chunks of a stream, cut by their contents; those that are new are
    /// packed.
    Dedup,
    /// Map-reduce over text: an index of where each word stands.
    MapReduce,
    /// Large blocks, taken, filled and given back in no order.
    Blocks,
}

impl Storm {
    fn name(self) -> &'static str {
        match self {
            Self::Dedup => "dedup",
            Self::MapReduce => "map-reduce",
            Self::Blocks => "blocks",
        }
    }

    fn run<M: Memory>(self, heap: &mut Heap<M>, input: &Input) -> anyhow::Result<u64> {
        let result = match self {
            Self::Dedup => dedup::run(heap, &input.stream)?,
            Self::MapReduce => map_reduce::run(heap, &input.text)?,
            Self::Blocks => blocks::run(heap)?,
        };
        ensure!(heap.is_empty(), "{} has not given back all it took", self.name());
        Ok(result)
    }

    /// What the result must be, worked out without a heap; `None` where the program checks itself.
    fn wanted(self, input: &Input) -> Option<u64> {
        match self {
            Self::Dedup => Some(dedup::reference(&input.stream)),
            Self::MapReduce => Some(map_reduce::reference(&input.text)),
            Self::Blocks => None,
        }
    }
}

/// What programs read, in ordinary memory.
struct Input {
    stream: Vec<u64>,
    text: Vec<u8>,
}

/// Measures a storm on `threads` threads, each with a heap of its share of `bytes`.
pub(super) fn measure(
    storm: Storm,
    bytes: u64,
    threads: usize,
    pairs: u32,
    gmm: &Gmm,
    session: &Session,
) -> anyhow::Result<Record> {
    let bytes_each = (bytes / threads as u64).max(LEAST_BYTES);
    let input = Input {
        stream: dedup::stream(bytes_each as usize / 8 / 2),
        text: map_reduce::text(bytes_each as usize / 16),
    };
    let mut unified = Vec::new();
    let mut ordinary = Vec::new();
    for _ in 0..threads {
        unified.push(Heap::new(InUnified::new(gmm, bytes_each)?));
        ordinary.push(Heap::new(InOrdinary::new(bytes_each)?));
    }
    let mut wanted = storm.wanted(&input);
    let mut measured = Pairs::default();
    let before = host_faults(gmm);
    for round in 0..=pairs {
        let (subject, baseline) = in_turn(
            round,
            || on_all(storm, &mut unified, &input),
            || on_all(storm, &mut ordinary, &input),
        );
        let (subject, baseline) = (subject?, baseline?);
        for ((_, results), memory) in [(&subject, "unified"), (&baseline, "ordinary")] {
            for &result in results {
                let wanted = *wanted.get_or_insert(result);
                ensure!(
                    result == wanted,
                    "{} in {memory} memory gives {result:#x}, not {wanted:#x}",
                    storm.name()
                );
            }
        }
        if round > 0 {
            measured.push_seconds(subject.0, baseline.0);
        }
        session.step();
    }
    let after = host_faults(gmm);
    let taken: u64 = unified.iter().map(Heap::nr_taken).sum();
    let record = measured.record(
        "cpu",
        storm.name(),
        format!("threads={threads}"),
        "the same in ordinary huge pages",
    );
    Ok(record
        .with("bytes", bytes_each * threads as u64)
        .with("threads", threads)
        // Of each run: blocks, faults in unified memory, and how long the manager took for these,
        // from when it heard of them.
        .with("blocks_taken", taken / u64::from(pairs + 1))
        .with("faults", (after.0 - before.0) / u64::from(pairs + 1))
        .with("fault_service_seconds", (after.1 - before.1) / f64::from(pairs + 1)))
}

/// The faults of the CPU that were served so far, and how long that took, in seconds.
fn host_faults(gmm: &Gmm) -> (u64, f64) {
    let host = &gmm.snapshot().nodes[0];
    (host.faults, host.fault_service.sum_ns() as f64 * 1e-9)
}

/// Runs it once on each heap, at once; says how long all took, in seconds, and each one's result.
fn on_all<M: Memory>(
    storm: Storm,
    heaps: &mut [Heap<M>],
    input: &Input,
) -> anyhow::Result<(f64, Vec<u64>)> {
    let start = Instant::now();
    let results: anyhow::Result<Vec<u64>> = match heaps {
        [heap] => storm.run(heap, input).map(|result| vec![result]),
        heaps => std::thread::scope(|scope| {
            let run = |heap| scope.spawn(move || storm.run(heap, input));
            let started: Vec<_> = heaps.iter_mut().map(run).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<u64>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            started.into_iter().map(join).collect()
        }),
    };
    Ok((start.elapsed().as_secs_f64(), results?))
}

/// The finaliser of SplitMix64 (G. L. Steele et al., *Fast splittable pseudorandom number
/// generators*, 2014), of a number in a row.
fn random(nr: u64) -> u64 {
    let x = nr.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_storm_on_a_heap_gives_what_it_gives_without() {
        let input = Input { stream: dedup::stream(1 << 20), text: map_reduce::text(1 << 20) };
        for storm in Storm::value_variants() {
            let mut heap = Heap::new(InOrdinary::new(LEAST_BYTES).unwrap());
            let first = storm.run(&mut heap, &input).unwrap();
            assert_eq!(storm.wanted(&input).unwrap_or(first), first, "{storm:?}");
            assert_eq!(storm.run(&mut heap, &input).unwrap(), first, "{storm:?}");
        }
    }
}
