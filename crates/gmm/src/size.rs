//! Sizes in bytes, and how they are shown.

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;

/// A size for people: in the largest binary unit of which there is at least one.
pub fn display_bytes(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        MIB.. => format!("{:.1} MiB", bytes as f64 / MIB as f64),
        KIB.. => format!("{:.1} KiB", bytes as f64 / KIB as f64),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        assert_eq!(display_bytes(0), "0 B");
        assert_eq!(display_bytes(1023), "1023 B");
        assert_eq!(display_bytes(KIB + 512), "1.5 KiB");
        assert_eq!(display_bytes(91 * MIB), "91.0 MiB");
        assert_eq!(display_bytes(3 * GIB), "3.0 GiB");
    }
}
