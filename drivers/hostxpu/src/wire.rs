//! What host and worker say to each other on their socket (a pair of sequenced-packet sockets),
//! beside the ring: set-up, kernel libraries, and the end.
//!
//! A message is a kind, a number that the answer repeats (both 32 bits, of this machine's byte
//! order), and bytes: text, or 64-bit words.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// What both sides must agree on: raised with each change of the ring or of the messages.
pub(crate) const VERSION: u64 = 2;

/// Set in the environment of a program that shall be a worker instead of what it is.
pub(crate) const DIVERT_VARIABLE: &core::ffi::CStr = c"GMM_HOSTXPU_DIVERT";

/// Host: words of [`Hello`]; with the frames, the ring and the host's pidfd.
pub(crate) const HELLO: u32 = 1;
/// Host: the path of a library to load.
pub(crate) const LOAD: u32 = 2;
/// Host: the number of a library (4 bytes), then the name of a kernel in it.
pub(crate) const FIND: u32 = 3;
/// Host: leave.
pub(crate) const QUIT: u32 = 4;
/// Worker: set up.
pub(crate) const READY: u32 = 101;
/// Worker: not set up, or a library or kernel not found; text says why.
pub(crate) const FAILED: u32 = 102;
/// Worker: the number of the library or kernel (4 bytes).
pub(crate) const FOUND: u32 = 103;
/// Worker: a launch has completed that wanted it to be said.
pub(crate) const COMPLETED: u32 = 104;

/// The longest message.
pub(crate) const MAX_MESSAGE: usize = 8192;

/// What a worker must know to set itself up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) version: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) window_start_page: u64,
    pub(crate) window_pages: u64,
    pub(crate) nr_frames: u64,
    pub(crate) cores: u64,
    pub(crate) spin_ns: u64,
}

impl Hello {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { version, ring_bytes, window_start_page, window_pages, nr_frames, .. } = self;
        let words = [version, ring_bytes, window_start_page, window_pages, nr_frames];
        words.iter().chain(&[self.cores, self.spin_ns]).flat_map(|w| w.to_ne_bytes()).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
        let mut next = || words.next();
        Some(Self {
            version: next()?,
            ring_bytes: next()?,
            window_start_page: next()?,
            window_pages: next()?,
            nr_frames: next()?,
            cores: next()?,
            spin_ns: next()?,
        })
    }
}

/// How a worker exits, other than by a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Exit {
    /// The host asked for it, or is gone.
    Done = 0,
    /// It could not set itself up.
    SetUp = 64,
    /// A thread that is no core raised a signal.
    StraySignal = 65,
    /// The host sent what makes no sense.
    Protocol = 66,
    /// Its socket is of no use any more.
    Disconnected = 67,
    /// A mapping could not be kept from processes that a kernel forks.
    Fork = 68,
}

/// What a worker's exit status means.
pub(crate) fn exit_meaning(status: i32) -> &'static str {
    match status {
        0 => "it left without being told, or is no worker",
        64 => "it could not set itself up",
        65 => "a thread of it that runs no kernel raised a signal; did a kernel start threads?",
        66 => "it did not understand the host",
        67 => "it could not write to its socket; did a kernel close descriptor 0?",
        68 => "it could not keep a mapping from processes that kernels fork",
        _ => "a kernel called exit, or the dynamic linker failed",
    }
}

/// A message that was received.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Message {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The number at the start of the body.
    pub(crate) fn number(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.body.get(..4)?.try_into().ok()?))
    }
}

/// Sends a message. Never waits: a full socket is an error (`EAGAIN`).
pub(crate) fn send(
    socket: impl AsFd,
    kind: u32,
    id: u32,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut bytes = Vec::with_capacity(8 + body.len());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&id.to_ne_bytes());
    bytes.extend_from_slice(body);
    if bytes.len() > MAX_MESSAGE {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives a message, waiting for one. `None`: the other side has closed its end.
pub(crate) fn receive(socket: impl AsFd) -> rustix::io::Result<Option<Message>> {
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [std::io::IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    let bytes = &bytes[..received.bytes];
    if bytes.is_empty() {
        return Ok(None);
    }
    let word = |at: usize| bytes.get(at..at + 4).map(|w| u32::from_ne_bytes(w.try_into().unwrap()));
    let (Some(kind), Some(id)) = (word(0), word(4)) else {
        return Ok(Some(Message { kind: 0, id: 0, body: bytes.to_vec(), fds }));
    };
    Ok(Some(Message { kind, id, body: bytes[8..].to_vec(), fds }))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let hello = Hello {
            version: 1,
            ring_bytes: 2,
            window_start_page: 3,
            window_pages: 4,
            nr_frames: 5,
            cores: 6,
            spin_ns: 7,
        };
        send(&a, HELLO, 9, &hello.to_bytes(), &[a.as_fd(), b.as_fd()]).unwrap();
        send(&a, LOAD, 10, b"path", &[]).unwrap();
        let first = receive(&b).unwrap().unwrap();
        assert_eq!((first.kind, first.id, first.fds.len()), (HELLO, 9, 2));
        assert_eq!(Hello::from_bytes(&first.body), Some(hello));
        let second = receive(&b).unwrap().unwrap();
        assert_eq!((second.kind, second.id, second.text().as_str()), (LOAD, 10, "path"));
        let too_long = vec![0; MAX_MESSAGE];
        assert_eq!(send(&a, LOAD, 0, &too_long, &[]), Err(rustix::io::Errno::MSGSIZE));
        // The copy of `a` that was sent must go before the end shows.
        drop((a, first));
        assert!(receive(&b).unwrap().is_none());
    }
}
