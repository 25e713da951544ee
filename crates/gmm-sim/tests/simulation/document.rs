//! What `docs/policies.md` shows: the tables and the plot.

use std::fmt::Write;

use gmm_sim::{Workload, optimum};

use super::{Contender, FRAMES, pages_moved};

/// How many passes there are before a change, and after.
const BEFORE: usize = 6;
const AFTER: usize = 8;

/// What is counted as steady: the passes after the third.
const STEADY: usize = 3;

/// Sweeps of how many times the memory.
pub(crate) const SWEEPS: [f64; 6] = [1.05, 1.25, 1.5, 2.0, 3.0, 4.0];

/// The workloads that stay as they are.
pub(crate) fn steady() -> Vec<Workload> {
    let sweeps = SWEEPS.map(|factor| Workload::sweep(FRAMES, factor, AFTER));
    let others = [
        Workload::sweep_by(16, FRAMES, 1.25, AFTER),
        Workload::two_sweeps(FRAMES, 0.5, 1.0, AFTER),
        Workload::two_sweeps(FRAMES, 0.3, 2.0, AFTER),
        Workload::two_sweeps(FRAMES, 1.0, 1.5, AFTER),
        Workload::decode(FRAMES, 1.5, 2 * AFTER),
        Workload::uniform(FRAMES, 2.0, AFTER),
        Workload::zipf(FRAMES, 4.0, 1.0, AFTER),
        Workload::zipf(FRAMES, 4.0, 1.2, AFTER),
    ];
    sweeps.into_iter().chain(others).collect()
}

/// The workloads that turn into something else.
pub(crate) fn changing() -> Vec<Workload> {
    let before = |factor| Workload::sweep(FRAMES, factor, BEFORE);
    let sweep = |factor| Workload::sweep(FRAMES, factor, AFTER);
    vec![
        before(2.0).then(sweep(1.25)),
        before(4.0).then(sweep(1.25)),
        before(1.25).then(sweep(2.0)),
        before(1.25).then(sweep(4.0)),
        before(1.25).then(Workload::sweep_elsewhere(FRAMES, 1.25, AFTER)),
        before(2.0).then(Workload::sweep_elsewhere(FRAMES, 0.9, AFTER)),
        before(1.5).then(Workload::two_sweeps(FRAMES, 0.5, 1.0, AFTER)),
        before(1.5).then(Workload::uniform(FRAMES, 1.5, AFTER)),
        before(1.5).then(Workload::zipf(FRAMES, 4.0, 1.0, AFTER)),
    ]
}

/// What one policy made of a workload.
pub(crate) struct Result {
    pub(crate) contender: Contender,
    pub(crate) moved: Vec<u64>,
}

/// What the policies made of a workload.
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) optimum: Vec<u64>,
    pub(crate) results: Vec<Result>,
}

impl Row {
    fn measure(workload: Workload, contenders: &[Contender]) -> Self {
        let result = |&contender| {
            let moved = pages_moved(&workload, FRAMES, contender);
            Result { contender, moved }
        };
        let results = contenders.iter().map(result).collect();
        Self { optimum: optimum(&workload.passes, FRAMES as usize), workload, results }
    }

    /// Pages moved a pass by a policy once it has settled.
    pub(crate) fn steady(&self, contender: Contender) -> f64 {
        self.mean(&self.of(contender).moved)
    }

    pub(crate) fn steady_optimum(&self) -> f64 {
        self.mean(&self.optimum)
    }

    pub(crate) fn of(&self, contender: Contender) -> &Result {
        self.results.iter().find(|r| r.contender == contender).expect("it was measured")
    }

    fn mean(&self, moved: &[u64]) -> f64 {
        let steady = &moved[self.workload.changes_at + STEADY..];
        steady.iter().sum::<u64>() as f64 / steady.len() as f64
    }
}

pub(crate) fn measure_steady() -> Vec<Row> {
    let row = |workload| Row::measure(workload, &Contender::ALL);
    steady().into_iter().map(row).collect()
}

pub(crate) fn measure_changing() -> Vec<Row> {
    let row = |workload| Row::measure(workload, &[Contender::LRU, Contender::DIP]);
    changing().into_iter().map(row).collect()
}

/// The first table, in Markdown.
pub(crate) fn table_of_steady(rows: &[Row]) -> String {
    let mut text = String::from("| workload | optimum |");
    for contender in Contender::ALL {
        write!(text, " {} |", contender.name()).expect("a string");
    }
    text += "\n|---|---|---|---|---|---|\n";
    for row in rows {
        let optimum = row.steady_optimum();
        write!(text, "| {} | {optimum:.0} |", row.workload.name).expect("a string");
        for contender in Contender::ALL {
            let moved = row.steady(contender);
            write!(text, " {moved:.0} ({:.2}) |", moved / optimum).expect("a string");
        }
        text.push('\n');
    }
    text
}

/// The second.
pub(crate) fn table_of_changing(rows: &[Row]) -> String {
    let mut text = String::from("| workload | optimum | lru | dip: pass 1 | 2 | 3 | 4 | later |\n");
    text += "|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let name = &row.workload.name;
        let (optimum, lru) = (row.steady_optimum(), row.steady(Contender::LRU));
        write!(text, "| {name} | {optimum:.0} | {lru:.0} |").expect("a string");
        let after = &row.of(Contender::DIP).moved[row.workload.changes_at..];
        for moved in &after[..STEADY + 1] {
            write!(text, " {moved} |").expect("a string");
        }
        writeln!(text, " {:.0} |", row.steady(Contender::DIP)).expect("a string");
    }
    text
}

/// The sweeps as a plot: the size of the sweep, and how much of it is moved each time.
pub(crate) fn plot(rows: &[Row]) -> String {
    let (left, top, width, height) = (60.0, 20.0, 440.0, 300.0);
    let x = |factor: f64| left + (factor - 1.0) / 3.0 * width;
    let y = |part: f64| top + (1.0 - part) * height;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 620 380\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"620\" height=\"380\" fill=\"white\"/>\n",
    );
    for percent in [0, 25, 50, 75, 100] {
        let at = y(f64::from(percent) / 100.0);
        let right = left + width;
        writeln!(
            svg,
            "<path d=\"M{left} {at}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{percent}%</text>",
            left - 6.0,
            at + 4.0
        )
        .expect("a string");
    }
    for factor in [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0] {
        let (at, below) = (x(factor), y(0.0) + 18.0);
        writeln!(svg, "<text x=\"{at}\" y=\"{below}\" text-anchor=\"middle\">{factor}</text>")
            .expect("a string");
    }
    svg += "<text x=\"280\" y=\"368\" text-anchor=\"middle\">size of the sweep, times the XPU's \
            memory</text>\n<text x=\"16\" y=\"170\" text-anchor=\"middle\" \
            transform=\"rotate(-90 16 170)\">of the sweep's pages, moved each time</text>\n";
    let rows = &rows[..SWEEPS.len()];
    let part = |row: &Row, moved: f64| moved / row.workload.nr_pages() as f64;
    let mut line = |name: &str, style: &str, shift: f64, moved: &dyn Fn(&Row) -> f64| {
        let points = rows.iter().zip(SWEEPS);
        let points: Vec<_> = points
            .map(|(row, factor)| format!("{:.1},{:.1}", x(factor), y(part(row, moved(row)))))
            .collect();
        let end = y(part(&rows[SWEEPS.len() - 1], moved(&rows[SWEEPS.len() - 1]))) + shift;
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" {style}/>\
             <text x=\"{}\" y=\"{end:.1}\">{name}</text>",
            points.join(" "),
            x(4.0) + 8.0
        )
        .expect("a string");
    };
    let of = |contender| move |row: &Row| row.steady(contender);
    line("fifo16, lru", "stroke=\"#c33\" stroke-width=\"2\"", 4.0, &of(Contender::LRU));
    line("dip", "stroke=\"#06c\" stroke-width=\"2\"", -6.0, &of(Contender::DIP));
    line("next-use", "stroke=\"#093\" stroke-width=\"2\"", 8.0, &of(Contender::NextUse));
    line("optimum", "stroke=\"black\" stroke-dasharray=\"3 3\"", 22.0, &Row::steady_optimum);
    svg += "</svg>\n";
    svg
}
