//! Processes of their own, for what ends in a signal or must not end the others.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a child ended, and what it said.
pub struct Ended {
    pub status: ExitStatus,
    pub said: String,
}

/// What tells a child which test to be.
const KEY: &str = "GMM_TEST_CHILD";

/// Runs `body` in a process of its own (this test again, told by an environment variable), and
/// gives how it ended. A child that is not done after two minutes is killed, and the test fails.
pub fn in_child(test: &str, body: impl FnOnce()) -> Ended {
    if std::env::var(KEY).is_ok_and(|name| name == test) {
        body();
        // Without the harness, which would wait for the turn.
        std::process::exit(0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(KEY, test);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = out.read_to_string(&mut said);
        said
    });
    let errors = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = err.read_to_string(&mut said);
        said
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(120) {
            // SAFETY: the child leads this process group.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            let _ = child.wait();
            let said = errors.join().unwrap();
            panic!("{test} HANGS: its child was not done after two minutes; it said: {said}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = reader.join().unwrap();
    said.push_str(&errors.join().unwrap());
    said.lines().filter(|line| line.contains("SKIPPED")).for_each(|line| eprintln!("{line}"));
    Ended { status, said }
}

impl Ended {
    pub fn assert_success(&self) {
        assert!(self.status.success(), "{}: {}", self.status, self.said);
    }

    /// It got that signal, from an access to the address that it had named by [`expect_signal`].
    pub fn assert_signal(&self, signal: i32) {
        let named = self.said.split("expects a signal at ").nth(1);
        let addr = named.and_then(|rest| rest.lines().next()).unwrap_or("no address");
        let wanted = format!("signal {signal} at {addr}");
        assert!(
            self.status.code() == Some(40) && self.said.contains(&wanted),
            "wanted {wanted:?}; {}: {}",
            self.status,
            self.said
        );
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

/// The next access is to end this process: says so for [`Ended::assert_signal`].
pub fn expect_signal(addr: *const u8) {
    report_signals();
    println!("expects a signal at {:#018x}", addr.addr());
}

/// Has the signals of bad accesses end this process with 40, after writing which it was and the
/// address it is about.
fn report_signals() {
    extern "C" fn report(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel gives a valid siginfo; only write and _exit are called.
        unsafe {
            let mut text = *b"signal 00 at 0x0000000000000000\n";
            text[7] = b'0' + (signal / 10) as u8;
            text[8] = b'0' + (signal % 10) as u8;
            let start = if signal < 10 { 1 } else { 0 };
            let addr = (*info).si_addr() as u64;
            for (i, digit) in text[15..31].iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(addr >> (60 - 4 * i)) as usize & 15];
            }
            if start == 1 {
                text.copy_within(8..32, 7);
            }
            libc::write(1, text.as_ptr().cast(), text.len() - start);
            libc::_exit(40);
        }
    }
    on_bad_access(report);
}

/// Installs a handler for SIGSEGV and SIGBUS.
pub fn on_bad_access(handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler has the type that SA_SIGINFO asks for; a zeroed action is valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
}

/// Forks; the child runs `body` and ends with its result.
pub fn fork(body: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child only does what the tests say; glibc keeps its allocator usable there.
    match unsafe { libc::fork() } {
        0 => {
            // A panic must not get into the harness of the child.
            let body = std::panic::AssertUnwindSafe(body);
            let code = std::panic::catch_unwind(body).unwrap_or(99);
            // SAFETY: ends the child without the harness' exit handlers.
            unsafe { libc::_exit(code) }
        }
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        child => child,
    }
}

/// Waits for a child's end (at most a minute, then it is killed), and gives its exit code, or
/// minus the signal.
pub fn end_of(child: libc::pid_t) -> i32 {
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: waits for our own child.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        match ended {
            0 if start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            0 => {
                // SAFETY: our own child.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child hangs");
            }
            _ if libc::WIFEXITED(status) => return libc::WEXITSTATUS(status),
            _ => return -libc::WTERMSIG(status),
        }
    }
}
