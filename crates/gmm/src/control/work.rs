//! What is done for clients, with the manager's own calls. Nothing here touches unified memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gmm_core::{
    Error, NodeId, PAGE_SIZE, PageNr, PageRange, PageState, ProcessorSet, Space, Stopped,
};

use super::protocol::*;
use crate::xpu::Device;
use crate::{Report, metrics};

/// How many pages are moved between two looks at whether the client is still there.
const PAGES_AT_A_TIME: u64 = 16;

/// How many pages one request for residency looks at.
const PAGES_LOOKED_AT: u64 = 1 << 16;

/// What the work is done on.
pub(super) struct Work {
    pub(super) space: Arc<Space>,
    pub(super) devices: Vec<Device>,
    pub(super) instance: u32,
    pub(super) path: PathBuf,
}

/// How far a piece of work is, and whether it should go on.
#[derive(Default)]
pub(super) struct Course {
    done_pages: AtomicU64,
    total_pages: AtomicU64,
    cancelled: AtomicBool,
}

impl Course {
    pub(super) fn progress(&self) -> Progress {
        Progress {
            done_pages: self.done_pages.load(Ordering::Relaxed),
            total_pages: self.total_pages.load(Ordering::Relaxed),
        }
    }

    /// Nobody wants it any more: it ends after the batch under way.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn add(&self, pages: u64) {
        self.done_pages.fetch_add(pages, Ordering::Relaxed);
    }
}

impl Command {
    /// Whether it moves pages, and so may take long.
    pub(super) fn moves_pages(&self) -> bool {
        matches!(self, Self::Prefetch { .. } | Self::Evict { .. })
    }
}

impl Work {
    /// Does it; says what to answer.
    pub(super) fn run(&self, command: &Command, course: &Course) -> Body {
        let result = match *command {
            Command::Hello => Ok(Body::result(&self.hello())),
            Command::Stat { format: StatFormat::Json } => {
                Ok(Body::Result(metrics::json(&self.space.snapshot())))
            }
            Command::Stat { format: StatFormat::Text } => {
                let backing = self.devices.iter().map(|d| (d.node(), d.backing())).collect();
                let report = Report::new(
                    self.space.snapshot(),
                    self.space.usage(),
                    backing,
                    Ok(self.path.clone()),
                );
                Ok(Body::Result(report.to_string().into()))
            }
            Command::Stat { format: StatFormat::Prometheus } => {
                Ok(Body::Result(metrics::prometheus(&self.space.snapshot()).into()))
            }
            Command::Regions { from } => Ok(Body::result(&self.regions(from))),
            Command::Residency { from, pages } => Ok(Body::result(&self.residency(from, pages))),
            Command::Prefetch { node } => {
                self.prefetch(NodeId(node), course).map(|moved| Body::result(&moved))
            }
            Command::Evict { node } => {
                self.evict(node.map(NodeId), course).map(|moved| Body::result(&moved))
            }
        };
        result.unwrap_or_else(|error| Body::Error(error.to_string()))
    }

    fn hello(&self) -> Hello {
        let nodes = self.space.snapshot().nodes.into_iter().map(|n| NodeUse {
            node: n.node.0,
            device: n.device,
            resident_pages: n.resident_frames.into(),
            capacity_pages: n.capacity_frames.into(),
        });
        let nodes = nodes.collect();
        let regions = self.space.regions();
        Hello {
            pid: std::process::id(),
            instance: self.instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            nodes,
            pages: regions.iter().map(|r| r.range.nr_pages).sum(),
            regions: regions.len() as u64,
        }
    }

    fn regions(&self, from: u64) -> Regions {
        let all = self.space.regions().into_iter().filter(|r| r.range.start.0 >= from);
        let mut regions: Vec<_> = all
            .take(MAX_LISTED + 1)
            .map(|r| Region {
                name: r.name.chars().take(MAX_NAME_CHARS).collect(),
                first_page: r.range.start.0,
                pages: r.range.nr_pages,
                writable: r.protection == gmm_core::driver::Protection::ReadWrite,
            })
            .collect();
        let more = regions.split_off(regions.len().min(MAX_LISTED));
        Regions { regions, next: more.first().map(|r| r.first_page) }
    }

    fn residency(&self, from: u64, pages: u64) -> Residency {
        let end = from.saturating_add(pages);
        let last = from.saturating_add(PAGES_LOOKED_AT).min(end);
        let mut runs: Vec<Run> = Vec::new();
        for region in self.space.regions() {
            let (start, stop) = (region.range.start.0.max(from), region.range.end().0.min(last));
            if start >= stop {
                continue;
            }
            let (addr, len) = (PageNr(start).start(), (stop - start) * PAGE_SIZE);
            // A region that has been unmapped meanwhile has none.
            let alike = self.space.residency(addr, len).unwrap_or_default();
            let room = MAX_LISTED - runs.len();
            if let Some(beyond) = alike.get(room) {
                runs.extend(alike[..room].iter().map(run_of));
                return Residency { runs, next: Some(beyond.range.start.0) };
            }
            runs.extend(alike.iter().map(run_of));
        }
        Residency { runs, next: Some(last).filter(|&last| last < end) }
    }

    /// Brings what has contents and is not on `node`, as far as there is room: what is there now
    /// is not pushed out for it.
    fn prefetch(&self, node: NodeId, course: &Course) -> Result<Moved, Error> {
        self.space.check_node(node)?;
        let mut moved = Moved::default();
        let counts = &self.space.snapshot().nodes[usize::from(node.0)];
        // What background reclaim keeps free it would take back at once.
        let kept_free = self.space.config().low_watermark.min(counts.capacity_frames / 8);
        let taken = counts.resident_frames.saturating_add(kept_free);
        let mut room = u64::from(counts.capacity_frames.saturating_sub(taken));
        let mut wanted: Vec<PageRange> = Vec::new();
        for page in self.space.regions().iter().flat_map(|region| region.range.pages()) {
            let Some(info) = self.space.inspect(page.start()) else { continue };
            if course.is_cancelled() {
                return Ok(moved);
            } else if info.copies.is_empty() {
                // It would only take room to make it.
            } else if info.copies.iter().any(|copy| copy.node == node) {
                moved.already_pages += 1;
            } else if room == 0 {
                moved.no_room_pages += 1;
            } else {
                room -= 1;
                course.total_pages.fetch_add(1, Ordering::Relaxed);
                match wanted.last_mut().filter(|run| run.end() == page) {
                    Some(run) => run.nr_pages += 1,
                    None => wanted.push(PageRange { start: page, nr_pages: 1 }),
                }
            }
        }
        for run in wanted {
            self.prefetch_run(run, node, course, &mut moved);
        }
        Ok(moved)
    }

    fn prefetch_run(&self, run: PageRange, node: NodeId, course: &Course, moved: &mut Moved) {
        let (mut at, mut nr_pages) = (run.start, PAGES_AT_A_TIME);
        while at < run.end() && !course.is_cancelled() {
            nr_pages = nr_pages.min(run.end().0 - at.0);
            match self.space.prefetch(at.start(), nr_pages * PAGE_SIZE, node) {
                Ok(came) => {
                    moved.moved_pages += nr_pages - came.left;
                    if let Some(Stopped::NoRoom(full)) = came.stopped {
                        moved.note_failure(came.left, &full);
                    }
                }
                // Which of them it was shows when they are tried one by one.
                Err(_) if nr_pages > 1 => {
                    nr_pages = 1;
                    continue;
                }
                // Its region has gone, and the page with it.
                Err(Error::NotMapped { .. }) => {}
                Err(error) => moved.note_failure(1, &error),
            }
            course.add(nr_pages);
            at = at.plus(nr_pages);
            nr_pages = PAGES_AT_A_TIME;
        }
    }

    /// Pushes out what is on `node`, or on all nodes but the host's.
    fn evict(&self, node: Option<NodeId>, course: &Course) -> Result<Moved, Error> {
        if let Some(node) = node {
            self.space.check_node(node)?;
        }
        let mut moved = Moved::default();
        let nodes = self.space.snapshot().nodes.into_iter();
        let nodes: Vec<_> = nodes
            .filter(|n| node.map_or(n.node != NodeId::HOST, |node| n.node == node))
            .map(|n| (n.node, u64::from(n.resident_frames)))
            .collect();
        course
            .total_pages
            .store(nodes.iter().map(|(_, resident)| resident).sum(), Ordering::Relaxed);
        for (node, resident) in nodes {
            // No more than there were: others may go on bringing pages.
            let mut left = resident;
            while left > 0 && !course.is_cancelled() {
                let gone = u64::from(self.space.evict(node, PAGES_AT_A_TIME as u32)?);
                if gone == 0 {
                    let pages = left.min(self.resident_on(node));
                    let why = format!(
                        "{pages} pages stay on node {node}: they are pinned or in use, or host \
                         memory has no room for them"
                    );
                    moved.note_failure(pages, &why);
                    break;
                }
                moved.moved_pages += gone;
                course.add(gone.min(left));
                left = left.saturating_sub(gone);
            }
        }
        Ok(moved)
    }

    fn resident_on(&self, node: NodeId) -> u64 {
        let nodes = self.space.snapshot().nodes;
        nodes.get(usize::from(node.0)).map_or(0, |n| n.resident_frames.into())
    }
}

impl Moved {
    fn note_failure(&mut self, pages: u64, why: &dyn core::fmt::Display) {
        self.failed_pages += pages;
        if pages > 0 && self.failure.is_none() {
            self.failure = Some(why.to_string());
        }
    }
}

fn run_of(run: &gmm_core::Run) -> Run {
    let state = match run.state {
        None => "in-motion",
        Some(PageState::Closed) => "unmapped",
        Some(PageState::Empty) => "empty",
        Some(PageState::Exclusive(_)) => "exclusive",
        Some(PageState::Shared) => "shared",
    };
    let copies = run.copies.iter().map(|copy| CopyOfPage {
        node: copy.node.0,
        pinned: copy.pinned,
        moved_by: format!("{:?}", copy.moved_by),
    });
    let numbers = |set: ProcessorSet| set.iter().map(|p| p.0).collect();
    Run {
        first_page: run.range.start.0,
        pages: run.range.nr_pages,
        state: state.to_owned(),
        copies: copies.collect(),
        mapped: numbers(run.mapped),
        writable: numbers(run.writable),
    }
}
