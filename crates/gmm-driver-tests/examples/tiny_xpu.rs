//! A complete driver, for the smallest XPU there is: its memory lies in this process, its cores
//! are function calls. `PORTING.md` explains it part by part. Run it: the kit checks it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use gmm_core::driver::{
    Access, Capabilities, Clear, Device, DriverError, Enter, Examine, Extent, Fence, Mmu,
    NodeDescription, Op, Partial, Place, Protection,
};
use gmm_core::{Batch, Frame, FrameNr, HostAddr, NodeId, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use gmm_driver_tests::kit::{Bench, Refused, Serve, Subject, TestContext};

const WORDS: usize = PAGE_SIZE as usize / 8;

// --- The device: memory, and the means to fill and copy it ---

/// The memory: frames of words, and which of them the core holds.
pub struct TinyXpu {
    frames: Vec<Vec<AtomicU64>>,
    held: Mutex<Vec<bool>>,
    nodes: [NodeDescription; 1],
    node: OnceLock<NodeId>,
}

impl TinyXpu {
    /// A device with so many frames.
    pub fn new(nr_frames: u32) -> Arc<Self> {
        let frame = || (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            frames: (0..nr_frames).map(|_| frame()).collect(),
            held: Mutex::new(vec![false; nr_frames as usize]),
            nodes: [NodeDescription { capacity_frames: nr_frames }],
            node: OnceLock::new(),
        })
    }

    /// One end of a copy: the address of its first byte.
    fn at(&self, (place, offset): (Place, u64)) -> Result<u64, DriverError> {
        match place {
            Place::Frame(frame) => Ok(self.frames[frame.nr.0 as usize].as_ptr() as u64 + offset),
            Place::Host(HostAddr(addr)) => Ok(addr + offset),
            Place::Peer(_) => Err(DriverError::Unsupported),
        }
    }
}

impl Device for TinyXpu {
    fn name(&self) -> &str {
        "tiny"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::OWN_MEMORY
            | Capabilities::REPLAYABLE_FAULTS
            | Capabilities::READ_ONLY_MAPPINGS
    }

    fn nodes(&self) -> &[NodeDescription] {
        &self.nodes
    }

    fn set_first_node(&self, first: NodeId) {
        self.node.get_or_init(|| first);
    }

    fn import(
        &self,
        _node: NodeId,
        nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let free = held.iter_mut().enumerate().filter(|(_, held)| !**held);
        for (nr, held) in free.take(nr_frames.min(16) as usize) {
            *held = true;
            out.push(Extent { start: FrameNr(nr as u32), nr_frames: 1 });
        }
        Ok(())
    }

    fn release(&self, _node: NodeId, extents: &[Extent]) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for extent in extents {
            let start = extent.start.0 as usize;
            held[start..start + extent.nr_frames as usize].fill(false);
        }
    }

    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError> {
        for op in ops {
            let copy = op.as_bytes().ok_or(DriverError::Broken("bytes beyond the frame"))?;
            let (to, len) = (self.at(copy.to)? as *mut u8, copy.len as usize);
            // SAFETY: `as_bytes` says that the bytes lie in their frames. The core passes host
            // addresses that stay valid until the operation's fence completes, which is before
            // `submit` returns. Nobody writes the bytes read meanwhile or uses those written: no
            // core maps the frames so, and the two ranges don't overlap.
            unsafe {
                match copy.from {
                    None => to.write_bytes(0, len),
                    Some(from) => to.copy_from_nonoverlapping(self.at(from)? as *const u8, len),
                }
            }
        }
        Ok(Fence(0))
    }

    // Everything was done inside `submit`.
    fn wait(&self, _: Fence, _: Duration) -> Result<(), DriverError> {
        Ok(())
    }

    fn poll(&self, _: Fence) -> bool {
        true
    }
}

// --- The context: a page table ---

/// What the page table says, behind a lock that every access reads: so when a change returns, no
/// access through an old mapping is under way.
#[derive(Default)]
struct Table {
    pages: HashMap<PageNr, (Frame, Protection)>,
    dead: bool,
}

/// A page table and the cores that use it.
pub struct TinyContext {
    device: Arc<TinyXpu>,
    table: RwLock<Table>,
    serve: Mutex<Option<Serve>>,
}

impl TinyContext {
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut self.table.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Mmu for TinyContext {
    fn va_examine(&self, _range: PageRange) -> Result<Examine, DriverError> {
        Ok(Examine::Reserved)
    }

    fn va_release(&self, range: PageRange) {
        self.change(|table| table.pages.retain(|&page, _| !range.contains(page)));
    }

    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        self.change(|table| {
            if table.dead {
                return Err(Partial { done: 0, error: DriverError::Dead });
            }
            let new = mappings.iter().map(|e| (e.page, (e.frame, e.protection)));
            table.pages.extend(new);
            Ok(())
        })
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        self.change(|table| {
            for clear in mappings {
                table.pages.remove(&clear.page);
            }
        });
        Ok(())
    }
}

// --- The cores: accesses that fault and are replayed ---

impl TinyContext {
    /// One access by one core.
    fn access<T>(
        &self,
        addr: VirtAddr,
        access: Access,
        act: impl Fn(&AtomicU64) -> T,
    ) -> Result<T, Refused> {
        loop {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            if table.dead {
                return Err(Refused);
            }
            if let Some((frame, protection)) = table.pages.get(&addr.page())
                && protection.allows(access)
            {
                let word = (addr.0 % PAGE_SIZE / 8) as usize;
                return Ok(act(&self.device.frames[frame.nr.0 as usize][word]));
            }
            // The fault interrupt: in a program, `space.fault(&processor, addr, access)`.
            drop(table);
            let serve = self.serve.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !serve.ok_or(Refused)?(addr, access) {
                return Err(Refused);
            }
        }
    }
}

// --- What the kit needs to know ---

/// The driver as a subject of the kit.
pub struct Tiny;

impl Subject for Tiny {
    fn name(&self) -> String {
        "tiny".into()
    }

    fn bench(&self) -> Box<dyn Bench> {
        Box::new(TinyBench(TinyXpu::new(20)))
    }
}

struct TinyBench(Arc<TinyXpu>);

impl Bench for TinyBench {
    fn device(&self) -> Arc<dyn Device> {
        self.0.clone()
    }

    fn context(&self, _node: usize) -> Box<dyn TestContext> {
        let (device, table, serve) = (self.0.clone(), RwLock::default(), Mutex::default());
        Box::new(Cores(Arc::new(TinyContext { device, table, serve })))
    }
}

struct Cores(Arc<TinyContext>);

impl TestContext for Cores {
    fn mmu(&self) -> Arc<dyn Mmu> {
        self.0.clone()
    }

    fn load(&self, addr: VirtAddr) -> Result<u64, Refused> {
        self.0.access(addr, Access::Read, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, addr: VirtAddr, value: u64) -> Result<(), Refused> {
        self.0.access(addr, Access::Write, |word| word.store(value, Ordering::Relaxed))
    }

    fn increment(&self, addr: VirtAddr) -> Option<Result<(), Refused>> {
        let add = |word: &AtomicU64| {
            word.fetch_add(1, Ordering::Relaxed);
        };
        Some(self.0.access(addr, Access::Write, add))
    }

    fn serve(&self, serve: Option<Serve>) {
        *self.0.serve.lock().unwrap_or_else(PoisonError::into_inner) = serve;
    }

    fn kill(&self) -> bool {
        self.0.change(|table| table.dead = true);
        true
    }
}

#[cfg_attr(test, expect(dead_code, reason = "tests include this file for its driver"))]
fn main() {
    gmm_driver_tests::conformance(&Tiny);
}
