//! What `gmm replay` tells a person in a terminal.

use std::fmt::Write as _;
use std::ops::Range;

use comfy_table::{CellAlignment, Table, presets};
use gmm::display_bytes;
use gmm_trace::Sites;

use super::advice::Advice;
use super::executed::Executed;
use super::record::Record;
use super::remaps::Remaps;
use super::story::Story;
use super::{blocks, explain};

/// How many holders are named.
const SHOWN_HOLDERS: usize = 5;
/// Rows of the plot.
const PLOT_ROWS: usize = 8;
/// Characters left of it, for the scale.
const SCALE: usize = 10;
/// Columns of the line that shows fragmentation over time, where the terminal has room for it.
const SPARK: usize = 24;
const WIDTH_WITH_SPARK: usize = 120;

/// The records of one device.
pub(super) fn text(
    records: &[Record],
    story: &Story,
    nr_events: usize,
    sites: &Sites,
    width: usize,
) -> String {
    let Some(first) = records.first() else { return String::new() };
    let mut text = format!(
        "{}, device {}: {} operations, {} live at most\n",
        printable(&first.file),
        first.device,
        first.operations,
        display_bytes(first.peak_live_bytes)
    );
    if first.operations > 0 {
        let leading = records.iter().find(|record| record.allocator == story.leading);
        text += &plot(leading.unwrap_or(first), width);
    }
    let _ = writeln!(text, "\n{}", table(records, width));
    for record in records {
        if let Some(remaps) = &record.remaps {
            let _ = writeln!(text, "\n{}", remaps_table(record.allocator, remaps));
        }
    }
    let told = explain::what_went_wrong(story, nr_events, records);
    told.iter().for_each(|paragraph| text += &wrapped(paragraph, width));
    let has_holders = !story.holders.is_empty();
    if has_holders && (story.advice.is_some() || !story.failures.is_empty()) {
        text += &holders(story, sites);
    }
    if let Some(advice) = &story.advice {
        text += "\n";
        let told = explain::what_to_do(advice);
        told.iter().for_each(|paragraph| text += &wrapped(paragraph, width));
        let _ = writeln!(text, "\n{}", advice_table(advice));
    }
    text
}

/// What became of a program of so many operations that was run for real.
pub(super) fn executed(executed: &Executed, nr_operations: usize, width: usize) -> String {
    let Executed { scale, operations, seconds, .. } = executed;
    let (live, memory) = (executed.peak_live_bytes, executed.xpu_memory_bytes);
    let how_many = if *operations == nr_operations { "all" } else { &format!("{operations} of") };
    let sizes = if *scale == 1 { "as recorded" } else { &format!("divided by {scale}") };
    let wrong = match executed.wrong_words {
        0 => "none was wrong",
        nr_words => &format!("{nr_words} were WRONG"),
    };
    let told = format!(
        "Executed on a host XPU: {how_many} {nr_operations} operations in {seconds:.2} s, sizes \
         {sizes}: {} live at most, in {}. {} frames were mapped, {} unmapped; {} waits for the XPU, \
         {} of one stream for another. Of {} words looked at {wrong}.",
        display_bytes(live),
        display_bytes(memory),
        executed.frames_mapped,
        executed.frames_unmapped,
        executed.host_waits,
        executed.stream_orders,
        executed.checked_words,
    );
    let mut text = wrapped(&told, width);
    if let (Some(at), Some(why)) = (executed.out_of_memory_at, &executed.out_of_memory) {
        let (asked, free) = (display_bytes(why.requested_bytes), display_bytes(why.free_bytes));
        let told = format!("It ran out at operation {at}, which asked for {asked}: {free} free.");
        text += &wrapped(&told, width);
    }
    text
}

fn holders(story: &Story, sites: &Sites) -> String {
    let mut text = format!("\nWho held the most {}:\n", explain::moment(story));
    for holder in story.holders.iter().take(SHOWN_HOLDERS) {
        let (bytes, what) = (display_bytes(holder.bytes), explain::holder(holder, sites));
        let _ = writeln!(text, "{bytes:>SCALE$} in {:>5}: {}", holder.nr_blocks, printable(&what));
    }
    text
}

fn advice_table(advice: &Advice) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let fits = advice.capacity_bytes.map(|capacity| format!("fits {}?", display_bytes(capacity)));
    let mut header = vec!["tried".to_owned(), "fits on".to_owned(), "x needed".to_owned()];
    header.extend(fits);
    table.set_header(header);
    for tried in &advice.tried {
        let least = tried.min_capacity_bytes;
        let times = |least: u64| format!("{:.4}", least as f64 / advice.needed_bytes.max(1) as f64);
        let mut row = vec![
            printable(explain::name(tried)),
            least.map_or("-".into(), display_bytes),
            least.map_or("-".into(), times),
        ];
        row.extend(tried.fits.map(|fits| match tried.out_of_memory_at {
            None if fits => "yes".to_owned(),
            at => format!("no, at operation {}", at.unwrap_or(0)),
        }));
        table.add_row(row);
    }
    align_right(&mut table, 1..3);
    table
}

/// What a file says, or is called, is another's: no control characters of it reach a terminal, nor
/// those that change the direction of a line.
fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { ' ' } else { c }).collect()
}

/// A paragraph in lines of at most `width` characters, as far as its words allow.
fn wrapped(paragraph: &str, width: usize) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += len;
    }
    text + "\n"
}

/// Live memory, and what the first allocator reserves for it.
fn plot(record: &Record, width: usize) -> String {
    let most = record.peak_reserved_bytes.max(record.peak_live_bytes).max(1);
    let columns = width.saturating_sub(SCALE + 3).max(16);
    let lines = blocks::area(&record.shown, columns, PLOT_ROWS, most);
    let mut text = String::new();
    for (row, line) in lines.iter().enumerate() {
        let scale = match row {
            0 => display_bytes(most),
            row if row == PLOT_ROWS / 2 => display_bytes(most / 2),
            _ => String::new(),
        };
        let _ = writeln!(text, "{scale:>SCALE$} \u{2502}{}", line.trim_end());
    }
    let key = format!("\u{2588} live, \u{2591} reserved by {}", record.allocator);
    let end = format!("operation {}", record.operations);
    let gap = columns.saturating_sub(key.chars().count() + end.len()).max(2);
    let _ = writeln!(text, "{:>SCALE$} \u{2514}{}", "0 B", "\u{2500}".repeat(columns));
    let _ = writeln!(text, "{:SCALE$}  {key}{:gap$}{end}", "", "");
    text
}

fn table(records: &[Record], width: usize) -> Table {
    let has_capacity = records.iter().any(|record| record.min_capacity_bytes.is_some());
    let has_spark = width >= WIDTH_WITH_SPARK;
    let ran_out = records.iter().any(|record| record.out_of_memory_at.is_some());
    let mut header = vec!["allocator"];
    header.extend(ran_out.then_some("ran out at"));
    header.extend(["reserved", "utilised"]);
    if has_capacity {
        header.extend(["fits on", "x live"]);
    }
    header.extend(["segments", "mapped", "unmapped", "runs", "ns/op", "not live"]);
    if has_spark {
        header.push("over time");
    }
    let at = |record: &Record| record.out_of_memory_at.map_or("-".into(), |at| at.to_string());
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(&header);
    for record in records {
        let mut row = vec![record.allocator.to_owned()];
        row.extend(ran_out.then(|| at(record)));
        row.extend([
            display_bytes(record.peak_reserved_bytes),
            format!("{:.3}", record.utilisation),
        ]);
        if has_capacity {
            row.push(record.min_capacity_bytes.map_or("-".into(), display_bytes));
            let times = record.capacity_utilisation.map(|share| format!("{:.4}", 1.0 / share));
            row.push(times.unwrap_or_else(|| "-".into()));
        }
        row.extend([
            record.segments.to_string(),
            record.frames_mapped.to_string(),
            record.frames_unmapped.to_string(),
            (record.map_runs + record.unmap_runs).to_string(),
            format!("{:.0}", record.ns_per_op),
            format!("{:.1}%", record.mean_fragmentation * 100.0),
        ]);
        if has_spark {
            let shares: Vec<f64> = record.shown.fragmentation().collect();
            row.push(blocks::spark(&shares, SPARK));
        }
        table.add_row(row);
    }
    let nr_numbers = header.len() - usize::from(has_spark);
    align_right(&mut table, 1..nr_numbers);
    table
}

fn remaps_table(allocator: &str, remaps: &[Remaps]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        &format!("{allocator} at"),
        "capacity",
        "mapped",
        "unmapped",
        "runs",
        "A100: handles, once",
        "remaps",
    ]);
    for at in remaps {
        let mut row =
            vec![format!("{} x peak live", at.times_peak_live), display_bytes(at.capacity_bytes)];
        row.extend(match &at.price {
            Some(price) => [
                price.frames_mapped.to_string(),
                price.frames_unmapped.to_string(),
                (price.map_runs + price.unmap_runs).to_string(),
                format!("{:.0} ms", price.a100_handles_ms),
                format!("{:.1} to {:.1} ms", price.a100_remaps_least_ms, price.a100_remaps_most_ms),
            ]
            .to_vec(),
            None => vec!["runs out".to_owned()],
        });
        table.add_row(row);
    }
    align_right(&mut table, 1..7);
    table
}

fn align_right(table: &mut Table, columns: Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
