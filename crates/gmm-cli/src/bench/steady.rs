//! Steady state, when all fits: a loop like that of training, which reads and writes every weight once
//! an iteration, on the XPU. In unified memory the first iteration faults the weights in and the others
//! find them there; the baseline is the same loop on an XPU without faults, as vendors have them, over
//! weights that were copied there explicitly. The first iteration (with its faults, or its copy) is
//! reported apart. What comes out is compared with the same computation on the CPU.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use gmm::{Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified, display_bytes};
use gmm_kernels::{Item, train};

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Output, Repeats};
use super::room;
use super::session::Session;

/// How long a row of weights is: a layer is square, 4 MiB.
const WIDTH: usize = 1024;
const LAYER_WEIGHTS: usize = WIDTH * WIDTH;

/// How much of the error a step takes away.
const RATE: f32 = 0.1;

/// What `gmm bench steady` takes.
#[derive(Debug, Args)]
pub(super) struct SteadyArgs {
    /// How much memory the weights take, at least 4MiB; rounded up to layers of 4 MiB
    #[arg(long, default_value = "64MiB", value_parser = crate::demo::size::parse)]
    bytes: u64,
    /// How many iterations are measured in one repeat, beside the first
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iterations: u32,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &SteadyArgs, session: &mut Session) -> anyhow::Result<()> {
    ensure!(args.bytes >= 4 * MIB, "--bytes is {}; it must be at least {}", args.bytes, 4 * MIB);
    // The problem and its solution; weights and XPU of both trainers.
    room::check(args.bytes.saturating_mul(6), "--bytes")?;
    let nr_layers = usize::try_from(args.bytes.div_ceil(4 * MIB))?;
    let rounds = args.repeats.repeats + 1;
    session.begin("steady", u64::from(rounds));
    session.doing("computing on the CPU what must come out");
    let problem = Problem::new(nr_layers);
    let wanted = problem.solve_on_cpu(args.iterations + 1);
    let mut unified = Trainer::new(&problem, true, args)?;
    let mut explicit = Trainer::new(&problem, false, args)?;
    let (mut first, mut steady) = (Pairs::default(), Pairs::default());
    for round in 0..rounds {
        session.doing(if round == 0 { "warming up" } else { "both loops in turn" });
        // The CPU writes the weights, so that they are there alone.
        unified.weights.copy_from_slice(&problem.weights);
        let first_unified = unified.timed(1)?;
        let start = Instant::now();
        explicit.weights.copy_from(0, &problem.weights, 1)?;
        let first_explicit = start.elapsed() + explicit.timed(1)?;
        // Iteration by iteration, so that what disturbs the machine disturbs both.
        let (mut subject, mut baseline) = (Vec::new(), Vec::new());
        for _ in 0..args.iterations {
            subject.push(unified.timed(1)?.as_secs_f64());
            baseline.push(explicit.timed(1)?.as_secs_f64());
        }
        for (trainer, memory) in [(&unified, "unified"), (&explicit, "explicit")] {
            check(&trainer.weights, &wanted, memory)?;
        }
        if round > 0 {
            first.push(first_unified, first_explicit);
            let median = |times: Vec<f64>| Distribution::new(times).median();
            steady.push_seconds(median(subject), median(baseline));
        }
        session.step();
    }
    let bytes = (nr_layers * LAYER_WEIGHTS * 4) as u64;
    let iterations = args.iterations;
    for (case, baseline, pairs) in [
        ("iteration", "the same loop over explicitly copied memory", steady),
        ("first-iteration", "an explicit copy and the same iteration", first),
    ] {
        let record = pairs.record("steady", case, display_bytes(bytes), baseline);
        session.put(record.with("bytes", bytes).with("iterations", iterations))?;
    }
    Ok(())
}

fn check(weights: &[f32], wanted: &[f32], memory: &str) -> anyhow::Result<()> {
    let wrong = weights.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    let Some(nr) = wrong else { return Ok(()) };
    anyhow::bail!("weight {nr} in {memory} memory is {}, not {}", weights[nr], wanted[nr])
}

/// What is computed.
struct Problem {
    weights: Vec<f32>,
    /// The input of every layer, and then what each of its outputs should be.
    vectors: Vec<f32>,
    rate: f32,
}

impl Problem {
    fn new(nr_layers: usize) -> Self {
        let number = |nr: usize| {
            let hash = (nr as u32).wrapping_mul(0x9E37_79B9);
            (hash >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let vectors: Vec<f32> = (0..2 * WIDTH).map(|nr| number(nr + 7)).collect();
        let length_squared: f32 = vectors[..WIDTH].iter().map(|x| x * x).sum();
        let weights = (0..nr_layers * LAYER_WEIGHTS).map(number).collect();
        Self { weights, vectors, rate: RATE / length_squared }
    }

    #[expect(unsafe_code, reason = "kernels take addresses")]
    fn solve_on_cpu(&self, iterations: u32) -> Vec<f32> {
        let mut weights = self.weights.clone();
        let (x, target) = self.vectors.split_at(WIDTH);
        for layer in weights.chunks_mut(LAYER_WEIGHTS) {
            for _ in 0..iterations {
                let (item, layer) = (Item::new(0, 1), layer.as_mut_ptr());
                let (x, target) = (x.as_ptr(), target.as_ptr());
                // SAFETY: a layer and vectors of these shapes, all ours.
                unsafe { train::descend(item, layer, x, target, WIDTH, WIDTH, self.rate) };
            }
        }
        weights
    }
}

/// An XPU that has the weights.
struct Trainer {
    weights: Unified<f32>,
    vectors: Unified<f32>,
    rate: f32,
    stream: Stream,
    descend: Kernel,
}

impl Trainer {
    fn new(problem: &Problem, faults: bool, args: &SteadyArgs) -> anyhow::Result<Self> {
        let bytes = (problem.weights.len() * 4) as u64;
        // The page of the vectors and some more, so that nothing is evicted.
        let memory = bytes.next_multiple_of(PAGE_SIZE) + 16 * MIB;
        let xpu = HostXpu::with_memory(memory);
        let xpu = xpu.config(|config| config.cores(1).replayable_faults(faults));
        let gmm = Gmm::builder().xpu(xpu).build()?;
        let xpu = gmm.xpu(1)?;
        let mut trainer = Self {
            weights: gmm.mmap_named(problem.weights.len(), "bench weights")?,
            vectors: gmm.mmap_named(problem.vectors.len(), "bench vectors")?,
            rate: problem.rate,
            stream: xpu.stream()?,
            descend: xpu.load(&args.kernels.kernels)?.kernel("descend")?,
        };
        trainer.vectors.copy_from_slice(&problem.vectors);
        Ok(trainer)
    }

    /// How long so many iterations take: a launch for each layer.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn timed(&mut self, iterations: u32) -> anyhow::Result<Duration> {
        let x = self.vectors.as_ptr();
        let target = x.wrapping_add(WIDTH);
        let start = Instant::now();
        for _ in 0..iterations {
            let mut last = None;
            for first in (0..self.weights.len()).step_by(LAYER_WEIGHTS) {
                let layer = self.weights.as_mut_ptr().wrapping_add(first);
                let args = (layer, x, target, WIDTH, WIDTH, self.rate);
                // SAFETY: a layer and vectors of these shapes, ours until the last launch, after which
                // no other of the stream runs, is done.
                last = Some(unsafe { self.stream.launch(&self.descend, 1, args)? });
            }
            last.map_or(Ok(()), gmm::Launch::wait)?;
        }
        Ok(start.elapsed())
    }
}
