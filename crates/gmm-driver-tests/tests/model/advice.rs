//! Pins, attributes, and those who are told before frames go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use gmm_core::{
    Attribute, Attributes, Error, Frame, NodeId, PageNr, PageRange, Remap, RemapAnswer, RemapCause,
    RemapSubscriber, Space, Subscription,
};

use super::{Done, Model};

/// A pinned frame, and how often it is pinned.
#[derive(Clone, Copy)]
pub(super) struct Pin {
    pub(super) frame: Frame,
    count: u32,
}

/// What was advised about the pages.
#[derive(Default)]
pub(super) struct Advice {
    pub(super) pins: BTreeMap<PageNr, Pin>,
    /// Of each node that has another limit than usual.
    limits: BTreeMap<NodeId, u32>,
    attributes: BTreeMap<PageNr, Attributes>,
    watches: Vec<(Subscription, Arc<Watcher>, PageRange)>,
}

/// Writes down what it is told.
pub(super) struct Watcher {
    keeps: bool,
    told: Mutex<Vec<Remap>>,
}

impl RemapSubscriber for Watcher {
    fn before_remap(&self, remap: Remap) -> RemapAnswer {
        self.told.lock().expect("no panic").push(remap);
        if self.keeps { RemapAnswer::Keep } else { RemapAnswer::Proceed }
    }
}

impl Advice {
    /// The pages are unmapped.
    pub(super) fn forget(&mut self, range: PageRange) {
        self.pins.retain(|&page, _| !range.contains(page));
        self.attributes.retain(|&page, _| !range.contains(page));
    }

    /// Nothing is pinned or watched any more.
    pub(super) fn end(&mut self, space: &Space) -> Done {
        self.watches.clear();
        for (page, pin) in core::mem::take(&mut self.pins) {
            for _ in 0..pin.count {
                let unpinned = space.unpin(page.start(), 1, pin.frame.node);
                unpinned.map_err(|e| format!("the last unpin of {page:?}: {e}"))?;
            }
        }
        Ok(())
    }

    fn watchers(&self, page: PageNr) -> impl Iterator<Item = &Arc<Watcher>> {
        self.watches.iter().filter(move |w| w.2.contains(page)).map(|w| &w.1)
    }

    pub(super) fn is_kept(&self, page: PageNr) -> bool {
        self.watchers(page).any(|watcher| watcher.keeps)
    }
}

impl Model {
    fn copies(&self, page: PageNr) -> Vec<Frame> {
        self.world.space.inspect(page.start()).map(|info| info.copies).unwrap_or_default()
    }

    pub(super) fn copy_on(&self, page: PageNr, node: NodeId) -> Option<Frame> {
        self.copies(page).into_iter().find(|c| c.node == node)
    }

    /// Where the pages that someone watches have copies.
    pub(super) fn watched_frames(&self) -> Vec<(PageNr, Frame)> {
        let watched = self.pages.keys().filter(|&&p| self.advice.watchers(p).next().is_some());
        watched.flat_map(|&page| self.copies(page).into_iter().map(move |c| (page, c))).collect()
    }

    pub(super) fn pin(&mut self, page: usize, nr_pages: u64, node: usize) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let node = NodeId(node as u8);
        let of_node = self.advice.pins.values().filter(|pin| pin.frame.node == node).count();
        let new = range.pages().filter(|page| !self.advice.pins.contains_key(page)).count();
        let elsewhere = range
            .pages()
            .any(|page| self.advice.pins.get(&page).is_some_and(|pin| pin.frame.node != node));
        let capacity = self.world.space.snapshot().nodes[usize::from(node.0)].capacity_frames;
        let usual = capacity * self.world.space.config().pin_limit_percent / 100;
        let limit = self.advice.limits.get(&node).map_or(usual, |&limit| limit.min(capacity));
        let too_many = (of_node + new) as u32 > limit;
        let result = self.world.space.pin(range.start.start(), range.len_bytes(), node);
        match result {
            Err(Error::PinLimit { node: at, limit: l, .. }) if too_many => {
                if (at, l) == (node, limit) { Ok(()) } else { Err(format!("{result:?}")) }
            }
            Ok(()) if too_many || elsewhere => Err(format!("pinned {range} on {node}")),
            Ok(()) => {
                for page in range.pages() {
                    let frame = self.copy_on(page, node).ok_or("pinned where it is not")?;
                    self.advice.pins.entry(page).or_insert(Pin { frame, count: 0 }).count += 1;
                }
                Ok(())
            }
            Err(error) if self.excused(error) => Ok(()),
            Err(error) => {
                Err(format!("pin of {range} on {node}: {error}; limit {limit}, {of_node} + {new}"))
            }
        }
    }

    pub(super) fn unpin(&mut self, page: usize, nr_pages: u64, node: usize) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let node = NodeId(node as u8);
        let is_pinned =
            |page| self.advice.pins.get(&page).is_some_and(|pin| pin.frame.node == node);
        let unpinned = range.pages().find(|&page| !is_pinned(page));
        let result = self.world.space.unpin(range.start.start(), range.len_bytes(), node);
        match (result, unpinned) {
            (Err(Error::NotPinned { addr, .. }), Some(page)) if addr.page() == page => Ok(()),
            (Ok(()), None) => {
                for page in range.pages() {
                    if let Some(pin) = self.advice.pins.get_mut(&page) {
                        pin.count -= 1;
                    }
                }
                self.advice.pins.retain(|_, pin| pin.count > 0);
                Ok(())
            }
            (result, _) => Err(format!("unpin of {range} on {node}: {result:?}, {unpinned:?}")),
        }
    }

    pub(super) fn set_pin_limit(&mut self, node: usize, nr_frames: u32) -> Done {
        let node = NodeId(node as u8);
        self.advice.limits.insert(node, nr_frames);
        self.world.space.set_pin_limit(node, nr_frames).map_err(|e| format!("pin limit: {e}"))
    }

    pub(super) fn advise(&mut self, page: usize, nr_pages: u64, attribute: Attribute) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let (addr, len) = (range.start.start(), range.len_bytes());
        let result = self.world.space.set_attribute(addr, len, attribute);
        result.map_err(|e| format!("{attribute:?} of {range}: {e}"))?;
        for page in range.pages() {
            let of_page = self.advice.attributes.entry(page).or_default();
            match attribute {
                Attribute::ReadMostly(is) => of_page.read_mostly = is,
                Attribute::Preferred(node) => of_page.preferred = node,
                Attribute::AccessedBy(node, is) => of_page.accessed_by.set(node, is),
            }
        }
        Ok(())
    }

    pub(super) fn watch(&mut self, page: usize, nr_pages: u64, keeps: bool) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        if self.advice.watches.len() < 2 {
            let watcher = Arc::new(Watcher { keeps, told: Mutex::default() });
            let subscription = self.world.space.subscribe(range, watcher.clone());
            let subscription = subscription.map_err(|e| format!("subscribe to {range}: {e}"))?;
            self.advice.watches.push((subscription, watcher, range));
        }
        Ok(())
    }

    pub(super) fn unwatch(&mut self) {
        if !self.advice.watches.is_empty() {
            self.advice.watches.remove(0);
        }
    }

    /// After an operation: what was pinned has not moved, what was advised can be read back, and
    /// of frames that went those who watch were told. `before`: [`Model::watched_frames`].
    pub(super) fn check_advice(&mut self, before: &[(PageNr, Frame)]) -> Done {
        for (&page, pin) in &self.advice.pins {
            let frame = self.copy_on(page, pin.frame.node);
            if frame != Some(pin.frame) {
                return Err(format!("{page:?} was pinned in {:?}, not {frame:?}", pin.frame));
            }
        }
        for &page in self.pages.keys() {
            let mut wanted = self.advice.attributes.get(&page).copied().unwrap_or_default();
            let pin = self.advice.pins.get(&page);
            wanted.pinned = pin.map(|pin| (pin.frame.node, pin.count));
            let seen = self.world.space.attributes(PageRange { start: page, nr_pages: 1 });
            let seen = seen.map_err(|e| format!("attributes of {page:?}: {e}"))?;
            let seen = seen.first().map(|(_, of)| *of).unwrap_or_default();
            if seen != wanted {
                return Err(format!("attributes of {page:?}: {seen:?}, not {wanted:?}"));
            }
        }
        for &(page, frame) in before.iter().filter(|(page, c)| !self.copies(*page).contains(c)) {
            for watcher in self.advice.watchers(page) {
                let told = watcher.told.lock().expect("no panic");
                let about = told.iter().filter(|r| (r.page, r.from) == (page, frame));
                let causes: Vec<RemapCause> = about.map(|r| r.cause).collect();
                if causes.is_empty() {
                    return Err(format!("{frame:?} of {page:?} went, and nobody was told"));
                }
                let must = |c: &RemapCause| matches!(c, RemapCause::Discard | RemapCause::Unmap);
                if watcher.keeps && !causes.iter().any(must) {
                    return Err(format!("{frame:?} of {page:?} was to be kept: {causes:?}"));
                }
            }
        }
        for (_, watcher, _) in &self.advice.watches {
            watcher.told.lock().expect("no panic").clear();
        }
        // Who maps these addresses next is not watched.
        let pages = &self.pages;
        self.advice.watches.retain(|w| w.2.pages().all(|page| pages.contains_key(&page)));
        Ok(())
    }
}
