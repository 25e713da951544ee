//! The CPU's page table: the five operations, by userfaultfd moves.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use gmm_core::driver::{Clear, DriverError, Enter, Examine, MappingKind, Mmu, Partial, Protection};
use gmm_core::{Frame, FrameNr, PAGE_SIZE, PageNr, PageRange, VirtAddr};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::mapping;
use crate::moves::{Way, move_page};
use crate::pagemap::Look;
use crate::pool::Pool;
use crate::uffd::{MoveMode, Uffd};
use crate::window::Window;

/// What a discarded part of a page is filled with: a real page, since the kernel's zero page
/// can't be moved by Linux 6.8.
static ZEROS: [u8; SMALL as usize] = [0; SMALL as usize];
const SMALL: u64 = 4096;

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
/// the page that is empty now. Mapping the page anew would free it too, but leave a gap in which
/// another thread's touch is no event and reads zeros.
///
/// Kernels without `CONFIG_PT_RECLAIM` (before 6.14) keep the page table. Then split pages stay
/// split: right, but 15 to 30 µs a move instead of 1.
#[derive(Debug)]
pub struct CpuMmu {
    pool: Arc<Pool>,
    window: Window,
    /// Whether `MADV_DONTNEED` frees page tables.
    frees_page_tables: bool,
    /// How many split pages are to be left alone yet.
    heal_pause: AtomicU32,
    /// Read around moves, written around the collapse of a slot: the two at once can keep Linux 6.18
    /// busy in `UFFDIO_MOVE` for ever, when an application discards parts of pages meanwhile.
    moving: RwLock<()>,
    /// One bit a page of the window: it is poisoned. Set and cleared under the entry's lock.
    poisoned: Box<[AtomicU64]>,
}

impl CpuMmu {
    pub(crate) fn new(pool: Arc<Pool>, window: Window, frees_page_tables: bool) -> Self {
        let words = window.range().nr_pages.div_ceil(64);
        let poisoned = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            pool,
            window,
            frees_page_tables,
            heal_pause: AtomicU32::new(0),
            moving: RwLock::new(()),
            poisoned,
        }
    }

    /// The window.
    pub fn window(&self) -> PageRange {
        self.window.range()
    }

    /// Whether pages that were split get huge again on this kernel.
    pub fn heals(&self) -> bool {
        self.frees_page_tables
    }

    pub(crate) fn uffd(&self) -> &Uffd {
        &self.pool.uffd
    }

    fn check(&self, page: PageNr, frame: Frame) -> Result<(), DriverError> {
        match self.window.range().contains(page) && self.pool.has(frame.nr) {
            true => Ok(()),
            false => Err(DriverError::Broken("no such page or frame on the CPU")),
        }
    }

    fn wake(&self, page: PageNr) {
        // It fails only for ranges that aren't addresses.
        let _ = self.uffd().wake(page.start().0, PAGE_SIZE);
    }

    /// Discards what lies at a page that maps no frame, and its page table.
    fn empty_page(&self, page: PageNr) -> Result<(), Errno> {
        // SAFETY: the page lies in the window and maps no frame.
        unsafe { mapping::empty(page.start().0, PAGE_SIZE) }
    }

    fn set_protection(&self, page: PageNr, protection: Protection) -> Result<(), DriverError> {
        let flags = match protection {
            Protection::ReadOnly => ProtFlags::READ,
            Protection::ReadWrite => mapping::READ_WRITE,
        };
        // SAFETY: the page lies in the window.
        unsafe { mapping::protect(page.start().0, PAGE_SIZE, flags) }
            .map_err(|errno| crate::os_error("mprotect", errno))
    }

    /// Moves a frame in, of which the first `offset` bytes are there already.
    fn bring_in(&self, enter: &Enter, offset: u64) -> Result<(), DriverError> {
        let Enter { page, frame, protection, kind } = *enter;
        if kind != MappingKind::Local {
            return Err(DriverError::Unsupported);
        }
        self.check(page, frame)?;
        if let Some(now) = self.pool.entered(frame.nr) {
            if now != protection {
                self.set_protection(page, protection)?;
                self.pool.set_entered(frame.nr, Some(protection));
            }
            self.wake(page);
            return Ok(());
        }
        self.unpoison(page);
        let (addr, slot) = (page.start().0, self.pool.slot(frame.nr));
        let read_only = protection == Protection::ReadOnly;
        // Nobody who waits may slip in before a read-only page is read-only.
        let mode = if read_only { MoveMode::DONT_WAKE } else { MoveMode::default() };
        // SAFETY: the core holds the page's entry lock and says that it maps nothing.
        unsafe { move_page(self.uffd(), Way::In, addr, slot, offset, mode) }?;
        if read_only && let Err(error) = self.set_protection(page, protection) {
            // SAFETY: as above; the slot was emptied just now.
            unsafe { move_page(self.uffd(), Way::Out, slot, addr, 0, MoveMode::DONT_WAKE) }?;
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
        let was_empty = look == Look::Absent && offset == 0;
        if was_empty {
            // It may still have a page table.
            self.empty_page(page).map_err(|e| crate::os_error("madvise(MADV_DONTNEED)", e))?;
        } else {
            let holes = MoveMode::ALLOW_SRC_HOLES;
            let mode = if look == Look::Huge { MoveMode::default() } else { holes };
            // SAFETY: the core holds the page's entry lock, and the slot is empty since the frame
            // was moved in.
            let moved = unsafe { move_page(self.uffd(), Way::Out, slot, addr, offset, mode) };
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
        if !self.frees_page_tables || paused.is_ok() {
            return;
        }
        // Absent parts and zero pages would keep the collapse from happening.
        // SAFETY: the slot is ours, and so is the page, which is empty.
        let healed = unsafe {
            mapping::populate(slot, PAGE_SIZE).is_ok()
                && mapping::collapse(slot, PAGE_SIZE).is_ok()
                && self.empty_page(page).is_ok()
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
        match unsafe { self.uffd().copy(part, ZEROS.as_ptr(), SMALL) } {
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
        let moved = unsafe { move_page(self.uffd(), Way::In, addr, slot, 0, mode) };
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

    fn poison_bit(&self, page: PageNr) -> Option<(&AtomicU64, u64)> {
        let index = page.0.checked_sub(self.window().start.0)?;
        Some((self.poisoned.get((index / 64) as usize)?, 1 << (index % 64)))
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
        self.window.close(range);
        for page in range.pages() {
            if let Some((word, bit)) = self.poison_bit(page) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
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
        let Enter { page, frame, .. } = mapping;
        self.check(page, frame)?;
        let look = self.pool.pagemap.look(page.start().0, 1);
        let filled = match look {
            Look::Huge => Ok(()),
            look => {
                let _moving = self.moving();
                self.refill(&mapping, addr, look)
            }
        };
        self.wake(page);
        filled
    }

    fn poison(&self, page: PageNr) -> bool {
        let Some((word, bit)) = self.poison_bit(page) else { return false };
        for _ in 0..3 {
            // SAFETY: the page lies in the window and maps no frame, says the core.
            if unsafe { self.uffd().poison(page.start().0, PAGE_SIZE) }.is_ok() {
                word.fetch_or(bit, Ordering::Relaxed);
                return true;
            }
            // A leftover is in the way.
            let _ = self.empty_page(page);
        }
        self.wake(page);
        false
    }

    fn unpoison(&self, page: PageNr) {
        let Some((word, bit)) = self.poison_bit(page) else { return };
        // The core asks every processor, also one that maps the page.
        if word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            let _ = self.empty_page(page);
        }
    }
}
