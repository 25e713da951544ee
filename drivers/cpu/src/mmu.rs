//! The CPU's page table: the five operations, by userfaultfd moves.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use gmm_core::driver::{Clear, DriverError, Enter, Examine, MappingKind, Mmu, Partial, Protection};
use gmm_core::{Frame, FrameNr, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::bits::PageBits;
use crate::mapping;
use crate::moves::{Mover, Way};
use crate::pagemap::Look;
use crate::patience::Patience;
use crate::pool::Pool;
use crate::remote::Remote;
use crate::renew::{Renewer, SPARE_PAGES};
use crate::uffd::{CopyMode, MoveMode, Uffd};
use crate::window::Window;

/// What a discarded part of a page is filled with: a real page, since the kernel's zero page
/// can't be moved by Linux 6.8.
static ZEROS: [u8; SMALL as usize] = [0; SMALL as usize];
pub(crate) const SMALL: u64 = 4096;

/// After a slot could not be made huge, so many that aren't are left alone.
const HEAL_PAUSE: u32 = 64;

/// The CPU's page table over one window.
///
/// # Pages that were split
///
/// Where an application discarded 4 KiB of a page, or the kernel swapped some, the page is mapped
/// by 4 KiB, and so is every later page at that place: a page table, once there, makes the kernel
/// split what is moved in. `pmap_clear` heals that when it moves such a page out: it makes the
/// frame huge again in its slot (`MADV_COLLAPSE`), then frees the page table by `MADV_DONTNEED` on
/// the page that is empty now; on kernels that keep it all the same (without `CONFIG_PT_RECLAIM`,
/// before 6.14) by renewing the page.
#[derive(Debug)]
pub struct CpuMmu {
    pub(crate) pool: Arc<Pool>,
    window: Window,
    pub(crate) renewer: Renewer,
    /// Whether `MADV_DONTNEED` frees page tables.
    frees_page_tables: bool,
    /// How many split pages are to be left alone yet.
    heal_pause: AtomicU32,
    /// Read around moves, written around the collapse of a slot: the two at once can keep Linux 6.18
    /// busy in `UFFDIO_MOVE` for ever, when an application discards parts of pages meanwhile.
    moving: RwLock<()>,
    pub(crate) poisoned: PageBits,
    pub(crate) remote: Remote,
}

impl CpuMmu {
    pub(crate) fn new(
        pool: Arc<Pool>,
        window: Window,
        renewer: Renewer,
        frees_page_tables: bool,
    ) -> Self {
        Self {
            pool,
            renewer,
            frees_page_tables,
            heal_pause: AtomicU32::new(0),
            moving: RwLock::new(()),
            poisoned: PageBits::new(window.range()),
            remote: Remote::new(window.range()),
            window,
        }
    }

    /// The window.
    pub fn window(&self) -> PageRange {
        self.window.range()
    }

    pub(crate) fn uffd(&self) -> &Uffd {
        &self.pool.uffd
    }

    fn mover(&self) -> Mover<'_> {
        Mover { uffd: self.uffd(), pagemap: &self.pool.pagemap }
    }

    pub(crate) fn check(&self, page: PageNr, frame: Frame) -> Result<(), DriverError> {
        match self.window.range().contains(page) && self.pool.has(frame.nr) {
            true => Ok(()),
            false => Err(DriverError::Broken("no such page or frame on the CPU")),
        }
    }

    pub(crate) fn wake(&self, page: PageNr) {
        // It fails only for ranges that aren't addresses.
        let _ = self.uffd().wake(page.start().0, PAGE_SIZE);
    }

    /// Discards what lies at a page that maps no frame. Its page table may stay.
    pub(crate) fn empty_page(&self, page: PageNr) -> Result<(), Errno> {
        // SAFETY: the page lies in the window and maps no frame.
        unsafe { mapping::empty(page.start().0, PAGE_SIZE) }
    }

    /// Discards what lies at a page that maps no frame, and its page table.
    pub(crate) fn free_page_table(&self, page: PageNr) -> Result<(), Errno> {
        match self.frees_page_tables {
            true => self.empty_page(page),
            // SAFETY: the page lies in the window and maps no frame.
            false => unsafe { self.renewer.renew(page.start().0, PAGE_SIZE) },
        }
    }

    pub(crate) fn set_protection(
        &self,
        page: PageNr,
        protection: Protection,
    ) -> Result<(), DriverError> {
        // SAFETY: the page lies in the window.
        unsafe { mapping::protect(page.start().0, PAGE_SIZE, flags(protection)) }
            .map_err(|errno| crate::os_error("mprotect", errno))
    }

    /// Moves a frame in, of which the first `offset` bytes are there already.
    fn bring_in(&self, enter: &Enter, offset: u64) -> Result<(), DriverError> {
        let Enter { page, frame, protection, kind } = *enter;
        match kind {
            MappingKind::Local => self.check(page, frame)?,
            MappingKind::Replica => return self.enter_replica(page, frame, protection),
            MappingKind::Remote(handle) => return self.enter_remote(page, handle, protection),
        }
        if self.remote.has(page) || self.pool.is_replicated(frame.nr) {
            return Err(DriverError::Broken("the CPU was asked to map a page in two ways"));
        }
        if let Some(now) = self.pool.entered(frame.nr) {
            if now != protection {
                self.set_protection(page, protection)?;
                self.pool.set_entered(frame.nr, Some(protection));
            }
            self.wake(page);
            return Ok(());
        }
        self.unpoison_page(page);
        let (addr, slot) = (page.start().0, self.pool.slot(frame.nr));
        let read_only = protection == Protection::ReadOnly;
        // Nobody who waits may slip in before a read-only page is read-only.
        let mode = if read_only { MoveMode::DONT_WAKE } else { MoveMode::default() };
        // SAFETY: the core holds the page's entry lock and says that it maps nothing.
        unsafe { self.mover().move_page(Way::In, addr, slot, offset, mode) }?;
        if read_only && let Err(error) = self.set_protection(page, protection) {
            // SAFETY: as above; the slot was emptied just now.
            unsafe { self.mover().move_page(Way::Out, slot, addr, 0, MoveMode::DONT_WAKE) }?;
            return Err(error);
        }
        self.pool.set_entered(frame.nr, Some(protection));
        // A part that was there before has woken nobody.
        if read_only || offset > 0 {
            self.wake(page);
        }
        Ok(())
    }

    /// Held while pages move.
    fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a frame out, of which the first `offset` bytes are out already.
    fn take_out(&self, clear: &Clear, offset: u64) -> Result<TakenOut, DriverError> {
        let Clear { page, frame, .. } = *clear;
        self.check(page, frame)?;
        let Some(protection) = self.pool.entered(frame.nr) else {
            return Err(DriverError::Broken("the CPU was asked to clear a frame it doesn't map"));
        };
        let (addr, slot) = (page.start().0, self.pool.slot(frame.nr));
        let look = self.pool.pagemap.look(addr, 1);
        if protection == Protection::ReadOnly {
            // Moves are between mappings of equal protection only.
            self.set_protection(page, Protection::ReadWrite)?;
        }
        // A run that stopped may have moved it without saying so.
        let is_gone = || self.pool.pagemap.look(slot, 1) == Look::Absent;
        let was_empty = look == Look::Absent && offset == 0 && is_gone();
        if was_empty {
            // It may still have a page table.
            self.free_page_table(page).map_err(|e| crate::os_error("madvise", e))?;
        } else {
            let holes = MoveMode::ALLOW_SRC_HOLES;
            let mode = if look == Look::Huge { MoveMode::default() } else { holes };
            // SAFETY: the core holds the page's entry lock, and the slot is empty since the frame
            // was moved in.
            let moved = unsafe { self.mover().move_page(Way::Out, slot, addr, offset, mode) };
            if let Err(error) = moved {
                if protection == Protection::ReadOnly {
                    self.set_protection(page, protection)?;
                }
                return Err(error);
            }
        }
        self.pool.set_entered(frame.nr, None);
        Ok(TakenOut { was_empty, was_split: look == Look::Small })
    }

    /// Makes a frame that came out split huge again, and its place in the window fit for huge
    /// pages. Where that fails, or pages move just now, nothing is lost but speed.
    fn heal(&self, page: PageNr, slot: u64) {
        let Ok(_still) = self.moving.try_write() else { return };
        let pause = |left: u32| left.checked_sub(1);
        let paused = self.heal_pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pause);
        if paused.is_ok() {
            return;
        }
        // Absent parts and zero pages would keep the collapse from happening.
        // SAFETY: the slot is ours, and so is the page, which is empty.
        let healed = unsafe {
            mapping::populate(slot, PAGE_SIZE).is_ok()
                && mapping::collapse(slot, PAGE_SIZE).is_ok()
                && self.free_page_table(page).is_ok()
        };
        if !healed {
            self.heal_pause.store(HEAL_PAUSE, Ordering::Relaxed);
        }
    }

    /// Fills a page that the application discarded, whole or in part, so that the access at
    /// `addr` can go on.
    fn refill(&self, mapping: &Enter, addr: VirtAddr, look: Look) -> Result<(), DriverError> {
        if look == Look::Absent {
            return self.refill_whole(mapping);
        }
        let part = addr.0 & !(SMALL - 1);
        // SAFETY: the part lies in a page of the window; what is there already stays.
        match unsafe { self.uffd().copy(part, ZEROS.as_ptr(), SMALL, CopyMode::default()) } {
            Ok(()) => Ok(()),
            Err(stopped) if matches!(stopped.errno, Errno::EXIST | Errno::AGAIN) => Ok(()),
            Err(stopped) => Err(crate::os_error("UFFDIO_COPY", stopped.errno)),
        }
    }

    /// Moves a page of zeros in where the application has discarded all of it.
    fn refill_whole(&self, mapping: &Enter) -> Result<(), DriverError> {
        let Enter { page, frame, protection, .. } = *mapping;
        let slot = self.pool.slot(frame.nr);
        // SAFETY: the slot is ours; what a stray touch may have left there must go.
        unsafe { mapping::empty(slot, PAGE_SIZE) }
            .map_err(|errno| crate::os_error("madvise(MADV_DONTNEED)", errno))?;
        self.pool.populate(frame.nr)?;
        let read_only = protection == Protection::ReadOnly;
        if read_only {
            self.set_protection(page, Protection::ReadWrite)?;
        }
        let (addr, mode) = (page.start().0, MoveMode::DONT_WAKE);
        // SAFETY: the core holds the page's entry lock; nothing is mapped there.
        let moved = unsafe { self.mover().move_page(Way::In, addr, slot, 0, mode) };
        if read_only {
            self.set_protection(page, protection)?;
        }
        moved
    }

    /// How many elements from the first can be one move: adjacent pages and adjacent frames,
    /// all of them `wanted` and in the same `state`.
    fn run_len<T>(
        &self,
        batch: &[T],
        parts: impl Fn(&T) -> (PageNr, FrameNr, bool, Option<Protection>),
    ) -> usize {
        let (first_page, first_frame, ..) = parts(&batch[0]);
        let fits = |(i, element): &(usize, &T)| {
            let (page, frame, wanted, state) = parts(element);
            wanted
                && page == first_page.plus(*i as u64)
                && frame.0 == first_frame.0 + *i as u32
                && self.window().contains(page)
                && self.pool.has(frame)
                && !self.pool.is_replicated(frame)
                && !self.remote.has(page)
                && self.pool.entered(frame) == state
        };
        batch.iter().enumerate().take_while(fits).count()
    }

    /// Moves a run at once; says how many pages moved, and how many bytes of the next.
    fn move_run(&self, dst: u64, src: u64, run: usize) -> (usize, u64) {
        let len = run as u64 * PAGE_SIZE;
        // SAFETY: the core holds the pages' entry locks; `run_len` has checked that they lie in
        // the window and the pool, and that the frames are at the source.
        let moved = unsafe { self.uffd().move_pages(dst, src, len, MoveMode::default()) };
        let bytes = moved.map_or_else(|stopped| stopped.done, |()| len);
        ((bytes / PAGE_SIZE) as usize, bytes % PAGE_SIZE)
    }

    pub(crate) fn unpoison_page(&self, page: PageNr) {
        // The core asks every processor, also one that maps the page.
        if self.poisoned.remove(page) {
            let _ = self.free_page_table(page);
        }
    }

    /// Clears what is mapped in another way than by moving a frame: a run from the first, or
    /// nothing if the first is a frame. Says how many pages.
    fn clear_unmoved(&self, mappings: &mut [Clear]) -> Result<usize, DriverError> {
        let Clear { page, frame, .. } = mappings[0];
        let run = match () {
            () if self.remote.has(page) => {
                let fits = |(i, c): &(usize, &Clear)| {
                    c.page == page.plus(*i as u64) && self.remote.has(c.page)
                };
                let most = mappings.iter().enumerate().take(SPARE_PAGES as usize);
                let run = most.take_while(fits).count();
                self.clear_remote(page, run as u64)?;
                run
            }
            () if self.pool.has(frame.nr) && self.pool.is_replicated(frame.nr) => {
                self.clear_replica(page, frame)?;
                1
            }
            () => 0,
        };
        mappings[..run].iter_mut().for_each(|clear| clear.was_empty = false);
        Ok(run)
    }
}

/// What the kernel calls a protection.
pub(crate) fn flags(protection: Protection) -> ProtFlags {
    match protection {
        Protection::ReadOnly => ProtFlags::READ,
        Protection::ReadWrite => mapping::READ_WRITE,
    }
}

/// What a page was when it was moved out.
struct TakenOut {
    was_empty: bool,
    /// Mapped by 4 KiB.
    was_split: bool,
}

impl Mmu for CpuMmu {
    fn va_examine(&self, range: PageRange) -> Result<Examine, DriverError> {
        if range.is_empty() || !self.window().contains_range(range) {
            return Ok(Examine::Refused);
        }
        let opened = self.window.open(range, self.uffd());
        opened.map(|()| Examine::Reserved).map_err(|e| crate::os_error("mmap", e))
    }

    fn va_release(&self, range: PageRange) {
        if !self.window().contains_range(range) {
            return;
        }
        self.window.close(range, self.uffd());
        for page in range.pages() {
            self.poisoned.remove(page);
            self.remote.forget(page);
        }
        // A thread that waits in a fault stays there, unmapped or not, until it is woken.
        let _ = self.uffd().wake(range.start.start().0, range.len_bytes());
    }

    fn pmap_enter(&self, mappings: &[Enter]) -> Result<(), Partial> {
        let _moving = self.moving();
        let mut done = 0;
        while done < mappings.len() {
            let run = self.run_len(&mappings[done..], |e| {
                let plain = e.protection == Protection::ReadWrite && e.kind == MappingKind::Local;
                (e.page, e.frame.nr, plain, None)
            });
            let mut offset = 0;
            if run > 1 {
                let Enter { page, frame, .. } = mappings[done];
                let (whole, rest) = self.move_run(page.start().0, self.pool.slot(frame.nr), run);
                for enter in &mappings[done..done + whole] {
                    self.pool.set_entered(enter.frame.nr, Some(enter.protection));
                }
                (done, offset) = (done + whole, rest);
                if whole == run {
                    continue;
                }
            }
            self.bring_in(&mappings[done], offset).map_err(|error| Partial { done, error })?;
            done += 1;
        }
        Ok(())
    }

    fn pmap_clear(&self, mappings: &mut [Clear]) -> Result<(), Partial> {
        let mut done = 0;
        while done < mappings.len() {
            let unmoved = self.clear_unmoved(&mut mappings[done..]);
            let unmoved = unmoved.map_err(|error| Partial { done, error })?;
            if unmoved > 0 {
                done += unmoved;
                continue;
            }
            let moving = self.moving();
            let run = self.run_len(&mappings[done..], |c| {
                (c.page, c.frame.nr, true, Some(Protection::ReadWrite))
            });
            let Clear { page, frame, .. } = mappings[done];
            let mut offset = 0;
            if run > 1 && self.pool.pagemap.look(page.start().0, run as u64) == Look::Huge {
                let (whole, rest) = self.move_run(self.pool.slot(frame.nr), page.start().0, run);
                for clear in &mut mappings[done..done + whole] {
                    self.pool.set_entered(clear.frame.nr, None);
                    clear.was_empty = false;
                }
                (done, offset) = (done + whole, rest);
                if whole == run {
                    continue;
                }
            }
            let taken = self.take_out(&mappings[done], offset);
            let taken = taken.map_err(|error| Partial { done, error })?;
            mappings[done].was_empty = taken.was_empty;
            drop(moving);
            if taken.was_split {
                let Clear { page, frame, .. } = mappings[done];
                self.heal(page, self.pool.slot(frame.nr));
            }
            done += 1;
        }
        Ok(())
    }

    fn revalidate(&self, mapping: Enter, addr: VirtAddr) -> Result<(), DriverError> {
        let Enter { page, frame, protection, kind } = mapping;
        if self.remote.has(page) {
            // Its mapping can't be lost, but for a kernel that failed half-way through replacing it.
            return match kind {
                MappingKind::Remote(handle) => self.enter_remote(page, handle, protection),
                _ => Err(DriverError::Broken("the CPU maps the page from another node")),
            };
        }
        self.check(page, frame)?;
        let look = self.pool.pagemap.look(page.start().0, 1);
        let filled = match look {
            // The thread that serves the fault wakes who waits.
            Look::Huge => return Ok(()),
            look if self.pool.is_replicated(frame.nr) => {
                self.refill_replica(page, frame, addr, look)
            }
            look => {
                let _moving = self.moving();
                self.refill(&mapping, addr, look)
            }
        };
        self.wake(page);
        filled
    }

    fn poison(&self, page: PageNr) -> bool {
        if !self.window().contains(page) || self.remote.has(page) {
            return false;
        }
        let mut patience = Patience::new();
        for _ in 0..3 {
            // SAFETY: the page lies in the window and maps no frame, says the core.
            match unsafe { self.uffd().poison(page.start().0, PAGE_SIZE) } {
                Ok(()) => {
                    self.poisoned.insert(page);
                    return true;
                }
                // Addresses change somewhere.
                Err(stopped) if stopped.errno == Errno::AGAIN => drop(patience.wait()),
                Err(_) => {}
            }
            // A leftover is in the way.
            let _ = self.empty_page(page);
        }
        self.wake(page);
        false
    }

    fn unpoison(&self, page: PageNr) {
        self.unpoison_page(page);
    }
}
