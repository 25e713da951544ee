//! What this machine has of what GMM needs: plain getters for `gmm doctor`. `None` or an error
//! means that the kernel does not say.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::SetupError;
use crate::uffd::{AccessKind, Features, Uffd};

/// A kernel's version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

/// The oldest kernel that GMM runs on: the first with `UFFDIO_MOVE`.
pub const OLDEST_KERNEL: KernelVersion = KernelVersion { major: 6, minor: 8 };

/// The running kernel's version, `None` if its name has another form.
pub fn kernel_version() -> Option<KernelVersion> {
    parse_version(rustix::system::uname().release().to_str().ok()?)
}

fn parse_version(release: &str) -> Option<KernelVersion> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    Some(KernelVersion { major, minor })
}

/// What the kernel's userfaultfd can do, and how this process gets one.
///
/// # Errors
/// [`SetupError::NoUserfaultfd`].
pub fn userfaultfd() -> Result<(Features, AccessKind), SetupError> {
    Uffd::query()
}

/// `vm.unprivileged_userfaultfd`: whether anyone may handle kernel-mode faults by the system call.
pub fn unprivileged_userfaultfd() -> Option<bool> {
    number("/proc/sys/vm/unprivileged_userfaultfd").map(|n| n != 0)
}

/// When the kernel makes huge pages of anonymous memory by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Wherever it can.
    Always,
    /// Where it is told to, as GMM does.
    Advised,
    /// Nowhere: unified memory then has small pages, and moves are 15 times slower.
    Never,
}

/// The setting of transparent huge pages for 2 MiB, `None` if the kernel has none.
pub fn huge_pages() -> Option<HugePages> {
    let dir = Path::new("/sys/kernel/mm/transparent_hugepage");
    // Newer kernels have a setting for each size, which may defer to the common one.
    let own = selected(&dir.join("hugepages-2048kB/enabled")).filter(|s| s != "inherit");
    match own.or_else(|| selected(&dir.join("enabled")))?.as_str() {
        "always" => Some(HugePages::Always),
        "madvise" => Some(HugePages::Advised),
        "never" => Some(HugePages::Never),
        _ => None,
    }
}

/// The size of a huge page of anonymous memory, in bytes; GMM needs 2 MiB.
pub fn huge_page_bytes() -> Option<u64> {
    number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
}

/// The setting of huge pages for shared memory (memfds), as the kernel words it:
/// `always`, `within_size`, `advise`, `never`, `deny` or `force`.
pub fn shmem_huge_pages() -> Option<String> {
    selected(Path::new("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
}

/// Reserved huge pages of 2 MiB that are free.
pub fn free_hugetlb_pages() -> Option<u64> {
    number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
}

/// The machine's memory, in bytes.
pub fn memory_total_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// The memory that can be had without swapping, in bytes.
pub fn memory_available_bytes() -> Option<u64> {
    meminfo("MemAvailable")
}

/// The machine's swap space, in bytes.
pub fn swap_total_bytes() -> Option<u64> {
    meminfo("SwapTotal")
}

/// The least memory limit of this process' cgroup (version 2) and those above it, in bytes;
/// `None` if there is none.
pub fn cgroup_memory_max_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let with_parents = root.join(own);
    with_parents
        .ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| number(dir.join("memory.max")))
        .min()
}

/// The limit on this process' address space (`ulimit -v`), in bytes; `None` if there is none. The
/// window and the pool count, though they use no memory.
pub fn address_space_limit_bytes() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// The limit on locked memory (`ulimit -l`), in bytes; `None` if there is none.
pub fn locked_memory_limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// How much more memory the kernel promises than it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// 0: it refuses the absurd; reserves without memory (as the pool) are free.
    Heuristic,
    /// 1: it never refuses.
    Always,
    /// 2: it promises no more than it has; the pool counts as promised.
    Never,
}

/// `vm.overcommit_memory`.
pub fn overcommit() -> Option<Overcommit> {
    match number("/proc/sys/vm/overcommit_memory")? {
        0 => Some(Overcommit::Heuristic),
        1 => Some(Overcommit::Always),
        2 => Some(Overcommit::Never),
        _ => None,
    }
}

/// `vm.max_map_count`: how many mappings a process can have. Read-only pages next to writable
/// ones take one each.
pub fn max_map_count() -> Option<u64> {
    number("/proc/sys/vm/max_map_count")
}

/// How many mappings this process has now.
///
/// # Errors
/// `/proc` is not mounted.
pub fn map_count() -> io::Result<u64> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count() as u64)
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The word in brackets, as in `always [madvise] never`.
fn selected(path: &Path) -> Option<String> {
    in_brackets(&fs::read_to_string(path).ok()?)
}

fn in_brackets(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn meminfo(key: &str) -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_ordered() {
        let version = |major, minor| Some(KernelVersion { major, minor });
        assert_eq!(parse_version("6.18.44-fc-v769"), version(6, 18));
        assert_eq!(parse_version("6.8-rc1"), version(6, 8));
        assert_eq!(parse_version("linux"), None);
        assert!(parse_version("6.10.0").unwrap() > OLDEST_KERNEL);
        assert!(parse_version("5.19.0").unwrap() < OLDEST_KERNEL);
    }

    #[test]
    fn kernel_texts_are_parsed() {
        assert_eq!(in_brackets("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(in_brackets("always madvise never"), None);
        let text = "MemTotal:       24684204 kB\nMemFree:  5 kB\n";
        assert_eq!(parse_meminfo(text, "MemTotal"), Some(24_684_204 * 1024));
        assert_eq!(parse_meminfo(text, "Mem"), None);
    }

    #[test]
    fn this_machine_answers() {
        assert!(kernel_version().is_some());
        assert!(memory_total_bytes().unwrap() > 64 << 20);
        assert!(memory_available_bytes().unwrap() <= memory_total_bytes().unwrap());
        assert!(map_count().unwrap() < max_map_count().unwrap());
        assert!(overcommit().is_some());
    }
}
