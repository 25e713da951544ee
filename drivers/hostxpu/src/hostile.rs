//! Workers that write what they may not: the host names it, ends the context, and waits for no
//! one. The tests write into the ring in the worker's place.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gmm_core::driver::{Access, Clear, DriverError, Enter, Mmu, Protection};
use gmm_core::{Config, Frame, FrameNr, NodeId, PAGE_SIZE, PageRange, Resolved, VirtAddr};

use crate::context::Core;
use crate::ending::stop;
use crate::manager::Manager;
use crate::mmu::ContextMmu;
use crate::module::Module;
use crate::ring::Violation;
use crate::stream::Stream;
use crate::{Death, Error, HostXpuConfig, HostXpuDevice, wait};

/// Compiles a file of the tests' kernels.
pub(crate) fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name);
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    // Tests that run at the same time don't write the same file.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{name}-{}-{count}.so", std::process::id()));
    let mut cc = std::process::Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&path).arg(source);
    assert!(cc.status().expect("a C compiler").success());
    path
}

pub(crate) struct Nobody;

impl Manager for Nobody {
    fn fault(&self, addr: VirtAddr, _: Access) -> gmm_core::Result<Resolved> {
        Err(gmm_core::Error::NotMapped { addr })
    }
    fn hold(&self, _: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>> {
        Ok(Box::new(()))
    }
    fn detach(&self) {}
}

pub(crate) fn core() -> Core {
    let device = HostXpuDevice::new(HostXpuConfig::new(4 * PAGE_SIZE).cores(2)).unwrap();
    let mut core = Core::start(&device, Config::default().window).unwrap();
    core.serve(Arc::new(Nobody)).unwrap();
    core
}

fn violation(core: &Core) -> Violation {
    let end = Instant::now() + Duration::from_secs(60);
    while !core.shared.is_dead() {
        assert!(Instant::now() < end, "the context lives");
        std::thread::yield_now();
    }
    match core.shared.death() {
        Death::Protocol(violation) => violation,
        other => panic!("{other}"),
    }
}

#[test]
fn a_gap_in_the_fault_numbers() {
    let core = core();
    core.shared.ring.faults[1].requested.store(5, Ordering::SeqCst);
    wait::bump(&core.shared.ring.fault_bell);
    assert_eq!(violation(&core), Violation::FaultGap { core: 1, got: 5, last: 0 });
}

#[test]
fn a_fault_of_an_unknown_kind_or_of_no_launch() {
    let one = core();
    one.shared.ring.faults[0].access.store(77, Ordering::SeqCst);
    one.shared.ring.faults[0].requested.store(1, Ordering::SeqCst);
    wait::bump(&one.shared.ring.fault_bell);
    assert_eq!(violation(&one), Violation::AccessCode { core: 0, code: 77 });
    for slot in [0, 63, 64, u32::MAX] {
        let core = core();
        core.shared.ring.faults[0].launch.store(slot, Ordering::SeqCst);
        core.shared.ring.faults[0].requested.store(1, Ordering::SeqCst);
        wait::bump(&core.shared.ring.fault_bell);
        assert_eq!(violation(&core), Violation::UnknownLaunch { core: 0, slot });
    }
}

#[test]
fn an_answer_to_no_command() {
    let core = core();
    // The real worker must not answer meanwhile.
    stop(&core);
    core.shared.ring.command.done.store(7, Ordering::SeqCst);
    let mmu = ContextMmu(core.shared.clone());
    let (page, frame) = (Config::default().window.start, Frame { node: NodeId(1), nr: FrameNr(0) });
    let entered = mmu.pmap_enter(&[Enter::local(page, frame, Protection::ReadWrite)]);
    assert_eq!(entered.unwrap_err().error, DriverError::Dead);
    mmu.pmap_clear(&mut [Clear { page, frame, was_empty: false }]).unwrap();
    assert_eq!(violation(&core), Violation::CommandGap { posted: 1, done: 7 });
}

/// What the worker answers to a release that it can't execute: not a matter of time.
#[test]
fn a_release_that_fails() {
    let core = core();
    stop(&core);
    let slot = &core.shared.ring.command;
    slot.errno.store(12, Ordering::SeqCst);
    slot.done.store(1, Ordering::SeqCst);
    let range = PageRange { start: Config::default().window.start, nr_pages: 3 };
    ContextMmu(core.shared.clone()).va_release(range);
    assert!(core.shared.process.is_gone(Instant::now()), "something may be mapped still");
    match core.shared.death() {
        Death::CommandFailed { command: "unmap", errno: 12 } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_launch_completed_that_was_not_submitted() {
    let core = core();
    let module = Module::load(&core.shared, &compile("kernels.c")).unwrap();
    let kernel = module.kernel("call_stop").unwrap();
    let stream = Stream::new(core.shared.clone(), Arc::new(Nobody));
    // SAFETY: the kernel takes nothing; it stops its process.
    let launch = unsafe { stream.launch(&kernel, 1, (), &[]).unwrap() };
    core.shared.ring.launches[0].completed.store(40, Ordering::SeqCst);
    assert!(matches!(launch.wait(), Err(Error::Launch { .. })));
    let expected = Violation::CompletionGap { slot: 0, submitted: 1, completed: 40 };
    assert_eq!(violation(&core), expected);
}
