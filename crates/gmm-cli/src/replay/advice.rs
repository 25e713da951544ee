//! Advice that was tried: which settings of PyTorch's allocator, that a user can change today, would
//! have fitted, beside what the stitching allocator needs.

use anyhow::Result;
use gmm_alloc::CachingConfig;
use gmm_trace::AllocatorSettings;
use serde::Serialize;

use super::allocators::{Entry, Recipe};
use super::measure::{find_capacity, replay};
use super::program::Program;

/// What is tried, each alone and added to what the program had, in the words of
/// `PYTORCH_CUDA_ALLOC_CONF`.
const SETTINGS: [&str; 10] = [
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
];

/// How many replays are tried, each on devices of several sizes.
pub(super) const NR_TRIED: u64 = 2 + SETTINGS.len() as u64;

/// Reserved memory from this share of the capacity on is nearly out.
const NEARLY: f64 = 0.9;

/// What was tried on one recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Advice {
    /// The device that it is to fit on; none if that is not known.
    pub(super) capacity_bytes: Option<u64>,
    /// What an allocator that wastes nothing needs, the requests that failed included.
    pub(super) needed_bytes: u64,
    /// As the program ran first, then the settings, then `stitching`.
    pub(super) tried: Vec<Tried>,
}

/// One setting, or allocator.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Tried {
    /// The value of `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
    pub(super) setting: String,
    pub(super) allocator: &'static str,
    /// Whether it runs on the device; none if that is not known.
    pub(super) fits: Option<bool>,
    /// Where it does not, counted from 1.
    pub(super) out_of_memory_at: Option<usize>,
    pub(super) peak_reserved_bytes: u64,
    /// The smallest device that it runs on.
    pub(super) min_capacity_bytes: Option<u64>,
}

impl Advice {
    /// How it ran.
    pub(super) fn as_it_was(&self) -> Option<&Tried> {
        self.tried.first()
    }

    /// The settings, without what was there, that run on the smallest device; none if none needs
    /// less than what was there.
    pub(super) fn best_setting(&self) -> Option<&Tried> {
        let needs = |tried: &&Tried| tried.min_capacity_bytes.unwrap_or(u64::MAX);
        let settings = self.tried.iter().skip(1).filter(|tried| !tried.setting.is_empty());
        let best = settings.min_by_key(needs)?;
        (needs(&best) < self.as_it_was().as_ref().map_or(u64::MAX, needs)).then_some(best)
    }

    /// The stitching allocator.
    pub(super) fn stitching(&self) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.allocator == "stitching")
    }
}

/// What the program had, as text. What was given is not always what can be parsed here (it may name
/// another backend, or be of another version); then it is what the allocator made of it.
fn before(settings: &AllocatorSettings) -> String {
    if settings.conf.parse::<CachingConfig>().is_ok() {
        return settings.conf.clone();
    }
    let mut parts = Vec::new();
    if settings.expandable_segments {
        parts.push("expandable_segments:True".to_owned());
    }
    if let Some(bytes) = settings.max_split_size_bytes {
        parts.push(format!("max_split_size_mb:{}", bytes >> 20));
    }
    if settings.garbage_collection_threshold > 0.0 {
        let threshold = settings.garbage_collection_threshold;
        parts.push(format!("garbage_collection_threshold:{threshold}"));
    }
    parts.join(",")
}

/// Whether so much reserved memory is all of a device, or nearly.
pub(super) fn is_nearly_out(reserved_bytes: u64, capacity_bytes: u64) -> bool {
    reserved_bytes as f64 >= NEARLY * capacity_bytes as f64
}

/// Tries everything. `ample_bytes` is the device of those replays for which none is known.
pub(super) fn advise(
    program: &Program<'_>,
    settings: Option<&AllocatorSettings>,
    needed_bytes: u64,
    capacity_bytes: Option<u64>,
    ample_bytes: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<Advice> {
    let before = settings.map(before).unwrap_or_default();
    let mut tried = Vec::new();
    let mut attempt = |setting: String, recipe: Recipe<'_>, allocator| -> Result<()> {
        progress(if setting.is_empty() { allocator } else { &setting });
        let replayed = replay(program, recipe, capacity_bytes.unwrap_or(ample_bytes))?;
        let at = replayed.ending.out_of_memory_at();
        tried.push(Tried {
            setting,
            allocator,
            fits: capacity_bytes.map(|_| at.is_none()),
            out_of_memory_at: at.filter(|_| capacity_bytes.is_some()),
            peak_reserved_bytes: replayed.stats.peak_reserved_bytes,
            min_capacity_bytes: find_capacity(program, recipe, needed_bytes)?,
        });
        Ok(())
    };
    for setting in std::iter::once("").chain(SETTINGS) {
        let parts: Vec<_> =
            [before.as_str(), setting].into_iter().filter(|part| !part.is_empty()).collect();
        let conf = parts.join(",");
        // What the program has set already is no news.
        let is_news = setting.is_empty() || !before.split(',').any(|part| part.trim() == setting);
        let Some(config) = conf.parse().ok().filter(|_| is_news) else { continue };
        attempt(conf, Recipe::PyTorch(&config), "pytorch")?;
    }
    if let Some(entry) = Entry::named("stitching") {
        attempt(String::new(), Recipe::Named(entry), entry.name)?;
    }
    Ok(Advice { capacity_bytes, needed_bytes, tried })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_are_settings() {
        for setting in SETTINGS {
            assert!(setting.parse::<CachingConfig>().is_ok(), "{setting}");
        }
    }

    #[test]
    fn settings_that_cannot_be_parsed_are_taken_from_what_came_of_them() {
        let mut settings = AllocatorSettings {
            conf: "expandable_segments:True".to_owned(),
            ..AllocatorSettings::default()
        };
        assert_eq!(before(&settings), "expandable_segments:True");
        settings.conf = "some_later_setting:7,max_split_size_mb:64".to_owned();
        settings.max_split_size_bytes = Some(64 << 20);
        assert_eq!(before(&settings), "max_split_size_mb:64");
    }
}
