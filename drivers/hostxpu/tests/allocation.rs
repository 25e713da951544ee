//! Threads that serve faults and copy pages do not allocate: an allocator may itself wait for a
//! fault to be served.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Machine, load};
use gmm_core::PAGE_SIZE;
use gmm_hostxpu::HostXpuConfig;

/// How often such a thread allocated or freed.
static COUNT: AtomicU64 = AtomicU64::new(0);

struct Watched;

impl Watched {
    fn note() {
        let mut name = [0_u8; 16];
        // SAFETY: writes up to 16 bytes, the thread's name.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        if name.starts_with(b"gmm-xpu-fault") || name.starts_with(b"gmm-dma") {
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
    }
}

// SAFETY: the system's allocator, and a counter.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        Self::note();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

#[test]
fn serving_faults_and_copying_allocates_nothing() {
    const PAGES: u64 = 24;
    let machine = Machine::new();
    let context = machine.context_with(HostXpuConfig::new(6 * PAGE_SIZE).cores(4));
    let (data, stream) = (machine.mmap(PAGES), context.stream());
    let count = load(&context).kernel("count_pages").unwrap();
    let run = |rounds: u64| {
        let args = (data, PAGES, rounds, 5_u64);
        // SAFETY: the kernel takes a run of pages, rounds and a seed.
        unsafe { stream.launch(&count, 4, args, &[]).unwrap().wait().unwrap() };
        for page in 0..PAGES {
            machine.read(data + page * PAGE_SIZE);
        }
    };
    // Frames are imported, and every thread has begun.
    run(100);
    assert!(COUNT.load(Ordering::SeqCst) > 0, "the threads' own start shows that counting works");
    let (before, faults) = (COUNT.load(Ordering::SeqCst), context.counters().faults);
    run(100);
    assert!(context.counters().faults > faults + PAGES);
    assert_eq!(COUNT.load(Ordering::SeqCst), before);
}
