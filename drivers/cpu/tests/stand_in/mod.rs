//! What plays the core in tests of mappings that it makes in several ways: an entry with a lock for
//! each page, whose data is in a host frame or in a frame of a "device", which is a memory file.
#![expect(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gmm_core::driver::{
    Access, Clear, Device, Enter, Examine, MappingKind, Mmu, Op, Place, Protection, RemoteHandle,
};
use gmm_core::{Frame, FrameNr, HostAddr, NodeId, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use gmm_cpu::{CpuDriver, CpuMmu, FaultHandlers, FaultServer, HostMemory};

use crate::common::{Memory, PAGE, import, options};

/// Where a page's data is, and how the CPU maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// In its host frame, unmapped.
    Slot,
    /// In its host frame, mapped.
    Local,
    /// In its host frame, and mapped as a copy.
    Replica,
    /// In the device's frame, mapped.
    Remote,
}

/// One thread's word of the window. It is accessed plainly: the thread sanitizer holds a lock of its
/// runtime around an atomic access, and a thread that waited for the page with it would keep out those
/// who bring the page.
struct Word(*mut u64);

impl Word {
    fn read(&self) -> u64 {
        // SAFETY: mapped, and no other thread's.
        unsafe { self.0.read_volatile() }
    }

    fn write(&self, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.write_volatile(value) }
    }
}

pub struct StandIn {
    pub mmu: Arc<CpuMmu>,
    pub host: Arc<HostMemory>,
    pub range: PageRange,
    frames: Vec<Frame>,
    pages: Vec<Mutex<At>>,
    file: OwnedFd,
    device: Memory,
}

impl FaultServer for StandIn {
    fn fault(&self, addr: VirtAddr, access: Access) {
        let n = (addr.page().0 - self.range.start.0) as usize;
        let mut at = self.pages[n].lock().unwrap();
        match (*at, access) {
            (At::Slot, _) | (At::Replica, Access::Write) => self.change(n, &mut at, At::Local),
            _ => self.mmu.revalidate(self.mapping(n, *at), addr).unwrap(),
        }
    }
}

/// The device's memory: a file of huge pages where the kernel can.
fn memory_file(pages: usize) -> (OwnedFd, Memory) {
    // SAFETY: plain calls; the mapping is leaked on purpose.
    unsafe {
        let fd = libc::memfd_create(c"gmm:test-device".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, (pages * PAGE) as i64), 0);
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), (pages + 1) * PAGE, 0, reserve, -1, 0);
        let at = (at as usize).next_multiple_of(PAGE) as *mut u8;
        let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
        assert_eq!(libc::mmap(at.cast(), pages * PAGE, 3, fixed, fd, 0), at.cast());
        for n in 0..pages {
            at.add(n * PAGE).write_volatile(0);
            libc::madvise(at.add(n * PAGE).cast(), PAGE, libc::MADV_COLLAPSE);
        }
        (OwnedFd::from_raw_fd(fd), Memory(at))
    }
}

/// A window of so many pages, all in their slots and zero.
pub fn stand_in(pages: usize) -> (CpuDriver, FaultHandlers, Arc<StandIn>, Memory) {
    let cpu = CpuDriver::new(options(pages as u32)).unwrap();
    let range = PageRange { nr_pages: pages as u64, ..cpu.window() };
    let (mmu, host) = (cpu.mmu(), cpu.host());
    assert_eq!(mmu.va_examine(range), Ok(Examine::Reserved));
    let frames = import(&*host, pages as u32);
    assert_eq!(frames.len(), pages);
    let zeros: Vec<_> = frames.iter().map(|&frame| Op::Zero(frame)).collect();
    run(&host, &zeros);
    let (file, device) = memory_file(pages);
    let pages = frames.iter().map(|_| Mutex::new(At::Slot)).collect();
    let stand_in = Arc::new(StandIn { mmu, host, range, frames, pages, file, device });
    let handlers = cpu.start_with(&stand_in).unwrap();
    (cpu, handlers, stand_in, Memory(range.start.start().0 as *mut u8))
}

fn run(host: &HostMemory, ops: &[Op]) {
    let fence = host.submit(ops).unwrap();
    host.wait(fence, Duration::from_secs(60)).unwrap();
}

impl StandIn {
    pub fn page(&self, n: usize) -> PageNr {
        self.range.start.plus(n as u64)
    }

    /// The device's frame of a page, by its other mapping.
    pub fn device(&self, n: usize) -> Memory {
        Memory(self.device.at(n * PAGE))
    }

    pub fn slot(&self, n: usize) -> Memory {
        Memory(self.host.host_addr(self.frames[n]).unwrap().0 as *mut u8)
    }

    pub fn mapping(&self, n: usize, at: At) -> Enter {
        let offset_bytes = n as u64 * PAGE_SIZE;
        let handle = RemoteHandle { fd: self.file.as_raw_fd(), offset_bytes };
        let kind = match at {
            At::Remote => MappingKind::Remote(handle),
            At::Replica => MappingKind::Replica,
            At::Local | At::Slot => MappingKind::Local,
        };
        Enter { kind, ..Enter::local(self.page(n), self.frame(n, at), Protection::ReadWrite) }
    }

    fn frame(&self, n: usize, at: At) -> Frame {
        let on_device = Frame { node: NodeId(1), nr: FrameNr(n as u32) };
        if at == At::Remote { on_device } else { self.frames[n] }
    }

    pub fn at(&self, n: usize) -> At {
        *self.pages[n].lock().unwrap()
    }

    /// Moves or copies a page's data to where it is to be, and maps it as it is to be mapped.
    pub fn go(&self, n: usize, to: At) {
        self.change(n, &mut self.pages[n].lock().unwrap(), to);
    }

    pub fn clear(&self, n: usize, at: At) -> Clear {
        Clear { page: self.page(n), frame: self.frame(n, at), was_empty: true }
    }

    fn change(&self, n: usize, at: &mut At, to: At) {
        if *at == to {
            return;
        }
        if *at != At::Slot {
            let mut clear = [self.clear(n, *at)];
            self.mmu.pmap_clear(&mut clear).unwrap();
            assert!(!clear[0].was_empty);
        }
        let on_device = Place::Host(HostAddr(self.device(n).0 as u64));
        let in_slot = Place::Frame(self.frames[n]);
        match (*at == At::Remote, to == At::Remote) {
            (true, false) => run(&self.host, &[Op::Copy { from: on_device, to: in_slot }]),
            (false, true) => run(&self.host, &[Op::Copy { from: in_slot, to: on_device }]),
            _ => {}
        }
        *at = At::Slot;
        if to != At::Slot {
            self.mmu.pmap_enter(&[self.mapping(n, to)]).unwrap();
        }
        *at = to;
    }

    /// Has threads count in words of their own, spread over all pages, until `meanwhile` is done. Each
    /// finds at every step what it left: a read of zeros, or a write that got lost, is noticed.
    pub fn count_meanwhile(&self, threads: usize, meanwhile: impl FnOnce()) {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let done = AtomicBool::new(false);
        let started = AtomicU64::new(0);
        let word = |thread: usize, n: usize| {
            let offset = n * PAGE + (thread * 37 % 512) * 4096 + 8 * thread;
            let addr = self.range.start.start().0 as usize + offset;
            Word(addr as *mut u64)
        };
        let pages = self.pages.len();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (done, started) = (&done, &started);
                scope.spawn(move || {
                    let mut count = 0u64;
                    while !done.load(Ordering::SeqCst) {
                        for n in 0..pages {
                            let word = word(thread, n);
                            let now = word.read();
                            if !count.is_multiple_of(3) {
                                word.write(now + 1);
                            }
                            let expected = count / 3 * 2 + (count % 3).saturating_sub(1);
                            assert_eq!(now, expected, "thread {thread}, page {n}");
                        }
                        count += 1;
                        started.fetch_max(count, Ordering::SeqCst);
                    }
                });
            }
            // However it ends, the threads end too.
            struct Done<'a>(&'a AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let _done = Done(&done);
            meanwhile();
            while started.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        });
    }
}
