//! Keeping kernels from taking memory out of the device's file.
//!
//! Where the file is of reserved huge pages, a hole that someone makes in it may be one that
//! can't be filled again, and then the host's own copies raise SIGBUS. A file's seals can forbid
//! that only together with writable mappings. So the worker refuses, before it loads any kernel,
//! the system calls that make holes. (All threads that it starts later are bound by it too, and it
//! can't be undone.)

use std::io;

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// What the kernel calls this processor's system calls (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Numbers from here on are those of x32.
const FOREIGN: u32 = 0x4000_0000;

/// Where in the kernel's `seccomp_data` things are.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The low half of the third argument, on little-endian machines.
const ADVICE: u32 = 16 + 2 * 8;

fn load(offset: u32) -> libc::sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: offset }
}

/// Skips `yes` or `no` steps.
fn compare(how: u32, with: u32, yes: u8, no: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | how | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: yes, jf: no, k: with }
}

fn answer(what: u32) -> libc::sock_filter {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: what }
}

/// Refuses `fallocate`, `madvise(MADV_REMOVE)`, `io_uring` (which can do both), and the calls of
/// other architectures, from now on.
pub(super) fn forbid() -> io::Result<()> {
    let equals = libc::BPF_JEQ;
    let mut steps = [
        load(ARCHITECTURE),
        compare(equals, ARCH, 0, 7),
        load(NUMBER),
        compare(libc::BPF_JGE, FOREIGN, 5, 0),
        compare(equals, libc::SYS_fallocate as u32, 4, 0),
        compare(equals, libc::SYS_io_uring_setup as u32, 3, 0),
        compare(equals, libc::SYS_madvise as u32, 0, 3),
        load(ADVICE),
        compare(equals, libc::MADV_REMOVE as u32, 0, 1),
        answer(EPERM),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose steps are `len` many.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: i64) -> bool {
        result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    #[test]
    fn holes_are_refused_and_all_else_goes_on() {
        // The filter binds a thread and those that it starts.
        let tried = std::thread::spawn(|| {
            // SAFETY: plain calls on a file and a mapping of this test's own.
            unsafe {
                let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
                assert_eq!(libc::ftruncate(fd, 8192), 0);
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                assert_eq!(libc::fallocate(fd, hole, 0, 4096), 0);
                let at = libc::mmap(std::ptr::null_mut(), 8192, 3, libc::MAP_SHARED, fd, 0);
                assert_ne!(at, libc::MAP_FAILED);
                at.cast::<u8>().write_volatile(7);
                if let Err(error) = forbid() {
                    eprintln!("SKIPPED: no seccomp filters here: {error}");
                    return;
                }
                assert!(refused(libc::fallocate(fd, hole, 0, 4096).into()));
                assert!(refused(libc::madvise(at, 4096, libc::MADV_REMOVE).into()));
                assert!(refused(libc::syscall(libc::SYS_io_uring_setup, 1, 0)));
                assert_eq!(libc::madvise(at, 4096, libc::MADV_DONTNEED), 0);
                assert_eq!(at.cast::<u8>().read_volatile(), 7);
                let inherits =
                    std::thread::spawn(move || refused(libc::fallocate(fd, hole, 0, 4096).into()));
                assert!(inherits.join().unwrap());
                assert_eq!(libc::close(fd), 0);
            }
        });
        tried.join().unwrap();
    }
}
