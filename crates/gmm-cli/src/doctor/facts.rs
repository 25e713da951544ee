//! What can be seen of a machine, as plain data. What a file says is read below a root folder, so
//! that tests can show another machine. A fact that can't be learnt is `None`, never a guess.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::probe;

/// All that the checks judge by.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The kernel's release, such as `6.8.0-45-generic`.
    pub(super) kernel: String,
    /// Who runs this.
    pub(super) user: User,
    /// `/dev/userfaultfd`, if it is there.
    pub(super) uffd_device: Option<Device>,
    /// `vm.unprivileged_userfaultfd`.
    pub(super) unprivileged_uffd: Option<u64>,
    /// What asking for a userfaultfd gave: its access and features, or why there is none.
    pub(super) uffd: Result<Uffd, String>,
    /// The mode chosen in `transparent_hugepage/enabled`.
    pub(super) thp: Option<String>,
    /// The size of a transparent huge page.
    pub(super) huge_page_bytes: Option<u64>,
    /// Free 2 MiB pages in the reserved pool.
    pub(super) free_hugetlb: Option<u64>,
    /// What making one frame of an XPU gave, or why none could be made.
    pub(super) backing: Result<Backing, String>,
    /// Memory of the machine, and what of it is available.
    pub(super) memory_total_bytes: Option<u64>,
    pub(super) memory_available_bytes: Option<u64>,
    /// The tightest memory limit of the control groups that this process is in.
    pub(super) cgroup_limit_bytes: Option<u64>,
    /// `vm.overcommit_memory`.
    pub(super) overcommit: Option<u64>,
    /// Soft limits of this process; `None` is no limit.
    pub(super) memlock_bytes: Option<u64>,
    pub(super) address_space_bytes: Option<u64>,
    /// `vm.max_map_count`.
    pub(super) max_map_count: Option<u64>,
}

/// Who runs this, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    /// The user who typed `sudo`.
    pub(super) on_behalf_of: Option<u32>,
}

/// A device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) mode: u32,
    pub(super) owner: u32,
}

/// How a userfaultfd is obtained here, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Device,
    SystemCall,
    /// Faults inside system calls are not handled.
    UserModeOnly,
}

/// A userfaultfd as this process gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uffd {
    pub(super) access: Access,
    pub(super) can_move: bool,
    pub(super) can_poison: bool,
}

/// What a frame of an XPU's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    HugeTlb,
    HugeShmem,
    SmallShmem,
}

impl Facts {
    /// Looks. Everything is really tried or read; nothing is changed.
    pub(super) fn gather(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let number = |path: &str| read(path)?.trim().parse().ok();
        let thp = "sys/kernel/mm/transparent_hugepage";
        let unprivileged = "proc/sys/vm/unprivileged_userfaultfd";
        let hugetlb = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let meminfo = read("proc/meminfo").unwrap_or_default();
        let sudo_uid = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            user: User {
                uid: rustix::process::geteuid().as_raw(),
                on_behalf_of: sudo_uid.filter(|&uid| uid != 0),
            },
            uffd_device: fs::metadata(root.join("dev/userfaultfd"))
                .ok()
                .map(|found| Device { mode: found.mode() & 0o7777, owner: found.uid() }),
            unprivileged_uffd: number(unprivileged),
            uffd: probe::userfaultfd(root, number(unprivileged)),
            thp: read(&format!("{thp}/enabled")).as_deref().and_then(chosen).map(str::to_owned),
            huge_page_bytes: number(&format!("{thp}/hpage_pmd_size")),
            free_hugetlb: number(&format!("{hugetlb}/free_hugepages")),
            backing: probe::frame_backing(number(&format!("{hugetlb}/free_hugepages"))),
            memory_total_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            memory_available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
            cgroup_limit_bytes: cgroup_limit(root, &read("proc/self/cgroup").unwrap_or_default()),
            overcommit: number("proc/sys/vm/overcommit_memory"),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            address_space_bytes: getrlimit(Resource::As).current,
            max_map_count: number("proc/sys/vm/max_map_count"),
        }
    }
}

/// The word in brackets, by which the kernel marks the chosen one of several.
fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// A line of `/proc/meminfo`, such as `MemTotal:       24689764 kB`.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least of the limits of the control group and of all those above it, in the unified
/// hierarchy and in the older one of the memory controller. In a container the group's own path
/// may not be visible; what is above it then is.
fn cgroup_limit(root: &Path, groups: &str) -> Option<u64> {
    let mounts = root.join("sys/fs/cgroup");
    let mut limits = Vec::new();
    for group in groups.lines() {
        let mut fields = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount, file) = match controllers {
            "" => (mounts.clone(), "memory.max"),
            list if list.split(',').any(|c| c == "memory") => {
                (mounts.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for above in PathBuf::from(path.trim_start_matches('/')).ancestors() {
            let text = fs::read_to_string(mount.join(above).join(file)).unwrap_or_default();
            // No limit reads `max`, or in the older hierarchy the largest number of pages.
            limits.extend(text.trim().parse().ok().filter(|&bytes: &u64| bytes < 1 << 62));
        }
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with files of a made-up machine, gone when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("gmm-facts-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn reads_what_the_kernels_files_say() {
        let root = Root::new(
            "files",
            &[
                ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
                ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n"),
                ("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable:    512 kB\n"),
                ("proc/sys/vm/overcommit_memory", "2\n"),
                ("proc/sys/vm/max_map_count", "65530\n"),
                ("proc/sys/vm/unprivileged_userfaultfd", "1\n"),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/memory.max", "1000\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ],
        );
        let facts = Facts::gather(&root.0);
        assert_eq!(facts.thp.as_deref(), Some("never"));
        assert_eq!(facts.huge_page_bytes, Some(2 << 20));
        assert_eq!(facts.free_hugetlb, Some(7));
        assert_eq!(facts.memory_total_bytes, Some(1 << 20));
        assert_eq!(facts.memory_available_bytes, Some(1 << 19));
        assert_eq!(facts.overcommit, Some(2));
        assert_eq!(facts.max_map_count, Some(65_530));
        assert_eq!(facts.unprivileged_uffd, Some(1));
        assert_eq!(facts.cgroup_limit_bytes, Some(1000));
        assert_eq!(facts.uffd_device, None);
    }

    #[test]
    fn what_is_not_there_is_not_guessed() {
        let root = Root::new("empty", &[("proc/sys/vm/max_map_count", "many\n")]);
        let facts = Facts::gather(&root.0);
        assert_eq!(facts.thp, None);
        assert_eq!(facts.memory_total_bytes, None);
        assert_eq!(facts.max_map_count, None);
        assert_eq!(facts.cgroup_limit_bytes, None);
    }

    #[test]
    fn the_older_hierarchy_has_its_own_files() {
        let v1 = "sys/fs/cgroup/memory";
        let root = Root::new(
            "v1",
            &[
                (&format!("{v1}/x/memory.limit_in_bytes"), "4096\n"),
                (&format!("{v1}/memory.limit_in_bytes"), "9223372036854771712\n"),
            ],
        );
        let groups = "5:cpu,cpuacct:/\n4:memory:/x\n0::/\n";
        assert_eq!(cgroup_limit(&root.0, groups), Some(4096));
        assert_eq!(cgroup_limit(&root.0, "4:memory:/elsewhere\n"), None);
        assert_eq!(cgroup_limit(&root.0, "5:cpu:/x\n"), None);
        assert_eq!(cgroup_limit(&root.0, "nonsense\n"), None);
    }
}
