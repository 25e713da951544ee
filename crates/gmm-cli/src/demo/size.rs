//! Sizes in bytes, as people write and read them.

/// One MiB.
pub const MIB: u64 = 1 << 20;

/// Parses a size such as `24MiB`, `1GiB`, `2048KiB` or `1000` (bytes). Only powers of 1024 have a unit.
///
/// # Errors
/// A message that names the text and what is wrong with it: no number, an unknown unit, or a size
/// beyond 64 bits.
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(digits_end);
    if digits.is_empty() {
        return Err(format!("{text:?} is no size: it must begin with a digit, such as 24MiB"));
    }
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        other => {
            return Err(format!(
                "{text:?} is no size: the unit {other:?} is none of B, KiB, MiB, GiB"
            ));
        }
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text:?} is no size: it is beyond 64 bits"))
}

/// Writes a size with the largest unit that leaves at least 1, and one decimal where it is not whole.
pub fn show(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    if bytes.trailing_zeros() >= shift {
        return format!("{} {unit}", bytes >> shift);
    }
    format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units() {
        assert_eq!(parse("24MiB"), Ok(24 * MIB));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("2048 KiB"), Ok(2 * MIB));
        assert_eq!(parse("7"), Ok(7));
        assert_eq!(parse(" 7B "), Ok(7));
        assert_eq!(parse("0"), Ok(0));
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in [
            "",
            "MiB",
            "-1",
            "1.5MiB",
            "24MB",
            "1 T",
            "0x10",
            "99999999999999999999",
            "17179869184GiB",
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(&format!("{text:?}")), "{message}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(24 * MIB), "24 MiB");
        assert_eq!(show(90_856_960), "86.6 MiB");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
