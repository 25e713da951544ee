//! A process looked at, and told to move pages, from outside.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::child::*;
use common::*;
use gmm::control::protocol::{Command, Hello, Moved, Regions, Residency, Run, StatFormat};
use gmm::control::{self, Client, ClientError};
use gmm::{Gmm, PageState};

const N: usize = 6;

fn me() -> u32 {
    std::process::id()
}

fn client() -> Client {
    Client::connect(&control::find(me()).unwrap()[0]).unwrap()
}

fn ask<T: serde::de::DeserializeOwned>(command: Command) -> T {
    client().ask(command, |_| ()).unwrap()
}

/// Without the nodes and addresses: how many pages are on which nodes.
fn shape(runs: &[Run]) -> Vec<(u64, Vec<u8>)> {
    let nodes = |run: &Run| run.copies.iter().map(|copy| copy.node).collect();
    runs.iter().map(|run| (run.pages, nodes(run))).collect()
}

#[test]
fn it_says_what_it_has() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, N);
    memory.fill(0, 2 * PAGE, 1);
    memory.touch_on(&gmm.xpu(1).unwrap(), 1, true);

    let hello: Hello = ask(Command::Hello);
    assert_eq!((hello.pid, hello.instance), (me(), 0));
    assert_eq!((hello.regions, hello.pages), (1, N as u64));
    let resident: Vec<_> = hello.nodes.iter().map(|n| (n.node, n.resident_pages)).collect();
    assert_eq!(resident, [(0, 1), (1, 1)]);
    assert_eq!(hello.nodes[1].capacity_pages, 4);

    let regions: Regions = ask(Command::Regions { from: 0 });
    assert_eq!((regions.regions.len(), regions.next), (1, None));
    let region = &regions.regions[0];
    assert_eq!((region.name.as_str(), region.pages, region.writable), ("test", N as u64, true));

    let (from, pages) = (region.first_page, region.pages);
    let residency: Residency = ask(Command::Residency { from, pages });
    assert_eq!(shape(&residency.runs), [(1, vec![1]), (1, vec![0]), (4, vec![])]);
    assert_eq!(residency.runs[1].writable, [0], "the CPU");
    assert_eq!(residency.runs[0].mapped.len(), 1);
    assert_eq!(residency.next, None);
    // Beyond the end there is nothing, and no error.
    for from in [region.first_page + pages, u64::MAX - 1, u64::MAX] {
        let residency: Residency = ask(Command::Residency { from, pages: u64::MAX });
        assert_eq!(shape(&residency.runs), []);
    }

    let text: String = ask(Command::Stat { format: StatFormat::Text });
    assert_eq!(text, gmm.report().to_string());
    let path = gmm.control_socket().unwrap();
    assert!(text.contains(&format!("control socket: {}\n", path.display())), "{text}");
}

#[test]
fn what_is_much_comes_in_parts() {
    let _turn = turn();
    let gmm = machine(4);
    // Every other page has contents: each is a run of its own.
    const MUCH: usize = 1100;
    let memory = mmap(&gmm, MUCH);
    (0..MUCH).step_by(2).for_each(|page| memory.write(page * PAGE, 1));
    let first_page = memory.addr(0) / PAGE as u64;
    let mut all = Vec::new();
    let mut from = Some(first_page);
    while let Some(at) = from {
        let pages = first_page + MUCH as u64 - at;
        let part: Residency = ask(Command::Residency { from: at, pages });
        assert!(part.runs.len() <= control::protocol::MAX_LISTED);
        all.extend(part.runs);
        from = part.next;
    }
    assert_eq!(all.len(), MUCH);
    assert!(all.iter().all(|run| run.pages == 1));
    memory.unmap(&gmm, MUCH);

    let regions: Vec<_> = (0..600).map(|_| mmap(&gmm, 1)).collect();
    let part: Regions = ask(Command::Regions { from: 0 });
    assert_eq!(part.regions.len(), control::protocol::MAX_LISTED);
    let rest: Regions = ask(Command::Regions { from: part.next.unwrap() });
    assert_eq!((rest.regions.len(), rest.next), (600 - control::protocol::MAX_LISTED, None));
    regions.into_iter().for_each(|region| region.unmap(&gmm, 1));
}

#[test]
fn pages_are_brought_and_pushed_out_on_demand() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, N);
    memory.fill(0, 5 * PAGE, 1);

    let mut last = None;
    let prefetch = Command::Prefetch { node: 1 };
    let moved: Moved = client().ask(prefetch.clone(), |progress| last = Some(progress)).unwrap();
    assert_eq!(moved, Moved { moved_pages: 4, no_room_pages: 1, ..Moved::default() });
    assert_eq!(memory.state(&gmm, 5 * PAGE), PageState::Empty, "none was made for it");
    assert_eq!(gmm.snapshot().nodes[1].evicted_pages, 0);
    // Again: there is nothing to do, and no room.
    let moved: Moved = ask(prefetch);
    let expected = Moved { already_pages: 4, no_room_pages: 1, ..Moved::default() };
    assert_eq!(moved, expected);
    if let Some(progress) = last {
        assert!(progress.done_pages <= progress.total_pages && progress.total_pages <= 4);
    }
    check(&gmm);

    let moved: Moved = ask(Command::Evict { node: None });
    assert_eq!(moved, Moved { moved_pages: 4, ..Moved::default() });
    let snapshot = gmm.snapshot();
    assert_eq!([0, 1].map(|i| snapshot.nodes[i].resident_frames), [5, 0]);
    check(&gmm);
    assert_eq!(memory.differences(0, 5 * PAGE, 1), 0);

    memory.touch_on(&gmm.xpu(1).unwrap(), 3, true);
    // And what look-ahead has brought.
    let there = u64::from(gmm.snapshot().nodes[1].resident_frames);
    let moved: Moved = ask(Command::Evict { node: Some(1) });
    assert!(moved.moved_pages >= 3 && moved.moved_pages >= there, "{moved:?} of {there}");
    assert_eq!(memory.nodes(&gmm, 0), [0]);
    let moved: Moved = ask(Command::Prefetch { node: 0 });
    assert_eq!((moved.moved_pages, moved.already_pages), (0, 5));
    check(&gmm);
}

#[test]
fn what_is_held_stays_and_is_told_of() {
    let _turn = turn();
    let gmm = machine(4);
    let memory = mmap(&gmm, 3);
    memory.fill(0, 3 * PAGE, 1);
    let xpu = gmm.xpu(1).unwrap();
    let mut pages = gmm.regions()[0].range;
    pages.nr_pages = 1;
    let held = xpu.hold(&[pages], gmm::Access::Write).unwrap();
    memory.from(PAGE).touch_on(&xpu, 2, true);
    let moved: Moved = ask(Command::Evict { node: Some(1) });
    assert_eq!((moved.moved_pages, moved.failed_pages), (2, 1));
    assert!(moved.failure.unwrap().contains("node 1"));
    drop(held);
    check(&gmm);
}

#[test]
fn a_wrong_node_is_named() {
    let _turn = turn();
    let _gmm = machine(4);
    for command in [Command::Prefetch { node: 9 }, Command::Evict { node: Some(9) }] {
        let mut client = client();
        match client.get(command) {
            Err(ClientError::Refused { reason, .. }) => assert!(reason.contains('9'), "{reason}"),
            other => panic!("{other:?}"),
        }
        // The connection goes on.
        client.get(Command::Hello).unwrap();
    }
}

#[test]
fn a_socket_is_for_its_user_and_goes_with_its_memory() {
    let _turn = turn();
    let gmm = machine(4);
    let path = gmm.control_socket().unwrap();
    let mode = |path| std::fs::symlink_metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(path.as_path()) & 0o777, 0o600);
    assert_eq!(mode(path.parent().unwrap()) & 0o022, 0);
    assert!(control::processes().iter().any(|p| p.pid == me()));

    // Another one of this process.
    let other = machine(4);
    let found = control::find(me()).unwrap();
    assert_eq!(found.iter().map(|p| p.instance).collect::<Vec<_>>(), [0, 1]);
    let hello: Hello = Client::connect(&found[1]).unwrap().ask(Command::Hello, |_| ()).unwrap();
    assert_eq!(hello.instance, 1);
    let others = other.control_socket().unwrap();
    drop(gmm);
    assert!(!path.exists() && others.exists());
    // The first name is free again.
    let third = machine(4);
    assert_eq!(third.control_socket().unwrap(), path);
    drop((other, third));
    assert!(matches!(control::find(me()), Err(ClientError::NotOffered { .. })));
}

#[test]
fn it_can_be_turned_off() {
    let _turn = turn();
    let gmm = Gmm::builder().control_socket(false).build().unwrap();
    assert_eq!(gmm.control_socket(), Err("turned off"));
    assert!(gmm.report().to_string().contains("control socket: none (turned off)"));
    assert!(matches!(control::find(me()), Err(ClientError::NotOffered { .. })));
}

#[test]
fn a_process_that_is_not_there_is_told_from_one_without_gmm() {
    let _turn = turn();
    assert!(matches!(control::find(u32::MAX), Err(ClientError::NoSuchProcess { .. })));
    match control::find(1) {
        Err(ClientError::NotOffered { .. } | ClientError::OtherUser { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_forked_child_leaves_the_socket_to_its_parent() {
    let _turn = turn();
    let gmm = machine(4);
    let path = gmm.control_socket().unwrap();
    let gmm = std::mem::ManuallyDrop::new(gmm);
    let child = fork(|| {
        // SAFETY: the child's own copy, dropped once.
        drop(unsafe { std::ptr::read(&*gmm) });
        0
    });
    assert_eq!(end_of(child), 0);
    assert!(path.exists());
    let hello: Hello = ask(Command::Hello);
    assert_eq!(hello.pid, me());
    drop(std::mem::ManuallyDrop::into_inner(gmm));
    assert!(!path.exists());
}

#[test]
fn the_socket_of_a_process_that_died_is_removed_by_who_lists() {
    let ended = in_child("the_socket_of_a_process_that_died_is_removed_by_who_lists", || {
        let gmm = machine(4);
        println!("socket {}", gmm.control_socket().unwrap().display());
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    let _turn = turn();
    assert_eq!(ended.signal(), Some(libc::SIGKILL), "{}", ended.said);
    let path = ended.said.lines().find_map(|line| line.split("socket ").nth(1)).unwrap();
    let path = std::path::Path::new(path.trim());
    // Unless another test has listed meanwhile.
    let pid: u32 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    assert!(control::processes().iter().all(|process| process.pid != pid));
    assert!(!path.exists(), "{}", path.display());
}
