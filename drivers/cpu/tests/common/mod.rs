//! What the tests share: a space with the CPU alone, an allocator that catches handler threads at
//! allocating, and looks at what the kernel says.
#![expect(dead_code, reason = "each test file uses a part")]
#![expect(unreachable_pub, reason = "a module of each test file")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gmm_core::driver::{Device, Extent, Protection};
use gmm_core::{Batch, Config, Frame, FrameNr, NodeId, PageNr, PageRange, Space, VirtAddr};
use gmm_cpu::{CpuDriver, FaultHandlers, MonotonicClock, Options};

pub const PAGE: usize = 2 << 20;
pub const SMALL: usize = 4096;

/// Aborts when a thread that serves faults allocates or frees.
struct NoneOnHandlers;

fn forbid_on_handlers() {
    // A panic allocates; it ends the process anyway.
    if gmm_cpu::on_handler_thread() && !std::thread::panicking() {
        let message = b"a thread that serves faults used the allocator\n";
        // SAFETY: writes a static message.
        unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
        std::process::abort();
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for NoneOnHandlers {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        forbid_on_handlers();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        forbid_on_handlers();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: NoneOnHandlers = NoneOnHandlers;

/// A small window that no other test of this process has.
pub fn unused_window() -> PageRange {
    FAILURES_BEFORE.get_or_init(huge_page_failures);
    // Beside the default places, within what ThreadSanitizer allows.
    const FIRST: u64 = if cfg!(gmm_tsan) { 0x00a0_0000_0000 } else { 0x2a00_0000_0000 };
    static NEXT: AtomicU64 = AtomicU64::new(FIRST);
    let base = NEXT.fetch_add(8 << 30, Ordering::Relaxed);
    PageRange { start: VirtAddr(base).page(), nr_pages: 512 }
}

pub fn options(frames: u32) -> Options {
    Options { window: Some(unused_window()), capacity_frames: Some(frames), ..Options::default() }
}

/// A space with the CPU alone.
pub struct Rig {
    pub handlers: Option<FaultHandlers>,
    pub space: Arc<Space>,
    pub cpu: CpuDriver,
}

impl Rig {
    pub fn new(frames: u32) -> Self {
        let mut rig = Self::unserved(frames);
        rig.handlers = Some(rig.cpu.start(&rig.space).unwrap());
        rig
    }

    /// With a window of so many pages, whose addresses are soon used again.
    pub fn with_window(frames: u32, nr_pages: u64) -> Self {
        let window = PageRange { nr_pages, ..unused_window() };
        let mut rig = Self::from(Options { window: Some(window), ..options(frames) });
        rig.handlers = Some(rig.cpu.start(&rig.space).unwrap());
        rig
    }

    /// Without threads that serve faults.
    pub fn unserved(frames: u32) -> Self {
        Self::from(options(frames))
    }

    fn from(options: Options) -> Self {
        let cpu = CpuDriver::new(options).unwrap();
        let config = Config {
            window: cpu.window(),
            frame_wait: Duration::from_millis(50),
            ..Config::default()
        };
        let clock = Arc::new(MonotonicClock::new());
        let space = Space::new(config, cpu.host(), cpu.mmu(), clock).unwrap();
        Self { handlers: None, space, cpu }
    }

    pub fn mmap(&self, pages: usize, protection: Protection) -> Memory {
        let range = self.space.mmap((pages * PAGE) as u64, protection, "test").unwrap();
        Memory(range.start.start().0 as *mut u8)
    }

    /// The frame that holds a page's data.
    pub fn frame_of(&self, page: PageNr) -> Option<Frame> {
        let info = self.space.inspect(page.start())?;
        info.copies.first().copied()
    }
}

/// Unified memory, by raw accesses that the compiler can't remove.
#[derive(Clone, Copy, Debug)]
pub struct Memory(pub *mut u8);

// SAFETY: the tests order their accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }

    pub fn addr(self, offset: usize) -> VirtAddr {
        VirtAddr(self.at(offset) as u64)
    }

    pub fn page(self, n: usize) -> PageNr {
        self.addr(n * PAGE).page()
    }

    pub fn read(self, offset: usize) -> u8 {
        // SAFETY: the tests read within regions, or want the signal.
        unsafe { self.at(offset).read_volatile() }
    }

    pub fn write(self, offset: usize, value: u8) {
        // SAFETY: as for reads.
        unsafe { self.at(offset).write_volatile(value) }
    }

    /// Fills `len` bytes with a pattern of `seed`.
    pub fn fill(self, offset: usize, len: usize, seed: u8) {
        for i in (offset..offset + len).step_by(64) {
            self.write(i, pattern(i, seed));
        }
    }

    /// How many of the bytes that [`Memory::fill`] wrote are different.
    pub fn differences(self, offset: usize, len: usize, seed: u8) -> usize {
        let places = (offset..offset + len).step_by(64);
        places.filter(|&i| self.read(i) != pattern(i, seed)).count()
    }

    pub fn discard(self, offset: usize, len: usize) {
        self.advise(offset, len, libc::MADV_DONTNEED).unwrap();
    }

    pub fn advise(self, offset: usize, len: usize, advice: i32) -> std::io::Result<()> {
        // SAFETY: the tests advise on unified memory only.
        match unsafe { libc::madvise(self.at(offset).cast(), len, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

fn pattern(i: usize, seed: u8) -> u8 {
    (i / 64 + i / PAGE) as u8 ^ seed
}

/// Frames from a device, by number.
pub fn import(host: &dyn Device, n: u32) -> Vec<Frame> {
    let mut out = Batch::<Extent, 16>::new();
    host.import(NodeId::HOST, n, &mut out).unwrap();
    out.iter()
        .flat_map(|e| e.start.0..e.start.0 + e.nr_frames)
        .map(|nr| Frame { node: NodeId::HOST, nr: FrameNr(nr) })
        .collect()
}

/// A counter of `/proc/self/smaps`, in KiB, summed over the mappings that overlap the range.
pub fn smaps_kib(start: usize, len: usize, key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) =
                (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = from < start + len && start < to;
        } else if inside && first.strip_suffix(':') == Some(key) {
            sum += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// How many KiB of a range are mapped by huge pages.
pub fn huge_kib(memory: Memory, len: usize) -> u64 {
    smaps_kib(memory.0 as usize, len, "AnonHugePages")
}

/// Whether this machine makes huge pages when asked; says so if not.
pub fn huge_pages_work() -> bool {
    let setting = gmm_cpu::probe::huge_pages();
    if setting.is_none_or(|s| s == gmm_cpu::probe::HugePages::Never) {
        eprintln!("SKIPPED: checks of huge pages; transparent huge pages are {setting:?}");
        return false;
    }
    let failures = huge_page_failures();
    if *FAILURES_BEFORE.get_or_init(|| failures) != failures {
        eprintln!("SKIPPED: checks of huge pages; the kernel had none for somebody just now");
        return false;
    }
    true
}

/// [`huge_page_failures`] at the beginning of the test.
static FAILURES_BEFORE: OnceLock<u64> = OnceLock::new();

/// How often the kernel, asked for a huge page, had none: its memory may be in small pieces.
fn huge_page_failures() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let failures = ["thp_fault_fallback ", "thp_collapse_alloc_failed "];
    let count = |line: &str| -> Option<u64> {
        failures.iter().find_map(|name| line.strip_prefix(name)?.parse().ok())
    };
    counters.lines().filter_map(count).sum()
}

/// Runs `body` in a process of its own (this test again, told by an environment variable), and
/// gives how it ended; for what ends in a signal.
pub fn in_child(test: &str, body: impl FnOnce()) -> Output {
    const KEY: &str = "GMM_CPU_TEST_CHILD";
    if std::env::var(KEY).is_ok_and(|name| name == test) {
        body();
        std::process::exit(0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(KEY, test);
    command.output().unwrap()
}

/// The signal that ended a child.
pub fn signal_of(output: &Output) -> Option<i32> {
    output.status.signal()
}

/// Ends this process with 40 when `signal` comes, after writing the address it is about.
pub fn report_signal(signal: i32) {
    extern "C" fn report(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel gives a valid siginfo; only write and _exit are called.
        unsafe {
            let mut digits = *b"signal at 0x0000000000000000\n";
            let addr = (*info).si_addr() as u64;
            for (i, digit) in digits[12..28].iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(addr >> (60 - 4 * i)) as usize & 15];
            }
            libc::write(1, digits.as_ptr().cast(), digits.len());
            libc::_exit(40);
        }
    }
    // SAFETY: installs a handler that does nothing unsafe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = report as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Waits for something that must happen; a minute is a failure, not a timing.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a thread of this process sleeps in the kernel.
pub fn thread_sleeps(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1.as_bytes()[0];
    matches!(state, b'S' | b'D')
}
