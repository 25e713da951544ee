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
const SETTINGS: [&str; 9] = [
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

/// Settings by their text; none if they can't be followed.
fn config(conf: &str) -> Option<CachingConfig> {
    let mut config = CachingConfig::default();
    for part in conf.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once(':')?;
        match key {
            "max_split_size_mb" => {
                config.max_split_size_bytes = Some(value.parse::<u64>().ok()? << 20);
            }
            "garbage_collection_threshold" => {
                config.garbage_collection_threshold = Some(value.parse().ok()?);
            }
            "roundup_power2_divisions" => {
                config.roundup_power2_divisions = Some(value.parse().ok()?);
            }
            _ => return None,
        }
    }
    Some(config)
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
    let before = settings.map_or("", |settings| settings.conf.as_str());
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
        let parts: Vec<_> = [before, setting].into_iter().filter(|part| !part.is_empty()).collect();
        let conf = parts.join(",");
        let Some(config) = config(&conf) else { continue };
        attempt(conf, Recipe::PyTorch(&config), "pytorch")?;
    }
    if let Some(entry) = Entry::named("stitching") {
        attempt(String::new(), Recipe::Named(entry), entry.name)?;
    }
    Ok(Advice { capacity_bytes, needed_bytes, tried })
}
