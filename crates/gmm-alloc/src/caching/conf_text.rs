//! The text of `PYTORCH_CUDA_ALLOC_CONF`: `key:value,key:value`, spaces without meaning.

use std::str::FromStr;

use super::config::{CachingConfig, Divisions, LARGE_SEGMENT_BYTES};

const MIB: u64 = 1 << 20;

/// The smallest that the limits on splitting may be, in MiB.
const MIN_SPLIT_MIB: u64 = LARGE_SEGMENT_BYTES / MIB;

/// Keys that PyTorch knows and that have no influence on where device memory lies.
const WITHOUT_INFLUENCE: [&str; 8] = [
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
];

/// Why a text does not set the caching allocator up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such key.
    #[error("{key:?} is no setting of PyTorch's caching allocator")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key stands without a value.
    #[error("{key:?} has no value: write {key}:VALUE")]
    NoValue {
        /// The key.
        key: String,
    },
    /// The value is none that the key can have.
    #[error("{key} can't be {value:?}: it takes {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What the key takes, in words.
        expected: &'static str,
    },
}

impl FromStr for CachingConfig {
    type Err = ConfigError;

    /// Parses what `PYTORCH_CUDA_ALLOC_CONF` is set to. Settings that do not change where device
    /// memory lies are passed over.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let text: String = text.split_whitespace().collect();
        let mut config = Self::default();
        for entry in entries(&text).into_iter().filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once(':').unwrap_or((entry, ""));
            if value.is_empty() {
                return Err(ConfigError::NoValue { key: key.to_owned() });
            }
            set(&mut config, key, value)?;
        }
        Ok(config)
    }
}

/// The parts between commas that stand in no bracket.
fn entries(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(|letter| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth <= 0
    })
    .collect()
}

fn set(config: &mut CachingConfig, key: &str, value: &str) -> Result<(), ConfigError> {
    let wrong =
        |expected| ConfigError::Value { key: key.to_owned(), value: value.to_owned(), expected };
    let split_limit = || {
        let mib = value.parse().ok().filter(|mib| *mib >= MIN_SPLIT_MIB);
        let mib: u64 = mib.ok_or_else(|| wrong("a number of MiB, 20 or more"))?;
        Ok(Some(mib.saturating_mul(MIB)))
    };
    match key {
        "max_split_size_mb" => config.max_split_size_bytes = split_limit()?,
        "max_non_split_rounding_mb" => config.max_non_split_rounding_bytes = split_limit()?,
        "garbage_collection_threshold" => {
            let share = value.parse().ok().filter(|share| 0.0 < *share && *share < 1.0);
            let share: f64 = share.ok_or_else(|| wrong("a share between 0 and 1, such as 0.8"))?;
            config.garbage_collection_threshold = Some(share);
        }
        "roundup_power2_divisions" => {
            let divisions = divisions(value).ok_or_else(|| {
                wrong("a power of two, or a list of them by MiB, such as [256:1,512:2,>:4]")
            })?;
            config.roundup_power2_divisions = divisions;
        }
        "expandable_segments" => {
            config.expandable_segments = match value {
                "True" => true,
                "False" => false,
                _ => return Err(wrong("True or False")),
            };
        }
        "backend" if value == "native" => {}
        "backend" => return Err(wrong("native: no other backend is known here")),
        _ if WITHOUT_INFLUENCE.contains(&key) => {}
        _ => return Err(ConfigError::UnknownKey { key: key.to_owned() }),
    }
    Ok(())
}

/// Both forms of `roundup_power2_divisions`: one number, or a number for each interval.
///
/// What the list's first entry says holds for smaller requests too; `>` stands for the interval
/// named last and all after it; intervals between those named are not rounded (as PyTorch's parser
/// does it, which its documentation does not say).
fn divisions(value: &str) -> Option<Divisions> {
    let number = |text: &str| -> Option<u32> {
        text.parse().ok().filter(|n: &u32| *n == 0 || n.is_power_of_two())
    };
    let Some(list) = value.strip_prefix('[') else {
        return number(value).filter(|n| *n > 0).map(Divisions::everywhere);
    };
    let mut divisions = Divisions::default();
    let mut last = None;
    for entry in list.strip_suffix(']')?.split(',') {
        let (from, to) = entry.split_once(':')?;
        let to = number(to)?;
        if from == ">" {
            divisions.set_from(last.unwrap_or(0), to);
            continue;
        }
        let mib = from.parse().ok().filter(|mib: &u64| mib.is_power_of_two())?;
        let interval = Divisions::interval(mib);
        let smallest = if last.is_none() { 0 } else { interval };
        (smallest..=interval).for_each(|interval| divisions.set(interval, to));
        last = Some(interval);
    }
    Some(divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CachingConfig, ConfigError> {
        text.parse()
    }

    #[test]
    fn all_settings() {
        let text = "max_split_size_mb:128, garbage_collection_threshold:0.8,\
                    max_non_split_rounding_mb:40,roundup_power2_divisions:8,backend:native,\
                    pinned_use_cuda_host_register:True,expandable_segments:True,";
        let expected = CachingConfig {
            max_split_size_bytes: Some(128 << 20),
            max_non_split_rounding_bytes: Some(40 << 20),
            garbage_collection_threshold: Some(0.8),
            roundup_power2_divisions: Divisions::everywhere(8),
            expandable_segments: true,
        };
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse(""), Ok(CachingConfig::default()));
        assert_eq!(parse("expandable_segments:False"), Ok(CachingConfig::default()));
    }

    #[test]
    fn divisions_by_interval() {
        let parsed = |list: &str| {
            let config = parse(&format!("roundup_power2_divisions:{list},backend:native"));
            config.unwrap().roundup_power2_divisions
        };
        // What comes before the first interval is as it is; the last named one is as what follows.
        let mut expected = Divisions::everywhere(8);
        for (mib, divisions) in [(256, 1), (512, 2)] {
            expected = expected.with(mib, divisions);
        }
        for mib in [1, 2, 4, 8, 16, 32, 64, 128] {
            expected = expected.with(mib, 1);
        }
        assert_eq!(parsed("[256:1,512:2,1024:4,>:8]"), expected);
        assert_eq!(parsed("[1:4,8:2]"), Divisions::default().with(1, 4).with(8, 2));
        assert_eq!(parsed("[>:4]"), Divisions::everywhere(4));
    }

    #[test]
    fn errors_name_the_key() {
        let wrong = [
            ("max_split_size_mb:19", "max_split_size_mb can't be \"19\": it takes a number of MiB"),
            ("max_split_size_mb:x", "max_split_size_mb can't be \"x\""),
            ("max_split_size_mb", "\"max_split_size_mb\" has no value"),
            ("max_split_size_mb:,backend:native", "\"max_split_size_mb\" has no value"),
            ("garbage_collection_threshold:1.0", "garbage_collection_threshold can't be \"1.0\""),
            ("garbage_collection_threshold:NaN", "garbage_collection_threshold can't be"),
            ("roundup_power2_divisions:3", "roundup_power2_divisions can't be \"3\""),
            ("roundup_power2_divisions:0", "roundup_power2_divisions can't be \"0\""),
            ("roundup_power2_divisions:[3:4]", "roundup_power2_divisions can't be \"[3:4]\""),
            ("roundup_power2_divisions:[4:4", "roundup_power2_divisions can't be \"[4:4\""),
            ("roundup_power2_divisions:[4]", "roundup_power2_divisions can't be \"[4]\""),
            ("expandable_segments:yes", "expandable_segments can't be \"yes\": it takes True or"),
            ("backend:cudaMallocAsync", "backend can't be \"cudaMallocAsync\""),
            ("max_split_size:20", "\"max_split_size\" is no setting"),
        ];
        for (text, expected) in wrong {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
