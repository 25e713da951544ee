//! Matrix products from end to end: `C = A B`, where A and B lie in host memory, and C is zero-filled
//! on the XPU; in single and half precision, with one core and several that fault on the same pages,
//! brought by faults alone and with prefetches, where all fits and where it does not. The baseline
//! copies explicitly as many pages as must come at least, and computes the product over matrices that
//! are there. What the XPU computes is compared with the same kernel on the CPU.

mod machine;
mod matrices;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use gmm::PAGE_SIZE;
use gmm::hostxpu::{HostXpuConfig, MAX_CORES, MIN_FRAMES};
use gmm_core::EvictionPolicy;

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Link, Output, Repeats, parse_factor, parse_policy};
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use machine::{Counts, Machine};
use matrices::{Element, Matrices, Shape};

/// What `gmm bench product` takes.
#[derive(Debug, Args)]
pub(super) struct ProductArgs {
    /// How long the rows of A and the columns of B are
    #[arg(long, value_delimiter = ',', default_value = "1024,5120,10240,20480",
          value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    k: Vec<u32>,
    /// Of which precision the numbers are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fp32,fp16")]
    types: Vec<Type>,
    /// How many rows of A a launch multiplies with B. Few, since an XPU that is a processor computes
    /// so little that copies would not matter beside a large product
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    n: u32,
    /// How many times as many rows A has: so many launches, one after the other, read all of B. Where
    /// that does not fit, it has to come again for each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    blocks: u32,
    /// How many columns B has
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536))]
    m: u32,
    /// How many cores the XPU has. Several fault on the same pages at once: one fault is served, the
    /// others are coalesced
    #[arg(long, value_delimiter = ',', default_value = "1,4",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CORES)))]
    cores: Vec<u32>,
    /// How many times the XPU's memory the matrices are; 1 is that all fits
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = parse_factor)]
    factors: Vec<f64>,
    /// Under which eviction policies, where not all fits
    #[arg(long, value_delimiter = ',', default_value = "dip", value_parser = parse_policy)]
    policies: Vec<EvictionPolicy>,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Type {
    /// Single precision.
    Fp32,
    /// Half precision; sums are of single precision.
    Fp16,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
        }
    }
}

impl ProductArgs {
    /// The factors, each with the policies that are told apart under it.
    fn memories(&self) -> impl Iterator<Item = (f64, EvictionPolicy)> {
        self.factors.iter().flat_map(|&factor| {
            let nr = if factor > 1.0 { self.policies.len() } else { 1 };
            self.policies[..nr].iter().map(move |&policy| (factor, policy))
        })
    }

    fn shape(&self, k: u32) -> Shape {
        let [n, k, m, blocks] = [self.n, k, self.m, self.blocks].map(|number| number as usize);
        Shape { n, k, m, blocks }
    }
}

pub(super) fn run(args: &ProductArgs, session: &mut Session) -> anyhow::Result<()> {
    let settings = args.k.len() * args.types.len() * args.cores.len() * args.memories().count();
    for &k in &args.k {
        let pages = match args.types.contains(&Type::Fp32) {
            true => args.shape(k).pages::<f32>(),
            false => args.shape(k).pages::<u16>(),
        };
        // The matrices; host frames and XPU frames of the raw copies; matrices and XPU where all fits, and
        // where it does not.
        room::check((pages * PAGE_SIZE).saturating_mul(7), "--k, --m, --n or --blocks")?;
    }
    session.begin("product", settings as u64 * u64::from(args.repeats.repeats + 1));
    for &ty in &args.types {
        for &k in &args.k {
            match ty {
                Type::Fp32 => of_shape::<f32>(args, ty, k, session)?,
                Type::Fp16 => of_shape::<u16>(args, ty, k, session)?,
            }
        }
    }
    Ok(())
}

fn of_shape<N: Element>(
    args: &ProductArgs,
    ty: Type,
    k: u32,
    session: &mut Session,
) -> anyhow::Result<()> {
    session.doing(format!("the product in {} with k = {k} on the CPU", ty.name()));
    let matrices = Matrices::<N>::new(args.shape(k));
    let raw_frames = matrices.shape.operand_pages::<N>().max(MIN_FRAMES);
    let config = HostXpuConfig::new(raw_frames * PAGE_SIZE).cores(1).copy_engines(1);
    let raw = RawCopies::new(raw_frames, args.link.configure(config))?;
    for &cores in &args.cores {
        let mut fitting = Machine::new(args, &matrices, cores, None)?;
        for (factor, policy) in args.memories() {
            let setting = Setting { ty, k, blocks: args.blocks, cores, factor, policy };
            session.doing(setting.to_string());
            let measured = setting.measure(args, &matrices, &raw, &mut fitting, session)?;
            for record in setting.records(args, matrices.shape, measured) {
                session.put(record.with("operand_bytes", matrices.shape.operand_bytes::<N>()))?;
            }
        }
    }
    Ok(())
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug)]
struct Setting {
    ty: Type,
    k: u32,
    blocks: u32,
    cores: u32,
    factor: f64,
    policy: EvictionPolicy,
}

impl std::fmt::Display for Setting {
    /// As records name it: what is as usual is left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "k={} {}", self.k, self.ty.name())?;
        if self.blocks > 1 {
            write!(f, " blocks={}", self.blocks)?;
        }
        if self.cores > 1 {
            write!(f, " cores={}", self.cores)?;
        }
        if self.factor > 1.0 {
            write!(f, " factor={} {}", self.factor, self.policy.name())?;
        }
        Ok(())
    }
}

/// The repeats of one way to bring the matrices.
#[derive(Default)]
struct Samples {
    pairs: Pairs,
    counts: Vec<Counts>,
}

/// By faults alone, and with prefetches; and how many pages must come at least.
struct Measured {
    by_faults: Samples,
    prefetched: Samples,
    least_pages: u64,
}

impl Setting {
    fn measure<N: Element>(
        &self,
        args: &ProductArgs,
        matrices: &Matrices<N>,
        raw: &RawCopies,
        fitting: &mut Machine<N>,
        session: &Session,
    ) -> anyhow::Result<Measured> {
        let frames = (matrices.shape.pages::<N>() as f64 / self.factor).round() as u64;
        let mut own = if self.factor > 1.0 {
            ensure!(
                frames >= MIN_FRAMES,
                "an XPU that the matrices of {self} exceed has {frames} frames; it must have {MIN_FRAMES}: \
                 take a larger --k or --m, or a smaller factor"
            );
            Some(Machine::new(args, matrices, self.cores, Some((frames, self.policy)))?)
        } else {
            None
        };
        let least_pages = matrices.shape.least_moved::<N>(frames);
        let mut measured =
            Measured { by_faults: Samples::default(), prefetched: Samples::default(), least_pages };
        let raw_pages = matrices.shape.operand_pages::<N>().max(MIN_FRAMES);
        for round in 0..=args.repeats.repeats {
            let copies = raw.to_xpu()?.as_secs_f64() * least_pages as f64 / raw_pages as f64;
            let mut times = [0.0; 2];
            for (prefetch, took) in [false, true].into_iter().zip(&mut times) {
                let subject = own.as_mut().unwrap_or(fitting);
                let (seconds, counts) = subject.bring_and_multiply(matrices, prefetch)?;
                *took = seconds;
                if round > 0 {
                    let samples = match prefetch {
                        false => &mut measured.by_faults,
                        true => &mut measured.prefetched,
                    };
                    samples.counts.push(counts);
                }
            }
            // The matrices are there since the last product.
            let resident = fitting.again(matrices)?;
            if round > 0 {
                measured.by_faults.pairs.push_seconds(times[0], copies + resident);
                measured.prefetched.pairs.push_seconds(times[1], copies + resident);
            }
            session.step();
        }
        Ok(measured)
    }

    fn records(
        &self,
        args: &ProductArgs,
        shape: Shape,
        measured: Measured,
    ) -> impl Iterator<Item = Record> {
        let parameter = args.link.name(self.to_string());
        let Measured { by_faults, prefetched, least_pages } = measured;
        [("faults", by_faults), ("prefetch", prefetched)].into_iter().map(move |(case, samples)| {
            let median = |count: fn(&Counts) -> u64| {
                let counts = samples.counts.iter().map(|counts| count(counts) as f64);
                Distribution::new(counts.collect()).median()
            };
            samples
                .pairs
                .record("product", case, &parameter, "explicit copies, and the product")
                .with("faults", median(|counts| counts.faults))
                .with("coalesced_faults", median(|counts| counts.coalesced))
                .with("pages_moved", median(|counts| counts.pages_moved))
                .with("pages_least", least_pages)
                .with("type", self.ty.name())
                .with("k", self.k)
                .with("n", shape.n * shape.blocks)
                .with("m", shape.m)
                .with("cores", self.cores)
                .with("factor", self.factor)
                // One of so many that were measured: a product that fits is the first of a row then.
                .with("factors", args.factors.len())
                .with("policy", self.policy.name())
        })
    }
}
