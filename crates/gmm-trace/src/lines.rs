//! Lines of the text formats.

use crate::Error;
use crate::source::Source;

/// No line of these formats comes near this length, in bytes.
const MAX_LINE_BYTES: usize = 4096;

/// A file line by line.
pub(crate) struct Lines<'s, 'a> {
    source: &'s mut Source<'a>,
    line: Vec<u8>,
    number: u64,
    /// Where the line begins.
    offset: u64,
}

impl<'s, 'a> Lines<'s, 'a> {
    pub(crate) fn new(source: &'s mut Source<'a>) -> Self {
        Self { source, line: Vec::new(), number: 0, offset: 0 }
    }

    /// Goes to the next line that is neither empty nor a comment (`#`). False: there is none.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        loop {
            self.line.clear();
            self.number += 1;
            self.offset = self.source.offset();
            if !self.fill()? {
                return Ok(false);
            }
            match self.line.trim_ascii() {
                [] | [b'#', ..] => {}
                _ => return Ok(true),
            }
        }
    }

    /// Reads up to and with the next line break. False: the file has ended.
    fn fill(&mut self) -> Result<bool, Error> {
        loop {
            let piece = self.source.peek()?;
            if piece.is_empty() {
                return Ok(!self.line.is_empty());
            }
            let end = piece.iter().position(|&byte| byte == b'\n');
            let count = end.map_or(piece.len(), |at| at + 1);
            if self.line.len() + count > MAX_LINE_BYTES {
                return Err(self.error("longer than 4096 bytes"));
            }
            self.line.extend_from_slice(&piece[..count]);
            self.source.take(count);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// The line, without the white space around it.
    pub(crate) fn text(&self) -> Result<&str, Error> {
        let text = std::str::from_utf8(self.line.trim_ascii());
        text.map_err(|_| self.error("not UTF-8 text"))
    }

    /// Where the line begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// What is wrong with the line.
    pub(crate) fn error(&self, problem: &'static str) -> Error {
        Error::Line { line: self.number, offset: self.offset, problem }
    }
}
