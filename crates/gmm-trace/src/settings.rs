//! How PyTorch's allocator was set up.

/// The settings that change what the allocator does, as a snapshot records them. PyTorch calls
/// them by these names in `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorSettings {
    /// The text that the user gave.
    pub conf: String,
    /// Blocks larger than this, in bytes, are not split. None: all are.
    pub max_split_size_bytes: Option<u64>,
    /// The share of the capacity in use from which on idle blocks are given back. 0: never.
    pub garbage_collection_threshold: f64,
    /// Segments grow instead of being allocated.
    pub expandable_segments: bool,
    /// For sizes from the first number of MiB on: into how many steps each power of two is divided
    /// when a size is rounded up; 0: not at all. In ascending order.
    pub roundup_power2_divisions: Vec<(u64, u64)>,
}
