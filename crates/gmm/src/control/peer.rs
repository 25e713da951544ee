//! Who is at the other end of a socket.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// The credentials of a process when it connected, or began to listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// 0 for a process of another name space.
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Peer {
    /// Asks the kernel. (`rustix` has this call for peers of the same name space only.)
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `credentials`, which are numbers for
        // which zero is valid too.
        let credentials = unsafe {
            let fd = socket.as_fd().as_raw_fd();
            let to = credentials.as_mut_ptr().cast();
            if libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) != 0 {
                return Err(io::Error::last_os_error());
            }
            credentials.assume_init()
        };
        Ok(Self { pid: credentials.pid.try_into().unwrap_or(0), uid: credentials.uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }
}
