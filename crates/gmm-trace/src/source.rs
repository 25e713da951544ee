//! The bytes of a file, uncompressed, with their position.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::Error;

/// How many times its compressed size a file may be. Real snapshots are 16 to 26 times as large
/// as their gzip form; deflate reaches 1,032.
pub const MAX_EXPANSION: u64 = 100;

/// A compressed file that grows to no more than this may do so out of all proportion.
const EXPANSION_FREE_BYTES: u64 = 1 << 20;

/// Progress is told each time so much was read.
const PROGRESS_BYTES: u64 = 1 << 16;

/// How much is read at once, at most.
const BUFFER_BYTES: usize = 1 << 14;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Where a reader of any format takes its bytes from.
pub(crate) struct Source<'a> {
    input: Box<dyn Read + 'a>,
    /// What was read ahead: the bytes from `at` to `end`.
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// Uncompressed bytes taken.
    offset: u64,
    /// Bytes of the file itself that were taken so far.
    raw: Rc<Cell<u64>>,
    compressed: bool,
    progress: &'a mut dyn FnMut(u64),
    /// Uncompressed bytes at which progress is told next.
    tell_at: u64,
}

/// Counts what is taken from the file.
struct Counted<R> {
    input: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

impl<'a> Source<'a> {
    /// Looks at the first bytes, and uncompresses if they say so.
    pub(crate) fn new(
        input: impl Read + 'a,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, Error> {
        let raw = Rc::new(Cell::new(0));
        let mut file = BufReader::new(Counted { input, count: Rc::clone(&raw) });
        let beginning = file.fill_buf().map_err(|source| Error::Read { offset: 0, source })?;
        let compressed = beginning.starts_with(&GZIP);
        let input: Box<dyn Read + 'a> = match compressed {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (at, end, tell_at) = (0, 0, PROGRESS_BYTES);
        Ok(Self { input, buffer, at, end, offset: 0, raw, compressed, progress, tell_at })
    }

    /// Uncompressed bytes taken so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next bytes, as many as are at hand; none at the end.
    pub(crate) fn peek(&mut self) -> Result<&[u8], Error> {
        if self.at == self.end {
            self.fill()?;
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn fill(&mut self) -> Result<(), Error> {
        let limit = EXPANSION_FREE_BYTES.max(self.raw.get().saturating_mul(MAX_EXPANSION));
        if self.compressed && self.offset > limit {
            return Err(Error::Expansion { offset: self.offset });
        }
        loop {
            match self.input.read(&mut self.buffer) {
                Ok(count) => {
                    (self.at, self.end) = (0, count);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { offset: self.offset, source }),
            }
        }
    }

    /// Takes `count` of the bytes that [`peek`](Self::peek) showed.
    pub(crate) fn take(&mut self, count: usize) {
        self.at += count;
        self.offset += count as u64;
        if self.offset >= self.tell_at {
            self.tell_at = self.offset + PROGRESS_BYTES;
            (self.progress)(self.raw.get());
        }
    }

    /// The next byte. None: the end.
    pub(crate) fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = self.peek()?.first().copied();
        self.take(usize::from(byte.is_some()));
        Ok(byte)
    }

    /// The next bytes, exactly as many as `N`. `inside` is what they belong to.
    pub(crate) fn array<const N: usize>(&mut self, inside: &'static str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        let mut filled = 0;
        self.each(N as u64, inside, |piece| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })?;
        Ok(bytes)
    }

    /// Hands the next `len` bytes on in pieces; so a length that the file does not have takes no
    /// memory.
    pub(crate) fn each(
        &mut self,
        len: u64,
        inside: &'static str,
        mut taker: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut left = len;
        while left > 0 {
            let piece = self.peek()?;
            if piece.is_empty() {
                return Err(Error::Truncated { offset: self.offset, inside });
            }
            let count = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            taker(&piece[..count]);
            self.take(count);
            left -= count as u64;
        }
        Ok(())
    }

    /// Tells the last of the progress.
    pub(crate) fn finish(self) {
        (self.progress)(self.raw.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn all(file: &[u8]) -> Result<u64, Error> {
        let mut progress = |_| {};
        let mut source = Source::new(file, &mut progress)?;
        while source.byte()?.is_some() {}
        Ok(source.offset())
    }

    #[test]
    fn a_bomb_is_refused_long_before_its_end() {
        let bomb = gzip(&vec![b'N'; 64 << 20]);
        let Err(Error::Expansion { offset }) = all(&bomb) else { panic!("not refused") };
        assert!(offset < 8 << 20, "{offset}");
    }

    #[test]
    fn several_members_are_one_file() {
        let mut file = gzip(b"first");
        file.extend(gzip(b"second"));
        assert_eq!(all(&file).unwrap(), 11);
    }

    #[test]
    fn a_damaged_file_says_where() {
        let file = gzip(&b"0123456789".repeat(1000));
        let Err(Error::Read { offset, .. }) = all(&file[..file.len() - 4]) else { panic!("read") };
        assert_eq!(offset, 10_000);
    }

    #[test]
    fn progress_counts_bytes_of_the_file() {
        let file = vec![7; 300_000];
        let mut told = Vec::new();
        let mut progress = |bytes| told.push(bytes);
        let mut source = Source::new(&file[..], &mut progress).unwrap();
        source.each(300_000, "all", |_| {}).unwrap();
        source.finish();
        assert!(told.len() >= 4 && told.is_sorted(), "{told:?}");
        assert_eq!(told.last(), Some(&300_000));
    }
}
