//! The baseline: the same number of pages, copied by the same routine of the same kind of device,
//! one after the other by one thread, with no manager, no faults and no page tables.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gmm::hostxpu::{HostXpuConfig, HostXpuDevice};
use gmm_core::driver::{Device, Extent, Op, Place};
use gmm_core::{Batch, Frame, HostAddr, NodeId};
use gmm_cpu::{CpuDriver, Options};

/// How long one copy may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Host frames and frames of a host XPU of its own.
pub(super) struct RawCopies {
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
        for (host_frame, xpu_frame) in host_frames.into_iter().zip(xpu_frames) {
            run(&*host, Op::Zero(host_frame))?;
            run(&*xpu, Op::Zero(xpu_frame))?;
            let addr = host.host_addr(host_frame).context("host frames have addresses")?;
            pairs.push((addr, xpu_frame));
        }
        Ok(Self { xpu, pairs, _cpu: cpu })
    }

    /// Copies every page to the XPU; says how long it took.
    pub(super) fn to_xpu(&self) -> anyhow::Result<Duration> {
        self.each(|host, xpu| Op::Copy { from: Place::Host(host), to: Place::Frame(xpu) })
    }

    /// Copies every page to host memory; says how long it took.
    pub(super) fn to_cpu(&self) -> anyhow::Result<Duration> {
        self.each(|host, xpu| Op::Copy { from: Place::Frame(xpu), to: Place::Host(host) })
    }

    fn each(&self, op: impl Fn(HostAddr, Frame) -> Op) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for &(host, xpu) in &self.pairs {
            run(&*self.xpu, op(host, xpu))?;
        }
        Ok(start.elapsed())
    }
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
