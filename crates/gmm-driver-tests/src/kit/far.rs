//! A file in shared memory that plays a frame of another device.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use gmm_core::driver::RemoteHandle;
use gmm_core::{Frame, FrameNr, NodeId, PAGE_SIZE};

use super::FarFrame;

/// The file's second frame, of node 8.
#[derive(Debug)]
pub struct FarFile(File);

impl FarFile {
    /// `None` if there is no place for it.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/gmm-far-{}-{number}", std::process::id());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).ok()?;
        // It lives as long as it is open.
        std::fs::remove_file(&path).ok()?;
        file.set_len(2 * PAGE_SIZE).ok()?;
        Some(Self(file))
    }
}

impl FarFrame for FarFile {
    fn frame(&self) -> Frame {
        Frame { node: NodeId(8), nr: FrameNr(1) }
    }

    fn handle(&self) -> RemoteHandle {
        RemoteHandle { fd: self.0.as_raw_fd(), offset_bytes: PAGE_SIZE }
    }

    fn read(&self, offset: u64) -> u64 {
        word_at(&self.0, PAGE_SIZE + offset).unwrap_or_default()
    }

    fn write(&self, offset: u64, value: u64) {
        let written = self.0.write_all_at(&value.to_ne_bytes(), PAGE_SIZE + offset);
        written.expect("shared memory has room for two frames");
    }
}

/// The word at `offset` of what a handle of this process names.
pub(super) fn read_file(handle: RemoteHandle, offset: u64) -> Option<u64> {
    let file = File::open(format!("/proc/self/fd/{}", handle.fd)).ok()?;
    word_at(&file, handle.offset_bytes + offset)
}

fn word_at(file: &File, offset: u64) -> Option<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, offset).ok()?;
    Some(u64::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_file_is_read_through_its_handle() {
        let Some(far) = FarFile::new() else { return };
        far.write(16, 7);
        far.write(PAGE_SIZE - 8, 9);
        assert_eq!((far.read(16), read_file(far.handle(), PAGE_SIZE - 8)), (7, Some(9)));
        assert_eq!(read_file(far.handle(), PAGE_SIZE), None);
    }
}
