//! What is said over a control socket: one JSON object a line, both ways.
//!
//! A request is `{"gmm":1,"command":"stat"}` with the command's own members; the number is the
//! version of the protocol. The answer is any number of lines with `progress`, then one with
//! `result` or `error`. Members that are not known are ignored, so that members can be added;
//! what changes the meaning of others changes the version.

use gmm_core::PageNr;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version spoken here.
pub const VERSION: u32 = 1;

/// The longest request, in bytes, with the end of its line.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// The longest reply that a client takes, in bytes. A server sends less: lists come in parts.
pub const MAX_REPLY_BYTES: usize = 1 << 20;

/// How many regions or runs of pages one reply lists at most.
pub const MAX_LISTED: usize = 512;

/// How many characters of a region's name are sent.
pub(super) const MAX_NAME_CHARS: usize = 128;

/// One line to the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub gmm: u32,
    /// What is asked for.
    #[serde(flatten)]
    pub command: Command,
}

/// What can be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Command {
    /// Who is there: [`Hello`].
    Hello,
    /// The counters.
    Stat {
        /// In which form.
        #[serde(default)]
        format: StatFormat,
    },
    /// The regions, by address: [`Regions`].
    Regions {
        /// Those that begin at this page or after it.
        #[serde(default)]
        from: u64,
    },
    /// Where the pages of a range are: [`Residency`].
    Residency {
        /// The first page.
        from: u64,
        /// How many.
        pages: u64,
    },
    /// Bring all pages that have contents to a node: [`Moved`]. Evicts nothing.
    Prefetch {
        /// The node.
        node: u8,
    },
    /// Push pages out to host memory: [`Moved`].
    Evict {
        /// Off this node; without it, off all but the host's.
        #[serde(default)]
        node: Option<u8>,
    },
}

/// A form of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StatFormat {
    /// An object.
    #[default]
    Json,
    /// For people: a string.
    Text,
    /// For Prometheus: a string.
    Prometheus,
}

/// One line from the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) gmm: u32,
    #[serde(flatten)]
    pub(super) body: Body,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Body {
    /// More lines follow.
    Progress(Progress),
    /// The command's own answer.
    Result(Value),
    /// What went wrong, and what to do, in words.
    Error(String),
}

/// How far a command is that moves pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Pages done.
    pub done_pages: u64,
    /// Of how many; may change while others use memory.
    pub total_pages: u64,
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The process.
    pub pid: u32,
    /// The how-manieth `Gmm` of the process, from 0.
    pub instance: u32,
    /// The version of the library.
    pub version: String,
    /// The nodes, by number.
    pub nodes: Vec<NodeUse>,
    /// How many regions there are.
    pub regions: u64,
    /// How many pages they have.
    pub pages: u64,
}

/// How much a node holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeUse {
    /// Its number.
    pub node: u8,
    /// Whose memory it is.
    pub device: String,
    /// Pages with a copy here.
    pub resident_pages: u64,
    /// The most that it can hold.
    pub capacity_pages: u64,
}

/// A part of the list of regions.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Regions {
    /// At most [`MAX_LISTED`].
    pub regions: Vec<Region>,
    /// Where to go on, if there are more.
    pub next: Option<u64>,
}

/// One region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// What its owner called it, cut after 128 characters.
    pub name: String,
    /// The first page.
    pub first_page: u64,
    /// How many pages.
    pub pages: u64,
    /// Whether it can be written.
    pub writable: bool,
}

/// A part of a range, as runs of pages that are alike.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Residency {
    /// At most [`MAX_LISTED`], by address.
    pub runs: Vec<Run>,
    /// Where to go on, if there are more.
    pub next: Option<u64>,
}

/// Pages that are alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The first page.
    pub first_page: u64,
    /// How many pages.
    pub pages: u64,
    /// `empty` (it reads as zero), `exclusive`, `shared`, or `in-motion`: then nothing else is
    /// known.
    pub state: String,
    /// Valid copies, by node.
    pub copies: Vec<CopyOfPage>,
    /// Processors that map the pages, ascending; 0 is the CPU.
    pub mapped: Vec<u8>,
    /// Of these, those that can write.
    pub writable: Vec<u8>,
}

/// One of the valid copies of a page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyOfPage {
    /// Where it is.
    pub node: u8,
    /// Whether it is pinned there, or held by a launch.
    pub pinned: bool,
    /// What brought it there last, in words.
    pub moved_by: String,
}

/// What came of moving pages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Pages that moved.
    pub moved_pages: u64,
    /// Pages that were where they should be.
    pub already_pages: u64,
    /// Pages for which there was no room.
    pub no_room_pages: u64,
    /// Pages that could not be moved: pinned, in use, or a driver failed.
    pub failed_pages: u64,
    /// The first reason, in words.
    pub failure: Option<String>,
}

/// The address of a page, as people write it.
pub fn page_address(page: u64) -> String {
    format!("{:#x}", PageNr(page).start().0)
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn parse(line: &[u8]) -> Result<Command, String> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Versioned {
            gmm: u32,
        }
        let bad = |e: serde_json::Error| {
            format!("not a request: {e}; a request is {{\"gmm\":1,\"command\":\"hello\"}}")
        };
        let Versioned { gmm } = serde_json::from_slice(line).map_err(bad)?;
        if gmm != VERSION {
            return Err(format!("version {gmm} is not spoken here, version {VERSION} is"));
        }
        Ok(serde_json::from_slice::<Self>(line).map_err(bad)?.command)
    }
}

impl Body {
    /// A line.
    pub(super) fn line(self) -> String {
        let reply = Reply { gmm: VERSION, body: self };
        let mut line = serde_json::to_string(&reply).expect("no map has keys that are no strings");
        line.push('\n');
        line
    }

    pub(super) fn result(result: &impl Serialize) -> Self {
        Self::Result(serde_json::to_value(result).expect("plain numbers and strings"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        let parse = |text: &str| Request::parse(text.as_bytes());
        assert_eq!(parse(r#"{"gmm":1,"command":"hello"}"#), Ok(Command::Hello));
        let stat = Command::Stat { format: StatFormat::Json };
        assert_eq!(parse(r#"{"command":"stat","gmm":1,"more":[]}"#), Ok(stat));
        assert_eq!(
            parse(r#"{"gmm":1,"command":"evict","node":2}"#),
            Ok(Command::Evict { node: Some(2) })
        );
        assert_eq!(parse(r#"{"gmm":1,"command":"evict"}"#), Ok(Command::Evict { node: None }));
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "not a request"),
            ("[]", "not a request"),
            ("{}", "gmm"),
            (r#"{"gmm":-1,"command":"hello"}"#, "not a request"),
            (r#"{"gmm":2,"command":"hello"}"#, "version 2"),
            (r#"{"gmm":1,"command":"no-such"}"#, "no-such"),
            (r#"{"gmm":1,"command":"prefetch"}"#, "node"),
            (r#"{"gmm":1,"command":"prefetch","node":256}"#, "256"),
            ("{\"gmm\":1,\"command\":\"hello\u{0}\"}", "not a request"),
        ] {
            let error = Request::parse(text.as_bytes()).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(Request::parse(&[0xff; 100]).is_err());
        assert!(Request::parse("[".repeat(4000).as_bytes()).is_err());
    }

    #[test]
    fn each_reply_is_one_line() {
        let line = Body::Error("a\nb".into()).line();
        assert_eq!(line, "{\"gmm\":1,\"error\":\"a\\nb\"}\n");
        let progress = Body::Progress(Progress { done_pages: 1, total_pages: 2 }).line();
        assert_eq!(progress, "{\"gmm\":1,\"progress\":{\"done_pages\":1,\"total_pages\":2}}\n");
        let back: Reply = serde_json::from_str(&progress).unwrap();
        assert!(matches!(back.body, Body::Progress(_)));
    }

    #[test]
    fn a_full_list_fits_a_reply() {
        let name = "\u{1f600}\"\\".repeat(MAX_NAME_CHARS / 3 + 1);
        let name: String = name.chars().take(MAX_NAME_CHARS).collect();
        let region = Region { name, first_page: u64::MAX, pages: u64::MAX, writable: false };
        let regions = Regions { regions: vec![region; MAX_LISTED], next: Some(u64::MAX) };
        assert!(Body::result(&regions).line().len() <= MAX_REPLY_BYTES);
        let moved_by = "look-ahead of 31".to_owned();
        let copy = CopyOfPage { node: 255, pinned: false, moved_by };
        let run = Run {
            first_page: u64::MAX,
            pages: u64::MAX,
            state: "exclusive".into(),
            copies: vec![copy; gmm_core::MAX_COPIES],
            mapped: vec![255; gmm_core::MAX_PROCESSORS],
            writable: vec![255; gmm_core::MAX_PROCESSORS],
        };
        let residency = Residency { runs: vec![run; MAX_LISTED], next: Some(u64::MAX) };
        assert!(Body::result(&residency).line().len() <= MAX_REPLY_BYTES);
    }
}
