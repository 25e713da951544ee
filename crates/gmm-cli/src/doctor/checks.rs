//! Judges the facts: each check says what was found, whether that is enough, what is lost if not,
//! and the command that fixes it. Pure functions, so that every kind of machine can be tested.

use gmm_core::{Config, PAGE_SIZE};
use gmm_cpu::probe::{HugePages, OLDEST_KERNEL, Overcommit};
use gmm_cpu::uffd::{AccessKind, Features};
use gmm_hostxpu::BackingKind;

use super::facts::Facts;
use super::fix::{Action, Change};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// With less free memory than this even the demo has no room.
const LITTLE_MEMORY_BYTES: u64 = 512 * MIB;
/// Mappings that a process has besides the frames of an XPU.
const OTHER_MAPPINGS: u64 = 4096;

/// One line of what the doctor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: &'static str,
    /// GMM can't run unless this is ok.
    pub(super) necessary: bool,
    pub(super) found: String,
    /// What there is to complain of; `None` if the check is ok.
    pub(super) problem: Option<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// What is lost without it.
    pub(super) lost: String,
    /// The command that fixes it, or what to do where no command does.
    pub(super) fix: String,
    /// The same, as `--fix` does it; `None` where it is not the doctor's business.
    pub(super) action: Option<Action>,
}

impl Check {
    fn new(name: &'static str, necessary: bool, found: impl Into<String>) -> Self {
        Self { name, necessary, found: found.into(), problem: None }
    }

    /// Not ok.
    fn but(mut self, lost: impl Into<String>, fix: impl Into<String>) -> Self {
        self.problem = Some(Problem { lost: lost.into(), fix: fix.into(), action: None });
        self
    }

    /// And the doctor may mend it.
    fn mended_by(mut self, path: &'static str, change: Change) -> Self {
        if let Some(problem) = &mut self.problem {
            problem.action = Some(Action { path, change });
        }
        self
    }

    pub(super) fn is_ok(&self) -> bool {
        self.problem.is_none()
    }

    pub(super) fn action(&self) -> Option<Action> {
        self.problem.as_ref()?.action.clone()
    }
}

/// All checks, in the order they are shown.
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    vec![
        kernel(facts),
        userfaultfd(facts),
        userfaultfd_features(facts),
        huge_pages(facts),
        xpu_frames(facts),
        memory(facts),
        memory_limit(facts),
        overcommit(facts),
        address_space(facts),
        locked_memory(facts),
        max_map_count(facts),
    ]
}

fn kernel(facts: &Facts) -> Check {
    let check = Check::new("kernel", true, format!("Linux {}", facts.kernel));
    if facts.kernel_version.is_some_and(|found| found >= OLDEST_KERNEL) {
        return check;
    }
    let needed = format!("{}.{}", OLDEST_KERNEL.major, OLDEST_KERNEL.minor);
    check.but(
        format!("before {needed} userfaultfd can't move pages, so the CPU can't be a processor"),
        format!("install Linux {needed} or later (Debian 13, Ubuntu 24.04, Fedora 40 have one)"),
    )
}

fn userfaultfd(facts: &Facts) -> Check {
    let name = "userfaultfd";
    let access = match &facts.uffd {
        Ok((_, access)) => *access,
        Err(why) => {
            let check = Check::new(name, true, format!("none to be had: {why}"));
            let lost = "no fault of the CPU can be handled: GMM can't run";
            return allow_userfaultfd(check, facts, lost);
        }
    };
    match access {
        AccessKind::UserModeOnly => {
            let check = Check::new(name, false, "for faults in user mode only");
            let lost = "a system call that touches an absent page, such as read() into unified \
                        memory, fails with EFAULT";
            allow_userfaultfd(check, facts, lost)
        }
        AccessKind::Device | AccessKind::SystemCall => {
            let how = if access == AccessKind::Device { "/dev/userfaultfd" } else { "system call" };
            let check = Check::new(name, false, format!("by {how}"));
            match facts.user.on_behalf_of {
                Some(uid) if !open_to(facts, uid) => {
                    let check = Check { found: format!("by {how}, but for root only"), ..check };
                    let lost = format!("user {uid} gets none, or one for faults in user mode only");
                    allow_userfaultfd(check, facts, &lost)
                }
                _ => check,
            }
        }
    }
}

/// May this user, who is not root, have a full userfaultfd?
fn open_to(facts: &Facts, uid: u32) -> bool {
    let by_device = facts.uffd_device.is_some_and(|device| {
        let bits = if device.owner == uid { device.mode >> 6 } else { device.mode };
        bits & 0o6 == 0o6
    });
    by_device || facts.unprivileged_uffd == Some(true)
}

/// Says how to get at a userfaultfd. The device file opens the least; where a process that should
/// be allowed is refused all the same, it is the container's filter.
fn allow_userfaultfd(check: Check, facts: &Facts, lost: &str) -> Check {
    let uid = facts.user.on_behalf_of.unwrap_or(facts.user.uid);
    if uid == 0 || open_to(facts, uid) {
        return check.but(
            lost,
            "the container's seccomp profile refuses userfaultfd: docker run \
             --security-opt seccomp=unconfined --device /dev/userfaultfd ...",
        );
    }
    match facts.uffd_device {
        Some(_) => check
            .but(lost, "sudo chmod 666 /dev/userfaultfd (for good: a udev rule, KERNEL==\"userfaultfd\", MODE=\"0666\")")
            .mended_by("dev/userfaultfd", Change::Mode(0o666)),
        None => check
            .but(lost, "sudo sysctl -w vm.unprivileged_userfaultfd=1")
            .mended_by("proc/sys/vm/unprivileged_userfaultfd", Change::Write("1".into())),
    }
}

fn userfaultfd_features(facts: &Facts) -> Check {
    let name = "userfaultfd features";
    let Ok((features, _)) = &facts.uffd else {
        return Check::new(name, true, "unknown, since there is no userfaultfd")
            .but("pages can't be moved", "give access to userfaultfd first: the line above");
    };
    let has = |feature| features.contains(feature);
    let missing = match (has(Features::MOVE), has(Features::POISON)) {
        (true, true) => return Check::new(name, true, "MOVE and POISON"),
        (false, false) => "MOVE and POISON",
        (false, true) => "MOVE",
        (true, false) => "POISON",
    };
    Check::new(name, true, format!("lacks {missing}")).but(
        "MOVE puts a page where the CPU sees it, POISON reports a fault that can't be served",
        "install Linux 6.8 or later, built with CONFIG_USERFAULTFD",
    )
}

fn huge_pages(facts: &Facts) -> Check {
    let name = "huge pages";
    if let Some(bytes) = facts.huge_page_bytes.filter(|&bytes| bytes != PAGE_SIZE) {
        return Check::new(name, true, format!("of {}", size(bytes))).but(
            "GMM's pages are of 2 MiB, and so must the kernel's huge pages be",
            "boot a kernel with base pages of 4 KiB",
        );
    }
    let lost = "a page moves as 512 small ones: hundreds of µs instead of 2";
    match facts.huge_pages {
        Some(HugePages::Always) => Check::new(name, false, "of 2 MiB, always"),
        Some(HugePages::Advised) => Check::new(name, false, "of 2 MiB, where advised"),
        Some(HugePages::Never) => {
            let setting = facts.huge_pages_setting;
            Check::new(name, false, "never")
                .but(lost, format!("echo madvise | sudo tee /{setting}"))
                .mended_by(setting, Change::Write("madvise".into()))
        }
        None => Check::new(name, false, "this kernel has no transparent huge pages")
            .but(lost, "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE"),
    }
}

fn xpu_frames(facts: &Facts) -> Check {
    let name = "XPU frames";
    let reserve = "sudo sysctl -w vm.nr_hugepages=64 (128 MiB; as many pages as the XPU has)";
    let free = facts.free_hugetlb.unwrap_or(0);
    match &facts.backing {
        Ok(BackingKind::HugeTlb) => {
            Check::new(name, false, format!("from the reserved huge pages, {free} of them free"))
        }
        Ok(BackingKind::HugeShmem) => {
            Check::new(name, false, "shared memory, collapsed into huge pages (tried on one frame)")
        }
        Ok(BackingKind::SmallShmem) => Check::new(name, false, "shared memory in pages of 4 KiB")
            .but("mapping a frame on the host XPU takes some 600 µs instead of 7", reserve),
        Err(why) => Check::new(name, true, format!("none can be made: {why}"))
            .but("the host XPU has no memory", "see what memory and its limits say, below"),
    }
}

fn memory(facts: &Facts) -> Check {
    let name = "memory";
    let (Some(total), Some(available)) = (facts.memory_total_bytes, facts.memory_available_bytes)
    else {
        return Check::new(name, false, "/proc/meminfo does not say")
            .but("whether there is enough is unknown", "mount /proc");
    };
    let found = format!("{}, {} available", size(total), size(available));
    let check = Check::new(name, false, found);
    if available >= LITTLE_MEMORY_BYTES {
        return check;
    }
    check.but(
        format!(
            "under {} the demo and the tests are likely to be killed",
            size(LITTLE_MEMORY_BYTES)
        ),
        "end what else is running: ps aux --sort=-rss | head",
    )
}

fn memory_limit(facts: &Facts) -> Check {
    let name = "memory limit";
    match facts.cgroup_limit_bytes {
        None => Check::new(name, false, "none by a control group"),
        Some(limit) if limit >= LITTLE_MEMORY_BYTES => {
            Check::new(name, false, format!("{} by a control group", size(limit)))
        }
        Some(limit) => Check::new(name, false, format!("{} by a control group", size(limit))).but(
            "host memory and the host XPU's memory both count: the kernel kills at the limit",
            "systemd-run --scope -p MemoryMax=4G gmm ..., or docker run --memory 4g",
        ),
    }
}

fn overcommit(facts: &Facts) -> Check {
    let name = "overcommit";
    match facts.overcommit {
        Some(Overcommit::Heuristic) => Check::new(name, false, "heuristic (0)"),
        Some(Overcommit::Always) => Check::new(name, false, "always (1)"),
        Some(Overcommit::Never) => Check::new(name, false, "never (2)").but(
            "pools are counted in full when they are reserved, not when they are used: building a \
             space may fail with ENOMEM",
            "sudo sysctl -w vm.overcommit_memory=0",
        ),
        None => Check::new(name, false, "/proc/sys does not say")
            .but("whether large pools can be reserved is unknown", "mount /proc"),
    }
}

fn address_space(facts: &Facts) -> Check {
    let name = "address space";
    match facts.address_space_bytes {
        None => Check::new(name, true, "no limit"),
        Some(limit) => {
            let check = Check::new(name, true, format!("limited to {}", size(limit)));
            let window_bytes = Config::default().window.nr_pages.saturating_mul(PAGE_SIZE);
            if limit > window_bytes {
                return check;
            }
            let window = size(window_bytes);
            check.but(
                format!("the window of unified addresses takes {window}: no space can be built"),
                "ulimit -v unlimited",
            )
        }
    }
}

fn locked_memory(facts: &Facts) -> Check {
    let name = "locked memory";
    match facts.memlock_bytes {
        None => Check::new(name, false, "no limit"),
        Some(limit) => {
            let check = Check::new(name, false, format!("limited to {}", size(limit)));
            if limit >= PAGE_SIZE {
                return check;
            }
            check.but(
                "an application can't register a page of unified memory with io_uring or RDMA",
                "ulimit -l 65536 (for good: /etc/security/limits.conf)",
            )
        }
    }
}

fn max_map_count(facts: &Facts) -> Check {
    let name = "max_map_count";
    let path = "proc/sys/vm/max_map_count";
    let (Some(count), Some(memory)) = (facts.max_map_count, facts.memory_total_bytes) else {
        return Check::new(name, false, "/proc/sys does not say")
            .but("how much the host XPU can map is unknown", "mount /proc");
    };
    let reach = count.saturating_sub(OTHER_MAPPINGS).saturating_mul(PAGE_SIZE);
    let check = Check::new(name, false, format!("{count}: {} on a host XPU", size(reach)));
    if reach >= memory {
        return check;
    }
    let wanted = (memory.div_ceil(PAGE_SIZE) + OTHER_MAPPINGS).next_power_of_two();
    check
        .but(
            "each page is a mapping of its own there: an XPU as large as this memory runs out",
            format!("sudo sysctl -w vm.max_map_count={wanted}"),
        )
        .mended_by(path, Change::Write(wanted.to_string()))
}

/// A size in the largest unit that leaves at least one.
fn size(bytes: u64) -> String {
    let unit = [(1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")]
        .into_iter()
        .find(|&(unit, _)| bytes >= unit);
    match unit {
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests;
