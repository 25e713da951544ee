//! Pins: frames that stay where they are because a program says so (`PIN`).
//!
//! A pin belongs to the frame, and the node counts them: nothing that evicts, moves or drops a
//! frame touches a pinned one. Its mappings may come and go, and a launch waits for a pin as
//! little as anyone else does.

use crate::driver::{Access, DriverError, Op};
use crate::entry::{Entry, Mapping};
use crate::fault::{Cause, MAX_TRIES, Want};
use crate::node::Node;
use crate::remap::RemapCause;
use crate::space::Space;
use crate::{Error, Frame, NodeId, PageNr, PageRange, Result, VirtAddr};

impl Space {
    /// `PIN`: brings the pages that hold `addr .. addr + len_bytes` to `node` and keeps their
    /// frames there until as many [`Space::unpin`]. All of them or none.
    ///
    /// # Errors
    /// [`Error::ZeroLength`], [`Error::AddressOverflow`], [`Error::UnknownNode`],
    /// [`Error::NotMapped`]; [`Error::PinLimit`] if that is more than the node's limit
    /// ([`Space::set_pin_limit`]); [`Error::PagePinned`] if a page is pinned on another node; and
    /// those of [`Space::prefetch`].
    pub fn pin(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<()> {
        let range = PageRange::covering(addr, len_bytes)?;
        let node = self.node(node)?;
        self.check_mapped(range)?;
        let is_new = |entry: &Entry| self.pin_of(&entry.lock()).is_none();
        let asked = self.table.entries(range).filter(|(_, entry)| is_new(entry)).count() as u64;
        let (pinned, limit) = node.pinned_and_limit();
        if u64::from(pinned) + asked > u64::from(limit) {
            return Err(Error::PinLimit { node: node.id, limit, pinned, asked });
        }
        let mut done = Vec::with_capacity(range.nr_pages as usize);
        for (page, entry) in self.table.entries(range) {
            match self.pin_page(entry, page, node) {
                Ok(generation) => done.push((page, entry, generation)),
                Err(error) => {
                    for (page, entry, generation) in done {
                        let mut m = entry.lock();
                        if m.generation() == generation {
                            self.unpin_page(&mut m, page);
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Says which opening of the page it pinned.
    fn pin_page(&self, entry: &Entry, page: PageNr, node: &Node) -> Result<u8> {
        let addr = page.start();
        let (processor, access, cause) = (None, Access::Read, Cause::Prefetch);
        let want = Want { page, addr, node, processor, access, cause, since: None };
        for _ in 0..MAX_TRIES {
            // Here, it stays here.
            let mut m = entry.lock();
            if !m.is_open() {
                return Err(Error::NotMapped { addr });
            }
            self.check_unpinned(&m, page, Some(node.id))?;
            if let Some(frame) = m.copy_on(node.id) {
                node.pin(frame.nr).map_err(|(pinned, limit)| Error::PinLimit {
                    node: node.id,
                    limit,
                    pinned,
                    asked: 1,
                })?;
                m.set_advised(true);
                return Ok(m.generation());
            }
            drop(m);
            self.resolve(entry, &want)?;
        }
        Err(self.thrashing(&want))
    }

    /// `UNPIN`: ends one pin of each page that holds `addr .. addr + len_bytes`. All of them or
    /// none.
    ///
    /// # Errors
    /// [`Error::ZeroLength`], [`Error::AddressOverflow`], [`Error::UnknownNode`],
    /// [`Error::NotMapped`], [`Error::NotPinned`] with the first page that is not pinned on
    /// `node`.
    pub fn unpin(&self, addr: VirtAddr, len_bytes: u64, node: NodeId) -> Result<()> {
        let range = PageRange::covering(addr, len_bytes)?;
        self.check_node(node)?;
        // What is pinned stays pinned between the look and the deed.
        let _setup = self.set_up();
        self.check_mapped(range)?;
        for (page, entry) in self.table.entries(range) {
            if self.pin_of(&entry.lock()).is_none_or(|(frame, _)| frame.node != node) {
                return Err(Error::NotPinned { addr: page.start(), node });
            }
        }
        for (page, entry) in self.table.entries(range) {
            self.unpin_page(&mut entry.lock(), page);
        }
        Ok(())
    }

    fn unpin_page(&self, m: &mut Mapping, page: PageNr) {
        let Some((frame, _)) = self.pin_of(m) else { return };
        self.known_node(frame.node).unpin(frame.nr, 1);
        self.note_advised(m, page);
        // A fault may have failed because of the pin.
        self.unpoison(m, page);
    }

    /// How many frames of `node` programs may pin from now on; more than it has means all. What
    /// is pinned already stays pinned.
    ///
    /// # Errors
    /// [`Error::UnknownNode`].
    pub fn set_pin_limit(&self, node: NodeId, nr_frames: u32) -> Result<()> {
        let node = self.node(node)?;
        node.set_pin_limit(nr_frames.min(node.capacity()));
        Ok(())
    }

    /// How many more frames of `node` programs may pin.
    ///
    /// # Errors
    /// [`Error::UnknownNode`].
    pub fn pin_room(&self, node: NodeId) -> Result<u32> {
        let (pinned, limit) = self.node(node)?.pinned_and_limit();
        Ok(limit.saturating_sub(pinned))
    }

    /// The page's pinned frame, and how often it is pinned.
    pub(crate) fn pin_of(&self, m: &Mapping) -> Option<(Frame, u32)> {
        if !m.is_advised() {
            return None;
        }
        let pins = |c: Frame| (c, self.known_node(c.node).pins(c.nr));
        m.copies().map(pins).find(|&(_, pins)| pins > 0)
    }

    /// # Errors
    /// [`Error::PagePinned`] if the page is pinned on a node other than `node`.
    pub(crate) fn check_unpinned(
        &self,
        m: &Mapping,
        page: PageNr,
        node: Option<NodeId>,
    ) -> Result<()> {
        match self.pin_of(m) {
            Some((pinned, _)) if Some(pinned.node) != node => {
                Err(Error::PagePinned { addr: page.start(), node: pinned.node })
            }
            _ => Ok(()),
        }
    }

    /// `munmap`: pins end with the page.
    pub(crate) fn drop_pins(&self, m: &Mapping) {
        if let Some((frame, pins)) = self.pin_of(m) {
            self.known_node(frame.node).unpin(frame.nr, pins);
        }
    }

    /// The application has discarded the page behind the manager's back, and nobody maps it: it
    /// reads as zero. A pinned frame stays and is zeroed; if that fails its pins end.
    pub(crate) fn lose_contents(&self, m: &mut Mapping, page: PageNr) {
        // It has happened: nobody can keep it.
        let _ = self.ask(m, page, RemapCause::Discard, |_| true);
        let pinned = self.pin_of(m);
        let zeroed = pinned.filter(|&(frame, pins)| {
            let node = self.known_node(frame.node);
            let done = self.run(node, &[Op::Zero(frame)]);
            if done == Err(DriverError::Timeout) {
                node.distrust(frame.nr);
            }
            if done.is_err() {
                node.unpin(frame.nr, pins);
            }
            done.is_ok()
        });
        self.drop_copies(m, page, |c| zeroed.is_none_or(|(frame, _)| frame != c));
        if pinned.is_some() && zeroed.is_none() {
            self.note_advised(m, page);
        }
    }
}
