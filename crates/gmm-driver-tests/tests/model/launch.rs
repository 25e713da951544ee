//! Contexts that come, go and die, and launches, which hold what they use.

use gmm_core::driver::Access;
use gmm_core::{Error, Hold, NodeId, PageRange};
use gmm_driver_tests::World;
use gmm_driver_tests::array::FRAME_WORDS;

use super::{Done, Life, Model};

impl Model {
    pub(super) fn attach(&mut self, xpu: usize, node: usize) -> Done {
        if self.life.len() < 12 {
            self.world.attach(xpu, node).map_err(|e| format!("attach: {e}"))?;
            self.life.push(Life::Attached);
        }
        Ok(())
    }

    pub(super) fn detach(&mut self, who: usize) {
        let who = who % self.life.len();
        if who > 0 {
            let dead = self.life[who] == Life::Dead;
            self.world.space.detach(&self.world.processors[who].processor);
            self.life[who] = if dead { Life::Dead } else { Life::Detached };
        }
    }

    /// `detach`: what a driver's watcher then does, sooner or later.
    pub(super) fn kill(&mut self, who: usize, detach: bool) {
        let who = who % self.life.len();
        if who > 0 && self.life[who] == Life::Attached {
            self.world.processors[who].context.kill();
            self.life[who] = Life::Dead;
            if detach {
                self.detach(who);
            }
        }
    }

    pub(super) fn hold(&mut self, who: usize, page: usize, nr_pages: u64, write: bool) -> Done {
        let who = who % self.life.len();
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        if self.holds.len() == 2 {
            return Ok(());
        }
        let access = if write { Access::Write } else { Access::Read };
        if let Some(hold) = self.begin(who, range, access)? {
            self.holds.push((hold, who, range));
        }
        Ok(())
    }

    /// A launch that names a range, uses all of it, and ends.
    pub(super) fn launch(
        &mut self,
        who: usize,
        page: usize,
        nr_pages: u64,
        write: Option<u64>,
    ) -> Done {
        let who = who % self.life.len();
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let access = if write.is_some() { Access::Write } else { Access::Read };
        let Some(hold) = self.begin(who, range, access)? else { return Ok(()) };
        self.use_all(who, range, write)?;
        drop(hold);
        Ok(())
    }

    /// Accesses to a word of each page in turn.
    pub(super) fn use_all(&mut self, who: usize, range: PageRange, write: Option<u64>) -> Done {
        let access = if write.is_some() { Access::Write } else { Access::Read };
        for page in range.pages() {
            let index = self.pages.keys().position(|&p| p == page).ok_or("a page of the model")?;
            let word = page.0 % FRAME_WORDS as u64;
            self.access(who, index, word, access, |old| write.unwrap_or(old))?;
        }
        Ok(())
    }

    /// Holds a range for a launch; without it if something may be in the way.
    fn begin(
        &mut self,
        who: usize,
        range: PageRange,
        access: Access,
    ) -> Result<Option<Hold>, String> {
        let (node, life) = (self.world.node(who), self.life[who]);
        let processor = self.world.processors[who].processor.clone();
        let nodes = self.world.space.snapshot().nodes;
        let capacity = u64::from(nodes[usize::from(node.0)].capacity_frames);
        match self.world.space.hold(&processor, &[range], access) {
            Ok(_) if life == Life::Detached => Err(format!("{who} is gone and holds {range}")),
            Ok(_) if range.nr_pages > capacity => {
                Err(format!("{who} holds {range} in {capacity} frames"))
            }
            Ok(hold) => Ok(Some(hold)),
            Err(_) if life != Life::Attached => Ok(None),
            Err(Error::HoldTooLarge { node: at, capacity: frames, asked })
                if range.nr_pages > capacity =>
            {
                let is_clear = (at, u64::from(frames), asked) == (node, capacity, range.nr_pages);
                if is_clear { Ok(None) } else { Err(format!("{asked} of {frames} on {at}")) }
            }
            Err(error) if range.nr_pages > capacity => Err(format!("too much, but: {error}")),
            Err(error) if self.excused(error) => Ok(None),
            Err(error) => Err(format!("hold of {range} by {who}: {error}")),
        }
    }

    /// A device wants frames back; it may hand them over again later.
    pub(super) fn withdraw(&self, node: usize, nr_frames: u32) -> Done {
        let node = NodeId(node as u8);
        let result = self.world.space.withdraw(node, nr_frames);
        let given = result.map_err(|e| format!("withdraw from {node}: {e}"))?;
        if given > nr_frames { Err(format!("{given} of {nr_frames} frames")) } else { Ok(()) }
    }

    /// Pages are pushed out by hand: of an XPU's node, all that are not held can go.
    pub(super) fn evict(&self, node: usize, nr_pages: u32) -> Done {
        let resident = || self.world.space.snapshot().nodes[node].resident_frames;
        let node = NodeId(node as u8);
        let before = resident();
        let evicted = self.world.space.evict(node, nr_pages);
        let evicted = evicted.map_err(|e| format!("evict from {node}: {e}"))?;
        let stays = (self.held_on(node) + self.kept_on(node)) as u32;
        let can_go = before.saturating_sub(stays);
        if resident() + evicted != before {
            return Err(format!("{before} pages, {evicted} evicted, {} are left", resident()));
        }
        let is_enough = node == NodeId::HOST || evicted >= nr_pages.min(can_go);
        if is_enough { Ok(()) } else { Err(format!("{evicted} of {can_go} pages evicted")) }
    }

    /// Frees frames up to the watermark, if the node is large enough to have one.
    pub(super) fn reclaim(&self, node: usize) -> Done {
        let resident = |w: &World| w.space.snapshot().nodes[node].resident_frames;
        let before = resident(&self.world);
        let done = self.world.space.reclaim_now(NodeId(node as u8));
        done.map_err(|e| format!("reclaim on {node}: {e}"))?;
        let after = resident(&self.world);
        if after <= before { Ok(()) } else { Err(format!("{before} pages, then {after}")) }
    }

    pub(super) fn launder(&self, node: usize) -> Done {
        let copied = |w: &World| w.space.snapshot().nodes[0].resident_frames;
        let (before, node) = (copied(&self.world), NodeId(node as u8));
        let laundered = self.world.space.launder(node).map_err(|e| format!("launder: {e}"))?;
        let more = copied(&self.world) - before;
        if more == laundered { Ok(()) } else { Err(format!("{laundered} laundered, {more} came")) }
    }
}
