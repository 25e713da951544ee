//! The host XPU passes the conformance kit, in each of its forms.

use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gmm_core::driver::{Access, Device, DriverError, Mmu};
use gmm_core::{Config, PAGE_SIZE, PageRange, Resolved, VirtAddr};
use gmm_driver_tests::kit::{Bench, Refused, Serve, Subject, TestContext};

use crate::context::Core;
use crate::manager::Manager;
use crate::mmu::ContextMmu;
use crate::module::{Kernel, Module};
use crate::stream::Stream;
use crate::{Backing, HostXpuConfig, HostXpuDevice};

fn careful_kernels() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| crate::hostile::compile("careful.c"))
}

/// The kit in the place of the manager.
#[derive(Default)]
struct KitManager(Mutex<Option<Serve>>);

impl Manager for KitManager {
    fn fault(&self, addr: VirtAddr, access: Access) -> gmm_core::Result<Resolved> {
        let serve = self.0.lock().unwrap().clone();
        match serve.is_some_and(|serve| serve(addr, access)) {
            true => Ok(Resolved::Entered),
            false => Err(gmm_core::Error::NotMapped { addr }),
        }
    }

    fn hold(&self, _ranges: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>> {
        Ok(Box::new(()))
    }

    fn reports_refusals(&self) -> bool {
        true
    }

    fn detach(&self) {}
}

/// A context without a space.
struct Bare {
    core: Core,
    manager: Arc<KitManager>,
    kernel: Kernel,
    results: OwnedFd,
    next_result: AtomicU64,
}

impl Bare {
    fn new(device: &Arc<HostXpuDevice>, window: PageRange) -> Self {
        let manager = Arc::new(KitManager::default());
        let mut core = Core::start(device, window).unwrap();
        core.serve(manager.clone()).unwrap();
        let kernel = Module::load(&core.shared, careful_kernels()).unwrap();
        let kernel = kernel.kernel("try_access").unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let results = rustix::fs::memfd_create("results", flags).unwrap();
        Self { core, manager, kernel, results, next_result: AtomicU64::new(0) }
    }

    fn access(&self, addr: VirtAddr, operation: u64, value: u64) -> Result<u64, Refused> {
        let offset = 16 * (self.next_result.fetch_add(1, Ordering::Relaxed) % 4096);
        let file = u64::from(std::process::id()) << 32 | self.results.as_raw_fd() as u64;
        let stream = Stream::new(self.core.shared.clone(), self.manager.clone());
        let args = [addr.0, operation, value, file, offset];
        // SAFETY: the kernel takes these.
        let launch = unsafe { stream.launch(&self.kernel, 1, args, &[]) };
        launch.and_then(|launch| launch.wait()).map_err(|_| Refused)?;
        let mut result = [0_u8; 16];
        assert_eq!(rustix::io::pread(&self.results, &mut result, offset), Ok(16));
        let word = |i: usize| u64::from_ne_bytes(result[8 * i..8 * i + 8].try_into().unwrap());
        if word(0) == 1 { Ok(word(1)) } else { Err(Refused) }
    }
}

impl TestContext for Bare {
    fn mmu(&self) -> Arc<dyn Mmu> {
        Arc::new(ContextMmu(self.core.shared.clone()))
    }

    fn load(&self, addr: VirtAddr) -> Result<u64, Refused> {
        self.access(addr, 0, 0)
    }

    fn store(&self, addr: VirtAddr, value: u64) -> Result<(), Refused> {
        self.access(addr, 1, value).map(drop)
    }

    fn increment(&self, addr: VirtAddr) -> Option<Result<(), Refused>> {
        Some(self.access(addr, 2, 0).map(drop))
    }

    fn serve(&self, serve: Option<Serve>) {
        *self.manager.0.lock().unwrap() = serve;
    }

    fn kill(&self) -> bool {
        self.core.shared.process.kill();
        true
    }
}

struct Form {
    name: &'static str,
    config: HostXpuConfig,
}

struct Desk(Arc<HostXpuDevice>);

impl Subject for Form {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn bench(&self) -> Box<dyn Bench> {
        Box::new(Desk(HostXpuDevice::new(self.config.clone()).unwrap()))
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(120)
    }
}

impl Bench for Desk {
    fn device(&self) -> Arc<dyn Device> {
        self.0.clone()
    }

    fn context(&self, _node: usize) -> Box<dyn TestContext> {
        Box::new(Bare::new(&self.0, self.window()))
    }

    fn offsets(&self) -> Vec<u64> {
        // An access is a launch: a few of them, the first and the last among them.
        vec![0, 8, 4096, PAGE_SIZE / 2, PAGE_SIZE - 4096, PAGE_SIZE - 8]
    }

    fn window(&self) -> PageRange {
        PageRange { start: Config::default().window.start, nr_pages: 64 }
    }
}

fn config() -> HostXpuConfig {
    HostXpuConfig::new(24 * PAGE_SIZE).cores(4)
}

#[test]
fn the_host_xpu_conforms() {
    gmm_driver_tests::conformance(Form { name: "host XPU", config: config() });
}

#[test]
fn without_replayable_faults_it_conforms() {
    let config = config().replayable_faults(false);
    gmm_driver_tests::conformance(Form { name: "host XPU, no replay", config });
}

#[test]
fn without_read_only_mappings_it_conforms() {
    let config = config().read_only_mappings(false).backing(Backing::SmallPages);
    gmm_driver_tests::conformance(Form { name: "host XPU, no read-only mappings", config });
}

/// The worker has less than the manager believes: an access that faults for it can go on.
#[test]
fn what_got_lost_is_mapped_again() {
    use gmm_core::driver::{Clear, Enter, Protection};
    use gmm_core::{Frame, FrameNr, NodeId};
    let device = HostXpuDevice::new(config()).unwrap();
    let bare = Bare::new(&device, Desk(device.clone()).window());
    let page = Config::default().window.start;
    let frame = Frame { node: NodeId(1), nr: FrameNr(3) };
    let mapping = Enter::local(page, frame, Protection::ReadWrite);
    bare.mmu().pmap_enter(&[mapping]).unwrap();
    bare.store(page.start(), 7).unwrap();
    bare.mmu().pmap_clear(&mut [Clear { page, frame, was_empty: false }]).unwrap();
    // A core that comes back for the page gets it; each of them may be the one that tries.
    let most_tries = 2 * device.config.cores as usize;
    let read = (0..most_tries).find_map(|_| {
        let read = bare.load(page.start());
        bare.mmu().revalidate(mapping, page.start()).unwrap();
        read.ok()
    });
    assert_eq!(read, Some(7));
}

/// An enter that the operating system refuses stops the batch there.
#[test]
fn a_batch_stops_where_it_fails() {
    use gmm_core::driver::{Clear, Enter, Protection};
    use gmm_core::{Frame, FrameNr, NodeId};
    let device = HostXpuDevice::new(config()).unwrap();
    let bare = Bare::new(&device, Desk(device.clone()).window());
    let start = Config::default().window.start;
    let enter = |i: u64, nr: u32| {
        let frame = Frame { node: NodeId(1), nr: FrameNr(nr) };
        Enter::local(start.plus(i), frame, Protection::ReadWrite)
    };
    // Frame 99 does not exist.
    let partial = bare.mmu().pmap_enter(&[enter(0, 0), enter(1, 1), enter(2, 99), enter(3, 3)]);
    let partial = partial.unwrap_err();
    assert_eq!(partial.done, 2);
    assert!(matches!(partial.error, DriverError::Os { .. }), "{partial}");
    assert!(bare.load(start.plus(1).start()).is_ok());
    assert!(bare.load(start.plus(3).start()).is_err());
    let mut clear = [Clear { page: start.plus(1), frame: enter(1, 1).frame, was_empty: false }];
    bare.mmu().pmap_clear(&mut clear).unwrap();
    assert!(bare.load(start.plus(1).start()).is_err());
}
