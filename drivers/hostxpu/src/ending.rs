//! How launches end, and what waits for that. The tests write into the ring in the worker's
//! place, which is stopped.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gmm_core::driver::Access;
use gmm_core::{Config, PageRange, Resolved, VirtAddr};
use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::context::Core;
use crate::hostile::{Nobody, compile, core};
use crate::launch::Launch;
use crate::manager::Manager;
use crate::module::{Kernel, Module};
use crate::ring::NR_LAUNCHES;
use crate::stream::Stream;
use crate::{Death, Error, wait};

const LONG: Duration = Duration::from_secs(60);

fn await_true(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// A context whose worker does nothing any more, and a kernel of it.
fn stopped() -> (Core, Kernel) {
    let core = core();
    let module = Module::load(&core.shared, &compile("kernels.c")).unwrap();
    let kernel = module.kernel("nothing").unwrap();
    stop(&core);
    (core, kernel)
}

/// Stops the worker.
pub(crate) fn stop(core: &Core) {
    let pid = core.shared.process.pid;
    kill_process(pid, Signal::STOP).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
}

fn launch(stream: &Stream, kernel: &Kernel) -> Result<Launch, Error> {
    // SAFETY: the kernel does nothing.
    unsafe { stream.launch(kernel, 1, (), &[]) }
}

/// Its holds take their time to end.
#[derive(Default)]
struct Slow {
    begun: AtomicBool,
    may_end: AtomicBool,
    ended: AtomicBool,
}

struct SlowHold(Arc<Slow>);

impl Drop for SlowHold {
    fn drop(&mut self) {
        self.0.begun.store(true, Ordering::SeqCst);
        await_true("no one lets the hold end", || self.0.may_end.load(Ordering::SeqCst));
        self.0.ended.store(true, Ordering::SeqCst);
    }
}

struct SlowManager(Arc<Slow>);

impl Manager for SlowManager {
    fn fault(&self, addr: VirtAddr, _: Access) -> gmm_core::Result<Resolved> {
        Err(gmm_core::Error::NotMapped { addr })
    }
    fn hold(&self, _: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>> {
        Ok(Box::new(SlowHold(self.0.clone())))
    }
    fn detach(&self) {}
}

/// Lets the hold end, also where a test fails.
struct Opener(Arc<Slow>);

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.may_end.store(true, Ordering::SeqCst);
    }
}

/// Launches the kernel with a hold that is slow to end; the watcher is at that when this returns.
fn slow_launch(core: &Core, kernel: &Kernel, end: impl FnOnce()) -> (Launch, Opener) {
    let slow = Arc::new(Slow::default());
    let stream = Stream::new(core.shared.clone(), Arc::new(SlowManager(slow.clone())));
    let held = PageRange { start: Config::default().window.start, nr_pages: 1 };
    // SAFETY: the kernel does nothing.
    let launch = unsafe { stream.launch(kernel, 1, (), &[held]).unwrap() };
    end();
    await_true("the hold does not end", || slow.begun.load(Ordering::SeqCst));
    (launch, Opener(slow))
}

#[test]
fn a_launch_has_ended_when_it_holds_nothing_any_more() {
    let core = core();
    let module = Module::load(&core.shared, &compile("kernels.c")).unwrap();
    let (launch, opener) = slow_launch(&core, &module.kernel("nothing").unwrap(), || {});
    assert!(!launch.wait_timeout(Duration::ZERO).unwrap());
    let waiter = std::thread::spawn({
        let slow = opener.0.clone();
        move || {
            launch.wait().unwrap();
            assert!(slow.ended.load(Ordering::SeqCst), "the launch's pages are held still");
        }
    });
    drop(opener);
    waiter.join().unwrap();
}

#[test]
fn so_has_one_whose_context_died() {
    let (core, kernel) = stopped();
    let (launch, opener) = slow_launch(&core, &kernel, || core.shared.process.kill());
    assert!(!launch.wait_timeout(Duration::ZERO).unwrap());
    let slow = opener.0.clone();
    drop(opener);
    match launch.wait_timeout(Duration::MAX) {
        Err(Error::Launch { death: Death::Killed { signal: 9 }, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(slow.ended.load(Ordering::SeqCst), "the launch's pages are held still");
}

#[test]
fn a_violation_does_not_take_others_with_it() {
    let (core, kernel) = stopped();
    let stream = Stream::new(core.shared.clone(), Arc::new(Nobody));
    let launches: Vec<_> = (0..3).map(|_| launch(&stream, &kernel).unwrap()).collect();
    let slots = &core.shared.ring.launches;
    slots[1].completed.store(9, Ordering::SeqCst);
    slots[0].completed.store(1, Ordering::SeqCst);
    slots[2].completed.store(1, Ordering::SeqCst);
    launches[0].wait().unwrap();
    launches[2].wait().unwrap();
    let end = launches[1].wait();
    assert!(matches!(end, Err(Error::Launch { death: Death::Protocol(_), .. })), "{end:?}");
}

/// Notes whether signals were blocked when pages were held, and let go.
#[derive(Clone, Default)]
struct Masked(Arc<Mutex<Vec<bool>>>);

impl Masked {
    fn note(&self) {
        // SAFETY: asks for this thread's mask; a zeroed one is valid to overwrite.
        let blocked = unsafe {
            let mut mask = core::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &mut mask);
            libc::sigismember(&mask, libc::SIGALRM) == 1
        };
        self.0.lock().unwrap().push(blocked);
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        self.note();
    }
}

struct MaskedManager(Arc<Mutex<Vec<bool>>>);

impl Manager for MaskedManager {
    fn fault(&self, addr: VirtAddr, _: Access) -> gmm_core::Result<Resolved> {
        Err(gmm_core::Error::NotMapped { addr })
    }
    fn hold(&self, _: &[PageRange]) -> gmm_core::Result<Box<dyn Any + Send>> {
        let masked = Masked(self.0.clone());
        masked.note();
        Ok(Box::new(masked))
    }
    fn detach(&self) {
        Masked(self.0.clone()).note();
    }
}

/// A signal handler that touches unified memory would wait for the thread that it interrupted.
#[test]
fn no_signal_is_handled_inside_the_manager() {
    let (core, kernel) = stopped();
    let masked = Arc::default();
    let stream = Stream::new(core.shared.clone(), Arc::new(MaskedManager(Arc::clone(&masked))));
    let held = PageRange { start: Config::default().window.start, nr_pages: 1 };
    // SAFETY: the kernel does nothing.
    let launch = unsafe { stream.launch(&kernel, 1, (), &[held]).unwrap() };
    core.shared.ring.launches[0].completed.store(1, Ordering::SeqCst);
    // This thread finds that it has ended, and lets go of what it held.
    launch.wait().unwrap();
    assert_eq!(*masked.lock().unwrap(), [true, true]);
}

/// The worker's end of the socket can't be written to, and the worker lives: it is not waited for.
#[test]
fn a_request_that_can_not_be_sent_ends_the_context() {
    let (core, _) = stopped();
    rustix::net::shutdown(&core.shared.process.socket, rustix::net::Shutdown::Write).unwrap();
    let answer = core.shared.ask(crate::wire::FIND, "find a kernel", b"0000nothing");
    assert!(matches!(answer, Err(Error::ContextDead(Death::Disconnected))), "{answer:?}");
}

/// Fills all slots and has a thread submit one launch more.
fn submit_one_more(core: &Core, kernel: &Kernel, then: impl FnOnce()) -> Result<Launch, Error> {
    let stream = Stream::new(core.shared.clone(), Arc::new(Nobody));
    for _ in 0..NR_LAUNCHES {
        launch(&stream, kernel).unwrap();
    }
    std::thread::scope(|scope| {
        let submitter = scope.spawn(|| launch(&stream, kernel));
        let waiters = &core.shared.ring.end_waiters;
        await_true("no one waits for a slot", || waiters.load(Ordering::SeqCst) == 1);
        then();
        submitter.join().unwrap()
    })
}

#[test]
fn the_slot_of_any_launch_will_do() {
    let (core, kernel) = stopped();
    let ring = &core.shared.ring;
    submit_one_more(&core, &kernel, || {
        ring.launches[17].completed.store(1, Ordering::SeqCst);
        wait::bump(&ring.end_bell);
    })
    .unwrap();
    assert_eq!(ring.launches[17].submitted.load(Ordering::SeqCst), 2);
}

#[test]
fn who_waits_for_a_slot_hears_of_the_end() {
    let (core, kernel) = stopped();
    let end = submit_one_more(&core, &kernel, || core.shared.process.kill());
    // Not that another launch failed.
    assert!(matches!(end, Err(Error::ContextDead(Death::Killed { signal: 9 }))), "{end:?}");
}
