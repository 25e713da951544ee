//! The plot of sweeps over modelled links: what clean eviction gains.

use super::figures::{bar, capital, only};
use super::plot::{Bar, Kind};
use crate::bench::record::{Record, significant};

/// The link of a record, in words, such as `2GiB half-duplex`.
fn link(record: &Record) -> &str {
    record.parameter.split_once("link=").map_or("", |(_, link)| link)
}

fn is_read(record: &Record) -> bool {
    record.case.starts_with("read-")
}

/// The time of a sweep, for each link: those that read, and those that write.
pub(super) fn times(records: &[&Record]) -> Vec<Bar> {
    let time = |record: &&Record| {
        let (what, kind) =
            if is_read(record) { ("reads", Kind::Subject) } else { ("writes", Kind::Baseline) };
        let label = format!("{}: {what}", link(record));
        record.seconds.map(|seconds| bar(label, seconds * 1e3, kind))
    };
    records.iter().filter_map(time).collect()
}

/// Of each link, how many times the time of a sweep that reads one takes that writes.
pub(super) fn sentence(records: &[&Record]) -> String {
    let reads = only(records, is_read);
    let gain = |read: &&Record| {
        let write = records.iter().find(|write| !is_read(write) && link(write) == link(read))?;
        let gain = write.seconds? / read.seconds?;
        Some(format!("{} times over {}", significant(gain), link(read)))
    };
    let gains: Vec<_> = reads.iter().filter_map(gain).collect();
    capital(&format!(
        "a sweep whose pages must be written back takes {} as long as one whose pages leave clean.",
        gains.join(", ")
    ))
}
