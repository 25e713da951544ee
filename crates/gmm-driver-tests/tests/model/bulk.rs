//! Prefetches, some of which are begun long before they are done, and copies.

use gmm_core::driver::Protection;
use gmm_core::{Error, NodeId, PageRange, Prefetched, Stopped, VirtAddr};
use gmm_driver_tests::array::{FRAME_BYTES, FRAME_WORDS, byte_offset};

use super::{Done, Life, Model};

impl Model {
    pub(super) fn prefetch(&mut self, page: usize, nr_pages: u64, node: usize) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        let node = NodeId(node as u8);
        let result = self.world.space.prefetch(range.start.start(), range.len_bytes(), node);
        self.check_prefetched(range, node, result, false)
    }

    pub(super) fn begin_prefetch(&mut self, page: usize, nr_pages: u64, node: usize) -> Done {
        let Some(range) = self.run(page, nr_pages) else { return Ok(()) };
        if self.prefetches.len() < 2 {
            let node = NodeId(node as u8);
            let (addr, len) = (range.start.start(), range.len_bytes());
            let job = self.world.space.begin_prefetch(addr, len, node);
            let job = job.map_err(|e| format!("prefetch of {range} to {node}: {e}"))?;
            self.prefetches.push((job, range, node));
        }
        Ok(())
    }

    /// The pages may be gone by now, or others.
    pub(super) fn end_prefetch(&mut self, cancel: bool) -> Done {
        if self.prefetches.is_empty() {
            return Ok(());
        }
        let (job, range, node) = self.prefetches.remove(0);
        if cancel {
            job.cancel();
        }
        self.world.space.work_on(&job);
        let is_gone = range.pages().any(|page| !self.pages.contains_key(&page));
        self.check_prefetched(range, node, job.outcome(), cancel || is_gone)
    }

    fn check_prefetched(
        &self,
        range: PageRange,
        node: NodeId,
        result: Result<Prefetched, Error>,
        may_cancel: bool,
    ) -> Done {
        let all_are_there = || range.pages().all(|page| self.copy_on(page, node).is_some());
        let is_right = match result {
            Ok(Prefetched { brought, resident, left, stopped, .. }) => {
                brought + resident + left == range.nr_pages
                    && match stopped {
                        None => left == 0 && all_are_there(),
                        Some(Stopped::NoRoom(_)) => true,
                        Some(stopped) => may_cancel && stopped == Stopped::Cancelled,
                    }
            }
            Err(error) => self.excused(error),
        };
        if is_right { Ok(()) } else { Err(format!("prefetch of {range} to {node}: {result:?}")) }
    }

    pub(super) fn memcpy(
        &mut self,
        (dst, dst_offset): (usize, u64),
        (src, src_offset): (usize, u64),
        len: u64,
        node: usize,
    ) -> Done {
        let (Some(to), Some(from)) = (self.run(dst, 4), self.run(src, 4)) else { return Ok(()) };
        let (dst, src) = (to.start.start().0 + dst_offset, from.start.start().0 + src_offset);
        let len = len.min(to.end().start().0 - dst).min(from.end().start().0 - src);
        let node = NodeId(node as u8);
        let to = PageRange::covering(VirtAddr(dst), len).map_err(|e| e.to_string())?;
        let overlaps = dst < src + len && src < dst + len;
        let is_read_only = |page| self.pages[&page].protection == Protection::ReadOnly;
        let is_refused = overlaps || to.pages().any(is_read_only);
        let result = self.world.space.memcpy(VirtAddr(dst), VirtAddr(src), len, node);
        let what = || format!("copy of {len} bytes from {src:#x} to {dst:#x} on {node}");
        match result {
            Err(Error::Overlap { .. }) if overlaps => Ok(()),
            Err(Error::Protection { .. }) if is_refused => Ok(()),
            Ok(()) if !is_refused => {
                self.set_bytes(dst, Some(src), len);
                match to.nr_pages {
                    1 => self.check_arrived(to, node).map_err(|e| format!("{}: {e}", what())),
                    _ => Ok(()),
                }
            }
            Err(error) if !is_refused && self.excused(error) => {
                self.set_bytes(dst, None, len);
                Ok(())
            }
            result => Err(format!("{}: {result:?}", what())),
        }
    }

    /// A page that was copied to is on the node alone, and mapped by those who can.
    fn check_arrived(&self, page: PageRange, node: NodeId) -> Done {
        let info = self.world.space.inspect(page.start.start()).ok_or("not mapped")?;
        let is_here = info.copies.len() == 1 && info.copies[0].node == node;
        // Beside the CPU nobody can map a frame that it has mapped.
        let nr_mappers = if node == NodeId::HOST { 1 } else { self.life.len() };
        let on_node = |&who: &usize| self.world.node(who) == node;
        let mut mappers = (0..self.life.len()).filter(on_node).take(nr_mappers);
        let maps = |who: usize| {
            self.life[who] != Life::Attached || self.world.processors[who].context.maps(page.start)
        };
        if is_here && mappers.all(maps) { Ok(()) } else { Err(format!("arrived as {info:?}")) }
    }

    /// The bytes of `dst .. dst + len` are those from `src` on now, or without a source anything.
    fn set_bytes(&mut self, dst: u64, src: Option<u64>, len: u64) {
        let before = self.pages.clone();
        // A byte, and its bits that may be anything. Most bytes of a page do not exist.
        let byte_at = |addr: u64| {
            let page = VirtAddr(addr).page();
            let exists = |&byte: &usize| page.start().0 + byte_offset(byte) == addr;
            let byte = (0..FRAME_BYTES).find(exists);
            byte.map_or((0, 0), |byte| {
                (byte_of(&before[&page].words, byte), byte_of(&before[&page].unknown, byte))
            })
        };
        for (page, to) in &mut self.pages {
            for byte in 0..FRAME_BYTES {
                let addr = page.start().0 + byte_offset(byte);
                if (dst..dst + len).contains(&addr) {
                    let (value, unknown) = src.map_or((0, 0xff), |src| byte_at(src + (addr - dst)));
                    set_byte(&mut to.words, byte, value);
                    set_byte(&mut to.unknown, byte, unknown);
                }
            }
        }
    }
}

fn byte_of(words: &[u64; FRAME_WORDS], byte: usize) -> u8 {
    words[byte / 8].to_le_bytes()[byte % 8]
}

fn set_byte(words: &mut [u64; FRAME_WORDS], byte: usize, value: u8) {
    let mut bytes = words[byte / 8].to_le_bytes();
    bytes[byte % 8] = value;
    words[byte / 8] = u64::from_le_bytes(bytes);
}
