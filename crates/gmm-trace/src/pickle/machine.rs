//! Runs the opcodes.

use std::collections::HashMap;

use super::opcode::Opcode;
use super::values::{Full, Kind, Value, Values};
use crate::Error;
use crate::chunked::Chunked;
use crate::source::Source;

/// Integers of more bytes are refused: nothing that is measured in bytes or microseconds has them.
const MAX_INT_BYTES: u64 = 16;

/// Reads a pickle up to its `STOP`: its objects, and the one it is a pickle of.
pub(crate) fn load(source: &mut Source<'_>) -> Result<(Values, Value), Error> {
    let mut machine = Machine {
        values: Values::new(),
        stack: Chunked::new(),
        marks: Chunked::new(),
        memo: Memo { dense: Chunked::new(), sparse: HashMap::new() },
        at: 0,
    };
    loop {
        machine.at = source.offset();
        let Some(byte) = source.byte()? else {
            return Err(Error::Truncated { offset: machine.at, inside: "the pickle" });
        };
        if let Some(result) = machine.step(byte, source)? {
            return Ok((machine.values, result));
        }
    }
}

struct Machine {
    values: Values,
    stack: Chunked<Value>,
    /// How many values lay below each mark.
    marks: Chunked<u32>,
    memo: Memo,
    /// Where the opcode stands that is being run.
    at: u64,
}

impl Machine {
    /// Runs one opcode. Some: it was `STOP`.
    fn step(&mut self, byte: u8, source: &mut Source<'_>) -> Result<Option<Value>, Error> {
        match Opcode::of(byte) {
            Opcode::Proto => {
                let [protocol] = source.array("PROTO")?;
                if !(2..=5).contains(&protocol) {
                    return Err(self.wrong("it names a protocol other than 2 to 5"));
                }
            }
            // How the bytes are grouped for reading does not concern what they mean.
            Opcode::Frame => {
                source.array::<8>("FRAME")?;
            }
            Opcode::Stop => return self.pop().map(Some),
            Opcode::Mark => {
                let below = u32::try_from(self.stack.len()).map_err(|_| self.full(Full))?;
                self.marks.push(below);
            }
            Opcode::Pop => self.pop_or_mark()?,
            Opcode::PopMark => {
                let below = self.pop_mark()?;
                self.stack.truncate(below);
            }
            Opcode::Dup => {
                let top = self.top()?;
                self.stack.push(top);
            }
            Opcode::None => self.stack.push(Value::None),
            Opcode::True => self.stack.push(Value::Truth(true)),
            Opcode::False => self.stack.push(Value::Truth(false)),
            Opcode::Int1 => self.push_int(u8::from_le_bytes(source.array("BININT1")?).into())?,
            Opcode::Int2 => self.push_int(u16::from_le_bytes(source.array("BININT2")?).into())?,
            Opcode::Int4 => self.push_int(i32::from_le_bytes(source.array("BININT")?).into())?,
            Opcode::Long1 => self.long(1, source)?,
            Opcode::Long4 => self.long(4, source)?,
            Opcode::Float => {
                let float = f64::from_be_bytes(source.array("BINFLOAT")?);
                let value = self.values.add_float(float);
                self.push(value)?;
            }
            Opcode::Text(width) => self.text(width, source)?,
            Opcode::Bytes(width) => {
                let len = length(width, source)?;
                source.each(len, "bytes", |_| {})?;
                self.stack.push(Value::Bytes);
            }
            Opcode::EmptyList => self.container(Kind::List)?,
            Opcode::EmptyDict => self.container(Kind::Dict)?,
            Opcode::EmptySet => self.container(Kind::Set)?,
            Opcode::EmptyTuple => self.tuple(self.stack.len())?,
            Opcode::Append => self.add(Kind::List, self.stack.len().saturating_sub(1))?,
            Opcode::SetItem => self.add(Kind::Dict, self.stack.len().saturating_sub(2))?,
            Opcode::Appends => self.add_marked(Kind::List)?,
            Opcode::SetItems => self.add_marked(Kind::Dict)?,
            Opcode::AddItems => self.add_marked(Kind::Set)?,
            // A frozen set's items are read no more than a tuple's.
            Opcode::Tuple | Opcode::FrozenSet => {
                let below = self.pop_mark()?;
                self.tuple(below)?;
            }
            Opcode::TupleOf(count) => {
                let below = self.stack.len().checked_sub(count as usize);
                let below = below.filter(|&below| below >= self.fence());
                self.tuple(below.ok_or_else(|| self.wrong("fewer values before it"))?)?;
            }
            Opcode::Get1 => self.get(u8::from_le_bytes(source.array("BINGET")?).into())?,
            Opcode::Get4 => self.get(u32::from_le_bytes(source.array("LONG_BINGET")?))?,
            Opcode::Put1 => self.put(u8::from_le_bytes(source.array("BINPUT")?).into())?,
            Opcode::Put4 => self.put(u32::from_le_bytes(source.array("LONG_BINPUT")?))?,
            Opcode::Memoize => {
                let count = self.memo.len();
                self.put(u32::try_from(count).map_err(|_| self.full(Full))?)?;
            }
            Opcode::Refused(name) => return Err(Error::RefusedOpcode { offset: self.at, name }),
            Opcode::Unknown => return Err(Error::UnknownOpcode { offset: self.at, byte }),
        }
        Ok(None)
    }

    fn wrong(&self, problem: &'static str) -> Error {
        Error::Pickle { offset: self.at, problem }
    }

    fn full(&self, _: Full) -> Error {
        Error::TooMany {
            offset: self.at,
            what: "objects in the pickle",
            limit: u64::from(u32::MAX),
        }
    }

    fn push(&mut self, value: Result<Value, Full>) -> Result<(), Error> {
        let value = value.map_err(|full| self.full(full))?;
        self.stack.push(value);
        Ok(())
    }

    fn push_int(&mut self, int: i128) -> Result<(), Error> {
        let value = self.values.add_int(int);
        self.push(value)
    }

    /// How many values lie below the last mark: these are out of reach.
    fn fence(&self) -> usize {
        self.marks.last().map_or(0, |below| below as usize)
    }

    fn top(&self) -> Result<Value, Error> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.fence());
        top.ok_or_else(|| self.wrong("no value before it"))
    }

    fn pop(&mut self) -> Result<Value, Error> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// `POP` takes the mark if nothing lies above it.
    fn pop_or_mark(&mut self) -> Result<(), Error> {
        if self.marks.len() > 0 && self.stack.len() == self.fence() {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn pop_mark(&mut self) -> Result<usize, Error> {
        let below = self.marks.pop().ok_or_else(|| self.wrong("no MARK before it"))?;
        Ok(below as usize)
    }

    fn long(&mut self, width: u8, source: &mut Source<'_>) -> Result<(), Error> {
        let len = length(width, source)?;
        if len > MAX_INT_BYTES {
            return Err(self.wrong("an integer of more than 16 bytes"));
        }
        let mut bytes = [0; 16];
        let mut filled = 0;
        source.each(len, "an integer", |piece| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })?;
        if filled > 0 && bytes[filled - 1] >= 0x80 {
            bytes[filled..].fill(0xff);
        }
        self.push_int(i128::from_le_bytes(bytes))
    }

    fn text(&mut self, width: u8, source: &mut Source<'_>) -> Result<(), Error> {
        let len = length(width, source)?;
        source.each(len, "text", |piece| self.values.add_bytes(piece))?;
        let value = self.values.end_text();
        self.push(value)
    }

    fn container(&mut self, kind: Kind) -> Result<(), Error> {
        let value = self.values.add_container(kind, self.at);
        self.push(value)
    }

    /// Makes a tuple of the values from `below` on.
    fn tuple(&mut self, below: usize) -> Result<(), Error> {
        let items = (below..self.stack.len()).map(|at| self.stack[at]);
        let tuple = self.values.add_tuple(self.at, items);
        self.stack.truncate(below);
        self.push(tuple)
    }

    fn add_marked(&mut self, kind: Kind) -> Result<(), Error> {
        let below = self.pop_mark()?;
        self.add(kind, below)
    }

    /// Adds the values from `below` on to the container before them.
    fn add(&mut self, kind: Kind, below: usize) -> Result<(), Error> {
        if below <= self.fence() {
            return Err(self.wrong("too few values before it"));
        }
        let Value::Container(container) = self.stack[below - 1] else {
            return Err(self.wrong("what it would add to is no list, dictionary or set"));
        };
        if self.values.kind(container) != kind {
            return Err(self.wrong("what it would add to is of another type"));
        }
        if kind == Kind::Dict && !(self.stack.len() - below).is_multiple_of(2) {
            return Err(self.wrong("a key without a value"));
        }
        let items = (below..self.stack.len()).map(|at| self.stack[at]);
        let added = self.values.extend(container, items);
        self.stack.truncate(below);
        added.map_err(|full| self.full(full))
    }

    fn get(&mut self, at: u32) -> Result<(), Error> {
        let value = self.memo.get(at).ok_or_else(|| self.wrong("nothing was put there"))?;
        self.stack.push(value);
        Ok(())
    }

    fn put(&mut self, at: u32) -> Result<(), Error> {
        let value = self.top()?;
        self.memo.put(at, value);
        Ok(())
    }
}

/// A length in so many bytes.
fn length(width: u8, source: &mut Source<'_>) -> Result<u64, Error> {
    Ok(match width {
        1 => u8::from_le_bytes(source.array("a length")?).into(),
        4 => u32::from_le_bytes(source.array("a length")?).into(),
        _ => u64::from_le_bytes(source.array("a length")?),
    })
}

/// What was put aside to be used again. Picklers number from 0 without gaps; other numbers work.
struct Memo {
    dense: Chunked<Value>,
    sparse: HashMap<u32, Value>,
}

impl Memo {
    fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    fn get(&self, at: u32) -> Option<Value> {
        self.dense.get(at as usize).or_else(|| self.sparse.get(&at).copied())
    }

    fn put(&mut self, at: u32, value: Value) {
        let index = at as usize;
        if index < self.dense.len() {
            self.dense[index] = value;
        } else if index == self.dense.len() {
            self.sparse.remove(&at);
            self.dense.push(value);
        } else {
            self.sparse.insert(at, value);
        }
    }
}
