//! Who holds memory: blocks that are alive, by the place in the program that allocated them.

use std::collections::HashMap;

use gmm_trace::{Block, Frame, Recording, SiteId, Sites};

/// By what blocks are put together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Origin {
    /// The stack that allocated them.
    Site(SiteId),
    /// Their size and stream, where no stack was recorded.
    Size { size_bytes: u64, stream: u64 },
}

/// Blocks of one origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) origin: Origin,
    pub(super) bytes: u64,
    pub(super) nr_blocks: usize,
}

/// What a block is put together with.
pub(super) fn origin(block: &Block) -> Origin {
    let by_size = Origin::Size { size_bytes: block.size_bytes, stream: block.stream };
    block.site.map_or(by_size, Origin::Site)
}

/// Those that hold the most of the blocks that are alive, the largest first.
pub(super) fn largest(recording: &Recording, alive: &[u32], most: usize) -> Vec<Holder> {
    let mut holders: HashMap<Origin, (u64, usize)> = HashMap::new();
    for &block in alive {
        let block = recording.blocks()[block as usize];
        let (bytes, nr) = holders.entry(origin(&block)).or_default();
        *bytes += block.size_bytes;
        *nr += 1;
    }
    let holder = |(origin, (bytes, nr_blocks))| Holder { origin, bytes, nr_blocks };
    let mut holders: Vec<Holder> = holders.into_iter().map(holder).collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.origin));
    holders.truncate(most);
    holders
}

/// The frame that says most about a stack: the innermost of Python, below which all is the
/// framework's machinery; else the innermost.
pub(super) fn telling_frame(sites: &Sites, site: SiteId) -> Option<Frame<'_>> {
    let python = sites.frames(site).find(|frame| frame.file.ends_with(".py"));
    python.or_else(|| sites.frames(site).next())
}

/// A frame in one line.
pub(super) fn frame_text(frame: Frame<'_>) -> String {
    match frame.line {
        0 => format!("{} ({})", frame.name, frame.file),
        line => format!("{} ({}:{line})", frame.name, frame.file),
    }
}

#[cfg(test)]
mod tests {
    use gmm_trace::{RecordingBuilder, Stamp};

    use super::*;

    fn frame<'f>(name: &'f str, file: &'f str) -> Frame<'f> {
        Frame { name, file, line: 7 }
    }

    #[test]
    fn the_largest_come_first_by_site_where_there_is_one() {
        let mut sites = Sites::default();
        let site = sites.add([frame("alloc", "a.cpp"), frame("forward", "model.py")]);
        let stamp = Stamp { time_us: None, site };
        let mut builder = RecordingBuilder::new(0, false);
        builder.allocate(1, 10, 0, stamp);
        builder.allocate(2, 20, 0, stamp);
        builder.allocate(3, 25, 4, Stamp::default());
        builder.allocate(4, 5, 0, Stamp::default());
        let recording = builder.finish(Vec::new());
        let site = site.unwrap();
        let holders = largest(&recording, &[0, 1, 2, 3], 2);
        let by_size = Origin::Size { size_bytes: 25, stream: 4 };
        let expected = [
            Holder { origin: Origin::Site(site), bytes: 30, nr_blocks: 2 },
            Holder { origin: by_size, bytes: 25, nr_blocks: 1 },
        ];
        assert_eq!(holders, expected);
        let telling = telling_frame(&sites, site).unwrap();
        assert_eq!(frame_text(telling), "forward (model.py:7)");
    }
}
