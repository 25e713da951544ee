//! The userfaultfd wrapper by itself, on memory of the test's own.

mod common;

use common::{Memory, PAGE, SMALL, wait_until};
use gmm_core::VirtAddr;
use gmm_core::driver::Access;
use gmm_cpu::uffd::{AccessKind, CopyMode, Event, Features, MoveMode, RegisterMode, Stopped, Uffd};
use rustix::io::Errno;

/// Two 2 MiB pages: the first registered for moves out of it, the second as missing.
struct Pair {
    uffd: Uffd,
    src: Memory,
    dst: Memory,
}

fn pair() -> Pair {
    let uffd = Uffd::open().unwrap();
    // SAFETY: fresh memory, leaked on purpose, used by this test alone.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE, 3, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let src = Memory((at as usize).next_multiple_of(PAGE) as *mut u8);
        let dst = Memory(src.at(PAGE));
        src.advise(0, 2 * PAGE, libc::MADV_HUGEPAGE).unwrap();
        uffd.register(src.0 as u64, PAGE as u64, RegisterMode::WRITE_PROTECT).unwrap();
        uffd.register(dst.0 as u64, PAGE as u64, RegisterMode::MISSING).unwrap();
        Pair { uffd, src, dst }
    }
}

impl Pair {
    fn move_in(&self, len: usize, mode: MoveMode) -> Result<(), Stopped> {
        // SAFETY: both are this test's memory.
        unsafe { self.uffd.move_pages(self.dst.0 as u64, self.src.0 as u64, len as u64, mode) }
    }
}

#[test]
fn it_opens_with_what_is_needed() {
    let (features, kind) = Uffd::query().unwrap();
    assert!(features.contains(Features::MOVE | Features::POISON));
    let uffd = Uffd::open().unwrap();
    assert_eq!((uffd.features(), uffd.access()), (features, kind));
    if std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok() {
        assert_eq!(kind, AccessKind::Device);
    }
}

#[test]
fn a_move_says_how_far_it_got_and_why_no_further() {
    let Pair { src, dst, .. } = pair();
    let p = Pair { uffd: Uffd::open().unwrap(), src, dst };
    // Registered with another userfaultfd.
    assert_eq!(p.move_in(PAGE, MoveMode::default()).unwrap_err().errno, Errno::INVAL);

    let p = pair();
    let nothing = p.move_in(PAGE, MoveMode::default()).unwrap_err();
    assert_eq!(nothing, Stopped { done: 0, errno: Errno::NOENT });
    p.src.fill(0, PAGE, 1);
    p.src.discard(4 * SMALL, SMALL);
    let hole = p.move_in(PAGE, MoveMode::default()).unwrap_err();
    assert_eq!(hole, Stopped { done: 4 * SMALL as u64, errno: Errno::AGAIN });
    let taken = p.move_in(PAGE, MoveMode::default()).unwrap_err();
    // The start is at the destination already, and no longer at the source.
    assert!(matches!(taken.errno, Errno::NOENT | Errno::EXIST), "{taken}");
    let rest = (PAGE - 4 * SMALL) as u64;
    let at = 4 * SMALL as u64;
    // SAFETY: as in `move_in`.
    unsafe {
        p.uffd
            .move_pages(p.dst.0 as u64 + at, p.src.0 as u64 + at, rest, MoveMode::ALLOW_SRC_HOLES)
            .unwrap();
    }
    assert_eq!(p.dst.differences(0, 4 * SMALL, 1), 0);
    assert_eq!(p.dst.differences(5 * SMALL, PAGE - 5 * SMALL, 1), 0);
}

#[test]
fn a_touch_is_an_event_and_waits() {
    let p = pair();
    assert_eq!(p.uffd.next_event(), Ok(None));
    p.src.fill(0, PAGE, 2);
    let (dst, want) = (p.dst, p.src.read(3 * SMALL + 64));
    let reader = std::thread::spawn(move || dst.read(3 * SMALL + 64));
    let mut event = None;
    wait_until("the event", || {
        event = event.or(p.uffd.next_event().unwrap());
        event.is_some()
    });
    let Some(Event::Missing { addr, access }) = event else { panic!("{event:?}") };
    assert_eq!(access, Access::Read);
    let exact = p.uffd.features().contains(Features::EXACT_ADDRESS);
    let offset = if exact { 3 * SMALL + 64 } else { 3 * SMALL };
    assert_eq!(addr, VirtAddr(p.dst.at(offset) as u64));
    p.move_in(PAGE, MoveMode::default()).unwrap();
    assert_eq!(reader.join().unwrap(), want);

    // A move that wakes nobody, and then a wake.
    p.dst.fill(0, PAGE, 3);
    // SAFETY: the test's own memory.
    unsafe { p.uffd.move_pages(p.src.0 as u64, p.dst.0 as u64, PAGE as u64, MoveMode::default()) }
        .unwrap();
    let writer = std::thread::spawn(move || dst.write(5, 99));
    let mut event = None;
    wait_until("the event", || {
        event = event.or(p.uffd.next_event().unwrap());
        event.is_some()
    });
    assert!(matches!(event, Some(Event::Missing { access: Access::Write, .. })), "{event:?}");
    p.move_in(PAGE, MoveMode::DONT_WAKE).unwrap();
    p.uffd.wake(p.dst.0 as u64, PAGE as u64).unwrap();
    writer.join().unwrap();
    assert_eq!(p.dst.read(5), 99);
}

#[test]
fn absent_pages_are_filled_once() {
    let p = pair();
    let bytes = vec![7_u8; SMALL];
    let at = p.dst.0 as u64;
    // SAFETY: the test's own memory.
    unsafe {
        p.uffd.copy(at, bytes.as_ptr(), SMALL as u64, CopyMode::default()).unwrap();
        p.uffd.zeropage(at + SMALL as u64, SMALL as u64).unwrap();
        let again = p.uffd.copy(at, bytes.as_ptr(), SMALL as u64, CopyMode::default()).unwrap_err();
        assert_eq!(again, Stopped { done: 0, errno: Errno::EXIST });
        let again = p.uffd.zeropage(at, SMALL as u64).unwrap_err();
        assert_eq!(again, Stopped { done: 0, errno: Errno::EXIST });
    }
    assert_eq!((p.dst.read(0), p.dst.read(SMALL)), (7, 0));
}

#[test]
fn poison_is_an_error_to_the_kernel_and_goes_with_the_contents() {
    let p = pair();
    let at = p.dst.0 as u64;
    // SAFETY: the test's own memory.
    unsafe { p.uffd.poison(at, PAGE as u64) }.unwrap();
    let null = std::fs::File::create("/dev/full").unwrap();
    drop(null);
    let mut fds = [0; 2];
    // SAFETY: a pipe into an array of two; a write from memory that may fail.
    unsafe {
        assert_eq!(libc::pipe(fds.as_mut_ptr()), 0);
        assert_eq!(libc::write(fds[1], p.dst.0.cast(), 1), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        // SAFETY: the test's own memory.
        let again = p.uffd.poison(at, PAGE as u64).unwrap_err();
        assert_eq!((again.done, again.errno), (0, Errno::EXIST));
    }
    p.dst.discard(0, PAGE);
    p.src.write(0, 3);
    p.move_in(PAGE, MoveMode::default()).unwrap();
    assert_eq!(p.dst.read(0), 3);
}

#[test]
fn unregistered_memory_reads_as_zero_again() {
    let p = pair();
    // SAFETY: the test's own memory.
    unsafe { p.uffd.unregister(p.dst.0 as u64, PAGE as u64) }.unwrap();
    assert_eq!(p.dst.read(17), 0);
    assert_eq!(p.uffd.next_event(), Ok(None));
}
