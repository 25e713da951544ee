//! A pickler: writes objects the way Python's `pickle` does, in protocols 2 to 5, so that tests
//! need no files of other people. It emits every opcode that these protocols have for data.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::rc::Rc;

/// Python's pickler adds so many items to a container at once.
const BATCH: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object {
    None,
    Truth(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    ByteArray(Vec<u8>),
    List(Vec<Shared>),
    Tuple(Vec<Shared>),
    Dict(Vec<(Shared, Shared)>),
    Set(Vec<Shared>),
    FrozenSet(Vec<Shared>),
}

/// An object that may be used in several places: it is written once.
pub(crate) type Shared = Rc<Object>;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// 2 to 5. Bytes need 3, sets 4, byte arrays 5.
    pub(crate) protocol: u8,
    /// Use the widest form of each opcode, as large pickles do.
    pub(crate) wide: bool,
}

pub(crate) fn pickle(object: &Shared, style: Style) -> Vec<u8> {
    let mut pickler = Pickler { style, out: Vec::new(), memo: HashMap::new() };
    pickler.object(object);
    pickler.out.push(b'.');
    let mut file = vec![0x80, style.protocol];
    if style.protocol >= 4 {
        file.push(0x95);
        file.extend((pickler.out.len() as u64).to_le_bytes());
    }
    file.extend(pickler.out);
    file
}

struct Pickler {
    style: Style,
    out: Vec<u8>,
    memo: HashMap<*const Object, u32>,
}

impl Pickler {
    fn object(&mut self, object: &Shared) {
        if let Some(&number) = self.memo.get(&Rc::as_ptr(object)) {
            return self.numbered(number, b'h', b'j');
        }
        match &**object {
            Object::None => self.out.push(b'N'),
            Object::Truth(truth) => self.out.push(if *truth { 0x88 } else { 0x89 }),
            Object::Int(int) => self.int(*int),
            Object::Float(float) => {
                self.out.push(b'G');
                self.out.extend(float.to_be_bytes());
            }
            Object::Text(text) => {
                let short = if self.style.protocol >= 4 { 0x8c } else { b'X' };
                self.counted(text.as_bytes(), short, b'X', 0x8d);
                self.put(object);
            }
            Object::Bytes(bytes) => {
                self.counted(bytes, b'C', b'B', 0x8e);
                self.put(object);
            }
            Object::ByteArray(bytes) => {
                self.out.push(0x96);
                self.out.extend((bytes.len() as u64).to_le_bytes());
                self.out.extend(bytes);
                self.put(object);
            }
            Object::List(items) => {
                self.out.push(b']');
                self.put(object);
                self.batches(items, b'a', b'e', |pickler, item| pickler.object(item));
            }
            Object::Tuple(items) => self.tuple(object, items),
            Object::Dict(items) => {
                self.out.push(b'}');
                self.put(object);
                self.batches(items, b's', b'u', |pickler, (key, value)| {
                    pickler.object(key);
                    pickler.object(value);
                });
            }
            Object::Set(items) => {
                self.out.push(0x8f);
                self.put(object);
                for batch in items.chunks(BATCH) {
                    self.marked(batch, 0x90);
                }
            }
            Object::FrozenSet(items) => {
                self.marked(items, 0x91);
                self.put(object);
            }
        }
    }

    fn int(&mut self, int: i128) {
        if !self.style.wide
            && let Ok(byte) = u8::try_from(int)
        {
            self.out.extend([b'K', byte]);
        } else if !self.style.wide
            && let Ok(short) = u16::try_from(int)
        {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(int) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            let mut bytes = int.to_le_bytes().to_vec();
            let sign = if int < 0 { 0xff } else { 0 };
            while bytes.len() > 1
                && bytes[bytes.len() - 1] == sign
                && (bytes[bytes.len() - 2] ^ sign) < 0x80
            {
                bytes.pop();
            }
            self.out.push(if self.style.wide { 0x8b } else { 0x8a });
            let len = (bytes.len() as u32).to_le_bytes();
            self.out.extend(&len[..if self.style.wide { 4 } else { 1 }]);
            self.out.extend(bytes);
        }
    }

    /// Bytes behind their length, of one, four or eight bytes.
    fn counted(&mut self, bytes: &[u8], short: u8, long: u8, longest: u8) {
        let len = bytes.len() as u64;
        let (opcode, width) = match () {
            () if self.style.wide && self.style.protocol >= 4 => (longest, 8),
            () if self.style.wide || len > 255 || short == long => (long, 4),
            () => (short, 1),
        };
        self.out.push(opcode);
        self.out.extend(&len.to_le_bytes()[..width]);
        self.out.extend(bytes);
    }

    fn tuple(&mut self, object: &Shared, items: &[Shared]) {
        match items.len() {
            0 => return self.out.push(b')'),
            count @ 1..=3 => {
                items.iter().for_each(|item| self.object(item));
                self.out.push(0x84 + count as u8);
            }
            _ => self.marked(items, b't'),
        }
        self.put(object);
    }

    fn marked(&mut self, items: &[Shared], opcode: u8) {
        self.out.push(b'(');
        items.iter().for_each(|item| self.object(item));
        self.out.push(opcode);
    }

    fn batches<T>(&mut self, items: &[T], one: u8, many: u8, write: impl Fn(&mut Self, &T)) {
        for batch in items.chunks(BATCH) {
            if let [item] = batch {
                write(self, item);
                self.out.push(one);
            } else {
                self.out.push(b'(');
                batch.iter().for_each(|item| write(self, item));
                self.out.push(many);
            }
        }
    }

    fn put(&mut self, object: &Shared) {
        let number = self.memo.len() as u32;
        self.memo.insert(Rc::as_ptr(object), number);
        match self.style.protocol {
            4.. => self.out.push(0x94),
            _ => self.numbered(number, b'q', b'r'),
        }
    }

    fn numbered(&mut self, number: u32, short: u8, long: u8) {
        match u8::try_from(number) {
            Ok(number) if !self.style.wide => self.out.extend([short, number]),
            _ => {
                self.out.push(long);
                self.out.extend(number.to_le_bytes());
            }
        }
    }
}

pub(crate) fn text(text: &str) -> Shared {
    Rc::new(Object::Text(text.to_owned()))
}

pub(crate) fn int(int: impl Into<i128>) -> Shared {
    Rc::new(Object::Int(int.into()))
}

pub(crate) fn list(items: impl IntoIterator<Item = Shared>) -> Shared {
    Rc::new(Object::List(items.into_iter().collect()))
}

pub(crate) fn dict<'k>(items: impl IntoIterator<Item = (&'k str, Shared)>) -> Shared {
    let items = items.into_iter().map(|(key, value)| (text(key), value));
    Rc::new(Object::Dict(items.collect()))
}
