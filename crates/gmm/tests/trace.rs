//! The event trace is a file that Perfetto opens.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use common::child::in_child;
use common::*;
use gmm::{Advice, Error, Gmm, PAGE_SIZE};
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gmm-trace-test-{}-{name}.json", std::process::id()))
}

/// Reads the file and removes it.
fn events(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"));
    value.as_array().unwrap().clone()
}

fn is(event: &Value, key: &str, wanted: &str) -> bool {
    event[key] == wanted
}

/// Microseconds, to the nanosecond, as the file has them.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap_or_else(|| panic!("{value} is no time")) * 1000.0).round() as u64
}

/// On one thread a span lies in another or beside it, and ends no earlier than the one before it
/// in the file.
fn assert_nested(events: &[Value]) {
    let mut by_thread: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for e in events.iter().filter(|e| is(e, "ph", "X")) {
        let track = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
        let begun = ns(&e["ts"]);
        by_thread.entry(track).or_default().push((begun, begun + ns(&e["dur"])));
    }
    for spans in by_thread.values() {
        assert!(spans.is_sorted_by_key(|s| s.1), "{spans:?}");
        for (i, a) in spans.iter().enumerate() {
            for b in &spans[i + 1..] {
                // `b` ended later: it began after the end of `a`, or it holds `a`.
                assert!(b.0 >= a.1 || b.0 <= a.0, "{a:?} and {b:?} overlap");
            }
        }
    }
}

/// What begins ends, later, once.
fn assert_paired(events: &[Value]) {
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    for e in events {
        let id = e["id"].as_u64();
        match (e["ph"].as_str().unwrap(), id) {
            ("b", Some(id)) => assert!(open.insert(id, ns(&e["ts"])).is_none(), "{e}"),
            ("e", Some(id)) => assert!(open.remove(&id).is_some_and(|b| b <= ns(&e["ts"])), "{e}"),
            ("X" | "M" | "i", None) => {}
            other => panic!("{other:?} is no phase that is used: {e}"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_file_tells_the_story() {
    let _turn = turn();
    let gmm = Gmm::builder().xpu(xpu_of(4).cores(1)).build().unwrap();
    let xpu = gmm.xpu(1).unwrap();
    let untold = mmap(&gmm, 1);
    untold.write(0, 1);
    wait_until("the fault is counted", || gmm.snapshot().nodes[0].faults == 1);

    let path = file("story");
    let before = gmm.snapshot();
    let trace = gmm.trace_to(&path).unwrap();
    assert!(matches!(gmm.trace_to(file("second")), Err(Error::TraceRunning)));
    let memory = mmap(&gmm, 6);
    (0..6).for_each(|page| memory.write(page * PAGE, 1));
    run(&xpu, "touch", 1, (memory.at(0), 6 * PAGE, true)).unwrap();
    gmm.advise(memory.at(0), 2 * PAGE_SIZE, Advice::WillNeed, 1).unwrap();
    gmm.advise(memory.at(0), PAGE_SIZE, Advice::DontNeed, 0).unwrap();
    wait_until("the faults are counted", || gmm.snapshot().nodes[0].faults == 7);
    memory.unmap(&gmm, 6);
    let after = gmm.snapshot();
    let summary = trace.finish().unwrap();
    untold.write(0, 2);

    let events = events(&path);
    assert_nested(&events);
    assert_paired(&events);
    assert_eq!(summary.dropped, 0);
    let spans = |name: &str| {
        let named = events.iter().filter(|e| is(e, "name", name) && !is(e, "cat", "copy"));
        named.collect::<Vec<_>>()
    };
    let of_thread = events.iter().filter(|e| is(e, "cat", "gmm")).count() as u64;
    assert_eq!(of_thread, summary.records);

    let moved = |s: &gmm::Snapshot| s.moves.iter().map(|m| m.pages).sum::<u64>();
    let copied = spans("copy").iter().map(|e| e["args"]["pages"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(copied, moved(&after) - moved(&before));
    let faults = |s: &gmm::Snapshot| s.nodes.iter().map(|n| n.faults).sum::<u64>();
    assert_eq!(spans("fault").len() as u64, faults(&after) - faults(&before));
    let of_cpu = spans("fault").into_iter().filter(|e| e["args"]["processor"] == 0);
    let pages = of_cpu.map(|e| e["args"]["page"].as_str().unwrap().to_owned());
    let wanted: BTreeSet<_> =
        (0..6).map(|i| format!("{:#x}", memory.at(i * PAGE).addr())).collect();
    assert_eq!(pages.collect::<BTreeSet<_>>(), wanted);
    let evicted = |s: &gmm::Snapshot| s.nodes[1].evicted_pages;
    assert_eq!(spans("evict").len() as u64, evicted(&after) - evicted(&before));
    let counts = ["zero", "discard", "munmap"].map(|name| spans(name).len());
    assert_eq!(counts, [6, 1, 1]);
    assert!(!spans("prefetch").is_empty() && !spans("enter").is_empty());
    assert!(!spans("clear").is_empty());

    // Who is who: threads and nodes have names, and each node its copies.
    let names: Vec<_> = events
        .iter()
        .filter(|e| is(e, "ph", "M"))
        .map(|e| e["args"]["name"].as_str().unwrap().to_owned())
        .collect();
    let serves = if launches_hold() { "the_file_tells_" } else { "gmm-xpu-fault" };
    for wanted in ["gmm-fault-", serves, "copies to node 0", "copies to node 1"] {
        assert!(names.iter().any(|name| name.starts_with(wanted)), "no {wanted} in {names:?}");
    }
    let threads = events.iter().filter(|e| is(e, "name", "thread_name"));
    let named: Vec<_> = threads.map(|e| e["tid"].clone()).collect();
    let used = events.iter().filter(|e| is(e, "cat", "gmm")).map(|e| e["tid"].clone());
    used.for_each(|tid| assert!(named.contains(&tid), "thread {tid} has no name"));
    let node_1 = events.iter().filter(|e| is(e, "ph", "b") && e["args"]["to"] == 1);
    assert!(node_1.map(|e| &e["pid"]).all(|pid| *pid != std::process::id()));
    check(&gmm);
}

#[test]
fn one_trace_after_another() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, 4);
    for round in 0..3 {
        let path = file("again");
        let trace = gmm.trace_to(&path).unwrap();
        memory.write(round * PAGE, 1);
        let served = round as u64 + 1;
        wait_until("the fault is counted", || gmm.snapshot().nodes[0].faults == served);
        drop(trace);
        let events = events(&path);
        let faults: Vec<_> = events.iter().filter(|e| is(e, "name", "fault")).collect();
        let page = format!("{:#x}", memory.at(round * PAGE).addr());
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0]["args"]["page"], page.as_str());
    }
}

#[test]
fn a_file_that_can_not_be_written_is_an_error() {
    let _turn = turn();
    let gmm = machine(4);
    let nowhere = file("no-such-folder").join("trace.json");
    match gmm.trace_to(&nowhere) {
        Err(Error::Trace { path, .. }) => assert_eq!(path, nowhere),
        other => panic!("{other:?}"),
    }
    // And is none of the next one's business.
    let path = file("next");
    assert_eq!(gmm.trace_to(&path).unwrap().finish().unwrap().dropped, 0);
    assert_eq!(events(&path).iter().filter(|e| is(e, "ph", "X")).count(), 0);
    match gmm.trace_to("/dev/full").unwrap().finish() {
        Err(Error::Trace { .. }) => {}
        other => panic!("a full disk: {other:?}"),
    }
}

#[test]
fn the_environment_asks_for_a_trace_of_all_there_is() {
    let _turn = turn();
    let child = in_child("the_environment_asks_for_a_trace_of_all_there_is", || {
        let path = file("environment");
        // SAFETY: no other thread of this process looks at its environment now.
        unsafe { std::env::set_var("GMM_TRACE", &path) };
        let (first, second) = (machine(4), machine(4));
        let memory = mmap(&first, 2);
        (0..2).for_each(|page| memory.write(page * PAGE, 1));
        drop((first, second));
        let faults =
            |path: &PathBuf| events(path).iter().filter(|e| is(e, "name", "fault")).count();
        assert_eq!(faults(&path), 2);
        let mut numbered = path.into_os_string();
        numbered.push(".2");
        assert_eq!(faults(&numbered.into()), 0);
    });
    child.assert_success();
}
