//! The baseline: the same number of pages, copied by the same routine of the same kind of device,
//! one after the other by one thread, with no manager, no faults and no page tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gmm::hostxpu::{HostXpuConfig, HostXpuDevice};
use gmm_core::driver::{Device, Extent, Op, Place};
use gmm_core::{Batch, Frame, HostAddr, NodeId, PAGE_SIZE};
use gmm_cpu::{CpuDriver, Options};

/// How long one copy may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many copies a thread submits at a time.
const BATCH: usize = 16;

/// From where to where pages are copied. Within a memory it is half of them to the other half;
/// from other memory, half as many as there are frames, one after the other from an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    ToXpu,
    ToXpuFrom(HostAddr),
    ToHost,
    WithinXpu,
    WithinHost,
}

/// Host frames and frames of a host XPU of its own.
pub(super) struct RawCopies {
    host: Arc<dyn Device>,
    host_frames: Vec<Frame>,
    xpu: Arc<HostXpuDevice>,
    pairs: Vec<(HostAddr, Frame)>,
    /// Owns what the host addresses point at.
    _cpu: CpuDriver,
}

impl RawCopies {
    /// Makes ready to copy `nr_pages`.
    pub(super) fn new(nr_pages: u64, config: HostXpuConfig) -> anyhow::Result<Self> {
        let nr_frames = u32::try_from(nr_pages)?;
        let options = Options { capacity_frames: Some(nr_frames), ..Options::default() };
        let cpu = CpuDriver::new(options)?;
        let host: Arc<dyn Device> = cpu.host();
        host.set_first_node(NodeId::HOST);
        let xpu = HostXpuDevice::new(config)?;
        xpu.set_first_node(NodeId(1));
        let host_frames = import_all(&*host, NodeId::HOST, nr_frames)?;
        let xpu_frames = import_all(&*xpu, NodeId(1), nr_frames)?;
        let mut pairs = Vec::new();
        for (host_frame, xpu_frame) in host_frames.iter().copied().zip(xpu_frames) {
            run(&*host, Op::Zero(host_frame))?;
            run(&*xpu, Op::Zero(xpu_frame))?;
            let addr = host.host_addr(host_frame).context("host frames have addresses")?;
            pairs.push((addr, xpu_frame));
        }
        let adjoin = |pair: &[(HostAddr, Frame)]| pair[0].0.0 + PAGE_SIZE == pair[1].0.0;
        ensure!(pairs.windows(2).all(adjoin), "host frames do not lie one after the other");
        Ok(Self { host, host_frames, xpu, pairs, _cpu: cpu })
    }

    /// Its host frames lie one after the other; an address so many bytes into the first.
    pub(super) fn host_memory_from(&self, offset: usize) -> HostAddr {
        HostAddr(self.pairs[0].0.0 + offset as u64)
    }

    /// Copies every page to the XPU; says how long it took.
    pub(super) fn to_xpu(&self) -> anyhow::Result<Duration> {
        self.each(|host, xpu| Op::Copy { from: Place::Host(host), to: Place::Frame(xpu) })
    }

    /// Copies every page to host memory; says how long it took.
    pub(super) fn to_cpu(&self) -> anyhow::Result<Duration> {
        self.each(|host, xpu| Op::Copy { from: Place::Frame(xpu), to: Place::Host(host) })
    }

    /// Copies every page to the XPU (or to host memory), each after a pause; says how long each took,
    /// in seconds, its pause apart.
    pub(super) fn paced(&self, to_xpu: bool, pause: Duration) -> anyhow::Result<Vec<f64>> {
        let timed = |&(host, xpu): &(HostAddr, Frame)| {
            let (host, xpu) = (Place::Host(host), Place::Frame(xpu));
            let (from, to) = if to_xpu { (host, xpu) } else { (xpu, host) };
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            run(&*self.xpu, Op::Copy { from, to })?;
            Ok(start.elapsed().as_secs_f64())
        };
        self.pairs.iter().map(timed).collect()
    }

    /// Fills host frames and XPU frames with these words, as many as there are.
    pub(super) fn write(&self, words: &[u64]) -> anyhow::Result<()> {
        for (page, &(host, xpu)) in words.chunks(PAGE_SIZE as usize / 8).zip(&self.pairs) {
            let from = Place::Host(HostAddr(page.as_ptr() as u64));
            let (to, len) = (Place::Frame(xpu), size_of_val(page) as u64);
            run(&*self.xpu, Op::CopyPart { from, from_offset: 0, to, to_offset: 0, len })?;
            run(&*self.xpu, Op::Copy { from: to, to: Place::Host(host) })?;
        }
        Ok(())
    }

    /// Reads from the XPU's frames, one after the other, what lies `offset` bytes in; all of it in
    /// one page.
    pub(super) fn read(&self, offset: u64, words: &mut [u64]) -> anyhow::Result<()> {
        let from = Place::Frame(self.pairs[(offset / PAGE_SIZE) as usize].1);
        let to = Place::Host(HostAddr(words.as_mut_ptr() as u64));
        let (from_offset, len) = (offset % PAGE_SIZE, size_of_val(words) as u64);
        run(&*self.xpu, Op::CopyPart { from, from_offset, to, to_offset: 0, len })
    }

    /// Copies every page to the XPU in pieces of so many bytes, each waited for; through a buffer if
    /// it is to `bounce`. Says how long it took.
    pub(super) fn in_pieces(&self, piece_bytes: u64, bounce: bool) -> anyhow::Result<Duration> {
        let mut buffer = vec![0u64; if bounce { PAGE_SIZE as usize / 8 } else { 0 }];
        let buffer_addr = buffer.as_mut_ptr() as u64;
        let start = Instant::now();
        for &(host, xpu) in &self.pairs {
            for offset in (0..PAGE_SIZE).step_by(piece_bytes as usize) {
                let from = if bounce {
                    copy_bytes(buffer_addr, host.0 + offset, piece_bytes);
                    HostAddr(buffer_addr)
                } else {
                    HostAddr(host.0 + offset)
                };
                let (from, to) = (Place::Host(from), Place::Frame(xpu));
                let len = piece_bytes.min(PAGE_SIZE - offset);
                run(&*self.xpu, Op::CopyPart { from, from_offset: 0, to, to_offset: offset, len })?;
            }
        }
        Ok(start.elapsed())
    }

    /// Copies every page in `way` with so many threads, each taking the next 16; says how long it
    /// took.
    pub(super) fn with_workers(&self, way: Way, workers: usize) -> anyhow::Result<Duration> {
        let next = AtomicUsize::new(0);
        let half = self.pairs.len() / 2;
        let device: &dyn Device = match way {
            Way::WithinHost => &*self.host,
            _ => &*self.xpu,
        };
        let op = |nr: usize| {
            let (host, xpu) = (Place::Host(self.pairs[nr].0), Place::Frame(self.pairs[nr].1));
            match way {
                Way::ToXpu => Op::Copy { from: host, to: xpu },
                Way::ToXpuFrom(HostAddr(start)) => {
                    let from = Place::Host(HostAddr(start + nr as u64 * PAGE_SIZE));
                    Op::CopyPart { from, from_offset: 0, to: xpu, to_offset: 0, len: PAGE_SIZE }
                }
                Way::ToHost => Op::Copy { from: xpu, to: host },
                Way::WithinXpu => Op::Copy { from: xpu, to: Place::Frame(self.pairs[half + nr].1) },
                Way::WithinHost => {
                    Op::Copy { from: host, to: Place::Frame(self.host_frames[half + nr]) }
                }
            }
        };
        let nr_ops = match way {
            Way::ToXpu | Way::ToHost => self.pairs.len(),
            Way::ToXpuFrom(_) | Way::WithinXpu | Way::WithinHost => half,
        };
        let work = || -> anyhow::Result<()> {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= nr_ops {
                    return Ok(());
                }
                let ops: Vec<Op> = (first..nr_ops.min(first + BATCH)).map(op).collect();
                let fence = device.submit(&ops)?;
                device.wait(fence, PATIENCE)?;
            }
        };
        let start = Instant::now();
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let mut result = work();
            for other in others {
                let one = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(one);
            }
            result
        })?;
        Ok(start.elapsed())
    }

    fn each(&self, op: impl Fn(HostAddr, Frame) -> Op) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for &(host, xpu) in &self.pairs {
            run(&*self.xpu, op(host, xpu))?;
        }
        Ok(start.elapsed())
    }
}

/// Copies from a host frame, part of a page, to a buffer as long.
#[expect(unsafe_code, reason = "host frames are addresses")]
fn copy_bytes(to: u64, from: u64, len: u64) {
    let (to, from) = (to as *mut u8, from as *const u8);
    // SAFETY: the callers' buffer, and a frame that lives as long as the driver; they don't overlap.
    unsafe { gmm_cpu::copy::stream_copy(to, from, len as usize) };
}

fn run(device: &dyn Device, op: Op) -> anyhow::Result<()> {
    let fence = device.submit(&[op])?;
    Ok(device.wait(fence, PATIENCE)?)
}

fn import_all(device: &dyn Device, node: NodeId, nr_frames: u32) -> anyhow::Result<Vec<Frame>> {
    let mut frames = Vec::new();
    while (frames.len() as u32) < nr_frames {
        let mut extents = Batch::<Extent, 16>::new();
        let wanted = (nr_frames - frames.len() as u32).min(16);
        device.import(node, wanted, &mut extents)?;
        ensure!(!extents.is_empty(), "{} has only {} frames", device.name(), frames.len());
        for extent in extents {
            let numbers = extent.start.0..extent.start.0 + extent.nr_frames;
            frames.extend(numbers.map(|nr| Frame { node, nr: gmm_core::FrameNr(nr) }));
        }
    }
    Ok(frames)
}
