//! Moving much at once: prefetch and `gmemcpy`, against as many threads that copy as many pages
//! with the same routine, without a manager, faults or page tables. Subject and baseline take
//! turns, so that what disturbs the machine disturbs both alike. The data is checked.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::HostXpuConfig;
use gmm::{Gmm, HostXpu, MIB, PAGE_SIZE, Unified, display_bytes};
use gmm_core::HostAddr;

use super::chunks::{self, By};
use super::distribution::Pairs;
use super::options::{Kernels, Link, Output, Repeats, nr_cpus, parse_chunk};
use super::raw::{RawCopies, Way};
use super::record::Record;
use super::room;
use super::session::Session;

pub(super) const PAGE_WORDS: usize = PAGE_SIZE as usize / 8;

/// The baseline of all but one case.
pub(super) const RAW: &str = "raw copy";

/// What `gmm bench prefetch` and `gmm bench memcpy` take.
#[derive(Debug, Args)]
pub(super) struct BulkArgs {
    /// How much memory moves in one repeat, at least 16MiB; rounded up to 2 MiB pages [default:
    /// 512MiB for prefetch, 256MiB for memcpy]
    #[arg(long, value_parser = crate::demo::size::parse)]
    bytes: Option<u64>,
    /// Also move it a chunk of this size a call, for each of these sizes, at least 4KiB
    #[arg(long, value_delimiter = ',', value_parser = parse_chunk)]
    pub(super) chunks: Vec<u64>,
    #[command(flatten)]
    pub(super) link: Link,
    #[command(flatten)]
    pub(super) repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The record of pairs of which each moved so many bytes.
fn record(
    args: &BulkArgs,
    pairs: &Pairs,
    suite: &str,
    case: &str,
    baseline: &str,
    workers: usize,
    bytes: u64,
) -> Record {
    pairs
        .record_of_bytes(suite, case, args.link.name(display_bytes(bytes)), baseline, bytes)
        .with("workers", workers)
        .with("bound_bytes_per_s", bytes as f64 / pairs.seconds().1)
}

/// As many as the library uses while its caller waits.
pub(super) fn nr_workers() -> usize {
    nr_cpus().min(4)
}

/// As many as it uses beside its caller.
fn nr_workers_beside() -> usize {
    (nr_cpus() - 1).clamp(1, 4)
}

/// How many pages move, if there is room for so many times as much.
fn nr_pages(args: &BulkArgs, default: u64, times: u64) -> anyhow::Result<u64> {
    let bytes = args.bytes.unwrap_or(default);
    ensure!(bytes >= 16 * MIB, "--bytes is {bytes}; it must be at least {}", 16 * MIB);
    room::check(bytes.saturating_mul(times), "--bytes")?;
    Ok(bytes.div_ceil(PAGE_SIZE))
}

fn configure(args: &BulkArgs, config: HostXpuConfig, engines: usize) -> HostXpuConfig {
    args.link.configure(config.cores(1).copy_engines(engines as u32))
}

pub(super) fn set_up(args: &BulkArgs, nr_pages: u64) -> anyhow::Result<(Gmm, RawCopies)> {
    let config = configure(args, HostXpuConfig::new(nr_pages * PAGE_SIZE), nr_workers());
    let raw = RawCopies::new(nr_pages, config)?;
    Ok((manager(args, nr_pages, nr_workers())?, raw))
}

fn manager(args: &BulkArgs, nr_pages: u64, engines: usize) -> anyhow::Result<Gmm> {
    // Some frames more, so that nothing is evicted.
    let memory = nr_pages * PAGE_SIZE + nr_pages / 8 * PAGE_SIZE + 64 * MIB;
    let xpu = HostXpu::with_memory(memory).config(|config| configure(args, config, engines));
    Ok(Gmm::builder().xpu(xpu).build()?)
}

pub(super) fn fill(data: &mut Unified<u64>, seed: u64) {
    for (nr, word) in data.iter_mut().enumerate() {
        *word = value(nr, seed);
    }
}

fn value(nr: usize, seed: u64) -> u64 {
    (nr as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Makes sure that the data is what it was filled with.
pub(super) fn check(data: &[u64], seed: u64) -> anyhow::Result<()> {
    for (nr, &word) in data.iter().enumerate() {
        let wanted = value(nr, seed);
        ensure!(word == wanted, "word {nr} is {word:#x}, not {wanted:#x}");
    }
    Ok(())
}

/// One word of each page is written on the CPU, which takes the page there.
pub(super) fn take_to_cpu(data: &mut Unified<u64>, seed: u64) {
    data.iter_mut().enumerate().step_by(PAGE_WORDS).for_each(|(nr, w)| *w = value(nr, seed));
}

#[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
pub(super) fn prefetch(args: &BulkArgs, session: &mut Session) -> anyhow::Result<()> {
    // Host frames and XPU frames of the raw copies; data and XPU of the manager, which has some frames
    // more; of chunks a target, too.
    let nr_pages = nr_pages(args, 512 * MIB, if args.chunks.is_empty() { 5 } else { 6 })?;
    let (bytes, workers) = (nr_pages * PAGE_SIZE, nr_workers());
    let (gmm, raw) = set_up(args, nr_pages)?;
    let xpu = gmm.xpu(1)?;
    let (stream, module) = (xpu.stream()?, xpu.load(&args.kernels.kernels)?);
    let touch = module.kernel("touch")?;
    let mut data = gmm.mmap_named::<u64>(nr_pages as usize * PAGE_WORDS, "bench data")?;
    fill(&mut data, 1);
    let (mut to_xpu, mut to_host) = (Pairs::default(), Pairs::default());
    session.begin("prefetch", 2 * u64::from(args.repeats.repeats + 1));
    session.doing("prefetches and raw copies in turn");
    for round in 0..=args.repeats.repeats {
        let timed = |node: u8, way| -> anyhow::Result<(Duration, Duration)> {
            let bound = raw.with_workers(way, workers)?;
            let start = Instant::now();
            let came = data.will_need(node)?;
            let subject = start.elapsed();
            ensure!(came.brought == nr_pages, "prefetch to {node} brought {came:?}");
            Ok((subject, bound))
        };
        let in_pair = timed(1, Way::ToXpu)?;
        // The XPU writes, so that host memory has no copy.
        let args = (data.as_mut_ptr(), data.len_bytes(), true);
        // SAFETY: the buffer is as long as the kernel is told, and is ours until it is done.
        unsafe { stream.launch(&touch, 1, args)?.wait()? };
        let timed = |node: u8, way| -> anyhow::Result<(Duration, Duration)> {
            let bound = raw.with_workers(way, workers)?;
            let start = Instant::now();
            let came = data.will_need(node)?;
            let subject = start.elapsed();
            ensure!(came.brought == nr_pages, "prefetch to {node} brought {came:?}");
            Ok((subject, bound))
        };
        let out_pair = timed(0, Way::ToHost)?;
        if round > 0 {
            to_xpu.push(in_pair.0, in_pair.1);
            to_host.push(out_pair.0, out_pair.1);
        }
        session.step();
    }
    for (nr, &word) in data.iter().enumerate() {
        let wanted = if nr % 512 == 0 { nr as u64 / 512 } else { value(nr, 1) };
        ensure!(word == wanted, "word {nr} is {word:#x}, not {wanted:#x}");
    }
    for (case, pairs) in [("to-xpu", to_xpu), ("to-host", to_host)] {
        session.put(record(args, &pairs, "prefetch", case, RAW, workers, bytes))?;
    }
    drop((data, stream, module, xpu, gmm, raw));
    launch_over_coming_pages(args, nr_pages, session)?;
    if args.chunks.is_empty() { Ok(()) } else { chunks::run(args, By::Prefetch, nr_pages, session) }
}

/// A launch over pages that are just being brought, against the longer of the two alone. The cores
/// of the XPU take a processor, too: the copies have one less than there are.
#[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
fn launch_over_coming_pages(
    args: &BulkArgs,
    nr_pages: u64,
    session: &mut Session,
) -> anyhow::Result<()> {
    let workers = nr_workers_beside();
    let gmm = manager(args, nr_pages, workers)?;
    let xpu = gmm.xpu(1)?;
    let (stream, module) = (xpu.stream()?, xpu.load(&args.kernels.kernels)?);
    let square = module.kernel("square")?;
    let mut data = gmm.mmap_named::<u64>(nr_pages as usize * PAGE_WORDS, "bench data")?;
    let mut launches = Pairs::default();
    session.doing("launches over pages that are just coming");
    for round in 0..=args.repeats.repeats {
        // Apart: the copy, and then the computation.
        take_to_cpu(&mut data, 2);
        let start = Instant::now();
        data.will_need_async(1)?.wait()?;
        let copy = start.elapsed();
        let args = (data.as_mut_ptr().cast::<f32>(), data.len() * 2);
        let start = Instant::now();
        // SAFETY: the buffer is as long as the kernel is told, and is ours until it is done.
        unsafe { stream.launch(&square, 1, args)?.wait()? };
        let computation = start.elapsed();
        // Together.
        take_to_cpu(&mut data, 2);
        let start = Instant::now();
        let coming = data.will_need_async(1)?;
        // SAFETY: as above.
        unsafe { stream.launch(&square, 1, args)?.wait()? };
        coming.wait()?;
        if round > 0 {
            launches.push(start.elapsed(), copy.max(computation));
        }
        session.step();
    }
    let bytes = nr_pages * PAGE_SIZE;
    let (case, baseline) = ("launch-over-coming-pages", "the longer of copy and launch alone");
    session.put(record(args, &launches, "prefetch", case, baseline, workers, bytes))
}

/// A case of `gmm bench memcpy`: which buffers, and what bounds it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    way: Way,
    /// Where the source lies, `None` for ordinary memory.
    from: Option<u8>,
    to: u8,
    /// How far source and destination are off, in bytes.
    skew: usize,
}

const fn case(name: &'static str, way: Way, from: Option<u8>, to: u8, skew: usize) -> Case {
    Case { name, way, from, to, skew }
}

const CASES: [Case; 6] = [
    case("host-to-xpu", Way::ToXpu, Some(0), 1, 0),
    case("xpu-to-host", Way::ToHost, Some(1), 0, 0),
    case("xpu-to-xpu", Way::WithinXpu, Some(1), 1, 0),
    case("host-to-host", Way::WithinHost, Some(0), 0, 0),
    case("plain-to-xpu", Way::ToXpu, None, 1, 0),
    case("unaligned-to-xpu", Way::ToXpu, Some(0), 1, 1000),
];

#[expect(unsafe_code, reason = "gmemcpy takes addresses")]
pub(super) fn memcpy(args: &BulkArgs, session: &mut Session) -> anyhow::Result<()> {
    // Twice host frames and XPU frames of the raw copies, and the XPU; source, target and plain memory.
    let nr_pages = nr_pages(args, 256 * MIB, 10)?;
    let (bytes, workers) = (nr_pages * PAGE_SIZE, nr_workers());
    // Source and destination may both lie on the XPU, and twice as many pages give as many copies.
    let (gmm, raw) = set_up(args, 2 * nr_pages)?;
    let nr_words = nr_pages as usize * PAGE_WORDS;
    let mut source = gmm.mmap_named::<u64>(nr_words + PAGE_WORDS, "bench source")?;
    let mut target = gmm.mmap_named::<u64>(nr_words, "bench target")?;
    let mut plain = vec![0u64; nr_words + PAGE_WORDS];
    let steps = CASES.len() as u64 * u64::from(args.repeats.repeats + 1);
    session.begin("memcpy", steps);
    for case in CASES {
        session.doing(case.name);
        let seed = case.name.len() as u64;
        fill(&mut source, seed);
        plain.iter_mut().enumerate().for_each(|(nr, word)| *word = value(nr, seed));
        target.fill(0);
        if let Some(node) = case.from {
            source.will_need(node)?;
        }
        let mut samples = Pairs::default();
        for round in 0..=args.repeats.repeats {
            let way = match (case.from, case.skew) {
                (None, _) => Way::ToXpuFrom(HostAddr(plain.as_ptr() as u64)),
                (Some(_), 0) => case.way,
                (Some(_), skew) => Way::ToXpuFrom(raw.host_memory_from(skew)),
            };
            let raw_time = raw.with_workers(way, workers)?;
            let halves = matches!(way, Way::ToXpu | Way::ToHost);
            let bound = if halves { raw_time / 2 } else { raw_time };
            let src = case.from.map_or(plain.as_ptr(), |_| source.as_ptr()).cast::<u8>();
            let start = Instant::now();
            // SAFETY: the buffers are that long, and nobody uses them.
            unsafe {
                let src = src.wrapping_add(case.skew);
                gmm.gmemcpy(target.as_mut_ptr().cast(), src, bytes, case.to)?;
            }
            if round > 0 {
                samples.push(start.elapsed(), bound);
            }
            session.step();
        }
        let skipped = case.skew / 8;
        for (nr, &word) in target.iter().enumerate() {
            let wanted = value(nr + skipped, seed);
            ensure!(word == wanted, "{}: word {nr} is {word:#x}, not {wanted:#x}", case.name);
        }
        session.put(record(args, &samples, "memcpy", case.name, RAW, workers, bytes))?;
    }
    drop((source, target, gmm, raw));
    if args.chunks.is_empty() { Ok(()) } else { chunks::run(args, By::Memcpy, nr_pages, session) }
}
