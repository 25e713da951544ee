//! What a device's recording and replays come to: what went wrong, who held the memory, what would
//! have helped.

use anyhow::Result;
use gmm_trace::{AllocatorSettings, Gaps, Trace};

use super::advice::{self, Advice};
use super::allocators::{Entry, Recipe};
use super::holders::{self, Holder};
use super::measure::ample_capacity;
use super::moment::{Picture, picture};
use super::program::{Failed, Program};
use super::record::Record;
use super::recorded::{self, Failure};

/// How many holders are told.
const MOST_HOLDERS: usize = 10;

/// Devices of the picture of the stitching allocator, if none is known: so much more than what
/// lives. It takes what it can get, so on a large one it would show memory that it does not need.
const PICTURED_CAPACITY: f64 = 1.02;

/// Where a look was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    /// Before a request that failed when it was recorded.
    RecordedFailure,
    /// Before a request that failed in the first replay.
    ReplayedFailure,
    /// When the first replay had reserved the most.
    Peak,
}

/// All of it.
pub(super) struct Story {
    /// The requests that failed when it was recorded.
    pub(super) failures: Vec<Failure>,
    /// What of the recording does not fit together.
    pub(super) gaps: Gaps,
    pub(super) moment: Moment,
    /// How many operations had been played at the moment.
    pub(super) nr_operations: usize,
    /// The largest, at the moment.
    pub(super) holders: Vec<Holder>,
    /// What the program could have had; none if that is not known.
    pub(super) card_bytes: Option<u64>,
    pub(super) advice: Option<Advice>,
    /// The allocator that is told of.
    pub(super) leading: &'static str,
    /// What it reserved at most.
    leading_reserved_bytes: u64,
}

/// Which replay is told of: that of the allocator that the program had, or PyTorch's, or the first.
pub(super) fn leading<'r>(
    records: &'r [Record],
    settings: Option<&AllocatorSettings>,
) -> Option<&'r Record> {
    let expandable = settings.is_some_and(|settings| settings.expandable_segments);
    let preferred = if expandable { "pytorch-expandable" } else { "pytorch" };
    let named = |name: &str| records.iter().find(|record| record.allocator == name);
    named(preferred).or_else(|| named("pytorch")).or(records.first())
}

impl Story {
    /// Without advice.
    pub(super) fn new(
        program: &Program<'_>,
        records: &[Record],
        settings: Option<&AllocatorSettings>,
        capacity: Option<u64>,
    ) -> Self {
        let failures = recorded::failures(program.recording);
        let leading = leading(records, settings);
        let (moment, nr_operations) = match (program.before_failures.last(), leading) {
            (Some(&before), _) if !failures.is_empty() => (Moment::RecordedFailure, before),
            (_, Some(Record { out_of_memory_at: Some(at), .. })) => {
                (Moment::ReplayedFailure, at - 1)
            }
            (_, leading) => (Moment::Peak, leading.map_or(0, |record| record.peak_reserved_at)),
        };
        let alive = program.alive_before(nr_operations);
        let holders = holders::largest(program.recording, &alive, MOST_HOLDERS);
        let card_bytes = capacity.or_else(|| failures.last().and_then(Failure::card_bytes));
        Self {
            failures,
            gaps: program.recording.gaps(),
            moment,
            nr_operations,
            holders,
            card_bytes,
            advice: None,
            leading: leading.map_or("", |record| record.allocator),
            leading_reserved_bytes: leading.map_or(0, |record| record.peak_reserved_bytes),
        }
    }

    /// Whether memory ran out, then or now.
    pub(super) fn ran_out(&self, records: &[Record]) -> bool {
        let replayed = records.iter().any(|record| record.out_of_memory_at.is_some());
        replayed || !self.failures.is_empty()
    }

    /// Whether memory ran out, or nearly.
    pub(super) fn is_tight(&self, program: &Program<'_>, records: &[Record]) -> bool {
        let recorded = program.recording.reserved_at_end_bytes();
        let reserved = self.leading_reserved_bytes.max(recorded);
        self.ran_out(records)
            || self.card_bytes.is_some_and(|card| advice::is_nearly_out(reserved, card))
    }

    /// Tries what the user could change.
    pub(super) fn advise(
        &mut self,
        program: &Program<'_>,
        trace: &Trace,
        progress: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let recording = program.recording;
        let needed = self.failures.iter().map(Failure::needed_bytes).max().unwrap_or(0);
        let needed = needed.max(recording.peak_live_bytes());
        let retried = Program::new(recording, Failed::Retried);
        let settings = trace.settings.as_ref();
        let ample = ample_capacity(needed);
        let advice = advice::advise(&retried, settings, needed, self.card_bytes, ample, progress)?;
        self.advice = Some(advice);
        Ok(())
    }

    /// What the allocator that is told of and the stitching one have at the moment.
    pub(super) fn pictures(&self, program: &Program<'_>) -> Result<Vec<(&'static str, Picture)>> {
        let peak = program.recording.peak_live_bytes();
        let ample = ample_capacity(peak);
        let small = (peak as f64 * PICTURED_CAPACITY) as u64;
        let wanted = [(self.leading, self.card_bytes.unwrap_or(ample)), ("stitching", small)];
        let wanted = wanted.into_iter().skip(usize::from(self.leading == "stitching"));
        let pictures = wanted.filter_map(|(name, capacity_bytes)| {
            let recipe = Recipe::Named(Entry::named(name)?);
            Some(picture(program, recipe, capacity_bytes, self.nr_operations).map(|it| (name, it)))
        });
        pictures.collect()
    }
}
