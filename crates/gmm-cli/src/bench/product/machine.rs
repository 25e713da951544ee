//! An XPU that multiplies matrices in unified memory.

use std::time::Instant;

use anyhow::ensure;
use gmm::{Gmm, HostXpu, Kernel, MIB, NodeId, PAGE_SIZE, Stream, Unified};
use gmm_core::EvictionPolicy;
use gmm_kernels::product::COLUMNS_AT_ONCE;

use super::ProductArgs;
use super::matrices::{Element, Matrices, Shape};
use crate::bench::options::set_policy;

/// What one product made of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Faults of the XPU that were served.
    pub(super) faults: u64,
    /// Those on pages that another fault had just served.
    pub(super) coalesced: u64,
    /// Pages copied to the XPU.
    pub(super) pages_moved: u64,
}

pub(super) struct Machine<N: Element> {
    gmm: Gmm,
    /// As many rows as there are, one after the other.
    a: Unified<N>,
    /// Columns, one after the other.
    b: Unified<N>,
    c: Unified<N>,
    shape: Shape,
    stream: Stream,
    multiply: Kernel,
}

impl<N: Element> Machine<N> {
    /// With room for all, or with so many frames and that policy.
    pub(super) fn new(
        args: &ProductArgs,
        matrices: &Matrices<N>,
        cores: u32,
        limit: Option<(u64, EvictionPolicy)>,
    ) -> anyhow::Result<Self> {
        let shape = matrices.shape;
        // What fits has some frames more, which reclaim would keep free.
        let all = shape.pages::<N>() * PAGE_SIZE + 16 * MIB;
        let memory = limit.map_or(all, |(frames, _)| frames * PAGE_SIZE);
        let xpu = HostXpu::with_memory(memory)
            .config(|config| args.link.configure(config.cores(cores).copy_engines(1)));
        let gmm = Gmm::builder().xpu(xpu).build()?;
        if let Some((_, policy)) = limit {
            set_policy(&gmm, policy)?;
        }
        let xpu = gmm.xpu(1)?;
        let mut machine = Self {
            a: gmm.mmap_named(shape.len_a(), "bench A")?,
            b: gmm.mmap_named(shape.len_b(), "bench B")?,
            c: gmm.mmap_named(shape.len_c(), "bench C")?,
            shape,
            stream: xpu.stream()?,
            multiply: xpu.load(&args.kernels.kernels)?.kernel(N::KERNEL)?,
            gmm,
        };
        machine.a.copy_from_slice(&matrices.a);
        machine.b.copy_from_slice(&matrices.b);
        Ok(machine)
    }

    /// The product of matrices that lie in host memory, as the CPU has just written them. Says how
    /// long it took, in seconds, and what came of it.
    pub(super) fn bring_and_multiply(
        &mut self,
        matrices: &Matrices<N>,
        prefetch: bool,
    ) -> anyhow::Result<(f64, Counts)> {
        let page_len = PAGE_SIZE as usize / size_of::<N>();
        for (there, here) in [(&mut self.a, &matrices.a), (&mut self.b, &matrices.b)] {
            let firsts = there.iter_mut().zip(here).step_by(page_len);
            firsts.for_each(|(there, &here)| *there = here);
        }
        let before = self.counts();
        let took = self.multiply(matrices, prefetch)?;
        let after = self.counts();
        let counts = Counts {
            faults: after.faults - before.faults,
            coalesced: after.coalesced - before.coalesced,
            pages_moved: after.pages_moved - before.pages_moved,
        };
        Ok((took, counts))
    }

    /// The product of matrices that are where the last product has left them.
    pub(super) fn again(&mut self, matrices: &Matrices<N>) -> anyhow::Result<f64> {
        self.multiply(matrices, false)
    }

    /// C is dropped, computed on the XPU, and compared.
    #[expect(unsafe_code, reason = "a launch is unsafe on every accelerator")]
    fn multiply(&mut self, matrices: &Matrices<N>, prefetch: bool) -> anyhow::Result<f64> {
        let Shape { n, k, m, blocks } = self.shape;
        self.c.discard()?;
        let items = m.div_ceil(COLUMNS_AT_ONCE) as u64;
        let start = Instant::now();
        let coming = match prefetch {
            true => Some([self.a.will_need_async(1)?, self.b.will_need_async(1)?]),
            false => None,
        };
        let mut last = None;
        for block in 0..blocks {
            let (a, c) =
                (&self.a[block * n * k..], self.c.as_mut_ptr().wrapping_add(block * n * m));
            let args = (a.as_ptr(), self.b.as_ptr(), c, n, k, m);
            // SAFETY: matrices of these shapes, ours until the last launch, after which no other of the
            // stream runs, is done.
            last = Some(unsafe { self.stream.launch(&self.multiply, items, args)? });
        }
        last.map_or(Ok(()), gmm::Launch::wait)?;
        for prefetch in coming.into_iter().flatten() {
            match prefetch.wait() {
                // The launches may have taken all room before.
                Err(gmm::Error::Manager(gmm_core::Error::OutOfMemory { .. })) => {}
                result => drop(result?),
            }
        }
        let took = start.elapsed().as_secs_f64();
        let wrong = self.c.iter().zip(&matrices.c).position(|(got, wanted)| got != wanted);
        ensure!(wrong.is_none(), "the product differs from the CPU's at {wrong:?}");
        Ok(took)
    }

    /// What was counted so far.
    fn counts(&self) -> Counts {
        let snapshot = self.gmm.snapshot();
        let xpu = &snapshot.nodes[1];
        let moved = snapshot.migrated_bytes.iter().filter(|(_, to, _)| *to == NodeId(1));
        Counts {
            faults: xpu.faults,
            coalesced: xpu.coalesced_faults,
            pages_moved: moved.map(|(_, _, bytes)| bytes / PAGE_SIZE).sum(),
        }
    }
}
