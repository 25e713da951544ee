//! The counters and the residency of pages for programs: as JSON, and as Prometheus text.
//!
//! Both come from one table of names. Counts of frames and pages are of [`PAGE_SIZE`] bytes.

use core::fmt::Write;

use gmm_core::{
    FaultCounts, Histogram, MoveCause, NodeStats, PAGE_SIZE, PageState, ProcessorSet, Run, Snapshot,
};
use serde_json::{Map, Value, json};

/// What is said of a `T`: a name, whether it only ever grows, what it is, how to read it.
struct Metric<T> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&T) -> u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

use Kind::{Counter, Gauge};

const fn metric<T>(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&T) -> u64,
) -> Metric<T> {
    Metric { name, kind, help, read }
}

/// The names are those of the fields of [`NodeStats`].
const OF_NODE: [Metric<NodeStats>; 19] = [
    metric("capacity_frames", Gauge, "Frames it can have.", |n| n.capacity_frames.into()),
    metric("free_frames", Gauge, "Frames that are free.", |n| n.free_frames.into()),
    metric("resident_frames", Gauge, "Frames that hold pages.", |n| n.resident_frames.into()),
    metric("active_frames", Gauge, "Frames that hold pages and could be evicted.", |n| {
        n.active_frames.into()
    }),
    metric("spare_frames", Gauge, "Frames of pages with an equal copy elsewhere.", |n| {
        n.spare_frames.into()
    }),
    metric("pinned_frames", Gauge, "Frames that are pinned or held.", |n| n.pinned_frames.into()),
    metric("in_transit_frames", Gauge, "Frames in the hands of faults.", |n| {
        n.in_transit_frames.into()
    }),
    metric("lost_frames", Gauge, "Frames whose copy never ended.", |n| n.lost_frames.into()),
    metric("peak_resident_frames", Gauge, "The most frames that held pages at once.", |n| {
        n.peak_resident_frames.into()
    }),
    metric("touched_pages", Counter, "Distinct pages mapped by its processors.", |n| {
        n.touched_pages
    }),
    metric("faults", Counter, "Faults that were served from it.", |n| n.faults),
    metric("coalesced_faults", Counter, "Faults that another had just served.", |n| {
        n.coalesced_faults
    }),
    metric("throttled_faults", Counter, "Faults sent back to be tried again.", |n| {
        n.throttled_faults
    }),
    metric("failed_faults", Counter, "Faults that could not be served.", |n| n.failed_faults),
    metric("prefetched_pages", Counter, "Pages brought by prefetch.", |n| n.prefetched_pages),
    metric("zeroed_pages", Counter, "Frames zero-filled on first touch.", |n| n.zeroed_pages),
    metric("evicted_pages", Counter, "Pages evicted from it.", |n| n.evicted_pages),
    metric("evicted_clean_pages", Counter, "Pages evicted from it without a copy.", |n| {
        n.evicted_clean_pages
    }),
    metric("discarded_pages", Counter, "Copies dropped by DONTNEED.", |n| n.discarded_pages),
];

/// The names are those of the fields of [`FaultCounts`].
const OF_FAULTS: [Metric<FaultCounts>; 6] = [
    metric("served", Counter, "", |c| c.served),
    metric("zero_filled", Counter, "", |c| c.zero_filled),
    metric("upgraded", Counter, "", |c| c.upgraded),
    metric("coalesced", Counter, "", |c| c.coalesced),
    metric("throttled", Counter, "", |c| c.throttled),
    metric("failed", Counter, "", |c| c.failed),
];

/// A snapshot as a JSON object: `page_bytes`; `nodes` and `processors` with the fields of
/// [`NodeStats`] and [`ProcessorStats`](gmm_core::ProcessorStats); `moves`. The times of
/// `fault_service` are in nanoseconds; of its `buckets` each is `[from, to, count]`.
pub fn json(snapshot: &Snapshot) -> Value {
    let nodes = snapshot.nodes.iter().map(|n| {
        let mut node = fields(&OF_NODE, n);
        node.insert("node".into(), n.node.0.into());
        node.insert("device".into(), n.device.as_str().into());
        node.insert("fault_service".into(), times(&n.fault_service));
        Value::from(node)
    });
    let processors = snapshot.processors.iter().map(|p| {
        let [reads, writes] = [p.reads, p.writes].map(|counts| fields(&OF_FAULTS, &counts));
        json!({ "processor": p.processor.0, "node": p.node.0, "reads": reads, "writes": writes })
    });
    let moves = snapshot.moves.iter().map(|m| {
        json!({
            "from": m.from.0, "to": m.to.0, "cause": m.cause.name(), "pages": m.pages,
            "bytes": m.bytes,
        })
    });
    json!({
        "page_bytes": PAGE_SIZE,
        "nodes": nodes.collect::<Vec<_>>(),
        "processors": processors.collect::<Vec<_>>(),
        "moves": moves.collect::<Vec<_>>(),
    })
}

fn fields<T>(metrics: &[Metric<T>], of: &T) -> Map<String, Value> {
    metrics.iter().map(|m| (m.name.to_owned(), (m.read)(of).into())).collect()
}

fn times(times: &Histogram) -> Value {
    let buckets = times.buckets.iter().map(|b| json!([b.from_ns, b.to_ns, b.count]));
    json!({
        "count": times.count(),
        "p50_ns": times.percentile_ns(50),
        "p99_ns": times.percentile_ns(99),
        "max_ns": times.max_ns,
        "buckets": buckets.collect::<Vec<_>>(),
    })
}

/// Runs of pages as a JSON array: of each `address`, `pages`, `state` (`closed`, `empty`,
/// `exclusive`, `shared`, or `in motion`, and then no more is known), `copies` (`node`, `pinned`,
/// `cause`, `processor`), and the numbers of the processors by whom they are `mapped` and
/// `writable`.
pub fn residency_json(runs: &[Run]) -> Value {
    let set = |set: ProcessorSet| set.iter().map(|p| p.0).collect::<Vec<_>>();
    let runs = runs.iter().map(|run| {
        let copies = run.copies.iter().map(|copy| {
            json!({
                "node": copy.node.0,
                "pinned": copy.pinned,
                "cause": copy.moved_by.cause().name(),
                "processor": copy.moved_by.processor().map(|p| p.0),
            })
        });
        json!({
            "address": run.range.start.start().0,
            "pages": run.range.nr_pages,
            "state": state_name(run.state),
            "copies": copies.collect::<Vec<_>>(),
            "mapped": set(run.mapped),
            "writable": set(run.writable),
        })
    });
    runs.collect()
}

fn state_name(state: Option<PageState>) -> &'static str {
    match state {
        None => "in motion",
        Some(PageState::Closed) => "closed",
        Some(PageState::Empty) => "empty",
        Some(PageState::Exclusive(_)) => "exclusive",
        Some(PageState::Shared) => "shared",
    }
}

/// A snapshot in Prometheus' text exposition format, version 0.0.4.
pub fn prometheus(snapshot: &Snapshot) -> String {
    let mut text = Exposition(String::new());
    text.family("gmm_page_size_bytes", "gauge", "The size of a page and of a frame.");
    text.sample("gmm_page_size_bytes", &[], PAGE_SIZE);
    for m in &OF_NODE {
        let (suffix, kind) = if m.kind == Counter { ("_total", "counter") } else { ("", "gauge") };
        let name = format!("gmm_node_{}{suffix}", m.name);
        text.family(&name, kind, m.help);
        for n in &snapshot.nodes {
            let labels = [("node", n.node.to_string()), ("device", n.device.clone())];
            text.sample(&name, &labels, (m.read)(n));
        }
    }
    let help = "Faults by processor, access and result.";
    text.family("gmm_processor_faults_total", "counter", help);
    for p in &snapshot.processors {
        for (access, counts) in [("read", p.reads), ("write", p.writes)] {
            for (result, count) in results(counts) {
                let (processor, node) = (p.processor.to_string(), p.node.to_string());
                let labels = [
                    ("processor", processor),
                    ("node", node),
                    ("access", access.to_owned()),
                    ("result", result.to_owned()),
                ];
                text.sample("gmm_processor_faults_total", &labels, count);
            }
        }
    }
    moves(&mut text, snapshot);
    fault_service(&mut text, snapshot);
    text.0
}

/// The results that exclude each other, so that their sum means something.
fn results(counts: FaultCounts) -> [(&'static str, u64); 6] {
    let copied = counts.served - counts.zero_filled - counts.upgraded;
    [
        ("copied", copied),
        ("zero_filled", counts.zero_filled),
        ("upgraded", counts.upgraded),
        ("coalesced", counts.coalesced),
        ("throttled", counts.throttled),
        ("failed", counts.failed),
    ]
}

fn moves(text: &mut Exposition, snapshot: &Snapshot) {
    type Read = fn(&gmm_core::Moved) -> u64;
    let families: [(&str, &str, Read); 2] = [
        ("gmm_moved_pages_total", "Whole pages copied between nodes.", |m| m.pages),
        ("gmm_moved_bytes_total", "Bytes copied between nodes.", |m| m.bytes),
    ];
    for (name, help, read) in families {
        text.family(name, "counter", help);
        for m in &snapshot.moves {
            let cause = MoveCause::name(m.cause).to_owned();
            let labels = [("from", m.from.to_string()), ("to", m.to.to_string()), ("cause", cause)];
            text.sample(name, &labels, read(m));
        }
    }
}

/// Cumulative at each power of two from 1 µs to 34 s, which are bounds of the histogram, too.
fn fault_service(text: &mut Exposition, snapshot: &Snapshot) {
    const NAME: &str = "gmm_fault_service_seconds";
    text.family(NAME, "histogram", "How long faults took to serve (the sum is within 6.25%).");
    for n in &snapshot.nodes {
        let node = ("node", n.node.to_string());
        let up_to = |ns: u64| {
            let below = n.fault_service.buckets.iter().filter(|b| b.to_ns <= ns);
            below.map(|b| b.count).sum::<u64>()
        };
        for ns in (10..=35).map(|power| 1_u64 << power) {
            let labels = [node.clone(), ("le", seconds(ns))];
            text.sample(&format!("{NAME}_bucket"), &labels, up_to(ns));
        }
        let labels = [node.clone(), ("le", "+Inf".to_owned())];
        text.sample(&format!("{NAME}_bucket"), &labels, n.fault_service.count());
        let sum = seconds(n.fault_service.sum_ns());
        text.sample(&format!("{NAME}_sum"), core::slice::from_ref(&node), sum);
        text.sample(&format!("{NAME}_count"), &[node], n.fault_service.count());
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The text as it grows.
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: impl core::fmt::Display) {
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        // A string takes all that is written to it.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A label's value, as the format wants it between quotes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
