//! Pickles that hold data and nothing else.
//!
//! [`load`] runs the opcodes that Python's `pickle` emits in protocols 2 to 5 for `None`, truth
//! values, numbers, text, bytes, lists, tuples, dictionaries and sets, and refuses all others by
//! name: those that would import, call or build something, those that refer to the world outside
//! (persistent ids, extensions, buffers), and those of protocols 0 and 1 only. What the opcodes do
//! is documented in Python's own `pickletools`.
//!
//! An object that is used in several places is one object here too, so a pickle whose lists share
//! and contain each other takes no more memory than its opcodes, and nothing here recurses.

mod machine;
mod opcode;
mod values;

pub(crate) use machine::load;
pub(crate) use values::{Container, Items, Kind, Value, Values};

#[cfg(test)]
mod tests;
