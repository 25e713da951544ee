//! The story in sentences.

use gmm::display_bytes;
use gmm_alloc::Cause;
use gmm_trace::{Gaps, Sites};

use super::advice::{Advice, Tried};
use super::holders::{Holder, Origin, frame_text, telling_frame};
use super::record::Record;
use super::recorded::Failure;
use super::story::{Moment, Story};

/// How many failures are told; programs that catch the error try again and again.
const MOST_FAILURES: usize = 3;

/// What went wrong: paragraphs.
pub(super) fn what_went_wrong(story: &Story, nr_events: usize, records: &[Record]) -> Vec<String> {
    let mut told: Vec<String> = story
        .failures
        .iter()
        .take(MOST_FAILURES)
        .map(|failure| recorded_failure(failure, nr_events))
        .collect();
    if let Some(more) = story.failures.len().checked_sub(MOST_FAILURES).filter(|&more| more > 0) {
        told.push(format!("{more} more requests failed after that."));
    }
    told.extend(records.iter().filter_map(replayed_failure));
    if told.is_empty() {
        told.extend(records.iter().find(|record| record.allocator == story.leading).map(waste));
    }
    told.extend(holes(story.gaps));
    told
}

/// What of the recording does not fit together.
fn holes(gaps: Gaps) -> Option<String> {
    let found = [
        (gaps.allocated_over, "allocations where a block was alive, which was taken for freed"),
        (gaps.freed_again, "frees of what was free, left out"),
        (gaps.alive_after_free, "blocks in use at the end that had been freed, left out"),
        (gaps.missing_at_end, "blocks that were never freed and are not in use at the end, kept"),
        (gaps.unknown_events, "events of kinds that are not known, left out"),
    ];
    let found = found.into_iter().filter(|(nr, _)| *nr > 0);
    let list = found.map(|(nr, what)| format!("{nr} {what}")).collect::<Vec<_>>().join("; ");
    (!list.is_empty()).then(|| {
        format!("The recording does not fit together: {list}. So all of this is of what is left.")
    })
}

fn recorded_failure(failure: &Failure, nr_events: usize) -> String {
    let size = display_bytes;
    let card = match failure.card_bytes() {
        Some(card) => format!("the card had {} for this program", size(card)),
        None => format!("the program had {} of its card", size(failure.reserved_bytes)),
    };
    let device_free = failure.request.device_free_bytes.unwrap_or(0);
    let begins = format!(
        "The program ran out of memory at event {} of {nr_events}: a request for {} on stream {} \
         failed.",
        failure.event,
        size(failure.request.size_bytes),
        failure.request.stream
    );
    if !failure.knows_segments() {
        return format!(
            "{begins} {} were live, the request made it {}. What the program had of its card the \
             recording does not say: --capacity does.",
            size(failure.live_bytes),
            size(failure.needed_bytes()),
        );
    }
    match failure.cause {
        Cause::Exhausted => format!(
            "{begins} Memory was exhausted: {} were live, the request made it {}, and {card}. No \
             allocator has room for that: {} were free in all.",
            size(failure.live_bytes),
            size(failure.needed_bytes()),
            size(failure.free_bytes + device_free),
        ),
        Cause::Fragmented => format!(
            "{begins} Memory was fragmented, not full: {} were free in all ({} in reserved memory, \
             {} of the device), but the largest hole had {}. {} were live, the request made it {}, \
             and {card}.",
            size(failure.free_bytes + device_free),
            size(failure.free_bytes),
            size(device_free),
            size(failure.largest_hole_bytes.max(device_free)),
            size(failure.live_bytes),
            size(failure.needed_bytes()),
        ),
    }
}

/// One that ran out: when, and why.
pub(super) fn replayed_failure(record: &Record) -> Option<String> {
    let (at, why) = (record.out_of_memory_at?, record.out_of_memory.as_ref()?);
    Some(format!(
        "{} runs out of {} at operation {at} of {}: {} on stream {} do not fit, memory is {} ({} \
         free, the largest hole has {}; {} live, {} reserved).",
        record.allocator,
        display_bytes(record.capacity_bytes),
        record.operations,
        display_bytes(why.requested_bytes),
        why.stream,
        why.cause,
        display_bytes(why.free_bytes),
        display_bytes(why.largest_hole_bytes),
        display_bytes(why.live_bytes),
        display_bytes(why.reserved_bytes),
    ))
}

fn waste(record: &Record) -> String {
    let (live, reserved) = (record.peak_live_bytes, record.peak_reserved_bytes);
    if live == 0 {
        return "Nothing failed, and no memory was asked for.".into();
    }
    format!(
        "Nothing failed. At most {} were live, and {} reserved {} for it, {:.0}% more: for holes \
         that no request fitted in, idle segments and rounding.",
        display_bytes(live),
        record.allocator,
        display_bytes(reserved),
        (reserved as f64 / live.max(1) as f64 - 1.0) * 100.0,
    )
}

/// What would have helped: paragraphs.
pub(super) fn what_to_do(advice: &Advice) -> Vec<String> {
    let size = display_bytes;
    let mut told = Vec::new();
    let Some(before) = advice.as_it_was() else { return told };
    let least = |tried: &Tried| {
        tried.min_capacity_bytes.map_or("more than there is for replays".into(), size)
    };
    match advice.capacity_bytes {
        Some(capacity) => {
            if advice.needed_bytes > capacity {
                told.push(format!(
                    "{} are needed at once, {} more than there are: only less live memory at this \
                     point (smaller batches, recomputation, offloading) or a larger device helps.",
                    size(advice.needed_bytes),
                    size(advice.needed_bytes - capacity)
                ));
            }
            let (fit, not): (Vec<&Tried>, Vec<&Tried>) =
                settings(advice).partition(|tried| tried.fits == Some(true));
            if !fit.is_empty() {
                let one = |tried: &&Tried| format!("{} (needs {})", name(tried), least(tried));
                let list = fit.iter().map(one).collect::<Vec<_>>().join(", ");
                told.push(format!("Fits on {}: {list}.", size(capacity)));
            }
            let needs = || not.iter().filter_map(|tried| tried.min_capacity_bytes);
            if let Some((low, high)) = needs().min().zip(needs().max()) {
                let upto = if low == high { String::new() } else { format!(" to {}", size(high)) };
                told.push(format!(
                    "Of PyTorch's settings that were tried {} of {} do not fit on {}: they need \
                     {}{upto}.",
                    not.len(),
                    not.len() + fit.len(),
                    size(capacity),
                    size(low),
                ));
            }
        }
        None => told.push(match advice.best_setting() {
            Some(best) => format!(
                "As it ran, it needs a device of {}. Of the settings tried, \
                 PYTORCH_CUDA_ALLOC_CONF={} helps most: {}.",
                least(before),
                best.setting,
                least(best)
            ),
            None => format!(
                "As it ran, it needs a device of {}. No setting that was tried needs less.",
                least(before)
            ),
        }),
    }
    if let Some(bytes) = advice.stitching().and_then(|stitching| stitching.min_capacity_bytes) {
        told.push(format!(
            "The stitching allocator needs {} ({:.3} times what must live).",
            size(bytes),
            bytes as f64 / advice.needed_bytes.max(1) as f64
        ));
    }
    told
}

/// Those of PyTorch's allocator.
pub(super) fn settings(advice: &Advice) -> impl Iterator<Item = &Tried> {
    advice.tried.iter().filter(|tried| tried.allocator == "pytorch")
}

/// What was tried, in short.
pub(super) fn name(tried: &Tried) -> &str {
    match (tried.allocator, tried.setting.as_str()) {
        ("pytorch", "") => "PyTorch's defaults",
        ("pytorch", setting) => setting,
        (allocator, _) => allocator,
    }
}

/// When the look was taken.
pub(super) fn moment(story: &Story) -> String {
    let at = story.nr_operations;
    match story.moment {
        Moment::RecordedFailure => format!("when memory ran out (after operation {at})"),
        Moment::ReplayedFailure => format!("when the replay ran out (after operation {at})"),
        Moment::Peak => format!("when most was reserved (after operation {at})"),
    }
}

/// Who holds memory: what, and from where.
pub(super) fn holder(holder: &Holder, sites: &Sites) -> String {
    match holder.origin {
        Origin::Site(site) => {
            telling_frame(sites, site).map_or("an empty stack".into(), frame_text)
        }
        Origin::Size { size_bytes, stream } => {
            format!("blocks of {} on stream {stream}", display_bytes(size_bytes))
        }
    }
}
