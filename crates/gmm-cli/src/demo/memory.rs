//! What a run did to memory, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;

/// Faults by kind of processor.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// Faults of the CPU.
    pub cpu: u64,
    /// Faults of all XPUs.
    pub xpu: u64,
}

/// The memory part of the report. Keys are node numbers (`"1"`) or pairs of them (`"0->1"`).
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryUse {
    /// The memory that the XPU has of its own, in bytes.
    pub xpu_memory_bytes: u64,
    /// The pages that processors of each node touched at least once, in bytes.
    pub touched_bytes: BTreeMap<String, u64>,
    /// The most that was ever resident on each node, in bytes.
    pub peak_resident_bytes: BTreeMap<String, u64>,
    /// Faults served.
    pub faults: Faults,
    /// Bytes copied between nodes, by direction.
    pub migrated_bytes: BTreeMap<String, u64>,
    /// Pages that were pushed out of an XPU to make room.
    pub evicted_pages: u64,
    /// Those of them that left without a copy, because another node had the same data.
    pub evicted_clean_pages: u64,
    /// What the XPU's frames are made of, such as `huge` or `4KiB`.
    pub frame_backing: String,
}
