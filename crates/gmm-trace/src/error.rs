//! What can be wrong with a file.

use std::io;
use std::path::PathBuf;

use crate::source::MAX_EXPANSION;

/// Why a file can't be read or written. Offsets are in bytes from the beginning of the file, of
/// its uncompressed contents if it is compressed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file can't be opened.
    #[error("can't open {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The input fails, or its compressed form is damaged.
    #[error("can't read on at byte {offset}")]
    Read {
        /// Bytes that could be read.
        offset: u64,
        /// What the system, or the decompressor, says.
        source: io::Error,
    },
    /// The output fails.
    #[error("can't write")]
    Write(#[from] io::Error),
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// The beginning fits no format.
    #[error(
        "not a recording that is known: it begins with {beginning:?}; expected a PyTorch memory \
         snapshot (pickle of protocol 2 to 5), an RMM log, an event list, or an interval table"
    )]
    UnknownFormat {
        /// The first bytes, as text.
        beginning: String,
    },
    /// The compressed file would grow out of all proportion.
    #[error(
        "more than {MAX_EXPANSION} times its compressed size at byte {offset}: no recording \
         compresses so well; if it is one, uncompress it first"
    )]
    Expansion {
        /// Uncompressed bytes so far.
        offset: u64,
    },
    /// The file ends in the middle of something.
    #[error("the file ends at byte {offset}, in {inside}: it was cut off")]
    Truncated {
        /// Its length.
        offset: u64,
        /// What is incomplete.
        inside: &'static str,
    },
    /// The pickle would do more than hold data.
    #[error(
        "byte {offset} of the pickle is {name}, which no memory snapshot needs: only data is read"
    )]
    RefusedOpcode {
        /// Where it stands.
        offset: u64,
        /// Its name, as Python's `pickletools` calls it.
        name: &'static str,
    },
    /// No pickle has this byte here.
    #[error("byte {offset} of the pickle is {byte:#04x}, which is no opcode")]
    UnknownOpcode {
        /// Where it stands.
        offset: u64,
        /// The byte.
        byte: u8,
    },
    /// The pickle's opcodes do not fit together.
    #[error("the opcode at byte {offset} of the pickle is wrong there: {problem}")]
    Pickle {
        /// Where the opcode stands.
        offset: u64,
        /// What does not fit.
        problem: &'static str,
    },
    /// The objects of a snapshot are not what PyTorch writes.
    #[error("the {object} at byte {offset} of the snapshot: `{field}` is not {expected}")]
    Field {
        /// Where the object that should hold the field begins.
        offset: u64,
        /// What it is.
        object: &'static str,
        /// The field's name.
        field: &'static str,
        /// What should be there.
        expected: Expected,
    },
    /// An object stands in a snapshot in two places where only separate ones make sense.
    #[error("the {object} at byte {offset} of the snapshot is used twice")]
    UsedTwice {
        /// Where it begins.
        offset: u64,
        /// What it is.
        object: &'static str,
    },
    /// A line of a text format is wrong.
    #[error("line {line} (at byte {offset}): {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// More than the model has numbers for.
    #[error("more than {limit} {what} at byte {offset}")]
    TooMany {
        /// Where the first one too many stands.
        offset: u64,
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// A recording without addresses does not fit in 64 bits of them.
    #[error("the blocks do not fit in 64 bits of addresses, {blocks} blocks from the first")]
    NoAddresses {
        /// Blocks that were placed.
        blocks: usize,
    },
}

/// What a field of a snapshot should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Expected {
    /// Bytes or an address.
    #[error("an integer from 0 to 2^64 - 1")]
    Integer,
    /// A size.
    #[error("a size from 0 to 2^48 bytes")]
    Size,
    /// The number of a device.
    #[error("the number of a device, from 0 to 1023")]
    Device,
    /// Text.
    #[error("text")]
    Text,
    /// A list, or a tuple.
    #[error("a list")]
    List,
    /// A dictionary.
    #[error("a dictionary")]
    Dictionary,
    /// A truth value.
    #[error("True or False")]
    Truth,
    /// A number.
    #[error("a number")]
    Number,
    /// The state of a block.
    #[error("`active_allocated`, `active_awaiting_free`, `active_pending_free` or `inactive`")]
    State,
}
