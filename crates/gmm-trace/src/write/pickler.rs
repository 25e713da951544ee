//! Writes pickles of protocol 4.

use std::collections::HashMap;
use std::io::{self, Write};

/// Python's own pickler adds so many items to a list at once.
const BATCH: usize = 1000;

/// An object that was written and may be referred to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference(u32);

pub(super) struct Pickler<'t, W> {
    out: W,
    nr_references: u32,
    texts: HashMap<&'t str, Reference>,
}

impl<'t, W: Write> Pickler<'t, W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[0x80, 4])?;
        Ok(Self { out, nr_references: 0, texts: HashMap::new() })
    }

    /// Ends the pickle.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    /// Makes what was just written something to refer to.
    pub(super) fn reference(&mut self) -> io::Result<Reference> {
        self.out.write_all(&[0x94])?;
        let reference = Reference(self.nr_references);
        self.nr_references += 1;
        Ok(reference)
    }

    pub(super) fn refer(&mut self, to: Reference) -> io::Result<()> {
        match u8::try_from(to.0) {
            Ok(number) => self.out.write_all(&[b'h', number]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&to.0.to_le_bytes())
            }
        }
    }

    /// A text, once; then references to it.
    pub(super) fn text(&mut self, text: &'t str) -> io::Result<()> {
        if let Some(&reference) = self.texts.get(text) {
            return self.refer(reference);
        }
        self.once(text)?;
        let reference = self.reference()?;
        self.texts.insert(text, reference);
        Ok(())
    }

    /// A text that is not referred to.
    pub(super) fn once(&mut self, text: &str) -> io::Result<()> {
        match u8::try_from(text.len()) {
            Ok(len) => self.out.write_all(&[0x8c, len])?,
            Err(_) => {
                self.out.write_all(&[0x8d])?;
                self.out.write_all(&(text.len() as u64).to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())
    }

    pub(super) fn int(&mut self, int: i128) -> io::Result<()> {
        if let Ok(int) = u8::try_from(int) {
            return self.out.write_all(&[b'K', int]);
        }
        if let Ok(int) = i32::try_from(int) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&int.to_le_bytes());
        }
        // The shortest two's complement that holds it and its sign.
        let bits = 129 - if int < 0 { int.leading_ones() } else { int.leading_zeros() };
        let len = bits.div_ceil(8) as usize;
        self.out.write_all(&[0x8a, len as u8])?;
        self.out.write_all(&int.to_le_bytes()[..len])
    }

    pub(super) fn float(&mut self, float: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&float.to_be_bytes())
    }

    pub(super) fn truth(&mut self, truth: bool) -> io::Result<()> {
        self.out.write_all(if truth { &[0x88] } else { &[0x89] })
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.int(first.into())?;
        self.int(second.into())?;
        self.out.write_all(&[0x86])
    }

    pub(super) fn begin_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }

    /// Goes before each item; `nr_items` is how many the list has.
    pub(super) fn before_item(&mut self, nr_items: usize) -> io::Result<()> {
        match nr_items {
            0 => self.out.write_all(b"("),
            _ if nr_items.is_multiple_of(BATCH) => self.out.write_all(b"e("),
            _ => Ok(()),
        }
    }

    pub(super) fn end_list(&mut self, nr_items: usize) -> io::Result<()> {
        if nr_items > 0 { self.out.write_all(b"e") } else { Ok(()) }
    }

    /// Keys and values follow in turn.
    pub(super) fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    pub(super) fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// A key and an integer.
    pub(super) fn int_field(&mut self, key: &'t str, int: impl Into<i128>) -> io::Result<()> {
        self.text(key)?;
        self.int(int.into())
    }

    /// A key and a text.
    pub(super) fn text_field(&mut self, key: &'t str, text: &'t str) -> io::Result<()> {
        self.text(key)?;
        self.text(text)
    }
}
