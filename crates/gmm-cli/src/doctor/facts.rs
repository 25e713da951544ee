//! What can be seen of a machine, as plain data. A fact that can't be learnt is `None`, never a
//! guess. Most are asked of [`gmm_cpu::probe`]; a frame of an XPU is really made.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gmm_core::driver::Device as _;
use gmm_core::{Batch, NodeId, PAGE_SIZE};
use gmm_cpu::probe::{self, HugePages, KernelVersion, Overcommit};
use gmm_cpu::uffd::{AccessKind, Features};
use gmm_hostxpu::{BackingKind, HostXpuConfig, HostXpuDevice, MIN_FRAMES};

/// All that the checks judge by.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The kernel's release, such as `6.8.0-45-generic`.
    pub(super) kernel: String,
    /// The same in numbers, if it has the usual form.
    pub(super) kernel_version: Option<KernelVersion>,
    /// Who runs this.
    pub(super) user: User,
    /// `/dev/userfaultfd`, if it is there.
    pub(super) uffd_device: Option<Device>,
    /// `vm.unprivileged_userfaultfd`.
    pub(super) unprivileged_uffd: Option<bool>,
    /// What asking for a userfaultfd gave: its access and features, or why there is none.
    pub(super) uffd: Result<(Features, AccessKind), String>,
    /// When the kernel makes huge pages, and the setting that says so.
    pub(super) huge_pages: Option<HugePages>,
    pub(super) huge_pages_setting: &'static str,
    /// The size of a transparent huge page.
    pub(super) huge_page_bytes: Option<u64>,
    /// Free 2 MiB pages in the reserved pool.
    pub(super) free_hugetlb: Option<u64>,
    /// What making one frame of an XPU gave, or why none could be made.
    pub(super) backing: Result<BackingKind, String>,
    /// Memory of the machine, and what of it is available.
    pub(super) memory_total_bytes: Option<u64>,
    pub(super) memory_available_bytes: Option<u64>,
    /// The tightest memory limit of the control groups that this process is in.
    pub(super) cgroup_limit_bytes: Option<u64>,
    /// `vm.overcommit_memory`.
    pub(super) overcommit: Option<Overcommit>,
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

impl Facts {
    /// Looks. Everything is really tried or read; nothing is changed.
    pub(super) fn gather() -> Self {
        let root = Path::new("/");
        let sudo_uid = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            kernel_version: probe::kernel_version(),
            user: User {
                uid: rustix::process::geteuid().as_raw(),
                on_behalf_of: sudo_uid.filter(|&uid| uid != 0),
            },
            uffd_device: fs::metadata("/dev/userfaultfd")
                .ok()
                .map(|found| Device { mode: found.mode() & 0o7777, owner: found.uid() }),
            unprivileged_uffd: probe::unprivileged_userfaultfd(),
            uffd: probe::userfaultfd().map_err(|error| error.to_string()),
            huge_pages: probe::huge_pages(),
            huge_pages_setting: huge_pages_setting(root),
            huge_page_bytes: probe::huge_page_bytes(),
            free_hugetlb: probe::free_hugetlb_pages(),
            backing: make_one_frame(),
            memory_total_bytes: probe::memory_total_bytes(),
            memory_available_bytes: probe::memory_available_bytes(),
            cgroup_limit_bytes: fs::read_to_string("/proc/self/cgroup")
                .ok()
                .and_then(|groups| cgroup_limit(root, &groups)),
            overcommit: probe::overcommit(),
            memlock_bytes: probe::locked_memory_limit_bytes(),
            address_space_bytes: probe::address_space_limit_bytes(),
            max_map_count: probe::max_map_count(),
        }
    }
}

/// Makes a host XPU of one frame and asks it for the frame.
fn make_one_frame() -> Result<BackingKind, String> {
    let device = HostXpuDevice::new(HostXpuConfig::new(MIN_FRAMES * PAGE_SIZE))
        .map_err(|error| error.to_string())?;
    let node = NodeId(1);
    device.set_first_node(node);
    let mut frames = Batch::default();
    device.import(node, 1, &mut frames).map_err(|error| error.to_string())?;
    let backing = device.frame_backing();
    let extents: Vec<_> = frames.iter().copied().collect();
    device.release(node, &extents);
    match extents.len() {
        0 => Err("a host XPU of one frame hands over none".to_owned()),
        _ => Ok(backing.kind()),
    }
}

/// The setting that decides about huge pages of 2 MiB, relative to the root folder. Newer kernels
/// have one for each size, which may defer to the common one.
fn huge_pages_setting(root: &Path) -> &'static str {
    let own = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    match fs::read_to_string(root.join(own)) {
        Ok(text) if !text.contains("[inherit]") => own,
        _ => "sys/kernel/mm/transparent_hugepage/enabled",
    }
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
    fn the_tightest_group_counts() {
        let root = Root::new(
            "v2",
            &[
                ("sys/fs/cgroup/a/memory.max", "1000\n"),
                ("sys/fs/cgroup/a/b/memory.max", "2000\n"),
                ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
            ],
        );
        assert_eq!(cgroup_limit(&root.0, "0::/a/b/c\n"), Some(1000));
        assert_eq!(cgroup_limit(&root.0, "0::/\n"), None);
    }

    #[test]
    fn a_size_with_its_own_setting_is_mended_there() {
        let own = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
        let root = Root::new("own", &[(own, "always inherit madvise [never]\n")]);
        assert_eq!(huge_pages_setting(&root.0), own);
        let root = Root::new("inherit", &[(own, "always [inherit] madvise never\n")]);
        assert_ne!(huge_pages_setting(&root.0), own);
        assert_ne!(huge_pages_setting(Path::new("/no/such/folder")), own);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let facts = Facts::gather();
        assert!(facts.kernel_version.is_some());
        assert!(facts.backing.is_ok(), "{:?}", facts.backing);
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
