//! The figures of the paper's evaluation: what it reports, what stands for it here, and what would need
//! its hardware. What is said of a plot is computed from its records.

use gmm::display_bytes;

use super::plot::{Axis, Bar, Kind};
use crate::bench::record::{Record, display_seconds, significant};

/// A figure, or a table.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What the paper reports.
    pub(super) paper: &'static str,
    /// What is measured here in its place.
    pub(super) here: &'static str,
    /// What can't be reproduced without other hardware.
    pub(super) lacking: &'static str,
    /// The records that it is made of.
    pub(super) belongs: fn(&Record) -> bool,
    pub(super) axis: Axis,
    pub(super) bars: fn(&[&Record]) -> Vec<Bar>,
    /// One sentence on what the plot shows; there is at least one record.
    pub(super) sentence: fn(&[&Record]) -> String,
}

/// In the paper's order.
pub(super) const FIGURES: [Figure; 11] = [
    Figure {
        name: "Figure 4",
        title: "Transfers between two buffers",
        paper: "On both XPUs copies between unified buffers are noticeably faster than the vendors' \
                \u{201c}basic\u{201d} copies, which coordinate two memory managers.",
        here: "gmemcpy between unified buffers, and from ordinary memory, against raw copies by as \
               many threads; and copies through a bounce buffer.",
        lacking: "Vendors' copies from pageable and from pinned memory need their devices.",
        belongs: |r| (r.suite == "memcpy" && !is_chunks(r)) || r.case == "to-xpu-against-bounce",
        axis: Axis::BytesPerSecond,
        bars: speeds,
        sentence: against_baselines,
    },
    Figure {
        name: "Figure 5",
        title: "Kernels over 4 KiB and 2 MiB pages",
        paper: "4 KiB pages, which HMM needs, slow down computation on the XPU.",
        here: "Programs on the CPU over memory that the kernel maps with 2 MiB pages, against the same \
               over 4 KiB pages.",
        lacking: "The MMU is the CPU's; how much an XPU's loses needs that XPU.",
        belongs: |r| r.suite == "pagesize",
        axis: Axis::Ratio,
        bars: ratios,
        sentence: |records| {
            let (worst, best) = extremes(records);
            format!(
                "With 2 MiB pages {} is {} times as fast as with 4 KiB pages; {} gains least ({} times).",
                best.case,
                significant(best.ratio),
                worst.case,
                significant(worst.ratio)
            )
        },
    },
    Figure {
        name: "Table 4",
        title: "A training loop in steady state",
        paper: "Training LLaMA-2 70B, the first iteration costs more under UVM and GMM because of page \
                faults; long-run throughput is identical. On NPUs it is within 0.5% of the vendor's.",
        here: "Gradient descent over weights that fit on the XPU: unified memory against the same loop \
               over explicitly copied memory.",
        lacking: "The model, the framework and the cards.",
        belongs: |r| r.suite == "steady",
        axis: Axis::Ratio,
        bars: ratios,
        sentence: |records| {
            let of = |case: &str| records.iter().find(|record| record.case == case);
            let sentence = |record: &&Record, what: &str| {
                format!("{what} runs at {} of the explicit loop's speed", percent(record.ratio))
            };
            let parts = [("iteration", "an iteration"), ("first-iteration", "the first")];
            let parts = parts.map(|(case, what)| of(case).map(|record| sentence(record, what)));
            capital(&parts.into_iter().flatten().collect::<Vec<_>>().join(", ")) + "."
        },
    },
    Figure {
        name: "Figure 8",
        title: "Prefetch and copy bandwidth",
        paper: "On the A100 UVM prefetches faster than GMM with small chunks, and the gap closes as they \
                grow; GMM's copies approach pinned memory. HMM stays at 1 GB/s, since it migrates 4 KiB \
                pages. On the NPU, GMM closely follows pinned copies.",
        here: "WILLNEED and gmemcpy to the XPU, a chunk a call; WILLNEED of all at once both ways, and a \
               launch over pages that are just coming: against raw copies of all by as many threads.",
        lacking: "Cards and links: host memory stands for both ends, so a copy costs what memcpy costs.",
        belongs: |r| r.suite == "prefetch" || is_chunks(r),
        axis: Axis::Ratio,
        bars: ratios,
        sentence: chunk_sizes,
    },
    Figure {
        name: "Figure 9",
        title: "Fault-driven migration",
        paper: "GMM's fault-driven migration has 30.8% more bandwidth than UVM's, 41.2% with coalescing, \
                and 40% fewer faults since pages are always 2 MiB.",
        here: "A product of matrices from end to end, FP32, with k as in the paper: A and B start on the \
               CPU, C is zero-filled on the XPU. The baseline copies A and B explicitly, and then \
               computes.",
        lacking: "UVM and HMM need NVIDIA's driver. The host XPU computes a thousandth of what an A100 \
                  does, so A has few rows; FP16 is not computed.",
        belongs: |r| r.suite == "product",
        axis: Axis::Ratio,
        bars: ratios,
        sentence: |records| {
            let most = |key: &str| {
                let numbers = records.iter().filter_map(|record| record.number(key));
                numbers.fold(0.0, f64::max)
            };
            format!(
                "{} The largest took {:.0} faults for {} of operands.",
                against_baselines(records),
                most("faults"),
                display_bytes(most("bytes") as u64)
            )
        },
    },
    Figure {
        name: "Beside figure 9",
        title: "Migration by faults, page by page",
        paper: "HMM migrates 4 KiB pages and stays at 1 GB/s; GMM's pages are always 2 MiB.",
        here: "One touch in each 4 KiB of memory that lies on the other side, against raw copies, and \
               against a user-space pager with one handler thread.",
        lacking: "UVM and HMM need NVIDIA's driver.",
        belongs: |r| r.suite == "faults" && r.case != "to-xpu-against-bounce",
        axis: Axis::BytesPerSecond,
        bars: speeds,
        sentence: against_baselines,
    },
    Figure {
        name: "Figures 10 and 11",
        title: "Oversubscription",
        paper: "With memory oversubscribed GMM's fault throughput is constantly over 13% above UVM's, and \
                coalescing adds 5% to 29%. Prefetching overlaps with UVM's and with pinned copies. HMM \
                can't oversubscribe.",
        here: "Sweeps over more than the XPU has, under several eviction policies, against raw copies of \
               the pages that moved.",
        lacking: "UVM, the cards and their links. WILLNEED does not push other pages out here, so Figure \
                  11's prefetches have no counterpart.",
        belongs: |r| r.suite == "oversubscribe",
        axis: Axis::Ratio,
        bars: ratios,
        sentence: against_baselines,
    },
    Figure {
        name: "Figure 12",
        title: "Programs on the CPU",
        paper: "GMM is within 0.5% of Linux in most workloads; memory that XPUs can see costs up to 2.3% \
                (canneal, streamcluster, dedup).",
        here: "Small programs in unified memory after first touch, and first touches themselves, against \
               the kernel's own huge pages. Bars show the spread of all pairs.",
        lacking: "PARSEC, Metis and psearchy are not run; the kernel is not changed, so memory that XPUs \
                  can't see costs nothing by construction.",
        belongs: |r| r.suite == "cpu" && r.parameter != "threads=2",
        axis: Axis::Ratio,
        bars: ratios,
        sentence: cpu_programs,
    },
    Figure {
        name: "Figure 13",
        title: "Scaling with processors",
        paper: "GMM, with memory that XPUs can see or not, scales as Linux does.",
        here: "The same programs with two threads; lookups and migrations of several at once; the cost of \
               a lookup and of a fault when far more is mapped.",
        lacking: "128 processors.",
        belongs: |r| r.suite == "scale" || (r.suite == "cpu" && r.parameter == "threads=2"),
        axis: Axis::Ratio,
        bars: ratios,
        sentence: against_baselines,
    },
    Figure {
        name: "Figure 14",
        title: "Switching between models",
        paper: "Two models that together exceed the card: against killing one and starting the other from \
                the page cache, GMM is 44% faster on the GPU, 2.17 times with procfs hints, and 4.8 to \
                22.6 times on the NPU.",
        here: "Two synthetic Llama-shaped models of 1.5 times the XPU's memory, from a request to its first \
               output, against freeing and loading, and against sleeping.",
        lacking: "The cards, and models of 32 billion weights.",
        belongs: |r| r.suite == "switch",
        axis: Axis::Milliseconds,
        bars: |records| {
            let mut bars = Vec::new();
            for record in records {
                if record.case == "first-output" {
                    bars.extend(
                        record
                            .seconds
                            .map(|s| bar("unified memory".into(), s * 1e3, Kind::Subject)),
                    );
                }
                if let Some(seconds) = record.number("baseline_seconds") {
                    bars.push(bar(record.baseline.clone(), seconds * 1e3, Kind::Baseline));
                }
            }
            bars
        },
        sentence: |records| {
            let loads: Vec<_> = records
                .iter()
                .filter(|record| record.case != "first-output")
                .map(|r| {
                    format!(
                        "{} times as fast as \u{201c}{}\u{201d}",
                        significant(r.ratio),
                        r.baseline
                    )
                })
                .collect();
            format!("A switch in unified memory is {}.", loads.join(", "))
        },
    },
    Figure {
        name: "Beside the figures",
        title: "What a fault costs",
        paper: "Coalescing keeps the last page of a fault, and skips others on it.",
        here: "A fault's time against the raw copy of its page, while faults keep arriving and from rest; \
               and duplicate faults against 2 µs.",
        lacking: "Interrupts and page-fault buffers of real XPUs.",
        belongs: |r| r.suite == "latency" || r.suite == "coalesce",
        axis: Axis::Ratio,
        bars: |records| ratios(&only(records, |record| record.suite == "latency")),
        sentence: |records| {
            let faults =
                only(records, |record| record.suite == "latency").into_iter().filter_map(|r| {
                    let us = r.number("overhead_us_median")?;
                    let p99 = r.number("overhead_us_p99")?;
                    let (median, p99) = (display_seconds(us * 1e-6), display_seconds(p99 * 1e-6));
                    Some(format!(
                        "{} {}: {median} beyond the copy (p99 {p99})",
                        r.case, r.parameter
                    ))
                });
            let duplicates = only(records, |record| record.suite == "coalesce");
            let slowest = duplicates.iter().filter_map(|record| record.seconds).fold(0.0, f64::max);
            let mut parts: Vec<_> = faults.collect();
            if slowest > 0.0 {
                parts.push(format!("a duplicate takes at most {}", display_seconds(slowest)));
            }
            capital(&parts.join("; ")) + "."
        },
    },
];

fn only<'a>(records: &[&'a Record], which: impl Fn(&Record) -> bool) -> Vec<&'a Record> {
    records.iter().copied().filter(|record| which(record)).collect()
}

fn bar(label: String, value: f64, kind: Kind) -> Bar {
    Bar { label, value, spread: None, kind }
}

fn label(record: &Record) -> String {
    let Record { suite, case, parameter, .. } = record;
    match suite.as_str() {
        // Their cases or parameters say it all.
        "prefetch" | "memcpy" if is_chunks(record) => {
            format!("{suite} {}", parameter.replace('=', " "))
        }
        "oversubscribe" | "pagesize" | "steady" | "memcpy" | "prefetch" => case.clone(),
        _ => format!("{case} ({parameter})"),
    }
}

fn ratios(records: &[&Record]) -> Vec<Bar> {
    let bar = |record: &&Record| Bar {
        label: label(record),
        value: record.ratio,
        spread: Some((record.ratio_min, record.ratio_max)),
        kind: Kind::Subject,
    };
    records.iter().map(bar).collect()
}

/// The speed of each subject, with its spread against the baseline's median, and of each baseline.
fn speeds(records: &[&Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let own = records.iter().filter(|record| !is_peer(record));
    for record in own.chain(records.iter().filter(|record| is_peer(record))) {
        let baseline = ["baseline_bytes_per_s", "raw_copy_bytes_per_s"];
        let baseline = baseline.iter().find_map(|key| record.number(key));
        let peer = is_peer(record);
        if let (Some(speed), false) = (record.bytes_per_s, peer) {
            bars.push(Bar {
                label: label(record),
                value: speed,
                spread: baseline.map(|b| (record.ratio_min * b, record.ratio_max * b)),
                kind: Kind::Subject,
            });
        }
        if let Some(baseline) = baseline {
            let name = if peer { short(&record.case) } else { record.baseline.clone() };
            bars.push(bar(name, baseline, Kind::Baseline));
        }
    }
    bars
}

/// How others do what faults do here.
fn is_peer(record: &Record) -> bool {
    record.case.contains("-against-")
}

fn short(case: &str) -> String {
    match case.split_once("-against-") {
        Some((way, "4k")) => format!("{way}, 4 KiB at a time"),
        Some((way, "bounce")) => format!("{way}, bounce buffer"),
        Some((way, "pager")) => format!("{way}, user-space pager"),
        _ => case.to_owned(),
    }
}

/// The record with the least ratio, and that with the greatest.
fn extremes<'a>(records: &[&'a Record]) -> (&'a Record, &'a Record) {
    let by_ratio = |a: &&&Record, b: &&&Record| a.ratio.total_cmp(&b.ratio);
    let worst = records.iter().min_by(by_ratio);
    let best = records.iter().max_by(by_ratio);
    match (worst, best) {
        (Some(worst), Some(best)) => (worst, best),
        _ => unreachable!("a sentence is made of at least one record"),
    }
}

fn against_baselines(records: &[&Record]) -> String {
    let own = only(records, |record| !is_peer(record));
    let peers = only(records, is_peer);
    let mut parts = Vec::new();
    if !own.is_empty() {
        let (worst, best) = extremes(&own);
        if own.len() == 1 {
            parts.push(format!("{} reaches {} of its baseline", label(best), percent(best.ratio)));
        } else {
            parts.push(format!(
                "cases reach from {} ({}) to {} ({}) of their baselines' speed",
                percent(worst.ratio),
                label(worst),
                percent(best.ratio),
                label(best)
            ));
        }
    }
    for peer in peers {
        parts.push(format!(
            "faults are {} times as fast as {}",
            significant(peer.ratio),
            peer.baseline
        ));
    }
    capital(&parts.join("; ")) + "."
}

fn is_chunks(record: &Record) -> bool {
    record.number("chunk_bytes").is_some()
}

/// From which chunk on each way has nine tenths of the speed of its fastest chunk.
fn chunk_sizes(records: &[&Record]) -> String {
    let mut parts = Vec::new();
    for (suite, what) in [("prefetch", "a prefetch"), ("memcpy", "a copy")] {
        let chunks = only(records, |record| record.suite == suite && is_chunks(record));
        let best = chunks.iter().map(|record| record.ratio).fold(0.0, f64::max);
        let first = chunks.iter().find(|record| record.ratio >= 0.9 * best);
        if let Some(bytes) = first.and_then(|record| record.number("chunk_bytes")) {
            parts.push(format!(
                "{what} a chunk a call comes within a tenth of its best ({}) from {} on",
                percent(best),
                display_bytes(bytes as u64)
            ));
        }
    }
    let whole = only(records, |record| !is_chunks(record));
    parts.extend(
        (!whole.is_empty()).then(|| against_baselines(&whole).trim_end_matches('.').into()),
    );
    capital(&parts.join("; ")) + "."
}

fn cpu_programs(records: &[&Record]) -> String {
    let interval = |record: &&&Record| record.number("ratio_high_95").unwrap_or(record.ratio_max);
    let programs = only(records, |record| record.case != "zero-fill");
    let reached = programs.iter().filter(|record| interval(record) >= 0.995).count();
    let mut sentence = format!(
        "the 95% interval of the median reaches 0.995 for {reached} of {} programs",
        programs.len()
    );
    if let Some(fill) = records.iter().find(|record| record.case == "zero-fill") {
        sentence += &format!("; a first touch has {} of the kernel's speed", percent(fill.ratio));
    }
    capital(&sentence) + "."
}

fn percent(ratio: f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
