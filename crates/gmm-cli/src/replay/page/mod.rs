//! `--html FILE`: one page that needs nothing else, to be read top down: what went wrong, what to do,
//! and the evidence.

mod chart;
mod map;

use std::fmt::Write as _;

use gmm::display_bytes;
use gmm_trace::{Recording, Sites};

use super::advice::Advice;
use super::explain;
use super::holders::{Origin, frame_text, origin};
use super::moment::Picture;
use super::record::Record;
use super::story::Story;
use super::timeline::Timeline;
use crate::page::{document, escape};

const STYLE: &str = include_str!("style.css");

/// Rows of the largest memory map.
const MAP_ROWS: u64 = 20;

/// So many holders have a colour.
const COLOURED_HOLDERS: usize = 6;

/// All that is known of one device of a file.
pub(super) struct Section<'a> {
    pub(super) records: &'a [Record],
    pub(super) story: &'a Story,
    pub(super) pictures: &'a [(&'static str, Picture)],
    /// What the recording's own allocator had, if that was recorded.
    pub(super) recorded: Option<&'a Timeline>,
    pub(super) recording: &'a Recording,
    pub(super) sites: &'a Sites,
}

/// A section, written.
pub(super) struct Written {
    /// Its place among all sections.
    nr: usize,
    ran_out: bool,
    title: String,
    /// What went wrong first.
    headline: String,
    html: String,
}

/// The whole page. Where memory ran out comes first.
pub(super) fn page(mut sections: Vec<Written>) -> String {
    sections.sort_by_key(|section| !section.ran_out);
    let mut contents = String::new();
    if sections.len() > 1 {
        contents += "<h2>In short</h2>\n<ul class=\"short\">\n";
        for Written { nr, ran_out, title, headline, .. } in &sections {
            let class = if *ran_out { "no" } else { "yes" };
            let _ = writeln!(
                contents,
                "<li><a class=\"{class}\" href=\"#s{nr}\">{title}</a>: {headline}</li>"
            );
        }
        contents += "</ul>\n";
    }
    let sections: String = sections.into_iter().map(|section| section.html).collect();

    let body = format!(
        "<h1>Where the memory went</h1>\n\
         <p class=\"lead\">What a program allocated on an accelerator, replayed with several \
         allocators by <code>gmm replay</code> {}. <b>Live</b> is the sum of the sizes that the \
         program asked for and had not freed; <b>reserved</b> is what the allocator held of the \
         device for that. What is reserved and not live is lost to fragmentation.</p>\n{contents}{sections}",
        env!("CARGO_PKG_VERSION")
    );
    document("Where the memory went", STYLE, &body)
}

impl Section<'_> {
    /// As the so many-th of the page.
    pub(super) fn write(&self, nr: usize) -> Written {
        let file = self.records.first().map_or("", |record| record.file.as_str());
        let title = format!("{}, device {}", escape(file), self.recording.device());
        let nr_events = self.recording.events().len();
        let told = explain::what_went_wrong(self.story, nr_events, self.records);
        let ran_out = self.story.ran_out(self.records);
        let mut page = format!("<section id=\"s{nr}\">\n<h2>{title}</h2>\n");
        let class = if ran_out { "verdict bad" } else { "verdict" };
        let _ = writeln!(page, "<div class=\"{class}\">");
        for told in &told {
            let _ = writeln!(page, "<p>{}</p>", escape(told));
        }
        page.push_str("</div>\n");
        if let Some(advice) = &self.story.advice {
            page += "<h3>What to do</h3>\n";
            for told in explain::what_to_do(advice) {
                let _ = writeln!(page, "<p>{}</p>", escape(&told));
            }
            page += &advice_table(advice);
        }
        page += "<h3>Memory over time</h3>\n";
        page += &self.chart();
        let _ = writeln!(page, "<h3>Who held the most {}</h3>", explain::moment(self.story));
        page += &self.holders();
        let _ = writeln!(page, "<h3>The memory {}</h3>", explain::moment(self.story));
        page += &self.maps();
        page += "<h3>All allocators</h3>\n";
        page += &allocators_table(self.records);
        page += "</section>\n";
        let headline = escape(told.first().map_or("", String::as_str));
        Written { nr, ran_out, title, headline, html: page }
    }

    fn chart(&self) -> String {
        let replayed = self.records.iter().enumerate().map(|(nr, record)| {
            let (name, timeline) = (record.allocator, &record.shown);
            chart::Line { name, class: format!("s{nr}"), timeline }
        });
        let recorded = self.recorded.map(|timeline| chart::Line {
            name: "as recorded",
            class: "recorded".to_owned(),
            timeline,
        });
        let lines: Vec<_> = replayed.chain(recorded).collect();
        let mut html = String::from("<p class=\"key\"><span class=\"swatch live\"></span>live");
        for line in &lines {
            let (class, name) = (&line.class, escape(line.name));
            let _ = write!(html, " <span class=\"swatch {class}\"></span>reserved: {name}");
        }
        html += "</p>\n<div class=\"plot\">";
        html += &chart::chart(&lines, self.story.card_bytes, self.story.nr_operations);
        html + "</div>\n"
    }

    fn holders(&self) -> String {
        let live: u64 = self.pictures.first().map_or(0, |(_, picture)| picture.live_bytes);
        let mut html = String::from(
            "<div class=\"wide\"><table class=\"holders\">\n<tr><th></th><th>live</th><th>share</th>\
             <th>blocks</th><th>allocated at</th></tr>\n",
        );
        for (nr, holder) in self.story.holders.iter().enumerate() {
            let swatch = if nr < COLOURED_HOLDERS { format!("h{nr}") } else { "other".into() };
            let mut what = escape(&explain::holder(holder, self.sites));
            if let Origin::Site(site) = holder.origin {
                let frames = self.sites.frames(site).map(|frame| escape(&frame_text(frame)));
                let stack = frames.collect::<Vec<_>>().join("\n");
                what = format!("<details><summary>{what}</summary><pre>{stack}</pre></details>");
            }
            let _ = writeln!(
                html,
                "<tr><td><span class=\"swatch {swatch}\"></span></td><td>{}</td><td>{:.1}%</td>\
                 <td>{}</td><td>{what}</td></tr>",
                display_bytes(holder.bytes),
                holder.bytes as f64 / live.max(1) as f64 * 100.0,
                holder.nr_blocks,
            );
        }
        html + "</table></div>\n"
    }

    fn maps(&self) -> String {
        let most = self.pictures.iter().map(|(_, picture)| picture.reserved_bytes).max();
        let row_bytes = most.unwrap_or(0).div_ceil(MAP_ROWS).max(1);
        let mut html = format!(
            "<p class=\"key\">A row is {}; blocks have the colours of their holders above, grey ones \
             belong to others. <span class=\"swatch free\"></span>reserved and free, which is what \
             fragmentation takes; a dark tick begins a segment.</p>\n",
            display_bytes(row_bytes)
        );
        let class = |block: u32| {
            let origin = origin(&self.recording.blocks()[block as usize]);
            let coloured = self.story.holders.iter().take(COLOURED_HOLDERS);
            let nr = coloured.into_iter().position(|holder| holder.origin == origin);
            nr.map_or("other".to_owned(), |nr| format!("h{nr}"))
        };
        for (name, picture) in self.pictures {
            let holes = picture.holes();
            let largest = holes.iter().max().copied().unwrap_or(0);
            let _ = writeln!(
                html,
                "<p class=\"caption\"><b>{name}</b>: {} live in {} reserved (segments: {}); {} free in \
                 {} holes, the largest of {}.</p>\n<div class=\"map\">{}</div>",
                display_bytes(picture.live_bytes),
                display_bytes(picture.reserved_bytes),
                picture.segments.len(),
                display_bytes(holes.iter().sum()),
                holes.len(),
                display_bytes(largest),
                map::map(picture, row_bytes, class)
            );
        }
        html
    }
}

fn advice_table(advice: &Advice) -> String {
    let mut html = String::from(
        "<div class=\"wide\"><table class=\"figures\">\n<tr><th>tried</th><th>smallest device</th>\
         <th>times what must live</th>",
    );
    if let Some(capacity) = advice.capacity_bytes {
        let _ = write!(html, "<th>on {}</th>", display_bytes(capacity));
    }
    html += "</tr>\n";
    for tried in &advice.tried {
        let least = tried.min_capacity_bytes;
        let times = |least: u64| least as f64 / advice.needed_bytes.max(1) as f64;
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td>",
            match tried.setting.as_str() {
                "" => escape(explain::name(tried)),
                setting => format!("<code>PYTORCH_CUDA_ALLOC_CONF={}</code>", escape(setting)),
            },
            least.map_or("none".into(), display_bytes),
            least.map_or(String::new(), |least| format!("{:.3}", times(least))),
        );
        if let Some(fits) = tried.fits {
            let _ = match tried.out_of_memory_at {
                Some(at) if !fits => {
                    write!(html, "<td class=\"no\">runs out at operation {at}</td>")
                }
                _ => write!(html, "<td class=\"yes\">fits</td>"),
            };
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

fn allocators_table(records: &[Record]) -> String {
    let has_capacity = records.iter().any(|record| record.min_capacity_bytes.is_some());
    let mut html = String::from(
        "<div class=\"wide\"><table class=\"figures\">\n<tr><th>allocator</th><th>live at most</th>\
         <th>reserved at most</th><th>utilisation</th><th>not live, mean</th><th>segments</th>\
         <th>frames mapped</th><th>unmapped</th><th>ns/op</th>",
    );
    let ran_out = records.iter().any(|record| record.out_of_memory_at.is_some());
    html += if ran_out { "<th>ran out at operation</th>" } else { "" };
    html += if has_capacity { "<th>smallest device</th></tr>\n" } else { "</tr>\n" };
    for record in records {
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.3}</td><td>{:.1}%</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{:.0}</td>",
            record.allocator,
            display_bytes(record.peak_live_bytes),
            display_bytes(record.peak_reserved_bytes),
            record.utilisation,
            record.mean_fragmentation * 100.0,
            record.segments,
            record.frames_mapped,
            record.frames_unmapped,
            record.ns_per_op,
        );
        if ran_out {
            let at = record.out_of_memory_at.map_or("-".into(), |at| at.to_string());
            let _ = write!(html, "<td>{at}</td>");
        }
        if has_capacity {
            let least = record.min_capacity_bytes.map_or("none".into(), display_bytes);
            let _ = write!(html, "<td>{least}</td>");
        }
        html += "</tr>\n";
    }
    html += "</table></div>\n";
    if let Some(record) = records.first() {
        let _ = writeln!(
            html,
            "<p class=\"key\">{} operations on a device of {}. A frame has 2 MiB. The stitching \
             allocator keeps freed memory mapped as long as the device has more, so on a large device \
             it reserves more than it needs.</p>",
            record.operations,
            display_bytes(record.capacity_bytes)
        );
    }
    html
}
