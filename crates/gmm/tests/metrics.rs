//! The counters as JSON and as Prometheus text: each line is what the format wants, and says the
//! same as the snapshot.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use gmm::{Gmm, PAGE_SIZE, Snapshot, metrics};

/// A machine on which something of everything has happened, whose XPU's name has to be escaped.
fn story() -> (Gmm, Snapshot) {
    let named = xpu_of(4).config(|config| config.name("a \"quoted\" \\ name\nof two lines"));
    // Each page comes by a fault of its own.
    let gmm = Gmm::builder().xpu(named).config(|c| c.look_ahead = 0).build().unwrap();
    let memory = mmap(&gmm, 6);
    (0..6).for_each(|page| memory.write(page * PAGE, 1));
    run(&gmm.xpu(1).unwrap(), "touch", 1, (memory.at(0), 6 * PAGE, true)).unwrap();
    wait_until("the CPU's faults are counted", || gmm.snapshot().nodes[0].faults == 6);
    let snapshot = gmm.snapshot();
    (gmm, snapshot)
}

/// Why pages came to the XPU.
fn cause() -> &'static str {
    if launches_hold() { "hold" } else { "fault" }
}

/// One sample of the text format.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `name{label="value",...} number`, to the letter.
fn parse_sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label), "{line}");
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().unwrap_or_else(|| panic!("a value without an end: {line}")) {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next() {
                        Some((_, 'n')) => value.push('\n'),
                        Some((_, c @ ('"' | '\\'))) => value.push(c),
                        other => panic!("{other:?} is not escaped so: {line}"),
                    },
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none(), "a label twice: {line}");
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("no end of labels: {line}"));
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value: {line}"));
    Sample { name: name.to_owned(), labels, value: value.parse().unwrap() }
}

/// The families, in order: name, kind, samples. Every line is one of `# HELP`, `# TYPE`, sample.
fn parse(text: &str) -> Vec<(String, String, Vec<Sample>)> {
    assert!(text.ends_with('\n'));
    let mut families: Vec<(String, String, Vec<Sample>)> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").unwrap_or_else(|| panic!("no family: {line}"));
        let (name, help) = help.split_once(' ').unwrap();
        assert!(is_name(name) && name.starts_with("gmm_") && !help.is_empty(), "{line}");
        let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
        let (same, kind) = kind.split_once(' ').unwrap();
        assert_eq!(same, name);
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            samples.push(parse_sample(line));
        }
        families.push((name.to_owned(), kind.to_owned(), samples));
    }
    families
}

#[test]
fn every_line_of_the_text_is_prometheus() {
    let _turn = turn();
    let (_gmm, snapshot) = story();
    let text = metrics::prometheus(&snapshot);
    let mut seen = BTreeSet::new();
    for (family, kind, samples) in parse(&text) {
        assert!(seen.insert(family.clone()), "{family} twice");
        let units = ["_frames", "_pages", "_bytes", "_faults", "_seconds"];
        let base = family.strip_suffix("_total").unwrap_or(&family);
        assert!(units.iter().any(|unit| base.ends_with(unit)), "no unit: {family}");
        assert_eq!(kind == "counter", family.ends_with("_total"), "{family}");
        let mut identities = BTreeSet::new();
        for s in &samples {
            let identity = (s.name.clone(), s.labels.clone());
            assert!(identities.insert(identity), "the same sample twice: {s:?}");
            match kind.as_str() {
                "counter" | "gauge" => assert_eq!(s.name, family),
                "histogram" => {
                    let part = s.name.strip_prefix(&family);
                    assert!(matches!(part, Some("_bucket" | "_sum" | "_count")), "{s:?}");
                    assert_eq!(part == Some("_bucket"), s.labels.contains_key("le"), "{s:?}");
                }
                other => panic!("{family} is a {other}"),
            }
        }
    }
    assert!(text.contains(r#"device="a \"quoted\" \\ name\nof two lines""#), "{text}");
}

#[test]
fn the_text_says_what_the_snapshot_says() {
    let _turn = turn();
    let (_gmm, snapshot) = story();
    let families = parse(&metrics::prometheus(&snapshot));
    let value = |name: &str, wanted: &[(&str, &str)]| {
        let mut samples = families.iter().flat_map(|f| &f.2).filter(|s| {
            s.name == name && wanted.iter().all(|(k, v)| s.labels.get(*k).is_some_and(|l| l == v))
        });
        let first = samples.next().unwrap_or_else(|| panic!("no {name} {wanted:?}")).value;
        assert!(samples.next().is_none(), "{name} {wanted:?} is not one sample");
        first as u64
    };
    assert_eq!(value("gmm_page_size_bytes", &[]), PAGE_SIZE);
    assert_eq!(value("gmm_node_zeroed_pages_total", &[("node", "0")]), 6);
    assert_eq!(value("gmm_node_faults_total", &[("node", "1")]), snapshot.nodes[1].faults);
    assert_eq!(value("gmm_node_capacity_frames", &[("node", "1")]), 4);
    let written = [("processor", "0"), ("access", "write"), ("result", "zero_filled")];
    assert_eq!(value("gmm_processor_faults_total", &written), 6);
    let moved = [("from", "0"), ("to", "1"), ("cause", cause())];
    assert_eq!(value("gmm_moved_pages_total", &moved), 6);
    assert_eq!(value("gmm_moved_bytes_total", &moved), 6 * PAGE_SIZE);
    // The histogram is cumulative, and ends with all there are.
    for n in &snapshot.nodes {
        let node = n.node.to_string();
        let buckets: Vec<_> = families
            .iter()
            .flat_map(|f| &f.2)
            .filter(|s| s.name == "gmm_fault_service_seconds_bucket" && s.labels["node"] == node)
            .map(|s| (s.labels["le"].parse::<f64>().unwrap(), s.value))
            .collect();
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{buckets:?}");
        assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, n.faults as f64));
        assert_eq!(value("gmm_fault_service_seconds_count", &[("node", &node)]), n.faults);
    }
}

#[test]
fn the_json_says_what_the_snapshot_says() {
    let _turn = turn();
    let (gmm, snapshot) = story();
    let text = metrics::json(&snapshot).to_string();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["page_bytes"], PAGE_SIZE);
    let node = &value["nodes"][1];
    assert_eq!((&node["node"], &node["capacity_frames"]), (&1.into(), &4.into()));
    assert_eq!(node["device"], "a \"quoted\" \\ name\nof two lines");
    assert_eq!(node["faults"], snapshot.nodes[1].faults);
    assert_eq!(node["fault_service"]["count"], snapshot.nodes[1].faults);
    assert_eq!(node["fault_service"]["max_ns"], snapshot.nodes[1].fault_service.max_ns);
    assert_eq!(value["processors"][0]["writes"]["zero_filled"], 6);
    let moves = value["moves"].as_array().unwrap();
    let came = moves.iter().find(|m| m["cause"] == cause()).unwrap();
    assert_eq!([&came["from"], &came["to"], &came["pages"]], [0, 1, 6]);

    let range = gmm.regions()[0].range;
    let start = core::ptr::without_provenance(range.start.start().0 as usize);
    let runs = gmm.residency(start, range.len_bytes()).unwrap();
    let value = metrics::residency_json(&runs);
    let runs = value.as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["pages"].as_u64().unwrap()).sum::<u64>(), 6);
    let on_xpu = runs.iter().find(|run| run["copies"][0]["node"] == 1).unwrap();
    let copy = &on_xpu["copies"][0];
    assert_eq!((&copy["cause"], &copy["processor"]), (&cause().into(), &1.into()));
    assert_eq!((&on_xpu["state"], &on_xpu["mapped"][0]), (&"exclusive".into(), &1.into()));
    let evicted = runs.iter().find(|run| run["copies"][0]["node"] == 0).unwrap();
    assert_eq!(evicted["copies"][0]["cause"], "eviction");
    assert!(evicted["copies"][0]["processor"].is_null());
}
