//! What the tests share.

// Each test file is a program of its own, and uses its share of this.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::{env, fs};

use gmm_trace::{Event, Recording, Trace, read};

/// Real recordings: the files of a folder with this extension under the directory that
/// `GMM_TRACES` names, or `../shared/traces` beside the checkout. Says so if there are none.
pub(crate) fn real(folder: &str, extension: &str) -> Vec<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");
    let traces = env::var_os("GMM_TRACES").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let found = fs::read_dir(traces.join(folder)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = found
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    if paths.is_empty() {
        eprintln!("SKIPPED: no *.{extension} in {}: set GMM_TRACES", traces.join(folder).display());
    }
    paths
}

pub(crate) fn read_bytes(bytes: &[u8]) -> Result<Trace, gmm_trace::Error> {
    read(bytes, &mut |_| {})
}

/// What an allocator is asked for, without names: sizes and streams, and whose the frees are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Allocate {
        size_bytes: u64,
        stream: u64,
    },
    /// Frees the block that was allocated as the so many-th.
    Free(usize),
}

/// The operations of a recording; what was alive at its beginning is allocated first.
pub(crate) fn operations(recording: &Recording) -> Vec<Operation> {
    let allocate = |block: &gmm_trace::Block| Operation::Allocate {
        size_bytes: block.size_bytes,
        stream: block.stream,
    };
    let mut operations: Vec<_> = recording.blocks_at_start().iter().map(allocate).collect();
    for event in recording.events() {
        match *event {
            Event::Allocate(block) => operations.push(allocate(recording.block(block))),
            Event::FreeCompleted(block) => operations.push(Operation::Free(block.index())),
            _ => {}
        }
    }
    operations
}
