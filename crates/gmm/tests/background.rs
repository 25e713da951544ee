//! Frames are kept free, and cold pages made clean, off the fault path; and the threads that do it
//! sleep when there is nothing to do.

mod common;

use std::time::Duration;

use common::*;
use gmm::{EvictionPolicy, Gmm, NodeStats};

const FRAMES: usize = 32;

fn stats(gmm: &Gmm) -> NodeStats {
    gmm.snapshot().nodes.swap_remove(1)
}

/// How often the reclaim threads of this process have gone to sleep.
fn sleeps() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of_thread = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with("gmm-reclaim").then(|| line.trim().parse().unwrap())
    };
    tasks.filter_map(|task| of_thread(task.unwrap())).collect()
}

#[test]
fn faults_find_free_frames() {
    let _turn = turn();
    let gmm = machine(FRAMES as u64);
    let xpu = gmm.xpu(1).unwrap();
    let memory = mmap(&gmm, 3 * FRAMES);
    for page in 0..3 * FRAMES {
        run(&xpu, "touch", 1, (memory.at(page * PAGE), PAGE, true)).unwrap();
        // A launch takes longer than two evictions; but not on a machine that is busy.
        wait_until("frames are free", || {
            let stats = stats(&gmm);
            let there = stats.resident_frames + stats.free_frames + stats.in_transit_frames;
            stats.free_frames > 0 || there < FRAMES as u32
        });
    }
    let full = stats(&gmm);
    assert_eq!(full.frames_reclaimed, 0, "{full:?}");
    assert_eq!(full.frames_found_free, 3 * FRAMES as u64);
    check(&gmm);
}

/// By LRU, which evicts what has been there longest. (What is new streams by if the policy is the
/// default, and it is not laundered before it leaves.)
#[test]
fn idle_time_makes_pages_clean() {
    // Only what an XPU can be made to map read-only is laundered.
    let Some(_turn) = turn_with_faults() else { return };
    let xpu = xpu_of(FRAMES as u64);
    let gmm = Gmm::builder().xpu(xpu).policy(EvictionPolicy::Lru).build().unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let memory = mmap(&gmm, 3 * FRAMES);
    run(&xpu, "touch", 1, (memory.at(0), 3 * FRAMES * PAGE, true)).unwrap();
    wait_until("a quarter is laundered", || stats(&gmm).laundered_pages >= FRAMES as u64 / 4);
    let before = stats(&gmm);
    // Faults that made room for themselves left up to three frames free, since four pages leave at
    // a time. So at least one page leaves for these four, and not more than were laundered.
    run(&xpu, "touch", 1, (mmap(&gmm, 4).at(0), 4 * PAGE, true)).unwrap();
    let mut after = stats(&gmm);
    let evicted = |after: &NodeStats| (after.evicted_pages - before.evicted_pages) as u32;
    wait_until("the four are there and a frame is free", || {
        after = stats(&gmm);
        after.free_frames > 0 && before.free_frames + evicted(&after) == 4 + after.free_frames
    });
    let clean = after.evicted_clean_pages - before.evicted_clean_pages;
    assert_eq!(clean as u32, evicted(&after), "all of them left without a copy");
    check(&gmm);
}

#[test]
fn an_idle_process_wakes_no_reclaim_thread() {
    let _turn = turn();
    let gmm = Gmm::builder()
        .xpu(xpu_of(FRAMES as u64))
        .xpu(xpu_of(FRAMES as u64))
        .config(|c| c.launder_after = Some(Duration::from_millis(20)))
        .build()
        .unwrap();
    let memory = mmap(&gmm, 2 * FRAMES);
    run(&gmm.xpu(1).unwrap(), "touch", 1, (memory.at(0), 2 * FRAMES * PAGE, true)).unwrap();
    wait_until("they sleep", || {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(200));
        sleeps() == before
    });
    let before = sleeps();
    assert_eq!(before.len(), 2);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(sleeps(), before);
    drop(gmm);
    assert!(sleeps().is_empty(), "they end with the manager");
}
