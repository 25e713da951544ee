//! Which work may still use a piece of free memory.

use crate::memory::Memory;
use crate::{Backend, Mark, Result, StreamId};

/// The last points, one a stream, before which work was submitted that may use a piece of memory.
/// Almost always one: that of the stream that freed it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fences {
    first: Option<(StreamId, Mark)>,
    #[expect(clippy::box_collection, reason = "a piece of memory must fit in a cache line")]
    more: Option<Box<Vec<(StreamId, Mark)>>>,
}

impl Fences {
    /// The points that `streams`, each named once, have come to.
    pub(crate) fn of<B: Backend>(
        memory: &mut Memory<B>,
        streams: impl IntoIterator<Item = StreamId>,
    ) -> Self {
        let mut fences = Self::default();
        for stream in streams {
            fences.add(stream, memory.mark(stream));
        }
        fences
    }

    fn iter(&self) -> impl Iterator<Item = (StreamId, Mark)> {
        self.first.iter().chain(self.more.iter().flat_map(|more| more.iter())).copied()
    }

    fn add(&mut self, stream: StreamId, mark: Mark) {
        let more = self.more.iter_mut().flat_map(|more| more.iter_mut());
        match self.first.iter_mut().chain(more).find(|(known, _)| *known == stream) {
            Some((_, known)) => *known = mark.max(*known),
            None => self.push(stream, mark),
        }
    }

    fn push(&mut self, stream: StreamId, mark: Mark) {
        match self.first {
            None => self.first = Some((stream, mark)),
            Some(_) => self.more.get_or_insert_default().push((stream, mark)),
        }
    }

    /// What has to be waited for if this piece of memory and another become one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (stream, mark) in other.iter() {
            self.add(stream, mark);
        }
    }

    /// Makes `user` wait for what may still use the memory, unless it runs before `user`'s next
    /// work anyway. A failure leaves the points as they were.
    pub(crate) fn order<B: Backend>(&self, memory: &mut Memory<B>, user: StreamId) -> Result<()> {
        for (stream, mark) in self.iter() {
            if stream != user && !memory.reached(stream, mark) {
                memory.order(user, stream, mark)?;
            }
        }
        Ok(())
    }

    /// Waits until nothing uses the memory any more.
    pub(crate) fn wait<B: Backend>(&self, memory: &mut Memory<B>) -> Result<()> {
        for (stream, mark) in self.iter() {
            if !memory.reached(stream, mark) {
                memory.wait(stream, mark)?;
            }
        }
        Ok(())
    }
}
