//! What grows with what is mapped, and with who faults at once: nothing should. The same pages' worth of
//! work in a region of 1 GiB and in one that is far larger, a few pages of each touched, far apart; and
//! faults of one, two and four threads or cores at once against those of one.

use std::fs;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Args;
use gmm::{Access, Gmm, HostXpu, Kernel, MIB, PAGE_SIZE, Stream, Unified, display_bytes};
use gmm_core::{Processor, Resolved, Space, VirtAddr};

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Output, Repeats};
use super::room;
use super::session::Session;

/// What the large region is compared with.
const SMALL_BYTES: u64 = 1 << 30;

const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// What `gmm bench scale` takes.
#[derive(Debug, Args)]
pub(super) struct ScaleArgs {
    /// How much is mapped, more than 1GiB
    #[arg(long, default_value = "1024GiB", value_parser = crate::demo::size::parse)]
    mapped: u64,
    /// How many pages of each region are touched, evenly apart
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=512))]
    touched: u32,
    /// How many lookups each thread makes in one repeat
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    lookups: u32,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &ScaleArgs, session: &mut Session) -> anyhow::Result<()> {
    ensure!(
        args.mapped > SMALL_BYTES,
        "--mapped is {}; it must be more than {SMALL_BYTES}",
        args.mapped
    );
    let touched = u64::from(args.touched);
    // Both regions, and the XPU; what is mapped beside costs address space only.
    room::check(4 * touched * PAGE_SIZE, "--touched")?;
    session.begin("scale", 5 * u64::from(args.repeats.repeats + 1));
    session.doing("mapping and touching");
    let memory = 2 * touched * PAGE_SIZE + 16 * MIB;
    let xpu = HostXpu::with_memory(memory).config(|config| config.cores(4));
    let gmm = Gmm::builder().xpu(xpu).build()?;
    let machine = Machine::new(&gmm, args)?;
    let mut small = Region::new(&gmm, SMALL_BYTES, touched)?;
    machine.count(&mut small, 1)?;
    let before = resident_anonymous_bytes()?;
    let mut large = Region::new(&gmm, args.mapped, touched)?;
    machine.count(&mut large, 1)?;
    let manager_bytes = resident_anonymous_bytes()?.saturating_sub(before);

    let xpu = gmm.xpu(1)?;
    let (space, processor) = (space(&gmm), &**xpu.context().processor());
    let (mut lookups, mut faults) = (Pairs::default(), Pairs::default());
    session.doing("little and much mapped, in turn");
    for round in 0..=args.repeats.repeats {
        let [of_small, of_large] =
            [&small, &large].map(|region| look_up(space, processor, &region.addresses, args));
        let (of_small, of_large) = (of_small?, of_large?);
        // Dropped, so that the next touch zero-fills.
        small.data.discard()?;
        large.data.discard()?;
        let fault_small = machine.count(&mut small, 1)?;
        let fault_large = machine.count(&mut large, 1)?;
        if round > 0 {
            lookups.push_seconds(of_large, of_small);
            faults.push_seconds(fault_large / touched as f64, fault_small / touched as f64);
        }
        session.step();
    }
    let parameter = format!("mapped={}", display_bytes(args.mapped));
    for (case, pairs) in [("lookup", lookups), ("zero-fill", faults)] {
        let record = pairs.record("scale", case, &parameter, "the same with 1 GiB mapped");
        session.put(
            record
                .with("mapped_bytes", args.mapped)
                .with("touched_pages", touched)
                .with("manager_bytes", manager_bytes),
        )?;
    }
    at_once(args, &small, space, processor, session)?;
    machine.migrate_at_once(args, &mut small, session)?;
    // Each page was counted in once since it was dropped.
    small.check(1)?;
    large.check(1)
}

/// How long a lookup takes that finds its page usable, in seconds.
fn look_up(
    space: &Space,
    processor: &Processor,
    addresses: &[VirtAddr],
    args: &ScaleArgs,
) -> anyhow::Result<f64> {
    let start = Instant::now();
    for &addr in addresses.iter().cycle().take(args.lookups as usize) {
        let resolved = space.fault(processor, addr, Access::Write)?;
        ensure!(resolved == Resolved::AlreadyUsable, "{resolved:?} of {addr:?} is no lookup");
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(args.lookups))
}

/// Lookups of several threads at once, each on pages of its own, against those of one alone.
fn at_once(
    args: &ScaleArgs,
    region: &Region,
    space: &Space,
    processor: &Processor,
    session: &mut Session,
) -> anyhow::Result<()> {
    for threads in [2, 4] {
        session.doing(format!("lookups of {threads} threads at once"));
        let share = region.addresses.len() / threads;
        let mut pairs = Pairs::default();
        for round in 0..=args.repeats.repeats {
            let barrier = Barrier::new(threads);
            let one = |addresses: &[VirtAddr]| {
                barrier.wait();
                look_up(space, processor, addresses, args)
            };
            let times: anyhow::Result<Vec<f64>> = std::thread::scope(|scope| {
                let shares = region.addresses.chunks_exact(share).take(threads);
                let started: Vec<_> =
                    shares.map(|addresses| scope.spawn(|| one(addresses))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<f64>>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                started.into_iter().map(join).collect()
            });
            let alone = look_up(space, processor, &region.addresses[..share], args)?;
            if round > 0 {
                pairs.push_seconds(Distribution::new(times?).median(), alone);
            }
            session.step();
        }
        let parameter = format!("cores={threads}");
        session.put(pairs.record("scale", "lookups-at-once", parameter, "one thread alone"))?;
    }
    Ok(())
}

/// A mapped region, and the pages of it that are used.
struct Region {
    data: Unified<u64>,
    touched: u64,
    stride_pages: u64,
    addresses: Vec<VirtAddr>,
}

impl Region {
    fn new(gmm: &Gmm, bytes: u64, touched: u64) -> anyhow::Result<Self> {
        let nr_pages = bytes / PAGE_SIZE;
        let data = gmm
            .mmap_named(usize::try_from(nr_pages)? * PAGE_WORDS, "bench scale")
            .with_context(|| format!("can't map {bytes} bytes of unified memory"))?;
        let (start, stride_pages) = (data.pages().start, nr_pages / touched);
        let addresses = (0..touched).map(|nth| start.plus(nth * stride_pages).start()).collect();
        Ok(Self { data, touched, stride_pages, addresses })
    }

    /// Each page that was used holds this count, and nothing else does.
    fn check(&self, count: u64) -> anyhow::Result<()> {
        for nth in 0..self.touched {
            let first = (nth * self.stride_pages) as usize * PAGE_WORDS;
            let page = &self.data[first..][..PAGE_WORDS];
            let right = page[0] == count && page[1..].iter().all(|word| *word == 0);
            ensure!(right, "page {nth} of a region holds a count of {}, not {count}", page[0]);
        }
        Ok(())
    }
}

struct Machine {
    stream: Stream,
    count: Kernel,
    touch: Kernel,
}

impl Machine {
    fn new(gmm: &Gmm, args: &ScaleArgs) -> anyhow::Result<Self> {
        let xpu = gmm.xpu(1)?;
        let module = xpu.load(&args.kernels.kernels)?;
        let [count, touch] = ["count_pages", "touch"].map(|name| module.kernel(name));
        Ok(Self { stream: xpu.stream()?, count: count?, touch: touch? })
    }

    /// The XPU counts in each page that is used, `rounds` times; says how long it took, in seconds.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn count(&self, region: &mut Region, rounds: u64) -> anyhow::Result<f64> {
        let stride = region.stride_pages * PAGE_SIZE;
        let args = (region.data.as_mut_ptr(), region.touched, stride, rounds, 0u64, 1u64);
        let start = Instant::now();
        // SAFETY: the first slot of each of these pages, which are ours until it is done.
        unsafe { self.stream.launch(&self.count, 1, args)?.wait()? };
        Ok(start.elapsed().as_secs_f64())
    }

    /// Cores that fault at once on pages that lie in host memory, against one.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn migrate_at_once(
        &self,
        args: &ScaleArgs,
        region: &mut Region,
        session: &mut Session,
    ) -> anyhow::Result<()> {
        // Pages of their own, side by side, behind the first that is counted in.
        let (first, nr_pages) = (1, (region.stride_pages - 1).min(region.touched));
        for cores in [2, 4] {
            session.doing(format!("migration to {cores} cores at once"));
            let mut pairs = Pairs::default();
            for round in 0..=args.repeats.repeats {
                let mut timed = |cores: u64| -> anyhow::Result<f64> {
                    let words = &mut region.data[first * PAGE_WORDS..];
                    let words = &mut words[..nr_pages as usize * PAGE_WORDS];
                    words.iter_mut().step_by(PAGE_WORDS).for_each(|word| *word = u64::MAX);
                    let launch_args = (words.as_mut_ptr(), nr_pages * PAGE_SIZE, true);
                    let start = Instant::now();
                    // SAFETY: these pages, which are ours until it is done.
                    unsafe { self.stream.launch(&self.touch, cores, launch_args)?.wait()? };
                    let took = start.elapsed().as_secs_f64();
                    let words = words.iter().step_by(512).zip(0u64..);
                    let wrong = words.filter(|(word, piece)| *word != piece).count();
                    ensure!(wrong == 0, "{wrong} words are not what {cores} cores have written");
                    Ok(took)
                };
                let (at_once, alone) = (timed(cores)?, timed(1)?);
                if round > 0 {
                    pairs.push_seconds(at_once, alone);
                }
                session.step();
            }
            let parameter = format!("cores={cores}");
            let bytes = nr_pages * PAGE_SIZE;
            session.put(pairs.record_of_bytes(
                "scale",
                "migration-at-once",
                parameter,
                "one core alone",
                bytes,
            ))?;
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "faults are made by drivers; here by hand")]
fn space(gmm: &Gmm) -> &Space {
    // SAFETY: a fault on a page that is mapped changes nothing; no signal handler of this program
    // touches unified memory.
    unsafe { gmm.space() }
}

/// Anonymous memory of this process that is in RAM: what the manager has to itself, and host frames
/// (of which the XPU's touches take none).
fn resident_anonymous_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")).map(|kib| kib.trim().parse());
    let kib: u64 = kib.context("/proc/self/status has no RssAnon")??;
    Ok(kib << 10)
}
