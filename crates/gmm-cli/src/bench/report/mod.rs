//! `--report FILE`: one page that needs nothing else, with the machine, and figure by figure what the
//! paper reports beside what was measured.

mod figures;
mod links;
mod machine;
mod plot;
mod product;

use std::fmt::Write as _;

use figures::{FIGURES, Figure};

use super::record::{Record, display_seconds, significant};
use crate::page::{document, escape};

/// The page, with what a reader must know first.
pub(super) fn page(records: &[Record], caution: Option<&str>) -> String {
    let figures: Vec<(&Figure, Vec<&Record>)> = FIGURES
        .iter()
        .map(|figure| (figure, records.iter().filter(|r| (figure.belongs)(r)).collect()))
        .collect();
    let mut page = String::from(
        "<h1>GMM, measured</h1>\n\
         <p class=\"lead\">What <code>gmm bench</code> found on one machine, beside what the paper's \
         evaluation reports (section 6, and the switch of section 7). The XPU here is the host XPU: a \
         process with a page table, faults and memory of its own, on the same processors. Its speeds say \
         nothing about a card; how a subject compares with its baseline, measured in turn, is what can be \
         compared. Bars and points are medians: bars are blue of GMM, grey of baselines. Whiskers go from the least to the \
         greatest repeat; one without an end goes on beyond the plot.</p>\n",
    );
    if let Some(caution) = caution {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(caution));
    }
    page.push_str("<h2>The machine</h2>\n<table class=\"machine\">\n");
    for (what, value) in machine::describe() {
        let _ = writeln!(page, "<tr><th>{what}</th><td>{}</td></tr>", escape(&value));
    }
    page.push_str("</table>\n");
    if let Some(warning) = machine::warning() {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(&warning));
    }
    page.push_str("<h2>Figure by figure</h2>\n<div class=\"wide\"><table>\n");
    page.push_str(
        "<tr><th>paper</th><th>reproduced here</th><th>not without the hardware</th></tr>\n",
    );
    for (figure, records) in &figures {
        let name = if records.is_empty() {
            format!("{} (not in this run)", figure.name)
        } else {
            format!("<a href=\"#{}\">{}</a>", anchor(figure), figure.name)
        };
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td>{}</td><td>{}</td></tr>",
            escape(figure.here),
            escape(figure.lacking)
        );
    }
    page.push_str("</table></div>\n");
    for (figure, records) in &figures {
        if !records.is_empty() {
            section(&mut page, figure, records);
        }
    }
    all_results(&mut page, records);
    document("GMM, measured", "", &page)
}

fn section(page: &mut String, figure: &Figure, records: &[&Record]) {
    let _ = writeln!(
        page,
        "<section id=\"{}\">\n<h2>{}: {}</h2>\n<div class=\"figure\">\n<div class=\"plot\">\n{}\
         <p class=\"shows\">{}</p>\n</div>\n<aside>\n<h3>The paper</h3>\n<p>{}</p>\n<h3>Here</h3>\n\
         <p>{}</p>\n</aside>\n</div>\n</section>",
        anchor(figure),
        figure.name,
        escape(figure.title),
        (figure.plot)(records),
        escape(&(figure.sentence)(records)),
        escape(figure.paper),
        escape(figure.here),
    );
}

fn all_results(page: &mut String, records: &[Record]) {
    page.push_str(
        "<section>\n<h2>All results</h2>\n<p>Ratios are the subject's speed over its baseline's, pair by \
         pair: the median, the least and the greatest.</p>\n<details><summary>Show the table</summary>\n\
         <div class=\"wide\"><table class=\"numbers\">\n\
         <tr><th>suite</th><th>case</th><th>parameter</th><th>time</th><th>ratio</th><th>least</th>\
         <th>greatest</th><th>repeats</th><th>baseline</th></tr>\n",
    );
    for record in records {
        let time = record.seconds.map_or(String::new(), display_seconds);
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td></tr>",
            escape(&record.suite),
            escape(&record.case),
            escape(&record.parameter),
            escape(&time),
            significant(record.ratio),
            significant(record.ratio_min),
            significant(record.ratio_max),
            record.repeats,
            escape(&record.baseline),
        );
    }
    page.push_str("</table></div></details>\n</section>\n");
}

fn anchor(figure: &Figure) -> String {
    figure.name.to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(suite: &str, case: &str, ratio: f64) -> Record {
        Record::new(suite, case, "threads=1", "raw <copy>", vec![ratio, ratio * 1.1, ratio * 0.9])
            .seconds(0.01)
            .bytes_per_s(5e9)
            .with("baseline_seconds", 0.02)
            .with("baseline_bytes_per_s", 1e10)
            .with("overhead_us_median", 20.0)
            .with("overhead_us_p99", 90.0)
    }

    #[test]
    fn the_page_has_a_section_for_each_figure_that_was_measured() {
        let suites = [
            "memcpy",
            "pagesize",
            "steady",
            "prefetch",
            "faults",
            "product",
            "oversubscribe",
            "cpu",
            "scale",
            "switch",
            "latency",
            "cost",
        ];
        let mut records: Vec<_> =
            suites.iter().map(|suite| record(suite, "iteration", 0.5)).collect();
        for (factor, policy) in [(1.0, "dip"), (2.0, "lru")] {
            let product = record("product", "faults", 0.8).with("factor", factor).with("k", 1024);
            let product = product.with("type", "fp16").with("cores", 1).with("policy", policy);
            records.push(product.with("operand_bytes", 1 << 20));
        }
        let mut over_a_link = record("oversubscribe", "read-2-dip", 0.9);
        over_a_link.parameter = "factor=2 link=2GiB half-duplex".to_owned();
        records.push(over_a_link);
        let whole = page(&records, None);
        assert_eq!(whole.matches("<section id").count(), FIGURES.len());
        assert!(whole.matches("<svg").count() >= FIGURES.len());
        assert!(!whole.contains("not in this run"));
        assert!(!whole.contains("raw <copy>"), "texts are escaped");
        // Nothing is fetched from elsewhere.
        assert!(!whole.contains("http") && !whole.contains("src="));
        // Who has no pager's records is told of none.
        assert!(!whole.contains("pager"));
        let part = page(&records[..1], Some("Means <nothing>."));
        assert!(part.contains("Means &lt;nothing&gt;.") && !whole.contains("Means"));
        assert_eq!(part.matches("<svg").count(), 1);
        assert_eq!(part.matches("not in this run").count(), FIGURES.len() - 1);
    }

    #[test]
    fn what_a_plot_shows_is_said_of_its_records() {
        let figure = FIGURES.iter().find(|figure| figure.name == "Figure 5").unwrap();
        let (slow, fast) = (record("pagesize", "sum", 1.02), record("pagesize", "update", 2.5));
        let sentence = (figure.sentence)(&[&slow, &fast]);
        assert_eq!(
            sentence,
            "With 2 MiB pages update is 2.50 times as fast as with 4 KiB pages; sum gains least (1.02 times)."
        );
    }
}
