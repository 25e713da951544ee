//! The machine that a report is of, and those of its settings that matter.

use std::fs;

/// What, and its value.
pub(super) fn describe() -> Vec<(&'static str, String)> {
    let cpuinfo = read("/proc/cpuinfo");
    let memory = read("/proc/meminfo");
    let swap = read("/proc/swaps").lines().count().saturating_sub(1);
    let bracketed = |path: &str| chosen(&read(path));
    vec![
        ("processor", field(&cpuinfo, "model name")),
        ("processors of this process", crate::bench::options::nr_cpus().to_string()),
        ("virtual machine", if cpuinfo.contains(" hypervisor") { "yes" } else { "no" }.to_owned()),
        ("memory", memory_size(&field(&memory, "MemTotal"))),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("transparent huge pages", bracketed("/sys/kernel/mm/transparent_hugepage/enabled")),
        (
            "huge pages of shared memory",
            bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        ),
        ("reserved huge pages", field(&memory, "HugePages_Total")),
        ("swap", if swap == 0 { "none".to_owned() } else { format!("{swap} devices") }),
        ("load average", read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(", ")),
        ("GMM", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "built for",
            if cfg!(debug_assertions) { "debugging: speeds mean nothing" } else { "release" }
                .to_owned(),
        ),
    ]
}

/// What to say of a machine that does other things too: the load is of all processes, and a benchmark
/// makes up to four of it.
pub(super) fn warning() -> Option<String> {
    let load = read("/proc/loadavg");
    let load = load.split(' ').next()?.parse::<f64>().ok()?;
    let cpus = crate::bench::options::nr_cpus();
    (load > cpus as f64 + 4.0).then(|| {
        format!(
            "The load average was {load:.1} on {cpus} processors: other programs were at work, and \
             figures from such a run are noise."
        )
    })
}

fn memory_size(text: &str) -> String {
    let kib = text.strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok());
    kib.map_or_else(|| text.to_owned(), |kib| gmm::display_bytes(kib << 10))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value after `name:`, in the first line that has it.
fn field(text: &str, name: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

/// Of `always [madvise] never` the one in brackets.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("unknown", |(chosen, _)| chosen).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_that_name_counts() {
        assert_eq!(field("a\t: 1\nb : two\nb : 3\n", "b"), "two");
        assert_eq!(field("", "b"), "unknown");
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "unknown");
        assert_eq!(memory_size("24684084 kB"), "23.5 GiB");
        assert_eq!(memory_size("unknown"), "unknown");
    }
}
