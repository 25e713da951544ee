//! The XPU's local memory: frames in a memory file, mapped in the host process too (the *alias*),
//! for DMA. Workers map single frames of the same file, and so does the CPU where it maps a frame
//! remotely. Such a mapping keeps the file's memory, whatever becomes of contexts and the device;
//! the core clears it before it gives the frame back, which makes a hole there.

use core::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

use gmm_core::driver::{DriverError, Extent};
use gmm_core::{FrameNr, PAGE_SIZE};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::config::Backing;
use crate::{Error, HostXpuConfig};

const FRAME: usize = PAGE_SIZE as usize;

/// How many frames one call may make: collapsing one takes 3 to 6 ms.
const IMPORT_LIMIT: u32 = 4;

/// How the frames that were handed out are backed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackingKind {
    /// Huge pages from the reserved pool.
    HugeTlb,
    /// Shared memory, collapsed into huge pages.
    HugeShmem,
    /// Shared memory in 4 KiB pages: mapping a whole frame takes some 600 µs instead of 7.
    SmallShmem,
}

impl fmt::Display for BackingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugeTlb => "hugetlb",
            Self::HugeShmem => "huge shmem",
            Self::SmallShmem => "4 KiB shmem",
        })
    }
}

/// How many frames are backed how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameBacking {
    /// Frames of huge pages from the reserved pool.
    pub huge_tlb: u32,
    /// Frames of shared memory, collapsed into huge pages.
    pub huge_shmem: u32,
    /// Frames of shared memory in 4 KiB pages.
    pub small_shmem: u32,
}

impl FrameBacking {
    /// The slowest kind among the frames; of none, the kind that is most likely to come.
    pub fn kind(&self) -> BackingKind {
        match (self.huge_tlb, self.small_shmem) {
            (_, 1..) => BackingKind::SmallShmem,
            (1.., _) => BackingKind::HugeTlb,
            _ => BackingKind::HugeShmem,
        }
    }
}

/// The memory.
///
/// # Invariants
/// `alias` is a shared mapping of `nr_frames` frames of `fd`, a file that can't shrink; it stays
/// until this is dropped.
pub(crate) struct Memory {
    fd: OwnedFd,
    alias: NonNull<u8>,
    nr_frames: u32,
    huge_tlb: bool,
    small_only: bool,
    frames: Mutex<Frames>,
}

// SAFETY: the alias is only used through `frame`, whose users answer for their accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Who has which frame.
struct Frames {
    /// Of each frame: how it is backed, if it was handed out.
    out: Vec<Option<BackingKind>>,
    /// No frame below is free.
    lowest_free: u32,
}

impl Memory {
    pub(crate) fn new(config: &HostXpuConfig, nr_frames: u32) -> Result<Self, Error> {
        let huge = (config.backing == Backing::Auto && free_huge_pages() >= u64::from(nr_frames))
            .then(|| Self::map(nr_frames, true).ok())
            .flatten();
        let huge_tlb = huge.is_some();
        let (fd, alias) = huge.map_or_else(|| Self::map(nr_frames, false), Ok)?;
        Ok(Self {
            fd,
            alias,
            nr_frames,
            huge_tlb,
            small_only: config.backing == Backing::SmallPages,
            frames: Mutex::new(Frames { out: vec![None; nr_frames as usize], lowest_free: 0 }),
        })
    }

    fn map(nr_frames: u32, huge_tlb: bool) -> Result<(OwnedFd, NonNull<u8>), Error> {
        let huge =
            if huge_tlb { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let fd =
            rustix::fs::memfd_create("gmm:hostxpu", flags).map_err(Error::os("memfd_create"))?;
        let len = nr_frames as usize * FRAME;
        rustix::fs::ftruncate(&fd, len as u64).map_err(Error::os("ftruncate"))?;
        // A worker that shrank the file would make the host's copies raise SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::os("fcntl(F_ADD_SEALS)"))?;
        let alias = map_aligned(&fd, len).map_err(Error::os("mmap"))?;
        Ok((fd, alias))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn nr_frames(&self) -> u32 {
        self.nr_frames
    }

    /// Where a frame's bytes lie in this process.
    pub(crate) fn frame(&self, nr: FrameNr) -> Option<NonNull<u8>> {
        // SAFETY: in bounds of the alias (invariant), as just checked.
        (nr.0 < self.nr_frames).then(|| unsafe { self.alias.add(nr.0 as usize * FRAME) })
    }

    /// Hands out a run of up to `nr_frames` frames; fewer, or none, as there are.
    pub(crate) fn import(&self, nr_frames: u32) -> Result<Option<Extent>, DriverError> {
        let mut frames = self.frames.lock().unwrap_or_else(|e| e.into_inner());
        let first =
            (frames.lowest_free..self.nr_frames).find(|&f| frames.out[f as usize].is_none());
        let Some(first) = first else {
            frames.lowest_free = self.nr_frames;
            return Ok(None);
        };
        frames.lowest_free = first;
        let mut nr = 0;
        while nr < nr_frames.min(IMPORT_LIMIT)
            && frames.out.get((first + nr) as usize) == Some(&None)
        {
            match self.back(FrameNr(first + nr)) {
                Ok(kind) => frames.out[(first + nr) as usize] = Some(kind),
                Err(error) if nr == 0 => return Err(error),
                Err(_) => break,
            }
            nr += 1;
        }
        Ok((nr > 0).then_some(Extent { start: FrameNr(first), nr_frames: nr }))
    }

    /// Gives a frame its memory.
    fn back(&self, nr: FrameNr) -> Result<BackingKind, DriverError> {
        let at = self.frame(nr).ok_or(DriverError::Broken("no such frame"))?.as_ptr();
        if self.huge_tlb {
            return advise(at, FRAME, libc::MADV_POPULATE_WRITE).map(|()| BackingKind::HugeTlb);
        }
        if !self.small_only {
            // An untouched range can't be collapsed.
            advise(at, 4096, libc::MADV_POPULATE_WRITE)?;
            if advise(at, FRAME, libc::MADV_COLLAPSE).is_ok() {
                return Ok(BackingKind::HugeShmem);
            }
        }
        advise(at, FRAME, libc::MADV_POPULATE_WRITE).map(|()| BackingKind::SmallShmem)
    }

    /// Takes frames back and gives their memory to the operating system.
    pub(crate) fn release(&self, extents: &[Extent]) {
        let mut frames = self.frames.lock().unwrap_or_else(|e| e.into_inner());
        for extent in extents {
            let end = extent.start.0.saturating_add(extent.nr_frames).min(self.nr_frames);
            if extent.start.0 >= end {
                continue;
            }
            for frame in extent.start.0..end {
                frames.out[frame as usize] = None;
            }
            frames.lowest_free = frames.lowest_free.min(extent.start.0);
            // If it fails the memory stays until the frame is used again or the device goes.
            let _ = rustix::fs::fallocate(
                &self.fd,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                u64::from(extent.start.0) * PAGE_SIZE,
                u64::from(end - extent.start.0) * PAGE_SIZE,
            );
        }
    }

    pub(crate) fn backing(&self) -> FrameBacking {
        let frames = self.frames.lock().unwrap_or_else(|e| e.into_inner());
        let count = |kind| frames.out.iter().filter(|&&out| out == Some(kind)).count() as u32;
        FrameBacking {
            huge_tlb: count(BackingKind::HugeTlb),
            huge_shmem: count(BackingKind::HugeShmem),
            small_shmem: count(BackingKind::SmallShmem),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let len = self.nr_frames as usize * FRAME;
        // SAFETY: the mapping is this value's alone (invariant). In a forked child nothing is
        // mapped there (DONTFORK), but the child may have mapped something since: see the owner,
        // which does not drop this there.
        let _ = unsafe { rustix::mm::munmap(self.alias.as_ptr().cast(), len) };
    }
}

/// Maps `len` bytes of `fd` at a multiple of the frame size, not inherited by forks.
fn map_aligned(fd: &OwnedFd, len: usize) -> rustix::io::Result<NonNull<u8>> {
    let none = ProtFlags::empty();
    let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice; the file then replaces a part
    // of it, and what is left over on both sides is unmapped; no one else knows the range.
    unsafe {
        let all = rustix::mm::mmap_anonymous(core::ptr::null_mut(), len + FRAME, none, reserve)?;
        let before = all.cast::<u8>().align_offset(FRAME);
        let at = all.cast::<u8>().add(before).cast();
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        if let Err(error) = rustix::mm::mmap(at, len, prot, flags, fd, 0) {
            let _ = rustix::mm::munmap(all, len + FRAME);
            return Err(error);
        }
        if before > 0 {
            let _ = rustix::mm::munmap(all, before);
        }
        if before < FRAME {
            let _ = rustix::mm::munmap(at.cast::<u8>().add(len).cast(), FRAME - before);
        }
        rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxDontFork)?;
        NonNull::new(at.cast()).ok_or(rustix::io::Errno::FAULT)
    }
}

fn advise(at: *mut u8, len: usize, advice: i32) -> Result<(), DriverError> {
    // SAFETY: the range lies in the alias; neither populating nor collapsing changes its bytes.
    if unsafe { libc::madvise(at.cast(), len, advice) } == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Err(match errno {
        libc::ENOMEM | libc::EFAULT => DriverError::NoMemory,
        _ => DriverError::Os { call: "madvise", errno },
    })
}

/// How many 2 MiB pages of the reserved pool no one has laid claim to.
fn free_huge_pages() -> u64 {
    let read = |what: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{what}");
        std::fs::read_to_string(path).ok().and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    read("free_hugepages").saturating_sub(read("resv_hugepages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(nr_frames: u32, backing: Backing) -> Memory {
        let config = HostXpuConfig::new(u64::from(nr_frames) * PAGE_SIZE).backing(backing);
        Memory::new(&config, nr_frames).unwrap()
    }

    fn import_all(memory: &Memory) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some(extent) = memory.import(16).unwrap() {
            all.extend(extent.start.0..extent.start.0 + extent.nr_frames);
        }
        all
    }

    #[test]
    fn every_frame_is_handed_out_once_and_again_after_release() {
        for backing in [Backing::Auto, Backing::SmallPages] {
            let memory = memory(6, backing);
            assert_eq!(import_all(&memory), [0, 1, 2, 3, 4, 5]);
            memory.release(&[Extent { start: FrameNr(1), nr_frames: 1 }]);
            memory.release(&[Extent { start: FrameNr(4), nr_frames: 2 }]);
            assert_eq!(import_all(&memory), [1, 4, 5]);
            let backing = memory.backing();
            assert_eq!(backing.huge_tlb + backing.huge_shmem + backing.small_shmem, 6);
        }
    }

    #[test]
    fn small_pages_can_be_forced() {
        let memory = memory(2, Backing::SmallPages);
        import_all(&memory);
        assert_eq!(memory.backing().small_shmem, 2);
        assert_eq!(memory.backing().kind(), BackingKind::SmallShmem);
    }

    #[test]
    fn release_gives_the_memory_back() {
        let memory = memory(2, Backing::Shmem);
        import_all(&memory);
        let blocks = |m: &Memory| rustix::fs::fstat(&m.fd).unwrap().st_blocks;
        assert_eq!(blocks(&memory), 2 * (PAGE_SIZE / 512) as i64);
        memory.release(&[Extent { start: FrameNr(0), nr_frames: 2 }]);
        assert_eq!(blocks(&memory), 0);
    }
}
