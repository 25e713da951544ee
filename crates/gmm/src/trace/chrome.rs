//! Events as lines of Chrome's trace-event format, which Perfetto opens: a JSON array, one object
//! a line. Perfetto takes it without its end, too, as a process that crashed leaves it.
//!
//! Each thread is a track of this process. Each node is a process of its own with the copies into
//! it, which may overlap: these are asynchronous events. Times are microseconds, with fractions.

use std::io::{self, Write};
use std::time::Duration;

use gmm_core::driver::Access;
use gmm_core::{FaultOutcome, NodeId, PageNr, TraceEvent};

use super::record::Span;

/// Node n's copies are those of process `NODES + n`: beyond what Linux numbers processes.
const NODES: u32 = 1 << 23;

/// Writes events.
pub(crate) struct Chrome<W: Write> {
    out: W,
    process: u32,
    nr_events: u64,
    nr_copies: u64,
}

impl<W: Write> Chrome<W> {
    /// Begins the file. `nodes` are numbers and names.
    pub(crate) fn begin(out: W, process: u32, nodes: &[(NodeId, String)]) -> io::Result<Self> {
        let mut chrome = Self { out, process, nr_events: 0, nr_copies: 0 };
        chrome.out.write_all(b"[\n")?;
        chrome.name("process_name", process, 0, &format!("gmm {process}"))?;
        for (node, name) in nodes {
            let title = format!("copies to node {node} ({name})");
            chrome.name("process_name", NODES + u32::from(node.0), 0, &title)?;
        }
        Ok(chrome)
    }

    /// Says what a thread is called.
    pub(crate) fn thread(&mut self, thread: u32, name: &str) -> io::Result<()> {
        self.name("thread_name", self.process, thread, name)
    }

    fn name(&mut self, what: &str, process: u32, thread: u32, name: &str) -> io::Result<()> {
        self.separate()?;
        let name = serde_json::Value::from(name);
        write!(
            self.out,
            r#"{{"name":"{what}","ph":"M","pid":{process},"tid":{thread},"args":{{"name":{name}}}}}"#
        )
    }

    /// Writes one event of `thread`.
    pub(crate) fn span(&mut self, thread: u32, span: &Span) -> io::Result<()> {
        self.separate()?;
        let (begun, took) = (span.begun, span.ended.saturating_sub(span.begun));
        let name = name_of(&span.event);
        let process = self.process;
        write!(self.out, r#"{{"name":"{name}","cat":"gmm","#)?;
        match span.event {
            TraceEvent::Evict { .. } => write!(self.out, r#""ph":"i","s":"t","#)?,
            _ => write!(self.out, r#""ph":"X","dur":{},"#, Micros(took))?,
        }
        write!(self.out, r#""pid":{process},"tid":{thread},"ts":{},"args":"#, Micros(begun))?;
        self.args(&span.event)?;
        self.out.write_all(b"}")?;
        if let TraceEvent::Copy { to, .. } = span.event {
            self.copy(to, span)?;
        }
        Ok(())
    }

    /// The same copy on its node's track.
    fn copy(&mut self, to: NodeId, span: &Span) -> io::Result<()> {
        self.nr_copies += 1;
        let (id, process) = (self.nr_copies, NODES + u32::from(to.0));
        for (phase, at) in [("b", span.begun), ("e", span.ended)] {
            self.separate()?;
            write!(
                self.out,
                r#"{{"name":"copy","cat":"copy","ph":"{phase}","id":{id},"pid":{process},"tid":0,"ts":{},"args":"#,
                Micros(at)
            )?;
            self.args(&span.event)?;
            self.out.write_all(b"}")?;
        }
        Ok(())
    }

    fn args(&mut self, event: &TraceEvent) -> io::Result<()> {
        let out = &mut self.out;
        match *event {
            TraceEvent::Fault { processor, addr, access, outcome } => write!(
                out,
                r#"{{"processor":{},"address":"{:#x}","page":"{:#x}","access":"{}","result":"{}"}}"#,
                processor.0,
                addr.0,
                start(addr.page()),
                if access == Access::Read { "read" } else { "write" },
                outcome.name(),
            ),
            TraceEvent::Copy { from, to, cause, page, nr_pages, ok } => write!(
                out,
                r#"{{"from":{},"to":{},"cause":"{}","page":"{:#x}","pages":{nr_pages},"ok":{ok}}}"#,
                from.0,
                to.0,
                cause.name(),
                start(page),
            ),
            TraceEvent::Zero { node, page, ok } => {
                write!(out, r#"{{"node":{},"page":"{:#x}","ok":{ok}}}"#, node.0, start(page))
            }
            TraceEvent::Enter { processor, page, nr_pages, ok }
            | TraceEvent::Clear { processor, page, nr_pages, ok } => write!(
                out,
                r#"{{"processor":{},"page":"{:#x}","pages":{nr_pages},"ok":{ok}}}"#,
                processor.0,
                start(page),
            ),
            TraceEvent::Evict { node, page, clean } => {
                write!(out, r#"{{"node":{},"page":"{:#x}","clean":{clean}}}"#, node.0, start(page))
            }
            TraceEvent::Prefetch { node, page, nr_pages } => write!(
                out,
                r#"{{"node":{},"page":"{:#x}","pages":{nr_pages}}}"#,
                node.0,
                start(page)
            ),
            TraceEvent::Discard { page, nr_pages } | TraceEvent::Unmap { page, nr_pages } => {
                write!(out, r#"{{"page":"{:#x}","pages":{nr_pages}}}"#, start(page))
            }
        }
    }

    /// Says how many records were dropped, if any were, and ends the file.
    pub(crate) fn end(mut self, dropped: u64, at: Duration) -> io::Result<()> {
        if dropped > 0 {
            self.separate()?;
            write!(
                self.out,
                r#"{{"name":"{dropped} records dropped","cat":"gmm","ph":"i","s":"g","pid":{},"tid":0,"ts":{},"args":{{"dropped":{dropped}}}}}"#,
                self.process,
                Micros(at)
            )?;
        }
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn separate(&mut self) -> io::Result<()> {
        self.nr_events += 1;
        if self.nr_events > 1 { self.out.write_all(b",\n") } else { Ok(()) }
    }
}

fn start(page: PageNr) -> u64 {
    page.start().0
}

fn name_of(event: &TraceEvent) -> &'static str {
    match event {
        TraceEvent::Fault { outcome: FaultOutcome::Failed, .. } => "failed fault",
        TraceEvent::Fault { .. } => "fault",
        TraceEvent::Copy { .. } => "copy",
        TraceEvent::Zero { .. } => "zero",
        TraceEvent::Enter { .. } => "enter",
        TraceEvent::Clear { .. } => "clear",
        TraceEvent::Evict { .. } => "evict",
        TraceEvent::Prefetch { .. } => "prefetch",
        TraceEvent::Discard { .. } => "discard",
        TraceEvent::Unmap { .. } => "munmap",
    }
}

/// A time as microseconds, to the nanosecond.
struct Micros(Duration);

impl core::fmt::Display for Micros {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{:03}", self.0.as_micros(), self.0.subsec_nanos() % 1_000)
    }
}
