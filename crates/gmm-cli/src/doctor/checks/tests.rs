//! Every kind of machine that the doctor should tell from a good one.

use super::*;
use gmm_cpu::probe::KernelVersion;

use crate::doctor::facts::{Device, User};

/// A machine on which all is well.
fn good() -> Facts {
    Facts {
        kernel: "6.8.0-45-generic".into(),
        kernel_version: Some(OLDEST_KERNEL),
        user: User { uid: 1000, on_behalf_of: None },
        uffd_device: Some(Device { mode: 0o666, owner: 0 }),
        unprivileged_uffd: Some(false),
        uffd: Ok((Features::all(), AccessKind::Device)),
        huge_pages: Some(HugePages::Advised),
        huge_pages_setting: "the/setting",
        huge_page_bytes: Some(2 * MIB),
        free_hugetlb: Some(0),
        backing: Ok(BackingKind::HugeShmem),
        memory_total_bytes: Some(16 * GIB),
        memory_available_bytes: Some(12 * GIB),
        cgroup_limit_bytes: None,
        overcommit: Some(Overcommit::Heuristic),
        memlock_bytes: Some(8 * MIB),
        address_space_bytes: None,
        max_map_count: Some(65_530),
    }
}

/// The only check that is not ok on a machine that differs from a good one by `change`.
fn only_problem(change: impl FnOnce(&mut Facts)) -> (Check, Problem) {
    let mut facts = good();
    change(&mut facts);
    let bad: Vec<_> = all(&facts).into_iter().filter(|check| !check.is_ok()).collect();
    let [check] = bad.as_slice() else { panic!("not one problem: {bad:#?}") };
    (check.clone(), check.problem.clone().unwrap())
}

#[test]
fn a_good_machine_has_no_problem() {
    for check in all(&good()) {
        assert!(check.is_ok(), "{check:?}");
    }
}

#[test]
fn an_old_or_unknown_kernel_will_not_do() {
    let version = |major, minor| Some(KernelVersion { major, minor });
    for (found, ok) in
        [(version(6, 18), true), (version(7, 0), true), (version(6, 7), false), (None, false)]
    {
        let facts = Facts { kernel_version: found, ..good() };
        assert_eq!(kernel(&facts).is_ok(), ok, "{found:?}");
    }
    let (check, _) = only_problem(|facts| facts.kernel_version = version(6, 1));
    assert!(check.necessary);
}

fn shut_device(facts: &mut Facts) {
    facts.uffd_device = Some(Device { mode: 0o600, owner: 0 });
}

#[test]
fn user_mode_only_is_mended_by_the_device_file() {
    let (check, problem) = only_problem(|facts| {
        shut_device(facts);
        facts.uffd = Ok((Features::all(), AccessKind::UserModeOnly));
    });
    assert!(!check.necessary);
    assert!(problem.lost.contains("EFAULT"));
    let action = problem.action.unwrap();
    assert_eq!(action, Action { path: "dev/userfaultfd", change: Change::Mode(0o666) });
}

#[test]
fn without_a_device_file_the_sysctl_mends() {
    let (_, problem) = only_problem(|facts| {
        facts.uffd_device = None;
        facts.uffd = Ok((Features::all(), AccessKind::UserModeOnly));
    });
    assert!(problem.fix.contains("vm.unprivileged_userfaultfd=1"));
    assert_eq!(problem.action.unwrap().path, "proc/sys/vm/unprivileged_userfaultfd");
}

#[test]
fn no_userfaultfd_means_gmm_cannot_run() {
    let facts = Facts { uffd: Err("Operation not permitted".into()), ..good() };
    let check = userfaultfd(&facts);
    assert!(check.necessary && !check.is_ok());
    assert!(check.found.contains("Operation not permitted"));
    assert!(!userfaultfd_features(&facts).is_ok());
    // The device file is open to all, so it is not the file that refuses.
    assert!(check.problem.unwrap().fix.contains("seccomp"));
}

#[test]
fn root_that_is_refused_is_in_a_container() {
    let user = User { uid: 0, on_behalf_of: None };
    let facts =
        Facts { uffd: Err("refused".into()), user, unprivileged_uffd: Some(false), ..good() };
    let problem = userfaultfd(&facts).problem.unwrap();
    assert!(problem.fix.contains("seccomp") && problem.action.is_none());
}

#[test]
fn root_by_sudo_is_asked_for_the_user() {
    let sudo = User { uid: 0, on_behalf_of: Some(1000) };
    let (_, problem) = only_problem(|facts| {
        shut_device(facts);
        facts.user = sudo;
    });
    assert!(problem.lost.contains("user 1000"));
    assert!(problem.action.is_some());
    assert!(userfaultfd(&Facts { user: sudo, ..good() }).is_ok());
    let mut owned = Facts { user: sudo, ..good() };
    owned.uffd_device = Some(Device { mode: 0o600, owner: 1000 });
    assert!(userfaultfd(&owned).is_ok());
    let mut root = good();
    shut_device(&mut root);
    root.user = User { uid: 0, on_behalf_of: None };
    assert!(userfaultfd(&root).is_ok(), "root itself needs no open device");
}

#[test]
fn missing_features_are_named() {
    for (features, name) in [
        (Features::POISON, "lacks MOVE"),
        (Features::MOVE, "lacks POISON"),
        (Features::empty(), "lacks MOVE and POISON"),
    ] {
        let (check, _) = only_problem(|facts| facts.uffd = Ok((features, AccessKind::Device)));
        assert!(check.necessary, "{check:?}");
        assert_eq!(check.found, name);
    }
}

#[test]
fn huge_pages_that_never_come_are_mended() {
    let (check, problem) = only_problem(|facts| facts.huge_pages = Some(HugePages::Never));
    assert!(!check.necessary);
    let change = Change::Write("madvise".into());
    assert_eq!(problem.action.unwrap(), Action { path: "the/setting", change });
    assert!(problem.fix.ends_with("/the/setting"));
    assert!(huge_pages(&Facts { huge_pages: Some(HugePages::Always), ..good() }).is_ok());
    assert!(!huge_pages(&Facts { huge_pages: None, ..good() }).is_ok());
}

#[test]
fn huge_pages_of_another_size_are_no_use() {
    let (check, problem) = only_problem(|facts| facts.huge_page_bytes = Some(512 * MIB));
    assert!(check.necessary && check.found.contains("512 MiB"));
    assert!(problem.action.is_none());
}

#[test]
fn how_frames_are_backed_is_told() {
    let (check, problem) = only_problem(|facts| facts.backing = Ok(BackingKind::SmallShmem));
    assert!(!check.necessary && problem.fix.contains("vm.nr_hugepages"));
    assert!(problem.action.is_none(), "memory is not the doctor's to reserve");
    let reserved = Facts { backing: Ok(BackingKind::HugeTlb), free_hugetlb: Some(64), ..good() };
    assert!(xpu_frames(&reserved).found.contains("64"));
    let (check, _) = only_problem(|facts| facts.backing = Err("no memory".into()));
    assert!(check.necessary);
}

#[test]
fn little_memory_and_tight_limits_are_told() {
    let (check, _) = only_problem(|facts| facts.memory_available_bytes = Some(100 * MIB));
    assert_eq!(check.name, "memory");
    let (check, _) = only_problem(|facts| facts.cgroup_limit_bytes = Some(256 * MIB));
    assert!(check.found.contains("256 MiB"));
    assert!(memory_limit(&Facts { cgroup_limit_bytes: Some(4 * GIB), ..good() }).is_ok());
}

#[test]
fn strict_overcommit_is_told_but_not_changed() {
    let (_, problem) = only_problem(|facts| facts.overcommit = Some(Overcommit::Never));
    assert_eq!(problem.action, None);
    assert!(overcommit(&Facts { overcommit: Some(Overcommit::Always), ..good() }).is_ok());
}

#[test]
fn a_limited_address_space_has_no_room_for_the_window() {
    let (check, _) = only_problem(|facts| facts.address_space_bytes = Some(64 * GIB));
    assert!(check.necessary);
    assert!(address_space(&Facts { address_space_bytes: Some(8 << 40), ..good() }).is_ok());
}

#[test]
fn little_locked_memory_is_told() {
    let (check, _) = only_problem(|facts| facts.memlock_bytes = Some(64 * 1024));
    assert!(check.found.contains("64 KiB"));
    assert!(locked_memory(&Facts { memlock_bytes: None, ..good() }).is_ok());
}

#[test]
fn mappings_must_do_for_all_of_memory() {
    let (_, problem) = only_problem(|facts| facts.memory_total_bytes = Some(512 * GIB));
    // 512 GiB are 262,144 pages; with the other mappings the next power of two is 524,288.
    assert_eq!(problem.fix, "sudo sysctl -w vm.max_map_count=524288");
    let Change::Write(value) = problem.action.unwrap().change else { panic!("not written") };
    let mended =
        Facts { memory_total_bytes: Some(512 * GIB), max_map_count: value.parse().ok(), ..good() };
    assert!(max_map_count(&mended).is_ok(), "the fix does not satisfy the check");
}

#[test]
fn what_cannot_be_learnt_is_never_called_ok() {
    let facts = Facts {
        memory_total_bytes: None,
        overcommit: None,
        max_map_count: None,
        huge_pages: None,
        ..good()
    };
    for check in [memory(&facts), overcommit(&facts), max_map_count(&facts), huge_pages(&facts)] {
        assert!(!check.is_ok(), "{check:?}");
    }
}

#[test]
fn sizes_are_readable() {
    assert_eq!(size(512), "512 bytes");
    assert_eq!(size(2 * MIB), "2 MiB");
    assert_eq!(size(3 * GIB / 2), "1.5 GiB");
    assert_eq!(size(4 << 40), "4 TiB");
}
