//! The host XPU as a machine for the demo, through the library that any program would use.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use gmm::{Gmm, Kernel, NodeId, PAGE_SIZE, Stream};
use gmm_kernels::KERNELS;

use super::accelerator::{Accelerator, Unified};
use super::memory::{Faults, MemoryUse};

/// The library of kernels: the crate `gmm-kernels`, built as one.
const LIBRARY: &str = "libgmm_kernels.so";

/// The most words that a launch takes.
const MAX_ARGS: usize = gmm::hostxpu::MAX_ARGS;

/// The node of the XPU: the only one, so the first after the host's.
const XPU_NODE: u8 = 1;

/// A process's unified memory with one host XPU.
pub struct HostXpu {
    kernels: HashMap<&'static str, Kernel>,
    stream: Stream,
    gmm: Gmm,
}

impl HostXpu {
    /// Sets up unified memory and an XPU with that much memory and that many cores.
    ///
    /// # Errors
    /// If the machine lacks something, the XPU can't be made so, or its kernels can't be found.
    pub fn new(memory_bytes: u64, nr_cores: u32) -> Result<Self> {
        let device = gmm::HostXpu::with_memory(memory_bytes).cores(nr_cores);
        let gmm = Gmm::builder().xpu(device).build()?;
        let xpu = gmm.xpu(XPU_NODE)?;
        let module = xpu.load(library())?;
        let find = |name| Ok((name, module.kernel(name)?));
        let kernels = KERNELS.iter().map(|kernel| find(kernel.name)).collect::<Result<_>>()?;
        Ok(Self { kernels, stream: xpu.stream()?, gmm })
    }

    /// Writes what the manager does to a file, until the guard is dropped.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn trace_to(&self, path: &Path) -> Result<gmm::TraceGuard> {
        Ok(self.gmm.trace_to(path)?)
    }
}

/// The kernels that belong to this program. Cargo puts them beside it or in `deps/` there, depending on
/// what it was asked to build, and leaves the other file as it was: of the two the newer is right.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let places = folder.iter().flat_map(|dir| [dir.join(LIBRARY), dir.join("deps").join(LIBRARY)]);
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|about| about.modified()).ok();
    let newest = places.filter(|path| built(path).is_some()).max_by_key(built);
    newest.unwrap_or_else(|| LIBRARY.into())
}

impl Accelerator for HostXpu {
    fn alloc(&self, name: &str, len_bytes: usize) -> Result<Unified> {
        let memory = self
            .gmm
            .mmap_named::<u8>(len_bytes, name)
            .with_context(|| format!("no unified memory of {len_bytes} bytes for {name}"))?;
        Ok(Unified::new(memory))
    }

    unsafe fn launch(&self, kernel: &str, nr_items: u64, args: &[u64]) -> Result<()> {
        let Some(found) = self.kernels.get(kernel) else {
            bail!("no kernel {kernel:?} in {LIBRARY}");
        };
        ensure!(args.len() <= MAX_ARGS, "kernel {kernel:?}: a launch takes {MAX_ARGS} words");
        let mut words = [0; MAX_ARGS];
        words[..args.len()].copy_from_slice(args);
        // SAFETY: promised by the caller; this returns when the launch has ended.
        unsafe { self.stream.launch(found, nr_items, words)?.wait()? };
        Ok(())
    }

    fn memory(&self) -> Result<MemoryUse> {
        let snapshot = self.gmm.snapshot();
        let (host, xpus): (Vec<_>, Vec<_>) =
            snapshot.nodes.iter().partition(|node| node.node == NodeId(0));
        let faults = |nodes: &[&gmm::NodeStats]| nodes.iter().map(|node| node.faults).sum();
        let frames = |frames: u32| u64::from(frames) * PAGE_SIZE;
        let by_node = |bytes: fn(&gmm::NodeStats) -> u64| -> BTreeMap<String, u64> {
            snapshot.nodes.iter().map(|node| (node.node.to_string(), bytes(node))).collect()
        };
        let backing = self.gmm.frame_backing();
        Ok(MemoryUse {
            xpu_memory_bytes: xpus.iter().map(|node| frames(node.capacity_frames)).sum(),
            touched_bytes: by_node(|node| node.touched_pages * PAGE_SIZE),
            peak_resident_bytes: by_node(|node| u64::from(node.peak_resident_frames) * PAGE_SIZE),
            faults: Faults { cpu: faults(&host), xpu: faults(&xpus) },
            migrated_bytes: snapshot
                .migrated_bytes
                .iter()
                .map(|(from, to, bytes)| (format!("{from}->{to}"), *bytes))
                .collect(),
            evicted_pages: snapshot.nodes.iter().map(|node| node.evicted_pages).sum(),
            evicted_clean_pages: snapshot.nodes.iter().map(|node| node.evicted_clean_pages).sum(),
            frame_backing: backing.into_iter().map(|(_, kind)| kind).next().unwrap_or_default(),
        })
    }
}
