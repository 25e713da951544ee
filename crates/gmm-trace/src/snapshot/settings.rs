//! The entry `allocator_settings`.

use super::Reader;
use super::fields::Place;
use crate::Error;
use crate::error::Expected;
use crate::pickle::Value;
use crate::settings::AllocatorSettings;

const SETTINGS: [&str; 6] = [
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "roundup_power2_divisions",
];

impl Reader {
    pub(super) fn settings(
        &mut self,
        parent: Place,
        settings: Value,
    ) -> Result<AllocatorSettings, Error> {
        let (place, items) =
            self.dict(parent, "allocator_settings", Some(settings), "allocator settings")?;
        let [conf, new_conf, max_split, threshold, expandable, divisions] =
            self.fields(items, SETTINGS);
        let conf = match conf.or(new_conf) {
            Some(conf) => {
                let conf = self.text(place, "PYTORCH_CUDA_ALLOC_CONF", Some(conf))?;
                String::from_utf8_lossy(conf).into_owned()
            }
            None => String::new(),
        };
        Ok(AllocatorSettings {
            conf,
            max_split_size_bytes: self.max_split(place, max_split)?,
            garbage_collection_threshold: match threshold {
                Some(threshold) => self
                    .values
                    .float(threshold)
                    .ok_or_else(|| place.wrong("garbage_collection_threshold", Expected::Number))?,
                None => 0.0,
            },
            expandable_segments: self
                .truth(place, "expandable_segments", expandable)?
                .unwrap_or(false),
            roundup_power2_divisions: match divisions {
                Some(divisions) => self.divisions(place, divisions)?,
                None => Vec::new(),
            },
        })
    }

    /// Unlimited is written as the largest number there is, or that as a negative one.
    fn max_split(&self, place: Place, size: Option<Value>) -> Result<Option<u64>, Error> {
        let Some(size) = size else { return Ok(None) };
        let size = self.integer(place, "max_split_size", Some(size))?;
        Ok(i64::try_from(size).ok().filter(|&size| size < i64::MAX).map(|_| size))
    }

    /// A dictionary from the size, in MiB and as text, to the number of divisions.
    fn divisions(&mut self, parent: Place, divisions: Value) -> Result<Vec<(u64, u64)>, Error> {
        const NAME: &str = "roundup_power2_divisions";
        let (place, mut items) = self.dict(parent, NAME, Some(divisions), NAME)?;
        let mut found = Vec::new();
        while let (Some(size), Some(count)) = (items.next(&self.values), items.next(&self.values)) {
            let size = std::str::from_utf8(self.text(place, "size", Some(size))?);
            let size = size.ok().and_then(|size| size.parse().ok());
            let size = size.ok_or_else(|| place.wrong("size", Expected::Number))?;
            found.push((size, self.integer(place, "count", Some(count))?));
        }
        found.sort_unstable();
        Ok(found)
    }
}
