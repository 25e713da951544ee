//! Repeated sweeps over more than the XPU has, under each eviction policy. The XPU visits all pages
//! in order, again and again. A sweep that reads costs at best one raw copy for each page that has
//! to be brought; one that writes costs another for each that has to be pushed out. Sweeps and raw
//! copies are measured in turn, and what was read and written is checked. Where the machine has swap,
//! what the kernel takes to swap as many pages stands beside it.

use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::{HostXpuConfig, MIN_FRAMES};
use gmm::{Gmm, HostXpu, Kernel, NodeId, PAGE_SIZE, Stream, Unified};
use gmm_core::EvictionPolicy;
use gmm_kernels::stress::SWEEP_WORDS;

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Link, Output, parse_factor, parse_policy, set_policy};
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use super::swap::Swap;

const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// Sweeps before the first that is measured: the policy has learned by then.
const WARM_UP_SWEEPS: u32 = 3;

/// What `gmm bench oversubscribe` takes.
#[derive(Debug, Args)]
pub(super) struct OversubscribeArgs {
    /// How much memory the XPU has, at least 8MiB; rounded down to 2 MiB pages
    #[arg(long, default_value = "128MiB", value_parser = crate::demo::size::parse)]
    xpu_memory: u64,
    /// How many times that is swept over
    #[arg(long, value_delimiter = ',', default_value = "1.25,1.5,2,4", value_parser = parse_factor)]
    factors: Vec<f64>,
    /// Under which eviction policies
    #[arg(long, value_delimiter = ',', default_value = "dip,lru,fifo16", value_parser = parse_policy)]
    policies: Vec<EvictionPolicy>,
    /// How many sweeps are measured, at least 5 (after three to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    sweeps: u32,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &OversubscribeArgs, session: &mut Session) -> anyhow::Result<()> {
    let least = MIN_FRAMES * PAGE_SIZE;
    ensure!(
        args.xpu_memory >= least,
        "--xpu-memory is {}; it must be at least {least}",
        args.xpu_memory
    );
    // Host frames and XPU frames of the raw copies, the XPU, and the data.
    let most = args.factors.iter().copied().fold(1.0, f64::max);
    let wanted = args.xpu_memory as f64 * (3.0 + most);
    room::check(wanted as u64, "--xpu-memory or --factors")?;
    let nr_frames = args.xpu_memory / PAGE_SIZE;
    let configure = |config: HostXpuConfig| args.link.configure(config.cores(1).copy_engines(1));
    let raw = RawCopies::new(nr_frames, configure(HostXpuConfig::new(args.xpu_memory)))?;
    let mut swap = match Swap::find()? {
        Ok(swap) => Some(swap),
        Err(lack) => {
            session.say(format!("oversubscribe: {lack}"));
            None
        }
    };
    session.begin("oversubscribe", 2 * (args.factors.len() * args.policies.len()) as u64);
    for &factor in &args.factors {
        for &policy in &args.policies {
            let mut bench = Bench::new(args, factor, policy, configure)?;
            for write in [false, true] {
                session.doing(format!("{} sweeps over {factor} times the memory", policy.name()));
                for record in bench.measure(&raw, swap.as_mut(), write, args.sweeps)? {
                    session.put(record)?;
                }
                session.step();
            }
            bench.check()?;
        }
    }
    Ok(())
}

struct Bench {
    gmm: Gmm,
    data: Unified<u64>,
    /// The sum of each sweep.
    sums: Unified<u64>,
    /// What the sums must be.
    expected: Vec<u64>,
    stream: Stream,
    sweep: Kernel,
    nr_frames: u64,
    nr_pages: u64,
    policy: EvictionPolicy,
    factor: f64,
    link: Link,
    /// What the last sweep that wrote has stored in the first page.
    value: u64,
}

impl Bench {
    fn new(
        args: &OversubscribeArgs,
        factor: f64,
        policy: EvictionPolicy,
        configure: impl FnOnce(HostXpuConfig) -> HostXpuConfig,
    ) -> anyhow::Result<Self> {
        let nr_frames = args.xpu_memory / PAGE_SIZE;
        let nr_pages = (nr_frames as f64 * factor).round() as u64;
        // One frame more, for the sums.
        let xpu = HostXpu::with_memory(args.xpu_memory + PAGE_SIZE).config(configure);
        let gmm = Gmm::builder().xpu(xpu).build()?;
        set_policy(&gmm, policy)?;
        let xpu = gmm.xpu(1)?;
        let mut bench = Self {
            data: gmm.mmap_named(nr_pages as usize * PAGE_WORDS, "bench data")?,
            sums: gmm.mmap_named(PAGE_WORDS, "bench sums")?,
            expected: Vec::new(),
            stream: xpu.stream()?,
            sweep: xpu.load(&args.kernels.kernels)?.kernel("sweep")?,
            gmm,
            nr_frames,
            nr_pages,
            policy,
            factor,
            link: args.link.clone(),
            value: 1000,
        };
        let value = bench.value;
        bench.each_word(|word, page| *word = value + page);
        Ok(bench)
    }

    /// Every word that a sweep visits, and its page.
    fn each_word(&mut self, mut visit: impl FnMut(&mut u64, u64)) {
        for (page, words) in (0..).zip(self.data.chunks_mut(PAGE_WORDS)) {
            words.iter_mut().step_by(PAGE_WORDS / SWEEP_WORDS).for_each(|word| visit(word, page));
        }
    }

    /// One sweep; says how long it took.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn sweep(&mut self, write: bool) -> anyhow::Result<f64> {
        let value = if write { self.value + 1000 } else { 0 };
        if write {
            self.value = value;
            self.expected.push(0);
        } else {
            let pages = (0..self.nr_pages).fold(0, |sum, page| sum + self.value + page);
            self.expected.push(pages * SWEEP_WORDS as u64);
        }
        let place = self.expected.len() - 1;
        ensure!(place < self.sums.len(), "more than {} sweeps", self.sums.len());
        let out = self.sums.as_mut_ptr().wrapping_add(place);
        let args = (self.data.as_mut_ptr(), self.nr_pages, value, out);
        let start = Instant::now();
        // SAFETY: both buffers are as long as the kernel is told, and are ours until it is done.
        unsafe { self.stream.launch(&self.sweep, 1, args)?.wait()? };
        Ok(start.elapsed().as_secs_f64())
    }

    fn measure(
        &mut self,
        raw: &RawCopies,
        mut swap: Option<&mut Swap>,
        write: bool,
        sweeps: u32,
    ) -> anyhow::Result<Vec<Record>> {
        for _ in 0..WARM_UP_SWEEPS {
            self.sweep(write)?;
        }
        let (mut seconds, mut rates, mut bounds, mut ratios) = (vec![], vec![], vec![], vec![]);
        let (mut pages_moved, mut pages_written_back) = (0, 0);
        let mut against_swap = Pairs::default();
        for _ in 0..sweeps {
            let in_page = raw.to_xpu()?.as_secs_f64() / self.nr_frames as f64;
            let before = self.copied();
            let took = self.sweep(write)?;
            let after = self.copied();
            let out_page = raw.to_cpu()?.as_secs_f64() / self.nr_frames as f64;
            let (brought, pushed) = (after.0 - before.0, after.1 - before.1);
            let bound = brought as f64 * in_page + pushed as f64 * out_page;
            let bytes = ((brought + pushed) * PAGE_SIZE) as f64;
            pages_moved += brought;
            pages_written_back += pushed;
            seconds.push(took);
            rates.push(bytes / took);
            bounds.push(bytes / bound);
            ratios.push(bound / took);
            if let Some(swap) = swap.as_deref_mut() {
                let page = swap.round()?;
                let swapped = brought as f64 * page.brought + pushed as f64 * page.pushed;
                against_swap.push_seconds(took, swapped);
            }
        }
        let (access, policy) = (if write { "write" } else { "read" }, self.policy.name());
        let case = format!("{access}-{}-{policy}", self.factor);
        let swap_case = format!("{case}-against-swap");
        let parameter = self.link.name(format!("factor={}", self.factor));
        // Bytes copied over the time of a sweep, and over the time that raw copies take for as many
        // pages in each direction; pages of all measured sweeps that were brought to the XPU, the
        // least that any policy could do with, and pages pushed out with a copy.
        let baseline = "raw copies of what moved";
        let mut records = vec![
            Record::new("oversubscribe", case, &parameter, baseline, ratios)
                .seconds(Distribution::new(seconds).median())
                .bytes_per_s(Distribution::new(rates).median())
                .with("bound_bytes_per_s", Distribution::new(bounds).median())
                .with("policy", policy)
                .with("factor", self.factor)
                .with("sweeps", sweeps)
                .with("pages_moved", pages_moved)
                .with(
                    "pages_optimum",
                    optimum(self.nr_frames, self.nr_pages, WARM_UP_SWEEPS, sweeps),
                )
                .with("pages_written_back", pages_written_back),
        ];
        if swap.is_some() {
            let baseline = "the kernel's swap of what moved";
            records.push(against_swap.record("oversubscribe", swap_case, parameter, baseline));
        }
        Ok(records)
    }

    /// Pages copied so far to the XPU, and from it.
    fn copied(&self) -> (u64, u64) {
        let snapshot = self.gmm.snapshot();
        let pages = |from, to| {
            let pairs = snapshot.migrated_bytes.iter();
            let of_pair = pairs.filter(|(f, t, _)| (*f, *t) == (NodeId(from), NodeId(to)));
            of_pair.map(|(_, _, bytes)| bytes / PAGE_SIZE).sum()
        };
        (pages(0, 1), pages(1, 0))
    }

    /// What was read, and what was written last, is what it should be.
    fn check(&mut self) -> anyhow::Result<()> {
        for (sweep, (sum, expected)) in self.sums.iter().zip(&self.expected).enumerate() {
            ensure!(sum == expected, "sweep {sweep} read {sum}, not {expected}");
        }
        let (value, mut nr_wrong) = (self.value, 0);
        self.each_word(|word, page| nr_wrong += u64::from(*word != value + page));
        ensure!(nr_wrong == 0, "{nr_wrong} words are not what was written");
        Ok(())
    }
}

/// The fewest pages that any policy brings during `sweeps` sweeps over `nr_pages`, after `before`.
fn optimum(nr_frames: u64, nr_pages: u64, before: u32, sweeps: u32) -> u64 {
    let sweep: Vec<u64> = (0..nr_pages).collect();
    let all = vec![sweep; (before + sweeps) as usize];
    gmm_sim::optimum(&all, nr_frames as usize)[before as usize..].iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimum_keeps_what_fits() {
        // With one frame fewer than pages each eviction saves all others for one more sweep.
        assert_eq!(optimum(4, 4, 1, 10), 0);
        assert_eq!(optimum(1, 2, 1, 10), 20);
        // (N - M) / (N - 1) of all visits, in the long run.
        let brought = optimum(64, 128, 3, 127) as f64;
        let expected = 127.0 * 128.0 * (64.0 / 127.0);
        assert!((brought / expected - 1.0).abs() < 0.01, "{brought}, not {expected}");
    }
}
