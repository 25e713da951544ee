//! The threads of this process and of its children, as `/proc` shows them: how long each was on a
//! processor, and how often it was taken off one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// How long a thread rests before times are read: what spins has gone to sleep by then, and of a
/// thread that sleeps the kernel knows the time to the nanosecond.
const SETTLES_IN: Duration = Duration::from_millis(5);

/// What is known of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Thread {
    name: String,
    on_cpu_ns: u64,
    /// Of its own will, when it waits for something, and against it.
    switches: u64,
}

/// All threads at one moment, by process and thread.
pub(super) struct Threads(BTreeMap<(u32, u32), Thread>);

impl Threads {
    /// Those of this process and its children, once they have come to rest.
    pub(super) fn at_rest() -> anyhow::Result<Self> {
        std::thread::sleep(SETTLES_IN);
        let this = std::process::id();
        let mut threads = BTreeMap::new();
        for process in children(this)?.into_iter().chain([this]) {
            for (id, folder) in numbered(Path::new(&format!("/proc/{process}/task")))? {
                // One that ends meanwhile is not there.
                if let Some(thread) = read(&folder)? {
                    threads.insert((process, id), thread);
                }
            }
        }
        ensure!(!threads.is_empty(), "/proc shows no threads of this process");
        Ok(Self(threads))
    }

    /// How long the threads whose name does not begin so were on a processor since `before`, in
    /// seconds.
    pub(super) fn cpu_seconds_since(&self, before: &Self, but: &str) -> f64 {
        let ns = self.0.iter().filter(|(_, thread)| !thread.name.starts_with(but)).map(
            |(id, thread)| {
                let earlier = before.0.get(id).map_or(0, |thread| thread.on_cpu_ns);
                thread.on_cpu_ns.saturating_sub(earlier)
            },
        );
        ns.sum::<u64>() as f64 * 1e-9
    }

    /// How often threads other than this one were taken off a processor since `before`: each time one
    /// that sleeps wakes up it is so again. Those that did not exist then count from their start.
    pub(super) fn switches_since(&self, before: &Self) -> u64 {
        let this = (std::process::id(), this_thread());
        let others = self.0.iter().filter(|(id, _)| **id != this);
        let switches = others.map(|(id, thread)| {
            let earlier = before.0.get(id).map_or(0, |thread| thread.switches);
            thread.switches.saturating_sub(earlier)
        });
        switches.sum()
    }

    /// How many threads there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn read(folder: &Path) -> anyhow::Result<Option<Thread>> {
    let file = |name| fs::read_to_string(folder.join(name)).ok();
    let (Some(comm), Some(status)) = (file("comm"), file("status")) else { return Ok(None) };
    let Some(schedstat) = file("schedstat") else {
        ensure!(!folder.exists(), "this kernel does not count processor time a thread (schedstat)");
        return Ok(None);
    };
    let on_cpu_ns = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
    let switches = |kind: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(kind));
        line.and_then(|count| count.trim().parse::<u64>().ok())
    };
    let switches =
        switches("voluntary_ctxt_switches:").zip(switches("nonvoluntary_ctxt_switches:"));
    let (on_cpu_ns, (voluntary, other)) =
        on_cpu_ns.zip(switches).with_context(|| format!("{} can't be read", folder.display()))?;
    Ok(Some(Thread { name: comm.trim_end().to_owned(), on_cpu_ns, switches: voluntary + other }))
}

/// The processes that this one has started.
fn children(process: u32) -> anyhow::Result<Vec<u32>> {
    let mut children = Vec::new();
    for (id, folder) in numbered(Path::new("/proc"))? {
        let Ok(stat) = fs::read_to_string(folder.join("stat")) else { continue };
        // The name, in brackets, may hold anything; the state and the parent follow.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(process) {
            children.push(id);
        }
    }
    Ok(children)
}

/// The folders in `folder` that are named by a number.
fn numbered(folder: &Path) -> anyhow::Result<Vec<(u32, std::path::PathBuf)>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let numbered = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))
    });
    Ok(numbered.collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_on_a_processor_and_children_are_found() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let before = Threads::at_rest().unwrap();
        let (start, mut x) = (Instant::now(), 1u64);
        while start.elapsed() < Duration::from_millis(50) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let after = Threads::at_rest().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(before.0.keys().any(|(process, _)| *process == child.id()), "no child");
        // Threads of other tests have time of their own; this one was not alone on its processor.
        assert!(after.cpu_seconds_since(&before, "no such name") > 0.002);
        assert_eq!(after.cpu_seconds_since(&before, ""), 0.0);
    }

    #[test]
    fn a_thread_that_polls_is_noticed() {
        let poll = || (0..20).for_each(|_| std::thread::sleep(Duration::from_millis(5)));
        let poller = std::thread::spawn(poll);
        let before = Threads::at_rest().unwrap();
        poller.join().unwrap();
        // Ended, it is not there any more: another is looked at while it polls.
        let poller = std::thread::spawn(poll);
        std::thread::sleep(Duration::from_millis(50));
        let after = Threads::at_rest().unwrap();
        assert!(after.switches_since(&before) > 0);
        poller.join().unwrap();
    }
}
