//! A back end without a device: frames are counted, page tables are an array, streams are
//! counters. What a replay of a trace needs, and what the tests hold the allocators to.

use std::collections::{BTreeMap, HashMap};

use gmm_core::{FrameNr, PageNr};

use crate::{Backend, BackendError, Mark, StreamId};

/// The first page that is ever reserved: an address that is 0 is never handed out.
const FIRST_PAGE: u64 = 1;

/// How many pages a part of the page table has.
const PART_PAGES: usize = 512;

/// An entry of the page table that maps nothing.
const UNMAPPED: u32 = u32::MAX;

/// Frames that are only counted. Calls that break the contract of [`Backend`] panic: mapping what
/// is mapped, releasing what was not imported, unmapping what work may still use.
///
/// A stream's work is made of what the allocator is told: each [`Backend::mark`] is one more piece
/// of work, which ends when `lag` more pieces were submitted to any stream, or when it is waited
/// for.
pub struct PureBackend {
    capacity_frames: u64,
    /// Frames below this were handed out before.
    next_frame: u32,
    /// Of these, those that came back.
    returned: Vec<FrameNr>,
    /// By frame number: whether it is mapped; none where it is not imported.
    mapped: Vec<Option<bool>>,
    /// By page number, from [`FIRST_PAGE`] on, in parts that are made when something is mapped there.
    page_table: Vec<Option<Box<[u32; PART_PAGES]>>>,
    /// Reservations that were given back: start and length, never adjoining.
    unreserved: BTreeMap<u64, u64>,
    next_page: u64,
    lag: u64,
    submitted: u64,
    streams: HashMap<StreamId, Stream>,
}

#[derive(Default)]
struct Stream {
    /// Every piece of work up to this one has been waited for.
    waited: u64,
}

impl PureBackend {
    /// A device with room for `capacity_frames` frames, whose work ends as soon as it is submitted.
    ///
    /// # Panics
    ///
    /// If there are more frames than frame numbers (2^32 - 1, 8 PiB).
    pub fn new(capacity_frames: u64) -> Self {
        assert!(capacity_frames < u64::from(UNMAPPED), "{capacity_frames} frames are too many");
        Self {
            capacity_frames,
            next_frame: 0,
            returned: Vec::new(),
            mapped: Vec::new(),
            page_table: Vec::new(),
            unreserved: BTreeMap::new(),
            next_page: FIRST_PAGE,
            lag: 0,
            submitted: 0,
            streams: HashMap::new(),
        }
    }

    /// The same with work that ends only when `lag` more pieces were submitted, or when it is
    /// waited for (`u64::MAX`: only then).
    #[must_use]
    pub fn with_lag(mut self, lag: u64) -> Self {
        self.lag = lag;
        self
    }

    /// The frame that is mapped at `page`.
    pub fn frame_at(&self, page: PageNr) -> Option<FrameNr> {
        let index = usize::try_from(page.0.checked_sub(FIRST_PAGE)?).ok()?;
        let entry = self.page_table.get(index / PART_PAGES)?.as_ref()?[index % PART_PAGES];
        (entry != UNMAPPED).then_some(FrameNr(entry))
    }

    /// How many frames are handed out.
    pub fn nr_imported(&self) -> u64 {
        u64::from(self.next_frame) - self.returned.len() as u64
    }

    fn entry(&mut self, page: u64) -> &mut u32 {
        assert!((FIRST_PAGE..self.next_page).contains(&page), "page {page} was never reserved");
        let index = (page - FIRST_PAGE) as usize;
        let part = index / PART_PAGES;
        if part >= self.page_table.len() {
            self.page_table.resize(part + 1, None);
        }
        let part = self.page_table[part].get_or_insert_with(|| Box::new([UNMAPPED; PART_PAGES]));
        &mut part[index % PART_PAGES]
    }

    fn state(&mut self, frame: FrameNr) -> &mut bool {
        let state = self.mapped.get_mut(frame.0 as usize).and_then(Option::as_mut);
        state.unwrap_or_else(|| panic!("frame {} is not imported", frame.0))
    }
}

impl Backend for PureBackend {
    fn capacity_frames(&self) -> u64 {
        self.capacity_frames
    }

    fn reserve(&mut self, nr_pages: u64) -> Result<PageNr, BackendError> {
        let fits = self.unreserved.iter().find(|(_, len)| **len >= nr_pages);
        if let Some((&start, &len)) = fits {
            self.unreserved.remove(&start);
            if len > nr_pages {
                self.unreserved.insert(start + nr_pages, len - nr_pages);
            }
            return Ok(PageNr(start));
        }
        let start = self.next_page;
        let end = start.checked_add(nr_pages).filter(|end| *end <= u64::MAX >> 21);
        self.next_page = end.ok_or(BackendError::NoAddresses { nr_pages })?;
        Ok(PageNr(start))
    }

    fn unreserve(&mut self, at: PageNr, nr_pages: u64) {
        let (mut start, mut end) = (at.0, at.0 + nr_pages);
        for page in start..end.min(FIRST_PAGE + (self.page_table.len() * PART_PAGES) as u64) {
            assert!(self.frame_at(PageNr(page)).is_none(), "page {page} is still mapped");
        }
        if let Some(len) = self.unreserved.remove(&end) {
            end += len;
        }
        if let Some((&before, &len)) = self.unreserved.range(..start).next_back() {
            assert!(before + len <= start, "page {start} was not reserved");
            if before + len == start {
                self.unreserved.remove(&before);
                start = before;
            }
        }
        self.unreserved.insert(start, end - start);
    }

    fn import(&mut self, nr_frames: u64, frames: &mut Vec<FrameNr>) -> Result<(), BackendError> {
        let nr_frames = nr_frames.min(self.capacity_frames - self.nr_imported());
        for _ in 0..nr_frames {
            let frame = self.returned.pop().unwrap_or_else(|| {
                self.next_frame += 1;
                self.mapped.push(None);
                FrameNr(self.next_frame - 1)
            });
            self.mapped[frame.0 as usize] = Some(false);
            frames.push(frame);
        }
        Ok(())
    }

    fn release(&mut self, frames: &[FrameNr]) -> Result<(), BackendError> {
        for &frame in frames {
            assert!(!*self.state(frame), "frame {} is released and still mapped", frame.0);
            self.mapped[frame.0 as usize] = None;
            self.returned.push(frame);
        }
        Ok(())
    }

    fn map(&mut self, at: PageNr, frames: &[FrameNr]) -> Result<(), BackendError> {
        for (page, &frame) in (at.0..).zip(frames) {
            let mapped = std::mem::replace(self.state(frame), true);
            assert!(!mapped, "frame {} is mapped twice", frame.0);
            let before = std::mem::replace(self.entry(page), frame.0);
            assert!(before == UNMAPPED, "page {page} is mapped twice");
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        at: PageNr,
        nr_pages: u64,
        frames: &mut Vec<FrameNr>,
    ) -> Result<(), BackendError> {
        for page in at.0..at.0 + nr_pages {
            let frame = std::mem::replace(self.entry(page), UNMAPPED);
            assert!(frame != UNMAPPED, "page {page} is unmapped twice");
            *self.state(FrameNr(frame)) = false;
            frames.push(FrameNr(frame));
        }
        Ok(())
    }

    fn mark(&mut self, _stream: StreamId) -> Mark {
        self.submitted += 1;
        Mark(self.submitted)
    }

    fn reached(&mut self, stream: StreamId, mark: Mark) -> bool {
        mark.0.saturating_add(self.lag) <= self.submitted
            || self.streams.get(&stream).is_some_and(|stream| mark.0 <= stream.waited)
    }

    fn order(
        &mut self,
        waiter: StreamId,
        stream: StreamId,
        mark: Mark,
    ) -> Result<(), BackendError> {
        assert!(mark.0 <= self.submitted, "{waiter} waits for work that {stream} does not have");
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, mark: Mark) -> Result<(), BackendError> {
        assert!(mark.0 <= self.submitted, "waiting for work that {stream} does not have");
        let stream = self.streams.entry(stream).or_default();
        stream.waited = stream.waited.max(mark.0);
        Ok(())
    }
}
