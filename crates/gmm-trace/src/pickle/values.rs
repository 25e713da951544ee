//! The objects of a pickle, in as little memory as their opcodes justify.
//!
//! A value is 8 bytes; what does not fit lies in tables beside. A list is a header of 16 bytes and
//! runs of items (12 bytes a run): each `APPENDS` adds a run, or makes the last one longer. So the
//! opcodes that cost most for their length, `EMPTY_LIST` and its like, cost 24 bytes for one.

use crate::chunked::Chunked;

/// One object, or a reference to one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Truth(bool),
    /// An integer that fits.
    Int(i32),
    /// One that does not: its place in the table of wide ones.
    Wide(u32),
    Float(u32),
    Text(u32),
    /// Bytes, whose contents nobody needs.
    Bytes,
    Container(Container),
}

/// A list, tuple, dictionary or set: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Container(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    List,
    Tuple,
    Dict,
    Set,
}

/// The beginning of a container.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Where its opcode stands (48 bits), its kind and whether it was marked (16 bits).
    packed: u64,
    /// The first run; of a tuple, the first item.
    first: u32,
    /// The last run; of a tuple, the number of items. Of what is marked, its mark.
    last: u32,
}

/// No run.
const NONE: u32 = u32::MAX;
const OFFSET_BITS: u32 = 48;
const MARKED: u64 = 1 << 63;

/// Items that lie side by side.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    len: u32,
    next: u32,
}

/// All objects of one pickle.
pub(crate) struct Values {
    headers: Chunked<Header>,
    items: Chunked<Value>,
    runs: Chunked<Run>,
    wide: Chunked<i128>,
    floats: Chunked<f64>,
    /// Where each text ends in `bytes`.
    text_ends: Chunked<u64>,
    bytes: Vec<u8>,
}

/// More objects than there are numbers for.
#[derive(Debug)]
pub(super) struct Full;

fn number(at: usize) -> Result<u32, Full> {
    u32::try_from(at).ok().filter(|&at| at != NONE).ok_or(Full)
}

impl Values {
    pub(super) fn new() -> Self {
        Self {
            headers: Chunked::new(),
            items: Chunked::new(),
            runs: Chunked::new(),
            wide: Chunked::new(),
            floats: Chunked::new(),
            text_ends: Chunked::new(),
            bytes: Vec::new(),
        }
    }

    pub(super) fn add_int(&mut self, int: i128) -> Result<Value, Full> {
        if let Ok(int) = i32::try_from(int) {
            return Ok(Value::Int(int));
        }
        let at = number(self.wide.len())?;
        self.wide.push(int);
        Ok(Value::Wide(at))
    }

    pub(super) fn add_float(&mut self, float: f64) -> Result<Value, Full> {
        let at = number(self.floats.len())?;
        self.floats.push(float);
        Ok(Value::Float(at))
    }

    /// Adds to the text that [`end_text`](Self::end_text) ends.
    pub(super) fn add_bytes(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    pub(super) fn end_text(&mut self) -> Result<Value, Full> {
        let at = number(self.text_ends.len())?;
        self.text_ends.push(self.bytes.len() as u64);
        Ok(Value::Text(at))
    }

    fn add_header(
        &mut self,
        kind: Kind,
        offset: u64,
        first: u32,
        last: u32,
    ) -> Result<Value, Full> {
        let at = number(self.headers.len())?;
        if offset >= 1 << OFFSET_BITS {
            return Err(Full);
        }
        let packed = offset | (kind as u64) << OFFSET_BITS;
        self.headers.push(Header { packed, first, last });
        Ok(Value::Container(Container(at)))
    }

    /// An empty container, whose opcode stands at `offset`. Not for tuples.
    pub(super) fn add_container(&mut self, kind: Kind, offset: u64) -> Result<Value, Full> {
        self.add_header(kind, offset, NONE, NONE)
    }

    /// A tuple.
    pub(super) fn add_tuple(
        &mut self,
        offset: u64,
        items: impl Iterator<Item = Value>,
    ) -> Result<Value, Full> {
        let first = number(self.items.len())?;
        items.for_each(|item| self.items.push(item));
        let len = number(self.items.len())? - first;
        self.add_header(Kind::Tuple, offset, first, len)
    }

    /// Adds items (keys and values in turn) to a container that is not a tuple.
    pub(super) fn extend(
        &mut self,
        container: Container,
        items: impl Iterator<Item = Value>,
    ) -> Result<(), Full> {
        let start = number(self.items.len())?;
        items.for_each(|item| self.items.push(item));
        let len = number(self.items.len())? - start;
        let header = &mut self.headers[container.0 as usize];
        if len == 0 {
            return Ok(());
        }
        if header.last != NONE {
            let last = &mut self.runs[header.last as usize];
            if last.start + last.len == start {
                last.len += len;
                return Ok(());
            }
        }
        let run = number(self.runs.len())?;
        match header.last {
            NONE => header.first = run,
            last => self.runs[last as usize].next = run,
        }
        header.last = run;
        self.runs.push(Run { start, len, next: NONE });
        Ok(())
    }

    pub(crate) fn kind(&self, container: Container) -> Kind {
        let packed = self.headers[container.0 as usize].packed & !MARKED;
        [Kind::List, Kind::Tuple, Kind::Dict, Kind::Set][(packed >> OFFSET_BITS) as usize]
    }

    /// Where the container's opcode stands in the file.
    pub(crate) fn offset(&self, container: Container) -> u64 {
        self.headers[container.0 as usize].packed & ((1 << OFFSET_BITS) - 1)
    }

    /// What a container was marked with. A reader marks what it has been through, and how it
    /// turned out, so that it goes through nothing twice.
    pub(crate) fn mark(&self, container: Container) -> Option<u32> {
        let header = &self.headers[container.0 as usize];
        (header.packed & MARKED != 0).then_some(header.last)
    }

    pub(crate) fn set_mark(&mut self, container: Container, mark: u32) {
        // A tuple's items can't be found any more without its length, and need not be.
        let header = &mut self.headers[container.0 as usize];
        header.packed |= MARKED;
        header.last = mark;
    }

    /// A cursor over the items (keys and values in turn). Made before the container is marked.
    pub(crate) fn items(&self, container: Container) -> Items {
        let header = self.headers[container.0 as usize];
        match self.kind(container) {
            Kind::Tuple => Items { at: header.first, left: header.last, next: NONE },
            _ => Items { at: 0, left: 0, next: header.first },
        }
    }

    pub(crate) fn int(&self, value: Value) -> Option<i128> {
        match value {
            Value::Int(int) => Some(int.into()),
            Value::Wide(at) => Some(self.wide[at as usize]),
            _ => None,
        }
    }

    pub(crate) fn float(&self, value: Value) -> Option<f64> {
        match value {
            Value::Float(at) => Some(self.floats[at as usize]),
            _ => self.int(value).map(|int| int as f64),
        }
    }

    pub(crate) fn text(&self, value: Value) -> Option<&[u8]> {
        let Value::Text(at) = value else { return None };
        let at = at as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.text_ends[before]);
        Some(&self.bytes[start as usize..self.text_ends[at] as usize])
    }
}

/// See [`Values::items`].
#[derive(Clone, Copy)]
pub(crate) struct Items {
    at: u32,
    left: u32,
    next: u32,
}

impl Items {
    pub(crate) fn next(&mut self, values: &Values) -> Option<Value> {
        if self.left == 0 {
            if self.next == NONE {
                return None;
            }
            let run = values.runs[self.next as usize];
            *self = Self { at: run.start, left: run.len, next: run.next };
        }
        let value = values.items[self.at as usize];
        self.at += 1;
        self.left -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_the_memory_bound_counts_them() {
        assert_eq!(size_of::<Value>(), 8);
        assert_eq!(size_of::<Header>(), 16);
        assert_eq!(size_of::<Run>(), 12);
    }
}
