//! A space whose host is plain memory and whose CPU is this struct: it faults by calling the
//! manager, and reads and writes host frames by their address.
#![expect(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::alloc::Layout;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gmm_core::driver::{
    Access, Capabilities, Clear, Device, DriverError, Enter, Examine, Extent, Fence, Mmu,
    NodeDescription, Op, Partial, Place, Protection,
};
use gmm_core::{
    Batch, Clock, Config, Frame, FrameNr, HostAddr, NodeId, PAGE_SIZE, PageNr, PageRange, Space,
    VirtAddr,
};
use gmm_hostxpu::{Context, HostXpuConfig, HostXpuDevice, Module};

pub const HOST_FRAMES: u32 = 96;
pub const LONG: Duration = Duration::from_secs(60);

pub struct Host {
    base: u64,
    next: AtomicU32,
    free: Mutex<Vec<u32>>,
}

fn layout() -> Layout {
    Layout::from_size_align(HOST_FRAMES as usize * PAGE_SIZE as usize, PAGE_SIZE as usize).unwrap()
}

impl Host {
    fn new() -> Self {
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout()) } as u64;
        assert_ne!(base, 0);
        Self { base, next: AtomicU32::new(0), free: Mutex::default() }
    }

    fn at(&self, frame: Frame) -> u64 {
        assert!(frame.nr.0 < HOST_FRAMES);
        self.base + u64::from(frame.nr.0) * PAGE_SIZE
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.base as *mut u8, layout()) }
    }
}

impl Device for Host {
    fn name(&self) -> &str {
        "plain memory"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::READ_ONLY_MAPPINGS | Capabilities::OWN_MEMORY
    }
    fn nodes(&self) -> &[NodeDescription] {
        &[NodeDescription { capacity_frames: HOST_FRAMES }]
    }
    fn set_first_node(&self, first: NodeId) {
        assert_eq!(first, NodeId::HOST);
    }
    fn import(
        &self,
        _: NodeId,
        nr_frames: u32,
        out: &mut Batch<Extent, 16>,
    ) -> Result<(), DriverError> {
        let start = self.next.fetch_add(nr_frames, Ordering::Relaxed);
        let nr_frames = HOST_FRAMES.saturating_sub(start).min(nr_frames);
        if nr_frames > 0 {
            out.push(Extent { start: FrameNr(start), nr_frames });
        }
        Ok(())
    }
    fn release(&self, _: NodeId, _: &[Extent]) {}
    fn submit(&self, ops: &[Op]) -> Result<Fence, DriverError> {
        let at = |(place, offset)| match place {
            Place::Frame(frame) => self.at(frame) + offset,
            Place::Host(addr) => addr.0 + offset,
            Place::Peer(addr) => addr.0 + offset,
        };
        for op in ops {
            let copy = op.as_bytes().expect("bytes of frames");
            let (to, len) = (at(copy.to) as *mut u8, copy.len as usize);
            // SAFETY: the core names frames that no one else uses.
            unsafe {
                match copy.from {
                    None => to.write_bytes(0, len),
                    Some(from) => (at(from) as *const u8).copy_to(to, len),
                }
            }
        }
        Ok(Fence(0))
    }
    fn wait(&self, _: Fence, _: Duration) -> Result<(), DriverError> {
        Ok(())
    }
    fn poll(&self, _: Fence) -> bool {
        true
    }
    fn host_addr(&self, frame: Frame) -> Option<HostAddr> {
        Some(HostAddr(self.at(frame)))
    }
}

/// The CPU's page table. Held while the CPU accesses, so that a clear waits for the access.
#[derive(Default)]
pub struct Table(Mutex<HashMap<PageNr, (Frame, Protection)>>);

impl Mmu for Table {
    fn va_examine(&self, _: PageRange) -> Result<Examine, DriverError> {
        Ok(Examine::Reserved)
    }
    fn va_release(&self, range: PageRange) {
        self.0.lock().unwrap().retain(|&page, _| !range.contains(page));
    }
    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        let mut table = self.0.lock().unwrap();
        for m in mappings {
            table.insert(m.page, (m.frame, m.protection));
        }
        Ok(())
    }
    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        let mut table = self.0.lock().unwrap();
        for m in mappings {
            assert_eq!(table.remove(&m.page).map(|(frame, _)| frame), Some(m.frame));
        }
        Ok(())
    }
}

struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

pub struct Machine {
    pub space: Arc<Space>,
    host: Arc<Host>,
    table: Arc<Table>,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let (host, table) = (Arc::new(Host::new()), Arc::new(Table::default()));
        let clock = Arc::new(Monotonic(Instant::now()));
        let space = Space::new(config, host.clone(), table.clone(), clock).unwrap();
        Self { space, host, table }
    }

    /// An XPU that has joined.
    pub fn xpu(&self, config: HostXpuConfig) -> Arc<HostXpuDevice> {
        let device = HostXpuDevice::new(config).unwrap();
        self.space.add_device(device.clone()).unwrap();
        device
    }

    /// An XPU of that many frames and a context of it.
    pub fn context(&self, frames: u64) -> Arc<Context> {
        self.context_with(HostXpuConfig::new(frames * PAGE_SIZE))
    }

    pub fn context_with(&self, config: HostXpuConfig) -> Arc<Context> {
        Context::new(&self.space, &self.xpu(config)).unwrap()
    }

    /// A region of that many pages; its first address.
    pub fn mmap(&self, pages: u64) -> u64 {
        let range = self.space.mmap(pages * PAGE_SIZE, Protection::ReadWrite, "test").unwrap();
        range.start.start().0
    }

    /// Has the CPU access the word at `addr`.
    fn access<T>(&self, addr: u64, access: Access, f: impl Fn(&AtomicU64) -> T) -> T {
        let addr = VirtAddr(addr);
        loop {
            {
                let table = self.table.0.lock().unwrap();
                if let Some((frame, protection)) = table.get(&addr.page())
                    && protection.allows(access)
                {
                    let at = self.host.at(*frame) + addr.0 % PAGE_SIZE;
                    // SAFETY: the frame is the page's while the table is locked.
                    return f(unsafe { &*(at as *const AtomicU64) });
                }
            }
            self.space.fault(self.space.cpu(), addr, access).unwrap();
        }
    }

    pub fn read(&self, addr: u64) -> u64 {
        self.access(addr, Access::Read, |word| word.load(Ordering::Relaxed))
    }

    pub fn write(&self, addr: u64, value: u64) {
        self.access(addr, Access::Write, |word| word.store(value, Ordering::Relaxed));
    }

    /// Waits until the word is not zero.
    pub fn await_word(&self, addr: u64) {
        let end = Instant::now() + LONG;
        while self.read(addr) == 0 {
            assert!(Instant::now() < end, "the kernel did not start");
            std::thread::yield_now();
        }
    }
}

/// The library with the tests' kernels, compiled once.
pub fn kernels() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/kernels.c");
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("kernels-{}.so", std::process::id()));
        let mut cc = std::process::Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&path).arg(source);
        assert!(cc.status().expect("a C compiler").success());
        path
    })
    .clone()
}

pub fn load(context: &Context) -> Module {
    context.load(kernels()).unwrap()
}

/// Waits until the context has noticed its end.
pub fn await_death(context: &Context) -> gmm_hostxpu::Death {
    let end = Instant::now() + LONG;
    loop {
        if let Some(death) = context.death() {
            return death;
        }
        assert!(Instant::now() < end, "the context lives");
        std::thread::yield_now();
    }
}
