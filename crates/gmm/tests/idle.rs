//! A process that does nothing wakes up no thread: neither its own nor an XPU's.

mod common;

use std::fs;
use std::time::Duration;

use common::*;

const FRAMES: usize = 16;

/// How often threads of this process and its workers were taken off a processor: each time one that
/// sleeps wakes up it is so again. Not counted is the thread that asks.
fn switches() -> u64 {
    let this = std::process::id();
    let numbered = |folder: &str| -> Vec<u32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let is_child = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent.and_then(|parent| parent.parse().ok()) == Some(this)
    };
    let mut processes: Vec<u32> = numbered("/proc").into_iter().filter(is_child).collect();
    assert!(!processes.is_empty(), "an XPU has a worker process");
    processes.push(this);
    // SAFETY: takes nothing, and can't fail.
    let this_thread = unsafe { libc::gettid() } as u32;
    let of_thread = |process: u32, thread: u32| -> u64 {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"));
        let status = status.unwrap_or_default();
        let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum()
    };
    let threads = processes.into_iter().flat_map(|process| {
        let threads = numbered(&format!("/proc/{process}/task"));
        threads.into_iter().map(move |thread| (process, thread))
    });
    let others = threads.filter(|(_, thread)| *thread != this_thread);
    others.map(|(process, thread)| of_thread(process, thread)).sum()
}

/// Whether a second passes in which nothing wakes up.
fn a_second_passes_in_peace() -> bool {
    let before = switches();
    std::thread::sleep(Duration::from_secs(1));
    switches() == before
}

#[test]
fn an_idle_process_does_not_wake_up() {
    let _turn = turn();
    let gmm = machine(FRAMES as u64);
    let xpu = gmm.xpu(1).unwrap();
    // Every thread has been needed: faults of both sides, prefetches, and reclaim.
    let memory = mmap(&gmm, 2 * FRAMES);
    for _ in 0..2 {
        memory.fill(0, 2 * FRAMES * PAGE, 3);
        run(&xpu, "touch", 1, (memory.at(0), 2 * FRAMES * PAGE, true)).unwrap();
    }
    gmm.prefetch(memory.at(0), (8 * PAGE) as u64, 0).unwrap();
    gmm.prefetch(memory.at(0), (8 * PAGE) as u64, 1).unwrap();
    // Laundering ends some time after the last fault; then only what polls wakes up.
    wait_until("a second in peace", a_second_passes_in_peace);

    // One that does poll is noticed.
    let poller = std::thread::spawn(|| {
        for _ in 0..30 {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(!a_second_passes_in_peace());
    poller.join().unwrap();
}
