//! Finds and converts the fields of a snapshot's objects.

use super::Reader;
use crate::Error;
use crate::builder::MAX_SIZE_BYTES;
use crate::error::Expected;
use crate::pickle::{Container, Items, Kind, Value, Values};

/// An object, for errors to name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) object: &'static str,
}

impl Place {
    pub(super) fn wrong(self, field: &'static str, expected: Expected) -> Error {
        Error::Field { offset: self.offset, object: self.object, field, expected }
    }

    fn used_twice(self) -> Error {
        Error::UsedTwice { offset: self.offset, object: self.object }
    }
}

/// Marks what was gone through and has no number.
pub(super) const SEEN: u32 = u32::MAX;

impl Reader {
    /// The list or tuple that `value` is.
    pub(super) fn sequence(&self, value: Value) -> Option<Container> {
        let Value::Container(container) = value else { return None };
        let kind = self.values.kind(container);
        matches!(kind, Kind::List | Kind::Tuple).then_some(container)
    }

    /// Goes through the dictionary in a field, which may be done once. `object` is what it is.
    pub(super) fn dict(
        &mut self,
        parent: Place,
        field: &'static str,
        value: Option<Value>,
        object: &'static str,
    ) -> Result<(Place, Items), Error> {
        match value {
            Some(Value::Container(dict)) if self.values.kind(dict) == Kind::Dict => {
                self.enter(dict, object)
            }
            _ => Err(parent.wrong(field, Expected::Dictionary)),
        }
    }

    /// Goes through the list in a field, which may be done once.
    pub(super) fn list(
        &mut self,
        parent: Place,
        field: &'static str,
        value: Option<Value>,
        object: &'static str,
    ) -> Result<(Place, Items), Error> {
        match value.and_then(|value| self.sequence(value)) {
            Some(list) => self.enter(list, object),
            None => Err(parent.wrong(field, Expected::List)),
        }
    }

    pub(super) fn enter(
        &mut self,
        container: Container,
        object: &'static str,
    ) -> Result<(Place, Items), Error> {
        let place = Place { offset: self.values.offset(container), object };
        if self.values.mark(container).is_some() {
            return Err(place.used_twice());
        }
        let items = self.values.items(container);
        // Nothing is gained by repeating what is empty, and picklers share it.
        if items.clone().next(&self.values).is_some() {
            self.values.set_mark(container, SEEN);
        }
        Ok((place, items))
    }

    /// The values of a dictionary's fields. Of one that is there twice, the last counts, as in
    /// Python.
    pub(super) fn fields<const N: usize>(
        &self,
        mut items: Items,
        names: [&str; N],
    ) -> [Option<Value>; N] {
        let mut fields = [None; N];
        while let (Some(key), Some(value)) = (items.next(&self.values), items.next(&self.values)) {
            let Some(key) = self.values.text(key) else { continue };
            if let Some(at) = names.iter().position(|name| name.as_bytes() == key) {
                fields[at] = Some(value);
            }
        }
        fields
    }

    /// An address, a stream or the like. Those that PyTorch writes as negative numbers are
    /// pointers whose highest bit is set.
    pub(super) fn integer(
        &self,
        place: Place,
        field: &'static str,
        value: Option<Value>,
    ) -> Result<u64, Error> {
        let int = value.and_then(|value| self.values.int(value));
        int.and_then(|int| {
            u64::try_from(int).ok().or_else(|| i64::try_from(int).ok().map(|int| int as u64))
        })
        .ok_or_else(|| place.wrong(field, Expected::Integer))
    }

    pub(super) fn size(
        &self,
        place: Place,
        field: &'static str,
        value: Option<Value>,
    ) -> Result<u64, Error> {
        let int = value.and_then(|value| self.values.int(value));
        int.and_then(|int| u64::try_from(int).ok())
            .filter(|&size| size <= MAX_SIZE_BYTES)
            .ok_or_else(|| place.wrong(field, Expected::Size))
    }

    pub(super) fn text(
        &self,
        place: Place,
        field: &'static str,
        value: Option<Value>,
    ) -> Result<&[u8], Error> {
        text(&self.values, place, field, value)
    }

    /// A truth value. None where it isn't there.
    pub(super) fn truth(
        &self,
        place: Place,
        field: &'static str,
        value: Option<Value>,
    ) -> Result<Option<bool>, Error> {
        match value {
            None => Ok(None),
            Some(Value::Truth(truth)) => Ok(Some(truth)),
            Some(_) => Err(place.wrong(field, Expected::Truth)),
        }
    }
}

/// [`Reader::text`], for who changes other parts of the reader meanwhile.
pub(super) fn text<'v>(
    values: &'v Values,
    place: Place,
    field: &'static str,
    value: Option<Value>,
) -> Result<&'v [u8], Error> {
    let text = value.and_then(|value| values.text(value));
    text.ok_or_else(|| place.wrong(field, Expected::Text))
}
