//! The figures of the paper's evaluation: what it reports, what stands for it here, and what would need
//! its hardware. What is said of a plot is computed from its records.

use gmm::display_bytes;

use super::plot::{self, Axis, Bar, Kind};
use super::{links, product};
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
    /// The plot, or several one below the other; there is at least one record.
    pub(super) plot: fn(&[&Record]) -> String,
    /// One sentence on what the plot shows; there is at least one record.
    pub(super) sentence: fn(&[&Record]) -> String,
}

/// In the paper's order.
pub(super) const FIGURES: [Figure; 13] = [
    Figure {
        name: "Figure 4",
        title: "Transfers between two buffers",
        paper: "On both XPUs copies between unified buffers are noticeably faster than the vendors' \
                \u{201c}basic\u{201d} copies, which coordinate two memory managers.",
        here: "gmemcpy between unified buffers, and from ordinary memory, against raw copies by as \
               many threads.",
        lacking: "Vendors' copies from pageable and from pinned memory need their devices.",
        belongs: |r| (r.suite == "memcpy" && !is_chunks(r)) || r.case == "to-xpu-against-bounce",
        plot: |records| plot::bars(&speeds(records), Axis::BytesPerSecond),
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
        plot: |records| plot::bars(&ratios(records), Axis::Ratio),
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
        plot: |records| plot::bars(&ratios(records), Axis::Ratio),
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
        plot: |records| plot::bars(&ratios(records), Axis::Ratio),
        sentence: chunk_sizes,
    },
    Figure {
        name: "Figure 9",
        title: "Fault-driven migration",
        paper: "GMM's fault-driven migration has 30.8% more bandwidth than UVM's, 41.2% with coalescing, \
                and 40% fewer faults since pages are always 2 MiB.",
        here: "A product of matrices from end to end, in half and in single precision, with k as in the \
               paper: A and B start on the CPU, C is zero-filled on the XPU; with one core, and with \
               several that fault on the same pages and are coalesced. The baseline copies A and B \
               explicitly, and then computes.",
        lacking: "UVM and HMM need NVIDIA's driver. The host XPU computes a thousandth of what an A100 \
                  does, so A has few rows, and at that copies weigh less than on a card.",
        belongs: |r| {
            r.suite == "product" && r.number("factor") == Some(1.0) && !is_one_of_factors(r)
        },
        plot: product::by_k,
        sentence: product::by_k_sentence,
    },
    Figure {
        name: "Beside figure 9",
        title: "Migration by faults, page by page",
        paper: "HMM migrates 4 KiB pages and stays at 1 GB/s; GMM's pages are always 2 MiB.",
        here: "One touch in each 4 KiB of memory that lies on the other side, against raw copies.",
        lacking: "UVM and HMM need NVIDIA's driver.",
        belongs: |r| r.suite == "faults" && r.case != "to-xpu-against-bounce",
        plot: |records| plot::bars(&speeds(records), Axis::BytesPerSecond),
        sentence: against_baselines,
    },
    Figure {
        name: "Figures 10 and 11",
        title: "Oversubscription",
        paper: "With memory oversubscribed GMM's fault throughput is constantly over 13% above UVM's, and \
                coalescing adds 5% to 29%. Prefetching overlaps with UVM's and with pinned copies. HMM \
                can't oversubscribe.",
        here: "Products of matrices that the XPU's memory does not hold, brought by faults and with \
               prefetches, under each eviction policy: their speed from end to end, in bytes of A and B. \
               Below, sweeps over more than the XPU has, against raw copies of the pages that moved.",
        lacking: "UVM, the cards and their links. A prefetch fills the room there is and pushes little \
                  out, so Figure 11 is approached, not repeated.",
        belongs: |r| {
            let of_product = r.suite == "product" && is_one_of_factors(r);
            of_product || (r.suite == "oversubscribe" && !has_link(r))
        },
        plot: oversubscribed,
        sentence: oversubscribed_sentence,
    },
    Figure {
        name: "Beside figures 10 and 11",
        title: "Clean eviction and the duplex of the link",
        paper: "Not reported. What leaves a card without a copy saves the more, the less the link carries both \
                directions at once.",
        here: "Sweeps over twice the XPU's memory that read (pages leave clean) and that write (each page \
               goes out, too), over modelled links of half and of full duplex.",
        lacking: "A real link: the model makes copies wait, and can't make them faster than the machine's \
                  memory.",
        belongs: |r| r.suite == "oversubscribe" && has_link(r),
        plot: |records| plot::bars(&links::times(records), Axis::Milliseconds),
        sentence: links::sentence,
    },
    Figure {
        name: "Figure 12",
        title: "Programs on the CPU",
        paper: "GMM is within 0.5% of Linux in most workloads; memory that XPUs can see costs up to 2.3% \
                (canneal, streamcluster, dedup).",
        here: "Small programs in unified memory after first touch, first touches themselves, and storms of \
               allocations in the manner of dedup and Metis, against the kernel's own huge pages. \
               Whiskers show the spread of all pairs.",
        lacking: "PARSEC, Metis and psearchy themselves are not run; the kernel is not changed, so memory that XPUs \
                  can't see costs nothing by construction.",
        belongs: |r| r.suite == "cpu" && r.parameter != "threads=2",
        plot: |records| plot::bars(&ratios(records), Axis::Ratio),
        sentence: cpu_programs,
    },
    Figure {
        name: "Figure 13",
        title: "Scaling with processors",
        paper: "GMM, with memory that XPUs can see or not, scales as Linux does.",
        here: "The same programs and storms with two threads; lookups and migrations of several at once; the cost of \
               a lookup and of a fault when far more is mapped.",
        lacking: "128 processors.",
        belongs: |r| r.suite == "scale" || (r.suite == "cpu" && r.parameter == "threads=2"),
        plot: |records| plot::bars(&ratios(records), Axis::Ratio),
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
        plot: switch_times,
        sentence: switch_sentence,
    },
    Figure {
        name: "Beside the evaluation",
        title: "Processor time",
        paper: "Not reported.",
        here: "Processor time of all threads of the process and its XPU, but the XPU's cores, for each GiB \
               that faults migrate, against raw copies of as much; at most 1.5 times is asked for.",
        lacking: "A card's copy engine, which needs no processor.",
        belongs: |r| r.suite == "cost",
        plot: processor_time,
        sentence: processor_time_sentence,
    },
    Figure {
        name: "Beside the figures",
        title: "What a fault costs",
        paper: "Coalescing keeps the last page of a fault, and skips others on it.",
        here: "A fault's time against the raw copy of its page, while faults keep arriving and from rest; \
               and duplicate faults against 2 µs.",
        lacking: "Interrupts and page-fault buffers of real XPUs.",
        belongs: |r| r.suite == "latency" || r.suite == "coalesce",
        plot: |records| {
            let latency = only(records, |record| record.suite == "latency");
            plot::bars(&ratios(&latency), Axis::Ratio)
        },
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

pub(super) fn only<'a>(records: &[&'a Record], which: impl Fn(&Record) -> bool) -> Vec<&'a Record> {
    records.iter().copied().filter(|record| which(record)).collect()
}

pub(super) fn bar(label: String, value: f64, kind: Kind) -> Bar {
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
pub(super) fn extremes<'a>(records: &[&'a Record]) -> (&'a Record, &'a Record) {
    let by_ratio = |a: &&&Record, b: &&&Record| a.ratio.total_cmp(&b.ratio);
    let worst = records.iter().min_by(by_ratio);
    let best = records.iter().max_by(by_ratio);
    match (worst, best) {
        (Some(worst), Some(best)) => (worst, best),
        _ => unreachable!("a sentence is made of at least one record"),
    }
}

fn against_baselines(records: &[&Record]) -> String {
    capital(&reached(records)) + "."
}

/// The same, as part of a sentence.
fn reached(records: &[&Record]) -> String {
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
    parts.join("; ")
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
                "{what} in chunks is within a tenth of its best ({} of a raw copy's speed) if they have \
                 {} or more",
                percent(best),
                display_bytes(bytes as u64)
            ));
        }
    }
    let whole = only(records, |record| !is_chunks(record));
    parts.extend((!whole.is_empty()).then(|| reached(&whole)));
    capital(&parts.join("; ")) + "."
}

fn cpu_programs(records: &[&Record]) -> String {
    let high = |record: &&Record| record.number("ratio_high_95").unwrap_or(record.ratio_max);
    let is_storm = |record: &Record| record.number("blocks_taken").is_some();
    let programs = only(records, |record| record.case != "zero-fill" && !is_storm(record));
    let storms = only(records, is_storm);
    let mut parts = Vec::new();
    if !programs.is_empty() {
        let reached = programs.iter().filter(|record| high(record) >= 0.995).count();
        let of = programs.len();
        parts.push(format!(
            "the 95% interval of the median reaches 0.995 for {reached} of {of} programs"
        ));
    }
    if !storms.is_empty() {
        let (worst, best) = extremes(&storms);
        parts.push(format!(
            "storms of allocations run at {} ({}) to {} ({}) of the kernel's speed",
            percent(worst.ratio),
            worst.case,
            percent(best.ratio),
            best.case
        ));
    }
    if let Some(fill) = records.iter().find(|record| record.case == "zero-fill") {
        parts.push(format!("a first touch has {} of it", percent(fill.ratio)));
    }
    capital(&parts.join("; ")) + "."
}

/// Whether several factors were measured in its run: it stands among them then.
fn is_one_of_factors(record: &Record) -> bool {
    record.more.get("factors").and_then(|n| n.as_u64()).is_some_and(|n| n > 1)
        || record.number("factor").is_some_and(|factor| factor > 1.0)
}

fn has_link(record: &Record) -> bool {
    record.parameter.contains("link=")
}

/// The products by how much they exceed the memory; below them the sweeps.
fn oversubscribed(records: &[&Record]) -> String {
    let products = only(records, |record| record.suite == "product");
    let sweeps = only(records, |record| record.suite == "oversubscribe");
    let mut plots = String::new();
    if !products.is_empty() {
        plots += &product::by_factor(&products);
    }
    if !sweeps.is_empty() {
        plots += "<h3>Sweeps</h3>\n";
        plots += &plot::bars(&ratios(&sweeps), Axis::Ratio);
    }
    plots
}

fn oversubscribed_sentence(records: &[&Record]) -> String {
    let products = only(records, |record| record.suite == "product");
    let sweeps = only(records, |record| record.suite == "oversubscribe");
    let mut parts = Vec::new();
    if !products.is_empty() {
        parts.push(product::by_factor_sentence(&products));
    }
    if !sweeps.is_empty() {
        parts.push(match parts.is_empty() {
            true => against_baselines(&sweeps),
            false => format!("Of the sweeps: {}.", reached(&sweeps)),
        });
    }
    parts.join(" ")
}

/// The times of a switch and of the ways without unified memory; a line at the target.
fn switch_times(records: &[&Record]) -> String {
    let mut bars = Vec::new();
    let mut target = None;
    for record in records {
        if record.case == "first-output" {
            target = record.number("target_seconds").map(|seconds| seconds * 1e3);
            let subject =
                record.seconds.map(|s| bar("unified memory".into(), s * 1e3, Kind::Subject));
            bars.extend(subject);
        }
        if let Some(seconds) = record.number("baseline_seconds") {
            bars.push(bar(record.baseline.clone(), seconds * 1e3, Kind::Baseline));
        }
    }
    plot::bars_with_line(&bars, Axis::Milliseconds, target)
}

fn switch_sentence(records: &[&Record]) -> String {
    let mut sentence = String::new();
    if let Some(first) = records.iter().find(|record| record.case == "first-output") {
        let seconds = [first.seconds, first.number("target_seconds")];
        if let [Some(took), Some(target)] = seconds.map(|s| s.map(display_seconds)) {
            sentence +=
                &format!("The first output comes after {took} (target, the line: {target})");
        }
        if let Some(bytes) = first.number("weights_copied_out_bytes") {
            sentence += &match bytes {
                0.0 => "; no byte of weights was copied out. ".to_owned(),
                some => format!("; {} of weights were copied out. ", display_bytes(some as u64)),
            };
        }
    }
    let loads = only(records, |record| record.case != "first-output");
    let loads: Vec<_> = loads
        .iter()
        .map(|r| {
            format!("{} times as fast as \u{201c}{}\u{201d}", significant(r.ratio), r.baseline)
        })
        .collect();
    if !loads.is_empty() {
        sentence += &format!("A switch in unified memory is {}.", loads.join(", "));
    }
    sentence
}

/// Processor time of faults and of raw copies, in milliseconds a GiB.
fn processor_time(records: &[&Record]) -> String {
    let mut bars = Vec::new();
    for record in records {
        if let (Some(subject), Some(raw)) = (record.seconds, record.number("baseline_seconds")) {
            let to = to_where(record);
            bars.push(bar(format!("faults {to}"), subject * 1e3, Kind::Subject));
            bars.push(bar(format!("raw copies {to}"), raw * 1e3, Kind::Baseline));
        }
    }
    plot::bars(&bars, Axis::Milliseconds)
}

fn to_where(record: &Record) -> &'static str {
    if record.case == "to-xpu" { "to the XPU" } else { "to the CPU" }
}

fn processor_time_sentence(records: &[&Record]) -> String {
    let mut parts = Vec::new();
    for record in records.iter().filter(|record| record.case != "idle") {
        let (to, times) = (to_where(record), significant(1.0 / record.ratio));
        parts.push(format!("faults {to} take {times} times the processor time of raw copies"));
    }
    if let Some(idle) = records.iter().find(|record| record.case == "idle") {
        let of = |key: &str| idle.number(key).map_or_else(|| "?".to_owned(), significant);
        let (threads, switches) = (of("threads"), of("context_switches"));
        parts.push(format!(
            "the {threads} threads of an idle process are woken {switches} times a second"
        ));
    }
    capital(&parts.join("; ")) + "."
}

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
