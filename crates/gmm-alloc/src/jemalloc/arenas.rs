//! Arenas of jemalloc in a window of addresses at which nothing is mapped: all `unsafe` code of
//! this crate.
//!
//! jemalloc keeps its own data in ordinary memory (`metadata_use_hooks` is off) and never touches
//! what it hands out, unless it is asked for zeros. So a window without memory is enough: where a
//! *commit* hook would bring memory, ours counts, for each page of 2 MiB, how much of it is
//! committed. The caller maps and unmaps afterwards what [`Arenas::changed`] names. Where more pages
//! would be needed than there are frames, what was allocated is freed again: a hook that said no
//! would cost addresses, since jemalloc would look for others.
//!
//! Hooks run on the thread that calls [`Arenas`], within that call: the arenas have no other users
//! and no thread caches, and jemalloc's background thread is off.
#![expect(unsafe_code, reason = "jemalloc is C")]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};

use gmm_core::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use tikv_jemalloc_sys as sys;

/// What jemalloc counts in.
const UNIT_BYTES: u64 = 4096;

/// Larger allocations begin at a page.
const SMALLER_BYTES: usize = 8 << 20;

/// Allocations are aligned to 2^8 bytes; large ones to pages, so that they need no page more than
/// they have to.
fn alignment(size: usize) -> c_int {
    sys::MALLOCX_LG_ALIGN(if size > SMALLER_BYTES { 21 } else { 8 })
}

/// What is handed out: an arena's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arena(c_uint);

/// jemalloc's `arena_config_t` (5.3), which its bindings lack.
#[repr(C)]
struct Config {
    hooks: *mut sys::extent_hooks_t,
    metadata_use_hooks: bool,
}

/// What the hooks work on.
///
/// # Invariants
///
/// `hooks` is the first field, so a pointer to it, with the provenance of the whole, is one to the
/// whole.
#[repr(C)]
struct Shared {
    hooks: sys::extent_hooks_t,
    /// The window, which begins at a multiple of pages.
    start: usize,
    len: usize,
    /// What was mapped for it.
    mapping: (usize, usize),
    /// How much of it was handed out; never taken back.
    used: usize,
    /// By page of the window: how many units of it are committed.
    committed: Vec<u16>,
    /// How many pages have a committed unit, and how many may.
    nr_needed: u64,
    max_needed: u64,
    /// Pages that became needed or needless, in no order; some twice.
    changed: Vec<usize>,
}

impl Shared {
    /// The units of each page that a range of addresses covers.
    fn pages(&self, from: usize, len: usize) -> impl Iterator<Item = (usize, u16)> + use<> {
        let unit = |address: usize| (address - self.start) as u64 / UNIT_BYTES;
        let per_page = PAGE_SIZE / UNIT_BYTES;
        let (mut at, end) = (unit(from), unit(from + len));
        core::iter::from_fn(move || {
            let page = at / per_page;
            let units = ((page + 1) * per_page).min(end).checked_sub(at).filter(|n| *n > 0)?;
            at += units;
            Some((page as usize, units as u16))
        })
    }

    /// Counts a range as committed.
    fn commit(&mut self, from: usize, len: usize) {
        for (page, units) in self.pages(from, len) {
            if self.committed[page] == 0 {
                self.nr_needed += 1;
                self.changed.push(page);
            }
            self.committed[page] += units;
        }
    }

    fn decommit(&mut self, from: usize, len: usize) {
        for (page, units) in self.pages(from, len) {
            self.committed[page] -= units;
            if self.committed[page] == 0 {
                self.nr_needed -= 1;
                self.changed.push(page);
            }
        }
    }

    /// Addresses for an extent, on pages of its own, so that no page is of two arenas.
    fn extend(&mut self, len: usize, alignment: usize) -> Option<usize> {
        let page = PAGE_SIZE as usize;
        let start = (self.start + self.used).checked_next_multiple_of(alignment.max(page))?;
        let used = (start - self.start).checked_add(len)?.checked_next_multiple_of(page)?;
        if used > self.len {
            return None;
        }
        self.used = used;
        self.committed.resize(used / page, 0);
        Some(start)
    }
}

/// The window and its arenas.
pub(super) struct Arenas {
    /// From `Box::into_raw`; freed when dropped.
    shared: NonNull<Shared>,
    arenas: Vec<Arena>,
}

impl Arenas {
    /// A window of `nr_pages` pages, of which `max_needed` may be needed at a time. None if the
    /// process has no such range of addresses left.
    pub(super) fn new(nr_pages: u64, max_needed: u64) -> Option<Self> {
        let page = PAGE_SIZE as usize;
        // One page more, to begin at a multiple.
        let len = usize::try_from(nr_pages).ok()?.checked_mul(page)?;
        let mapping_len = len.checked_add(page)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so nothing that is mapped is replaced; nobody has access.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), mapping_len, ProtFlags::empty(), flags) };
        let mapping = (mapped.ok()? as usize, mapping_len);
        let hooks = sys::extent_hooks_t {
            alloc: Some(alloc),
            dalloc: Some(dalloc),
            destroy: None,
            commit: Some(commit),
            decommit: Some(decommit),
            purge_lazy: None,
            purge_forced: None,
            split: Some(split),
            merge: Some(merge),
        };
        let shared = Shared {
            hooks,
            start: mapping.0.next_multiple_of(page),
            len,
            mapping,
            used: 0,
            committed: Vec::new(),
            nr_needed: 0,
            max_needed,
            changed: Vec::new(),
        };
        Some(Self { shared: NonNull::from(Box::leak(Box::new(shared))), arenas: Vec::new() })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: it lives until `self` is dropped; what changes it runs within calls that take
        // `&mut self`.
        unsafe { self.shared.as_ref() }
    }

    /// A new arena. None if jemalloc has no more: it has some 4,000.
    pub(super) fn create(&mut self) -> Option<Arena> {
        // SAFETY: it lives; no reference is made, so the pointer is one to the whole.
        let hooks = unsafe { &raw mut (*self.shared.as_ptr()).hooks };
        let mut config = Config { hooks, metadata_use_hooks: false };
        let (mut arena, mut len): (c_uint, usize) = (0, size_of::<c_uint>());
        // SAFETY: name, types and sizes are those of jemalloc 5.3. The hooks stay where they are
        // until the arena is destroyed.
        let code = unsafe {
            sys::mallctl(
                c"experimental.arenas_create_ext".as_ptr(),
                (&raw mut arena).cast(),
                &raw mut len,
                (&raw mut config).cast(),
                size_of::<Config>(),
            )
        };
        if code != 0 {
            return None;
        }
        self.arenas.push(Arena(arena));
        // Free extents keep their memory until it is asked for; without a clock there is no decay.
        for what in ["dirty_decay_ms", "muzzy_decay_ms"] {
            set_decay(arena, what, -1);
        }
        Some(Arena(arena))
    }

    /// How many bytes an allocation of `size_bytes` gets.
    pub(super) fn usable_bytes(size_bytes: u64) -> u64 {
        // SAFETY: the size is not 0; nothing is allocated.
        unsafe { sys::nallocx(size_bytes.max(1) as usize, alignment(size_bytes as usize)) as u64 }
    }

    /// Memory of an arena: its offset in the window. None, and all that is free decommitted, if
    /// more pages would be needed than may be.
    pub(super) fn allocate(&mut self, arena: Arena, size_bytes: u64) -> Option<u64> {
        let size = usize::try_from(size_bytes.max(1)).ok()?;
        // SAFETY: the size is not 0, and the arena ours. What is returned is not touched.
        let at = unsafe { sys::mallocx(size, alignment(size) | flags(arena)) };
        if at.is_null() {
            return None;
        }
        let offset = (at as usize - self.shared().start) as u64;
        if self.shared().nr_needed > self.shared().max_needed {
            self.free(arena, offset);
            self.purge();
            return None;
        }
        Some(offset)
    }

    /// Frees what was allocated at an offset, once.
    pub(super) fn free(&mut self, arena: Arena, offset: u64) {
        let at = self.shared().start + offset as usize;
        // SAFETY: the caller has it from `allocate`, of the same arena.
        unsafe { sys::dallocx(at as *mut c_void, flags(arena)) };
    }

    /// Lets all arenas decommit what is free.
    pub(super) fn purge(&mut self) {
        for &arena in &self.arenas {
            let purged = command(arena, "purge");
            debug_assert!(purged, "jemalloc does not know its arena {}", arena.0);
        }
    }

    /// Takes the pages of the window that became needed or needless since the last time, and maybe
    /// back; some are named twice.
    pub(super) fn changed(&mut self) -> Vec<usize> {
        // SAFETY: no hook runs now, and `self` is borrowed mutably.
        core::mem::take(unsafe { &mut self.shared.as_mut().changed })
    }

    /// Is memory needed at a page of the window?
    pub(super) fn is_needed(&self, page: usize) -> bool {
        self.shared().committed[page] > 0
    }
}

impl Drop for Arenas {
    fn drop(&mut self) {
        // No thread is bound to an arena, and what is alive in one can't be freed any more, since that
        // takes `self`.
        for &arena in &self.arenas {
            if !command(arena, "destroy") {
                debug_assert!(false, "arena {} can't be destroyed", arena.0);
                // It may still call its hooks: they, and the window, stay.
                return;
            }
        }
        // SAFETY: it comes from a box, and no arena is left that has its hooks.
        let shared = unsafe { Box::from_raw(self.shared.as_ptr()) };
        // SAFETY: it was mapped so in `new`, and nothing was mapped in it since.
        let unmapped = unsafe { munmap(shared.mapping.0 as *mut c_void, shared.mapping.1) };
        debug_assert!(unmapped.is_ok(), "the window can't be unmapped");
    }
}

/// Tells jemalloc to do something with an arena; says whether it did.
fn command(arena: Arena, what: &str) -> bool {
    let name = format!("arena.{}.{what}\0", arena.0);
    // SAFETY: the name ends in 0; such a command takes nothing and returns nothing.
    let code = unsafe {
        let none = ptr::null_mut();
        sys::mallctl(name.as_ptr().cast(), none, ptr::null_mut(), none, 0)
    };
    code == 0
}

fn flags(arena: Arena) -> c_int {
    sys::MALLOCX_ARENA(arena.0 as usize) | sys::MALLOCX_TCACHE_NONE
}

fn set_decay(arena: c_uint, what: &str, mut milliseconds: isize) {
    let name = format!("arena.{arena}.{what}\0");
    // SAFETY: the name ends in 0; it takes a `ssize_t`.
    let code = unsafe {
        let value = (&raw mut milliseconds).cast();
        let none = ptr::null_mut();
        sys::mallctl(name.as_ptr().cast(), none, ptr::null_mut(), value, size_of::<isize>())
    };
    debug_assert_eq!(code, 0, "jemalloc does not know {name}");
}

/// What the hooks of an arena work on.
///
/// # Safety
///
/// `hooks` is what [`Arenas::create`] gave to jemalloc, and the reference ends with the hook.
unsafe fn shared<'a>(hooks: *mut sys::extent_hooks_t) -> &'a mut Shared {
    // SAFETY: it is the first field of a `Shared`, see there, which no one else uses while
    // jemalloc runs: `Arenas` makes references for a moment only.
    unsafe { &mut *hooks.cast() }
}

unsafe extern "C" fn alloc(
    hooks: *mut sys::extent_hooks_t,
    new_addr: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commits: *mut bool,
    _: c_uint,
) -> *mut c_void {
    if !new_addr.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: jemalloc calls it with the hooks that it has.
    let shared = unsafe { shared(hooks) };
    let Some(at) = shared.extend(size, alignment) else { return ptr::null_mut() };
    // SAFETY: both point to variables of the caller.
    let committed = unsafe {
        *zero = false;
        *commits
    };
    if committed {
        shared.commit(at, size);
    }
    at as *mut c_void
}

/// Says no: jemalloc decommits the extent instead, and keeps its addresses.
unsafe extern "C" fn dalloc(
    _: *mut sys::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    true
}

unsafe extern "C" fn commit(
    hooks: *mut sys::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc calls it with the hooks that it has.
    unsafe { shared(hooks) }.commit(at as usize + offset, len);
    false
}

unsafe extern "C" fn decommit(
    hooks: *mut sys::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc calls it with the hooks that it has.
    unsafe { shared(hooks) }.decommit(at as usize + offset, len);
    false
}

/// Any extent may be cut.
unsafe extern "C" fn split(
    _: *mut sys::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// Neighbours may become one: they are of one arena, and of one window.
unsafe extern "C" fn merge(
    _: *mut sys::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_are_needed_while_memory_of_theirs_is_committed() {
        let mut arenas = Arenas::new(1024, 8).unwrap();
        let arena = arenas.create().unwrap();
        let at = arenas.allocate(arena, 7 * MIB).unwrap();
        let pages = at / PAGE_SIZE..(at + 7 * MIB).div_ceil(PAGE_SIZE);
        assert!(pages.clone().all(|page| arenas.is_needed(page as usize)));
        let mut changed = arenas.changed();
        changed.sort_unstable();
        assert_eq!(changed, pages.clone().map(|page| page as usize).collect::<Vec<_>>());
        assert_eq!(arenas.allocate(arena, 20 * MIB), None);
        assert!(pages.clone().all(|page| arenas.is_needed(page as usize)), "it is alive");
        arenas.free(arena, at);
        assert!(arenas.is_needed(pages.start as usize), "it is kept");
        arenas.purge();
        assert!(pages.clone().all(|page| !arenas.is_needed(page as usize)));
        assert!(arenas.allocate(arena, 14 * MIB).is_some());
    }

    #[test]
    fn what_does_not_fit_costs_no_addresses() {
        let mut arenas = Arenas::new(1024, 8).unwrap();
        let arena = arenas.create().unwrap();
        for round in 0..10_000 {
            assert_eq!(arenas.allocate(arena, (20 + round % 7) * MIB), None);
        }
        assert!(arenas.shared().used as u64 <= 256 * MIB, "{:#x}", arenas.shared().used);
        assert!(arenas.allocate(arena, 16 * MIB).is_some());
    }
}
