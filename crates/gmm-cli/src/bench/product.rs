//! A matrix product from end to end: `C = A B`, where A and B lie in host memory, and C is zero-filled
//! on the XPU. The baseline is what an explicit copy of A and B takes, and the product over them where
//! they are; what the XPU computes is compared with the same kernel on the CPU.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified};
use gmm_kernels::linear::ROWS_AT_ONCE;
use gmm_kernels::{Item, linear};

use super::distribution::Pairs;
use super::options::{Kernels, Link, Output, Repeats};
use super::raw::RawCopies;
use super::session::Session;

/// What `gmm bench product` takes.
#[derive(Debug, Args)]
pub(super) struct ProductArgs {
    /// How long the rows of A and the columns of B are
    #[arg(long, value_delimiter = ',', default_value = "1024,5120,10240,20480",
          value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    k: Vec<u32>,
    /// How many rows A has. Few, since an XPU that is a processor computes so little that copies
    /// would not matter beside a large product
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    n: u32,
    /// How many columns B has
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536))]
    m: u32,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &ProductArgs, session: &mut Session) -> anyhow::Result<()> {
    session.begin("product", args.k.len() as u64 * u64::from(args.repeats.repeats + 1));
    for &k in &args.k {
        session.doing(format!("k = {k}"));
        let mut product = Product::new(args, k as usize)?;
        let moved_pages = product.a.pages().nr_pages + product.b.pages().nr_pages;
        let frames = moved_pages.max(MIN_FRAMES);
        let config = HostXpuConfig::new(frames * PAGE_SIZE).cores(1).copy_engines(1);
        let raw = RawCopies::new(frames, args.link.configure(config))?;
        let (mut by_faults, mut prefetched) = (Pairs::default(), Pairs::default());
        let mut faults = 0;
        for round in 0..=args.repeats.repeats {
            let copies = raw.to_xpu()?.mul_f64(moved_pages as f64 / frames as f64);
            product.take_to_cpu()?;
            let before = product.faults();
            let faulting = product.compute(false)?;
            faults = product.faults() - before;
            product.take_to_cpu()?;
            let prefetching = product.compute(true)?;
            product.c.discard()?;
            let resident = product.compute(false)?;
            if round > 0 {
                by_faults.push(faulting, copies + resident);
                prefetched.push(prefetching, copies + resident);
            }
            session.step();
        }
        for (case, pairs) in [("faults", by_faults), ("prefetch", prefetched)] {
            let parameter = args.link.name(format!("k={k}"));
            let record =
                pairs.record("product", case, parameter, "explicit copies, and the product");
            session.put(
                record
                    .with("bytes", moved_pages * PAGE_SIZE)
                    .with("faults", faults)
                    .with("k", k)
                    .with("n", args.n)
                    .with("m", args.m),
            )?;
        }
    }
    Ok(())
}

struct Product {
    /// `n` rows of `k`.
    a: Unified<f32>,
    /// `m` columns of `k`, one after the other.
    b: Unified<f32>,
    c: Unified<f32>,
    /// What is added to each column of the product: nothing.
    zeros: Unified<f32>,
    wanted: Vec<f32>,
    shape: [usize; 3],
    stream: Stream,
    linear: Kernel,
    gmm: Gmm,
}

impl Product {
    fn new(args: &ProductArgs, k: usize) -> anyhow::Result<Self> {
        let (n, m) = (args.n as usize, args.m as usize);
        let bytes = |len: usize| (len as u64 * 4).next_multiple_of(PAGE_SIZE);
        let memory = bytes(n * k) + bytes(m * k) + bytes(n * m) + bytes(m) + 16 * MIB;
        let xpu = HostXpu::with_memory(memory)
            .config(|config| args.link.configure(config.cores(1).copy_engines(1)));
        let gmm = Gmm::builder().xpu(xpu).build()?;
        let xpu = gmm.xpu(1)?;
        let mut product = Self {
            a: gmm.mmap_named(n * k, "bench A")?,
            b: gmm.mmap_named(m * k, "bench B")?,
            c: gmm.mmap_named(n * m, "bench C")?,
            zeros: gmm.mmap_named(m, "bench zeros")?,
            wanted: vec![0.0; n * m],
            shape: [n, k, m],
            stream: xpu.stream()?,
            linear: xpu.load(&args.kernels.kernels)?.kernel("linear")?,
            gmm,
        };
        product.a.iter_mut().enumerate().for_each(|(nr, x)| *x = number(nr, 3));
        product.b.iter_mut().enumerate().for_each(|(nr, x)| *x = number(nr, 5));
        product.compute_on_cpu();
        Ok(product)
    }

    #[expect(unsafe_code, reason = "kernels take addresses")]
    fn compute_on_cpu(&mut self) {
        let [n, k, m] = self.shape;
        let zeros = vec![0.0f32; m];
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), self.wanted.as_mut_ptr());
        // SAFETY: matrices of these shapes, all ours.
        unsafe { linear::linear(Item::new(0, 1), b, zeros.as_ptr(), a, c, n, k, m) };
    }

    /// The CPU writes to A and B, which takes them there; C is dropped.
    fn take_to_cpu(&mut self) -> anyhow::Result<()> {
        const PAGE_NUMBERS: usize = PAGE_SIZE as usize / 4;
        for (matrix, seed) in [(&mut self.a, 3), (&mut self.b, 5)] {
            let firsts = matrix.iter_mut().enumerate().step_by(PAGE_NUMBERS);
            firsts.for_each(|(nr, x)| *x = number(nr, seed));
        }
        Ok(self.c.discard()?)
    }

    /// Computes the product on the XPU, and compares it; says how long the XPU took, and what brings
    /// the matrices there.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn compute(&mut self, prefetch: bool) -> anyhow::Result<Duration> {
        let [n, k, m] = self.shape;
        let (a, b, zeros) = (self.a.as_ptr(), self.b.as_ptr(), self.zeros.as_ptr());
        let args = (b, zeros, a, self.c.as_mut_ptr(), n, k, m);
        let start = Instant::now();
        let coming = match prefetch {
            true => Some([self.a.will_need_async(1)?, self.b.will_need_async(1)?]),
            false => None,
        };
        // SAFETY: matrices of these shapes, ours until the launch is done.
        unsafe { self.stream.launch(&self.linear, m.div_ceil(ROWS_AT_ONCE) as u64, args)?.wait()? };
        for prefetch in coming.into_iter().flatten() {
            prefetch.wait()?;
        }
        let took = start.elapsed();
        let wrong = self.c.iter().zip(&self.wanted).position(|(got, wanted)| got != wanted);
        ensure!(wrong.is_none(), "the product differs from the CPU's at {wrong:?}");
        Ok(took)
    }

    /// Faults of the XPU that were served so far.
    fn faults(&self) -> u64 {
        self.gmm.snapshot().nodes[1].faults
    }
}

/// A number in -1..1.
fn number(nr: usize, seed: u32) -> f32 {
    let hash = (nr as u32 ^ seed.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0x9E37_79B1);
    ((hash ^ (hash >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.0
}
