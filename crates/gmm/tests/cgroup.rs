//! Under a memory limit of a control group that is a little above what is needed, everything goes
//! on: what the manager takes beyond the data is little, and nothing is killed for it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::child::*;
use common::*;

const PAGES: usize = 40;
const FRAMES: usize = 8;
/// What two processes with their stacks, libraries and page tables may need besides.
const BESIDES: usize = 72 << 20;

/// Tells the child its group.
const KEY: &str = "GMM_TEST_GROUP";

/// A control group with a memory limit; gone when dropped.
struct Group(PathBuf);

impl Group {
    /// # Errors
    /// Why there can be none here.
    fn new(limit_bytes: usize) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let v2 = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
        let (parent, file) = match v2.split_whitespace().any(|controller| controller == "memory") {
            true => (root.to_owned(), "memory.max"),
            false => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let path = parent.join(format!("gmm-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let group = Self(path);
        let limit = group.0.join(file);
        fs::write(&limit, limit_bytes.to_string())
            .map_err(|e| format!("{}: {e}", limit.display()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets go of those who have left in its own time.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        eprintln!("{} is left behind", self.0.display());
    }
}

fn work() {
    let group = std::env::var(KEY).expect("the parent says which group");
    fs::write(Path::new(&group).join("cgroup.procs"), "0").expect("into the group");
    let gmm = machine(FRAMES as u64);
    let memory = mmap(&gmm, PAGES);
    memory.fill(0, PAGES * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    for seed in 0..3_u64 {
        // In words that the pattern leaves alone.
        let args = (memory.at(16), PAGES, PAGE, 1_u64, 0_usize, seed);
        run(&xpu, "count_pages", 1, args).unwrap();
    }
    assert_eq!(memory.differences(0, PAGES * PAGE, 1), 0);
    assert!((0..PAGES).all(|page| memory.read_word(page * PAGE + 16) == 3));
    check(&gmm);
}

#[test]
fn a_limit_a_little_above_the_need_is_enough() {
    let _turn = turn();
    let name = "a_limit_a_little_above_the_need_is_enough";
    if std::env::var_os(KEY).is_some() {
        in_child(name, work);
        return;
    }
    let group = match Group::new((PAGES + FRAMES) * PAGE + BESIDES) {
        Ok(group) => group,
        Err(why) => {
            eprintln!("SKIPPED: no control group with a memory limit can be made: {why}");
            return;
        }
    };
    // SAFETY: the turn is ours, no other thread reads or changes the environment.
    unsafe { std::env::set_var(KEY, &group.0) };
    let ended = in_child(name, work);
    // SAFETY: as above.
    unsafe { std::env::remove_var(KEY) };
    ended.assert_success();
}
