//! An XPU that runs the model: over unified memory, or as vendors have it, over memory that is filled
//! explicitly.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gmm::hostxpu::MAX_ARGS;
use gmm::{Gmm, HostXpu, Kernel, NodeId, Stream, Unified};
use gmm_core::{Config, CopyInfo, MoveCause, Run};

use super::SwitchArgs;
use super::model::Shape;

const KERNELS: [&str; 4] = ["linear", "linear_gelu", "multiply", "add_norm"];

/// An XPU, its kernels, and memory for what is computed beside the weights.
pub(super) struct Machine {
    gmm: Gmm,
    stream: Stream,
    kernels: HashMap<&'static str, Kernel>,
    scratch: Unified<f32>,
    shape: Shape,
}

impl Machine {
    /// With so much memory, and faults or none.
    pub(super) fn new(
        shape: Shape,
        memory_bytes: u64,
        faults: bool,
        args: &SwitchArgs,
    ) -> anyhow::Result<Self> {
        let xpu = HostXpu::with_memory(memory_bytes).config(|config| {
            args.link.configure(config.cores(1).copy_engines(1).replayable_faults(faults))
        });
        let window = args.look_ahead.unwrap_or(Config::default().look_ahead);
        let gmm = Gmm::builder().xpu(xpu).config(|c| c.look_ahead = window).build()?;
        let xpu = gmm.xpu(1)?;
        let module = xpu.load(&args.kernels.kernels)?;
        let kernels = KERNELS.iter().map(|name| Ok((*name, module.kernel(name)?)));
        Ok(Self {
            stream: xpu.stream()?,
            kernels: kernels.collect::<gmm::Result<_>>()?,
            scratch: gmm.mmap_named(shape.nr_scratch(), "bench scratch")?,
            gmm,
            shape,
        })
    }

    /// Memory for one model's weights.
    pub(super) fn weights(&self, name: &str) -> anyhow::Result<Unified<f32>> {
        Ok(self.gmm.mmap_named(self.shape.nr_weights(), name)?)
    }

    /// One token's pass; the result must be `wanted`.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    pub(super) fn serve(
        &mut self,
        weights: &Unified<f32>,
        token: u32,
        wanted: &[f32],
    ) -> anyhow::Result<()> {
        self.shape.prepare(&mut self.scratch, token);
        let (stream, kernels, mut last) = (&self.stream, &self.kernels, None);
        self.shape.pass(
            weights.as_ptr(),
            self.scratch.as_mut_ptr(),
            &mut |name, items, words| {
                let kernel = kernels.get(name).with_context(|| format!("no kernel {name}"))?;
                let mut all = [0; MAX_ARGS];
                all[..words.len()].copy_from_slice(words);
                // SAFETY: the words are addresses in the two buffers, as long as the shape says; nobody
                // else uses them until the last launch, after which no other of the stream runs, is done.
                last = Some(unsafe { stream.launch(kernel, items, all)? });
                Ok(())
            },
        )?;
        last.map_or(Ok(()), gmm::Launch::wait)?;
        let output = self.shape.output(&self.scratch);
        let wrong = output.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        ensure!(wrong.is_none(), "the model's output differs from the CPU's at {wrong:?}");
        Ok(())
    }

    /// Bytes copied so far to the XPU, and from it.
    pub(super) fn copied(&self) -> (u64, u64) {
        let snapshot = self.gmm.snapshot();
        let bytes = |from, to| {
            let pairs = snapshot.migrated_bytes.iter();
            pairs.filter(|pair| (pair.0, pair.1) == (NodeId(from), NodeId(to))).map(|p| p.2).sum()
        };
        (bytes(0, 1), bytes(1, 0))
    }

    /// How much of these weights the manager has ever copied out: what lies in host memory because it
    /// had to make room on the XPU, or was copied ahead of that. It stays there, since weights are only
    /// read, and what a program has written there itself came otherwise.
    pub(super) fn copied_out(&self, weights: &Unified<f32>) -> anyhow::Result<u64> {
        let runs = self.gmm.residency(weights.as_ptr().cast(), weights.len_bytes())?;
        Ok(runs.iter().map(bytes_copied_out).sum())
    }
}

fn bytes_copied_out(run: &Run) -> u64 {
    let copied_out = |copy: &CopyInfo| {
        let cause = copy.moved_by.cause();
        copy.node == NodeId(0) && matches!(cause, MoveCause::Eviction | MoveCause::Laundering)
    };
    if run.copies.iter().any(copied_out) { run.range.len_bytes() } else { 0 }
}

/// What one switch took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    pub(super) took: Duration,
    /// Bytes copied to the XPU, and from it.
    pub(super) copied_in: u64,
    pub(super) copied_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmm::{Access, PAGE_SIZE};

    /// Written on the XPU, a page has to be copied out to make room, and counts; read there, it does
    /// not.
    #[test]
    fn what_is_copied_out_counts_and_what_leaves_clean_does_not() {
        let gmm = Gmm::builder().xpu(HostXpu::with_memory(8 * PAGE_SIZE)).build().unwrap();
        let mut data: Unified<u64> = gmm.mmap(8 * PAGE_SIZE as usize / 8).unwrap();
        data.iter_mut().for_each(|word| *word = 7);
        let start = data.pages().start;
        let xpu = gmm.xpu(1).unwrap();
        let processor = xpu.context().processor();
        // SAFETY: what is evicted keeps its contents; no signal handler touches unified memory.
        #[expect(unsafe_code, reason = "faults are made by drivers; here by hand")]
        let space = unsafe { gmm.space() };
        for page in 0..3 {
            let access = if page < 2 { Access::Read } else { Access::Write };
            space.fault(processor, start.plus(page).start(), access).unwrap();
        }
        let copied_out = || -> u64 {
            let runs = gmm.residency(data.as_ptr().cast(), data.len_bytes()).unwrap();
            runs.iter().map(bytes_copied_out).sum()
        };
        assert_eq!(copied_out(), 0);
        space.evict(NodeId(1), 8).unwrap();
        assert_eq!(copied_out(), PAGE_SIZE);
        assert!(data.iter().all(|word| *word == 7));
    }
}
