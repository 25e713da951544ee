//! Unmapping what others use at that moment.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::child::*;
use common::*;
use gmm::hostxpu::Death;
use gmm::{Gmm, HostXpu, PAGE_SIZE};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// Counts the signal and keeps its thread for good.
extern "C" fn count_and_stay(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if signal == libc::SIGSEGV {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Whether a thread of this process sleeps in the kernel, or is gone.
fn thread_sleeps(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
    stat.map_or(true, |s| s.rsplit_once(") ").is_some_and(|(_, r)| r.starts_with(['S', 'D'])))
}

#[test]
fn threads_that_wait_in_a_fault_get_a_signal() {
    let _turn = turn();
    let ended = in_child("threads_that_wait_in_a_fault_get_a_signal", || {
        // A link so slow that a page takes a second, and one thread to serve faults: while it
        // fetches a page of another region, the faults on the range wait.
        let slow = HostXpu::with_memory(8 * PAGE_SIZE)
            .config(|config| config.link_latency(Duration::from_secs(1)));
        let gmm = Gmm::builder().xpu(slow).fault_threads(1).build().unwrap();
        let (busy, memory) = (mmap(&gmm, 1), mmap(&gmm, 4));
        let xpu = gmm.xpu(1).unwrap();
        busy.touch_on(&xpu, 1, true);
        on_bad_access(count_and_stay);
        let (tell, told) = std::sync::mpsc::channel();
        let spawn = |body: Box<dyn FnOnce() + Send>| {
            let tell = tell.clone();
            let thread = std::thread::spawn(move || {
                // SAFETY: asks for this thread's number.
                tell.send(unsafe { libc::gettid() }).unwrap();
                body();
            });
            (thread, told.recv().unwrap())
        };
        let (busy_reader, tid) = spawn(Box::new(move || assert_eq!(busy.read_word(SMALL), 1)));
        let is_over = || busy_reader.is_finished();
        wait_until("it waits in a fault", || thread_sleeps(tid) || is_over());
        const THREADS: usize = 4;
        for i in 0..THREADS {
            // (One that is served before the unmapping, on a slow machine, touches again.)
            let (_, tid) = spawn(Box::new(move || {
                loop {
                    memory.read(i * PAGE);
                }
            }));
            wait_until("it waits in a fault", || thread_sleeps(tid) || is_over());
        }
        memory.unmap(&gmm, 4);
        wait_until("every thread has its signal", || SIGNALS.load(Ordering::SeqCst) == THREADS);
        busy_reader.join().unwrap();
        assert_eq!(gmm.regions().len(), 1);
        check(&gmm);
    });
    ended.assert_success();
}

#[test]
fn a_kernel_that_uses_the_range_ends_with_an_error() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    const PAGES: usize = 6;
    let (memory, kept, out) = (mmap(&gmm, PAGES), mmap(&gmm, 2), mmap(&gmm, 1));
    kept.fill(0, 2 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    let other = xpu.new_context().unwrap();
    for part in [false, true] {
        let memory = if part { mmap(&gmm, PAGES) } else { memory };
        let xpu = gmm.xpu(1).unwrap();
        let args = (memory.at(0), PAGES, PAGE, 1_u64 << 40, 0_usize, 5_u64);
        let launch = start(&xpu, "count_pages", 2, args);
        wait_until("it is at work", || xpu.context().counters().faults > 20);
        let (first, nr_pages) = if part { (2, 1) } else { (0, PAGES) };
        memory.from(first * PAGE).unmap(&gmm, nr_pages);
        let (kernel, death) = death_of(launch.wait());
        assert_eq!(kernel, "count_pages");
        let Death::WildAccess { addr, cause, .. } = death else { panic!("{death:?}") };
        let range = memory.addr(first * PAGE)..memory.addr((first + nr_pages) * PAGE);
        assert!(range.contains(&addr.0), "{addr} is in {range:x?}");
        assert_eq!(cause, gmm_core::Error::NotMapped { addr });
        if part {
            // The neighbours keep what was counted there.
            let counts: Vec<_> =
                (0..PAGES).filter(|&p| p != 2).map(|p| memory.read_word(p * PAGE)).collect();
            assert!(counts.iter().all(|&n| n > 0 && n.abs_diff(counts[0]) <= 1), "{counts:?}");
        }
        assert_eq!(kept.sum_on(&other, 0, out).unwrap(), sum_of(0, 2 * PAGE, 1));
    }
    check(&gmm);
}

#[test]
fn a_buffer_dropped_under_a_kernel_is_an_error_not_a_crash() {
    let Some(_turn) = turn_with_faults() else { return };
    let gmm = machine(4);
    let xpu = gmm.xpu(1).unwrap();
    for _ in 0..5 {
        let xpu = if xpu.context().is_alive() { xpu.clone() } else { gmm.xpu(1).unwrap() };
        let mut buffer = gmm.mmap::<u64>(6 * PAGE / 8).unwrap();
        let args = (buffer.as_mut_ptr(), 6_usize, PAGE, 1_u64 << 40, 0_usize, 5_u64);
        let launch = start(&xpu, "count_pages", 2, args);
        wait_until("it is at work", || xpu.context().counters().faults > 6);
        drop(buffer);
        let (_, death) = death_of(launch.wait());
        assert!(matches!(death, Death::WildAccess { .. }), "{death:?}");
    }
    assert!(gmm.regions().is_empty());
    assert_eq!(gmm.snapshot().nodes[1].resident_frames, 0);
    check(&gmm);
}

#[test]
fn addresses_come_and_go_while_kernels_run_elsewhere() {
    let _turn = turn();
    let gmm = machine(6);
    let xpu = gmm.xpu(1).unwrap();
    const PAGES: usize = 8;
    let memory = mmap(&gmm, PAGES);
    let args = (memory.at(0), PAGES, PAGE, 200_u64, 0_usize, 5_u64);
    let launch = start(&xpu, "count_pages", 2, args);
    let other = xpu.new_context().unwrap();
    for i in 0..40 {
        let mut brief = gmm.mmap::<f32>(PAGE / 4 + i).unwrap();
        brief.fill(i as f32);
        run(&other, "square", 2, (brief.as_mut_ptr(), brief.len())).unwrap();
        assert!(brief.iter().all(|x| *x == (i * i) as f32));
    }
    launch.wait().unwrap();
    assert!((0..PAGES).all(|p| memory.read_word(p * PAGE) == 200));
    check(&gmm);
}
