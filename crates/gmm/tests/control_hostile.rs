//! Clients of the control socket that are stuck or hostile, while pages move: they hold up neither
//! each other nor the process.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use common::child::in_child;
use common::*;
use gmm::control::protocol::{Command, Hello, Moved};
use gmm::control::{self, Client};
use gmm::{Gmm, Xpu};

const PAGES: usize = 8;

/// A client that keeps to no protocol.
fn stranger(gmm: &Gmm) -> UnixStream {
    UnixStream::connect(gmm.control_socket().unwrap()).unwrap()
}

/// A good client is answered. (One that comes while a storm goes on may be displaced.)
fn assert_answers() {
    let processes = control::find(std::process::id()).unwrap();
    let hello: Hello = Client::connect(&processes[0]).unwrap().ask(Command::Hello, |_| ()).unwrap();
    assert_eq!(hello.pid, std::process::id());
}

/// Pages that move all the time, and are counted in.
struct Traffic {
    memory: Memory,
    launches: JoinHandle<()>,
}

const ROUNDS: u64 = 40;

impl Traffic {
    fn start(gmm: &Gmm, xpu: &Xpu) -> Self {
        let memory = mmap(gmm, PAGES);
        let xpu = xpu.clone();
        let launches = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let args = (memory.at(8), PAGES, PAGE, 1_u64, 0_usize, round);
                run(&xpu, "count_pages", 2, args).unwrap();
            }
        });
        wait_until("it is at work", || gmm.snapshot().nodes[1].evicted_pages > 4);
        Self { memory, launches }
    }

    /// Every count is there.
    fn end(self, gmm: &Gmm) {
        self.launches.join().unwrap();
        for page in 0..PAGES {
            let at = page * PAGE;
            assert_eq!([8, 16].map(|slot| self.memory.read_word(at + slot)), [ROUNDS, ROUNDS]);
        }
        self.memory.unmap(gmm, PAGES);
        check(gmm);
    }
}

fn nr_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn nr_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// With four frames for eight pages, so that every round evicts.
fn with_traffic(attack: impl FnOnce(&Gmm)) {
    let _turn = turn();
    let gmm = machine(4);
    let xpu = gmm.xpu(1).unwrap();
    let before = (nr_threads(), nr_descriptors());
    let traffic = Traffic::start(&gmm, &xpu);
    attack(&gmm);
    assert_answers();
    traffic.end(&gmm);
    // What it took to serve them is given back.
    wait_until("threads and descriptors are given back", || {
        let (threads, descriptors) = (nr_threads(), nr_descriptors());
        threads <= before.0 && descriptors <= before.1
    });
}

#[test]
fn garbage_is_refused() {
    with_traffic(|gmm| {
        for garbage in
            [&b"\n"[..], b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\0\n", b"[[[[[[\n", b"{}\n"]
        {
            let mut stranger = stranger(gmm);
            stranger.write_all(garbage).unwrap();
            let mut said = String::new();
            let _ = stranger.read_to_string(&mut said);
            assert!(said.contains("\"error\":"), "{garbage:?}: {said}");
            assert_answers();
        }
    });
}

#[test]
fn half_a_request_waits_alone() {
    with_traffic(|gmm| {
        let half: Vec<_> = (0..8)
            .map(|_| {
                let mut stranger = stranger(gmm);
                stranger.write_all(b"{\"gmm\":1,\"command\":\"hel").unwrap();
                assert_answers();
                stranger
            })
            .collect();
        assert_answers();
        // Once it is whole it is served, also after the other end was closed for writing.
        for mut stranger in half {
            stranger.write_all(b"lo\"}\n").unwrap();
            stranger.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = String::new();
            stranger.read_to_string(&mut said).unwrap();
            assert!(said.contains("\"result\":"), "{said}");
        }
    });
}

#[test]
fn megabytes_are_not_kept() {
    with_traffic(|gmm| {
        let mut stranger = stranger(gmm);
        let many = vec![b'x'; 1 << 20];
        let mut nr_sent = 0;
        // Until the server hangs up on it.
        while nr_sent < 64 << 20 {
            match stranger.write(&many) {
                Ok(nr) => nr_sent += nr,
                Err(error) => {
                    assert!(matches!(
                        error.kind(),
                        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                    ));
                    break;
                }
            }
        }
        assert!(nr_sent < 64 << 20, "it reads on and on");
        assert_answers();
    });
}

#[test]
fn who_never_reads_is_not_read_from() {
    with_traffic(|gmm| {
        let mut strangers: Vec<_> = (0..4).map(|_| stranger(gmm)).collect();
        for stranger in &mut strangers {
            stranger.set_nonblocking(true).unwrap();
            let request = b"{\"gmm\":1,\"command\":\"stat\",\"format\":\"text\"}\n";
            let mut nr_sent = 0_usize;
            // Its replies fill its socket; then the server takes no more requests of it. While the
            // server is at work on one, others wait in the socket; so try until it stays full.
            let mut full_for = 0;
            while full_for < 200 {
                match stranger.write(request) {
                    Ok(nr) => (nr_sent, full_for) = (nr_sent + nr, 0),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        full_for += 1;
                        assert_answers();
                    }
                }
                assert!(nr_sent < 64 << 20, "it reads on and on");
            }
        }
        assert_answers();
    });
}

#[test]
fn a_thousand_connections_displace_each_other() {
    with_traffic(|gmm| {
        let mut open = Vec::new();
        for i in 0..1000 {
            open.push(stranger(gmm));
            if i % 100 == 0 {
                assert_answers();
            }
        }
        assert_answers();
        drop(open);
        // And quickly one after the other.
        (0..1000).for_each(|_| drop(stranger(gmm)));
    });
}

#[test]
fn who_hangs_up_cancels_its_work() {
    with_traffic(|gmm| {
        for command in ["prefetch", "evict", "stat", "no-such"] {
            for _ in 0..50 {
                let request = format!("{{\"gmm\":1,\"command\":\"{command}\",\"node\":1}}\n");
                let mut stranger = stranger(gmm);
                stranger.write_all(request.as_bytes()).unwrap();
            }
        }
        // The next one can move pages: no work is left over.
        let process = &control::find(std::process::id()).unwrap()[0];
        wait_until("work of clients that have gone ends", || {
            let mut client = Client::connect(process).unwrap();
            client.ask::<Moved>(Command::Evict { node: Some(1) }, |_| ()).is_ok()
        });
    });
}

/// How often the thread that serves clients has slept, if it sleeps now where it waits for clients.
fn nr_sleeps() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let mut tasks = tasks.map(|task| task.path());
    let task = tasks.find(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "gmm-control")
    })?;
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    // In `poll` or `ppoll`, and not in what a thread does when it starts.
    let call = std::fs::read_to_string(task.join("syscall")).ok()?;
    let calls = [libc::SYS_poll, libc::SYS_ppoll].map(|number| number.to_string());
    let waits = calls.iter().any(|number| call.split(' ').next() == Some(number));
    (waits && status.contains("State:\tS")).then(|| sleeps.trim().parse().unwrap())
}

#[test]
fn nothing_wakes_up_while_nobody_is_connected() {
    let ended = in_child("nothing_wakes_up_while_nobody_is_connected", || {
        // Other tests list all sockets, and so connect; here they find none.
        let folder = std::env::temp_dir().join(format!("gmm-quiet-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        // SAFETY: no other thread of this process uses the environment.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", &folder) };
        let gmm = machine(4);
        assert!(gmm.control_socket().unwrap().starts_with(&folder));
        let xpu = gmm.xpu(1).unwrap();
        wait_until("it sleeps", || nr_sleeps().is_some());
        let before = nr_sleeps();
        Traffic::start(&gmm, &xpu).end(&gmm);
        assert_eq!(nr_sleeps(), before);
        drop((xpu, gmm));
        std::fs::remove_dir_all(&folder).unwrap();
    });
    ended.assert_success();
}
