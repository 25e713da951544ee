//! Rows whose columns are found by their names. No value of these formats holds a comma.

/// Where each of the `N` columns stands in a header; None if one is missing.
pub(crate) fn columns<const N: usize>(header: &str, names: [&str; N]) -> Option<[usize; N]> {
    let mut places = [0; N];
    for (place, name) in places.iter_mut().zip(names) {
        *place = header.split(',').position(|title| title.trim().eq_ignore_ascii_case(name))?;
    }
    Some(places)
}

/// The values of a row in these columns; None if it is too short.
pub(crate) fn values<const N: usize>(row: &str, places: [usize; N]) -> Option<[&str; N]> {
    let mut values = [""; N];
    for (value, place) in values.iter_mut().zip(places) {
        *value = row.split(',').nth(place)?.trim();
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_stand_in_any_order() {
        let places = columns("Size, Lower,x,ID", ["id", "lower", "size"]).unwrap();
        assert_eq!(values("7,8,9, 10", places), Some(["10", "8", "7"]));
        assert_eq!(values("7,8,9", places), None);
        assert_eq!(columns("size,id", ["id", "lower"]), None);
    }
}
