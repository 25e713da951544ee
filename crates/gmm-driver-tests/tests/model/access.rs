//! Accesses by processors, with and without replayable faults.

use gmm_core::driver::{Access, Capabilities, Protection};
use gmm_core::{Error, PageRange, Resolved, VirtAddr};
use gmm_driver_tests::array::AccessError;
use gmm_driver_tests::word;

use super::{Done, Life, Model};

impl Model {
    pub(super) fn access(
        &mut self,
        who: usize,
        page: usize,
        at: u64,
        access: Access,
        change: impl Fn(u64) -> u64,
    ) -> Done {
        let who = who % self.world.processors.len();
        let Some(page) = self.page(page) else { return Ok(()) };
        let expected = self.pages[&page];
        let read_only = expected.protection == Protection::ReadOnly;
        // A processor without read-only mappings can't be kept from writing what it may read.
        let access = if read_only && !self.maps_read_only(who) { Access::Read } else { access };
        let (processor, addr) = (self.world.processors[who].clone(), word(page, at));
        let (old, unknown) = (expected.words[at as usize], expected.unknown[at as usize]);
        let change_by = change(old).wrapping_sub(old);
        let attempt = || match access {
            Access::Read => processor.load(addr),
            // A load and a store are one access where nobody else is about.
            Access::Write => processor.add(addr, change_by),
        };
        let mut result = attempt();
        if result == Err(AccessError::Poisoned) && self.failed.contains(&page) {
            match self.world.heal(who, addr) {
                Ok(()) => result = attempt(),
                Err(error) if self.excused(error) => return Ok(()),
                Err(error) => return Err(format!("healing {page:?} for {who}: {error}")),
            }
        }
        let life = self.life[who];
        // What can't wait for its faults is a launch that names the page.
        let mut held = None;
        if result == Err(AccessError::Unserved) && !self.can_replay(who) {
            let range = PageRange { start: page, nr_pages: 1 };
            match self.world.space.hold(&processor.processor, &[range], access) {
                Ok(hold) => {
                    held = Some(hold);
                    result = attempt();
                }
                Err(error) if self.excused(error) => return Ok(()),
                Err(error) => result = Err(error.into()),
            }
        }
        self.world.space.look_ahead(&processor.processor);
        match result {
            Ok(_) if read_only && access == Access::Write => {
                Err(format!("processor {who} wrote to read-only {page:?}"))
            }
            Ok(_) if life != Life::Attached => Err(format!("{who} is gone and used {page:?}")),
            Ok(seen) if (seen ^ old) & !unknown != 0 => {
                Err(format!("processor {who} saw {seen:#x} at {addr}, not {old:#x}"))
            }
            Ok(seen) => {
                let p = self.pages.get_mut(&page).expect("the page that was used");
                let change_by = if access == Access::Write { change_by } else { 0 };
                p.words[at as usize] = seen.wrapping_add(change_by);
                p.unknown[at as usize] = 0;
                Ok(())
            }
            Err(AccessError::Fault(Error::Protection { .. }))
                if read_only && access == Access::Write =>
            {
                Ok(())
            }
            Err(AccessError::Dead) if life == Life::Dead => Ok(()),
            Err(AccessError::Fault(Error::NotAttached { .. })) if life == Life::Detached => Ok(()),
            Err(AccessError::Unserved)
                if held.is_some() && read_only && access == Access::Write =>
            {
                Ok(())
            }
            Err(AccessError::Held) if !self.holds.is_empty() => Ok(()),
            Err(AccessError::Fault(error)) if self.excused(error) => {
                self.failed.insert(page);
                Ok(())
            }
            Err(error) => Err(format!("{access:?} of {page:?} by processor {who}: {error}")),
        }
    }

    pub(super) fn capabilities(&self, who: usize) -> Capabilities {
        self.world.processors[who].context.capabilities()
    }

    pub(super) fn maps_read_only(&self, who: usize) -> bool {
        self.capabilities(who).contains(Capabilities::READ_ONLY_MAPPINGS)
    }

    pub(super) fn can_replay(&self, who: usize) -> bool {
        self.capabilities(who).contains(Capabilities::REPLAYABLE_FAULTS)
    }

    pub(super) fn wild(&mut self, who: usize) -> Done {
        let who = who % self.life.len();
        let end = self
            .pages
            .keys()
            .next_back()
            .map_or(self.world.space.config().window.start, |p| p.plus(3));
        let processor = &self.world.processors[who];
        for addr in [end.start(), VirtAddr(8), VirtAddr(u64::MAX - 7)] {
            let result = self.world.space.fault(&processor.processor, addr, Access::Write);
            match result {
                Err(Error::NotMapped { addr: a }) if a == addr => {}
                Err(Error::NotAttached { .. }) if self.life[who] != Life::Attached => {}
                Ok(Resolved::Entered | Resolved::AlreadyUsable | Resolved::Again) | Err(_) => {
                    return Err(format!("a wild access to {addr} by {who}: {result:?}"));
                }
            }
        }
        Ok(())
    }
}
