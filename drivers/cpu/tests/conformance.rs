//! The CPU passes the conformance kit: host memory, its page table, and the threads that serve its
//! faults. The cores are the threads that call, at the real addresses; see `access`.

mod access;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gmm_core::driver::{
    Access, Clear, Device, DriverError, Enter, Examine, MappingKind, Mmu, Partial, Protection,
};
use gmm_core::{PageNr, PageRange, VirtAddr};
use gmm_cpu::{CpuDriver, CpuMmu, FaultHandlers, FaultServer, Options};
use gmm_driver_tests::kit::{Bench, Refused, Serve, Subject, TestContext};

#[test]
fn the_cpu_conforms() {
    gmm_driver_tests::conformance(Cpu);
}

/// What an access that the machine refuses gives, which the kit builds on.
#[test]
fn refused_accesses_are_errors_and_others_are_not() {
    let word = AtomicU64::new(7);
    let addr = word.as_ptr() as u64;
    // SAFETY: the word is an atomic of ours; nothing is mapped at the address 8.
    unsafe {
        assert_eq!(access::load(addr), Ok(7));
        assert_eq!(access::store(addr, 41), Ok(()));
        assert_eq!(access::increment(addr), Ok(()));
        for _ in 0..2 {
            assert_eq!(access::load(8), Err(access::Refused));
            assert_eq!(access::store(8, 1), Err(access::Refused));
            assert_eq!(access::increment(8), Err(access::Refused));
        }
    }
    assert_eq!(word.load(Ordering::SeqCst), 42);
}

struct Cpu;

impl Subject for Cpu {
    fn name(&self) -> String {
        "CPU".into()
    }

    fn bench(&self) -> Box<dyn Bench> {
        let options = Options {
            window: Some(unused_window()),
            capacity_frames: Some(24),
            ..Options::default()
        };
        let driver = CpuDriver::new(options).unwrap();
        let core = Arc::new(Core {
            mmu: driver.mmu(),
            entered: Mutex::default(),
            serve: Mutex::default(),
        });
        let handlers = driver.start_with(&core).unwrap();
        Box::new(Desk { _handlers: handlers, core, driver })
    }
}

/// A small window that no other rule has: what hung in one must not disturb the next.
fn unused_window() -> PageRange {
    const FIRST: u64 = if cfg!(gmm_tsan) { 0x00a0_0000_0000 } else { 0x2a00_0000_0000 };
    static NEXT: AtomicU64 = AtomicU64::new(FIRST);
    let base = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
    PageRange { start: VirtAddr(base).page(), nr_pages: 64 }
}

/// What the CPU's threads and the kit see of the core: one call at a time for a page, faults that
/// are served by whatever the kit says, and pages that are poisoned when it serves none.
struct Core {
    mmu: Arc<CpuMmu>,
    /// Held over page-table operations in the place of the entries' locks.
    entered: Mutex<BTreeMap<PageNr, Enter>>,
    serve: Mutex<Option<Serve>>,
}

impl FaultServer for Core {
    fn fault(&self, addr: VirtAddr, access: Access) {
        let serve = self.serve.lock().unwrap().clone();
        if serve.is_some_and(|serve| serve(addr, access)) {
            return;
        }
        // As the core does: the access fails, unless the page has become usable meanwhile.
        let entered = self.entered.lock().unwrap();
        match entered.get(&addr.page()) {
            None => drop(self.mmu.poison(addr.page())),
            // A write to a replica would fault for ever: it is refused as one to a read-only
            // region is.
            Some(mapping) if mapping.kind == MappingKind::Replica && access == Access::Write => {
                let read_only = Enter { protection: Protection::ReadOnly, ..*mapping };
                self.mmu.pmap_enter(&[read_only]).unwrap();
            }
            Some(_) => {}
        }
    }
}

impl Mmu for Core {
    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError> {
        self.mmu.va_examine(range)
    }

    fn va_release(&self, range: PageRange) {
        let mut entered = self.entered.lock().unwrap();
        self.mmu.va_release(range);
        entered.retain(|&page, _| !range.contains(page));
    }

    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        let mut entered = self.entered.lock().unwrap();
        let result = self.mmu.pmap_enter(mappings);
        let done = result.map_or_else(|partial| partial.done, |()| mappings.len());
        entered.extend(mappings[..done].iter().map(|mapping| (mapping.page, *mapping)));
        result
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        let mut entered = self.entered.lock().unwrap();
        let result = self.mmu.pmap_clear(mappings);
        let done = result.map_or_else(|partial| partial.done, |()| mappings.len());
        for mapping in &mappings[..done] {
            entered.remove(&mapping.page);
        }
        result
    }

    fn revalidate(&self, mapping: Enter, addr: VirtAddr) -> Result<(), DriverError> {
        let _entered = self.entered.lock().unwrap();
        self.mmu.revalidate(mapping, addr)
    }

    fn poison(&self, page: PageNr) -> bool {
        let _entered = self.entered.lock().unwrap();
        self.mmu.poison(page)
    }

    fn unpoison(&self, page: PageNr) {
        let _entered = self.entered.lock().unwrap();
        self.mmu.unpoison(page);
    }
}

struct Desk {
    /// Stopped first: they work with the others.
    _handlers: FaultHandlers,
    core: Arc<Core>,
    driver: CpuDriver,
}

impl Drop for Desk {
    fn drop(&mut self) {
        // What serves faults may hold the core that holds it.
        *self.core.serve.lock().unwrap() = None;
    }
}

impl Bench for Desk {
    fn device(&self) -> Arc<dyn Device> {
        self.driver.host()
    }

    /// A process has one CPU: every context is the same one.
    fn context(&self, _node: usize) -> Box<dyn TestContext> {
        Box::new(Cores(self.core.clone()))
    }

    fn window(&self) -> PageRange {
        self.driver.window()
    }

    fn host(&self) -> Option<(Arc<dyn Device>, Box<dyn TestContext>)> {
        Some((self.device(), self.context(0)))
    }
}

/// Each thread is one.
struct Cores(Arc<Core>);

fn refused(_: access::Refused) -> Refused {
    Refused
}

impl TestContext for Cores {
    fn mmu(&self) -> Arc<dyn Mmu> {
        self.0.clone()
    }

    fn load(&self, addr: VirtAddr) -> Result<u64, Refused> {
        // SAFETY: the kit's addresses are words of the window, which holds no Rust value.
        unsafe { access::load(addr.0) }.map_err(refused)
    }

    fn store(&self, addr: VirtAddr, value: u64) -> Result<(), Refused> {
        // SAFETY: as in `load`.
        unsafe { access::store(addr.0, value) }.map_err(refused)
    }

    fn increment(&self, addr: VirtAddr) -> Option<Result<(), Refused>> {
        // SAFETY: as in `load`.
        Some(unsafe { access::increment(addr.0) }.map_err(refused))
    }

    fn serve(&self, serve: Option<Serve>) {
        *self.0.serve.lock().unwrap() = serve;
    }
}
