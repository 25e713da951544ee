//! A whole machine in one value: a host, its CPU, XPUs with contexts, and a space they share.

use core::time::Duration;
use std::fmt::Debug;
use std::sync::Arc;

use gmm_core::driver::{Access, Device, Mmu, Protection};
use gmm_core::{
    Clock, Config, NodeId, PageNr, PageRange, Processor, Result, Space, Stopped, VirtAddr,
};

use crate::array::{AccessError, ArrayContext, ArrayDevice, DeviceOptions, Machine};
use crate::{TestClock, WallClock};

/// A context and the processor that it is in the space.
#[derive(Clone)]
pub struct TestProcessor {
    /// The context, with its cores.
    pub context: Arc<ArrayContext>,
    /// The processor.
    pub processor: Arc<Processor>,
}

/// Array devices, and a space over them.
pub struct World {
    /// The machine of all devices.
    pub machine: Arc<Machine>,
    /// The virtual clock.
    pub clock: Arc<TestClock>,
    /// The space.
    pub space: Arc<Space>,
    /// The host's device.
    pub host: Arc<ArrayDevice>,
    /// The XPUs' devices, in the order in which they were added.
    pub xpus: Vec<Arc<ArrayDevice>>,
    /// The CPU, and then the contexts in the order in which they were attached.
    pub processors: Vec<TestProcessor>,
}

/// What a [`World`] is to be.
pub struct WorldBuilder {
    host: DeviceOptions,
    xpus: Vec<(DeviceOptions, usize)>,
    config: Config,
    wall_clock: bool,
    clock_step: Duration,
}

impl World {
    /// A world with so many host frames and no XPU yet. On its virtual clock every wait is over
    /// at the first look: for tests with one thread.
    pub fn builder(host_frames: u32) -> WorldBuilder {
        let window = PageRange { start: Config::default().window.start, nr_pages: 1 << 10 };
        let config = Config {
            window,
            frame_wait: Duration::from_millis(1),
            hold_wait: Duration::from_millis(1),
            copy_timeout: Duration::from_secs(10),
            warm_host_frames: 2,
            ..Config::default()
        };
        let host = DeviceOptions::host(host_frames);
        let clock_step = Duration::from_millis(1);
        WorldBuilder { host, xpus: Vec::new(), config, wall_clock: false, clock_step }
    }

    /// The CPU.
    pub fn cpu(&self) -> &TestProcessor {
        &self.processors[0]
    }

    /// Makes a context on the `node`-th node of the `xpu`-th XPU and attaches it; says which of
    /// the processors it is.
    ///
    /// # Errors
    /// Those of [`Space::attach`].
    pub fn attach(&mut self, xpu: usize, node: usize) -> Result<usize> {
        let device = &self.xpus[xpu];
        let context = device.context(node);
        let number = device.node(node).unwrap_or(NodeId::HOST);
        let attached = self.space.attach(number, context.clone() as Arc<dyn Mmu>)?;
        let processor = TestProcessor { context, processor: attached.processor };
        processor.serve(&self.space);
        self.processors.push(processor);
        Ok(self.processors.len() - 1)
    }

    /// A region of `nr_pages` pages, readable and writable.
    ///
    /// # Panics
    /// If `mmap` fails.
    pub fn mmap(&self, nr_pages: u64) -> PageRange {
        let len = nr_pages * gmm_core::PAGE_SIZE;
        self.space.mmap(len, Protection::ReadWrite, "test").expect("mmap of a test region")
    }

    /// Ends the poisoning of a page by bringing it to a processor's node.
    ///
    /// # Errors
    /// Those of [`Space::prefetch`].
    pub fn heal(&self, processor: usize, addr: VirtAddr) -> Result<()> {
        let node = self.processors[processor].processor.node();
        match self.space.prefetch(addr, 8, node)?.stopped {
            Some(Stopped::NoRoom(full)) => Err(full.into()),
            _ => Ok(()),
        }
    }

    /// The node of a processor.
    pub fn node(&self, processor: usize) -> NodeId {
        self.processors[processor].processor.node()
    }

    /// What is wrong: an invariant of the space, or something that the core did to a driver.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        self.space.check()?;
        self.machine.check_quiet();
        match self.machine.violations().first() {
            Some(first) => Err(format!("the core broke the driver traits: {first}")),
            None => Ok(()),
        }
    }

    /// As [`World::check`].
    ///
    /// # Panics
    /// If something is wrong; `when` says when.
    pub fn assert_sound(&self, when: impl Debug) {
        if let Err(what) = self.check() {
            panic!("{when:?}: {what}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A server holds the space, and the space the context.
        self.processors.iter().for_each(|p| p.context.serve(None));
    }
}

impl WorldBuilder {
    /// With another kind of host.
    #[must_use]
    pub fn host(mut self, change: impl FnOnce(DeviceOptions) -> DeviceOptions) -> Self {
        self.host = change(self.host);
        self
    }

    /// With an XPU and `contexts` contexts on its first node.
    #[must_use]
    pub fn xpu(mut self, options: DeviceOptions, contexts: usize) -> Self {
        self.xpus.push((options, contexts));
        self
    }

    /// With other settings.
    #[must_use]
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// With a virtual clock that is slow enough for waits to wait: for threads under shuttle.
    #[must_use]
    pub fn slow_clock(mut self) -> Self {
        self.clock_step = Duration::from_micros(100);
        self.config.frame_wait = Duration::from_secs(1);
        self.config.hold_wait = Duration::from_secs(1);
        self
    }

    /// With a virtual clock that goes on by `step` each time it is read.
    #[must_use]
    pub fn clock_step(mut self, step: Duration) -> Self {
        self.clock_step = step;
        self
    }

    /// With the machine's clock and waits long enough for real threads.
    #[must_use]
    pub fn wall_clock(mut self) -> Self {
        self.wall_clock = true;
        self.config.frame_wait = Duration::from_secs(20);
        self.config.hold_wait = Duration::from_secs(20);
        self
    }

    /// Makes it.
    ///
    /// # Panics
    /// If the space can't be made or a context can't be attached.
    pub fn build(self) -> World {
        let clock = Arc::new(TestClock::new(self.clock_step));
        let machine = Machine::new(clock.clone());
        let host = machine.device(self.host);
        let context = host.context(0);
        let time: Arc<dyn Clock> =
            if self.wall_clock { Arc::new(WallClock::default()) } else { clock.clone() };
        let (device, mmu) = (host.clone() as Arc<dyn Device>, context.clone() as Arc<dyn Mmu>);
        let space = Space::new(self.config, device, mmu, time).expect("a space over one host");
        let cpu = TestProcessor { context, processor: space.cpu().clone() };
        cpu.serve(&space);
        let (xpus, processors) = (Vec::new(), vec![cpu]);
        let mut world = World { machine, clock, space, host, xpus, processors };
        for (options, contexts) in self.xpus {
            let device = world.machine.device(options);
            world.space.add_device(device.clone()).expect("few devices");
            world.xpus.push(device);
            for _ in 0..contexts {
                world.attach(world.xpus.len() - 1, 0).expect("few contexts");
            }
        }
        world
    }
}

impl TestProcessor {
    fn serve(&self, space: &Arc<Space>) {
        let (space, processor) = (space.clone(), self.processor.clone());
        let fault = move |addr, access: Access| space.fault(&processor, addr, access);
        self.context.serve(Some(Arc::new(fault)));
    }

    /// Reads the word at `addr`; see [`ArrayContext::load`].
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn load(&self, addr: VirtAddr) -> Result<u64, AccessError> {
        self.context.load(addr)
    }

    /// Writes the word at `addr`; see [`ArrayContext::store`].
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn store(&self, addr: VirtAddr, value: u64) -> Result<(), AccessError> {
        self.context.store(addr, value)
    }

    /// Adds to the word at `addr`; see [`ArrayContext::add`].
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn add(&self, addr: VirtAddr, n: u64) -> Result<u64, AccessError> {
        self.context.add(addr, n)
    }
}

/// The address of a word of a page.
pub fn word(page: PageNr, word: u64) -> VirtAddr {
    VirtAddr(page.start().0 + word * 8)
}
