//! A live allocation, as its allocator remembers it.

use crate::StreamId;

/// What was asked for, and who may use it.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) requested_bytes: u64,
    /// The stream it was allocated on.
    pub(crate) stream: StreamId,
    /// Other streams that were said to use it; hardly ever any.
    #[expect(clippy::box_collection, reason = "a piece of memory must fit in a cache line")]
    uses: Option<Box<Vec<StreamId>>>,
}

impl Live {
    pub(crate) fn new(requested_bytes: u64, stream: StreamId) -> Self {
        Self { requested_bytes, stream, uses: None }
    }

    pub(crate) fn record_use(&mut self, stream: StreamId) {
        if stream != self.stream && !self.others().contains(&stream) {
            self.uses.get_or_insert_default().push(stream);
        }
    }

    fn others(&self) -> &[StreamId] {
        self.uses.as_ref().map_or(&[], |uses| uses)
    }

    /// The streams whose work may use the memory when it is freed on `freed_on`, each once.
    pub(crate) fn users(&self, freed_on: StreamId) -> impl Iterator<Item = StreamId> {
        let known = freed_on == self.stream || self.others().contains(&freed_on);
        let own = core::iter::once(self.stream);
        own.chain(self.others().iter().copied()).chain((!known).then_some(freed_on))
    }
}
