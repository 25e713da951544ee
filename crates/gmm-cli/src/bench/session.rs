//! A run of suites: shows what is being done, gives each result as it comes, and keeps all.

use std::fs;
use std::io::{self, Write};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::options::Output;
use super::record::{Record, to_csv};
use super::report;

/// What suites report to.
pub(super) struct Session {
    output: Output,
    progress: ProgressBar,
    /// Which suite of how many runs, where there are several.
    part: String,
    records: Vec<Record>,
    /// What was said already.
    said: Vec<String>,
    /// What stands first in the report.
    caution: Option<&'static str>,
    /// Nobody reads standard output any more.
    reader_gone: bool,
}

impl Session {
    /// Makes sure that what was asked for beside what is printed can be written, before anything is
    /// measured. What is there stays there until then.
    ///
    /// # Errors
    /// If a file can't be written, naming it.
    pub(super) fn try_output(output: &Output) -> anyhow::Result<()> {
        if let Some(path) = &output.report {
            let is_there = path.exists();
            let opened = fs::File::options().append(true).create(true).open(path);
            opened.with_context(|| format!("can't write {}", path.display()))?;
            if !is_there {
                let _ = fs::remove_file(path);
            }
        }
        let Some(folder) = &output.csv else { return Ok(()) };
        fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
        let trial = folder.join(format!(".gmm-bench-{}", std::process::id()));
        fs::write(&trial, "")
            .and_then(|()| fs::remove_file(&trial))
            .with_context(|| format!("can't write to the folder {}", folder.display()))
    }

    /// Begins a run. The progress bar is on standard error, and only if that is a terminal.
    pub(super) fn new(output: &Output) -> Self {
        let progress = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        Self {
            output: output.clone(),
            progress,
            part: String::new(),
            records: Vec::new(),
            said: Vec::new(),
            caution: None,
            reader_gone: false,
        }
    }

    /// The next suite is one of several.
    pub(super) fn part(&mut self, nth: usize, of: usize) {
        self.part = format!("{nth}/{of} ");
    }

    /// A suite begins that will take so many steps.
    pub(super) fn begin(&mut self, suite: &'static str, steps: u64) {
        let style = ProgressStyle::with_template("{prefix:19} {bar:30} {pos:>4}/{len:4} {msg}")
            .expect("the template is a constant");
        self.progress.set_style(style);
        self.progress.set_length(steps);
        self.progress.set_position(0);
        self.progress.set_prefix(format!("{}{suite}", self.part));
    }

    /// Says what is being done now.
    pub(super) fn doing(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
    }

    /// One step is done.
    pub(super) fn step(&self) {
        self.progress.inc(1);
    }

    /// Something that a reader of the results must know: on standard error, whatever the format, once.
    pub(super) fn say(&mut self, what: String) {
        if !self.said.contains(&what) {
            self.progress.suspend(|| eprintln!("{what}"));
            self.said.push(what);
        }
    }

    /// The report begins with this.
    pub(super) fn caution(&mut self, what: &'static str) {
        self.caution = Some(what);
    }

    /// The reader of standard output has gone away, as `head` does: there is no use in going on, but
    /// that is no error.
    pub(super) fn reader_gone(&self) -> bool {
        self.reader_gone
    }

    /// A result.
    ///
    /// # Errors
    /// If standard output can't be written to.
    pub(super) fn put(&mut self, record: Record) -> anyhow::Result<()> {
        let text = if self.output.json { serde_json::to_string(&record)? } else { record.text() };
        self.records.push(record);
        let printed = self.progress.suspend(|| writeln!(io::stdout().lock(), "{text}"));
        self.reader_gone =
            printed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        printed.context("can't write to standard output")
    }

    /// Ends the run, and writes what was asked for beside what was printed. Without a result nothing is
    /// written: a report that is there stays.
    ///
    /// # Errors
    /// If a file can't be written, naming it.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        self.progress.finish_and_clear();
        if self.records.is_empty() {
            return Ok(());
        }
        if let Some(path) = &self.output.report {
            fs::write(path, report::page(&self.records, self.caution))
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        let Some(folder) = &self.output.csv else { return Ok(()) };
        fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
        let mut suites: Vec<&str> = self.records.iter().map(|r| r.suite.as_str()).collect();
        suites.sort_unstable();
        suites.dedup();
        for suite in suites {
            let of_suite: Vec<_> = self.records.iter().filter(|r| r.suite == suite).collect();
            let path = folder.join(format!("{suite}.csv"));
            fs::write(&path, to_csv(&of_suite)?)
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        Ok(())
    }
}

/// A reader that has gone away, as `head` does, is no error.
pub(super) fn print_line(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_goes_to_one_file_a_suite() {
        let folder = std::env::temp_dir().join(format!("gmm-bench-csv-{}", std::process::id()));
        let output = Output { json: true, csv: Some(folder.join("in")), report: None };
        let mut session = Session::new(&output);
        for (suite, case) in [("one", "a"), ("two", "b"), ("one", "c")] {
            session.records.push(Record::new(suite, case, "", "raw copy", vec![1.0]));
        }
        session.finish().unwrap();
        let lines =
            |name: &str| fs::read_to_string(folder.join("in").join(name)).unwrap().lines().count();
        assert_eq!((lines("one.csv"), lines("two.csv")), (3, 2));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_noticed_at_first_and_what_is_there_stays() {
        let folder = std::env::temp_dir().join(format!("gmm-bench-out-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "there").unwrap();
        let output = |csv: Option<&str>, report: Option<&str>| Output {
            json: true,
            csv: csv.map(|name| folder.join(name)),
            report: report.map(|name| folder.join(name)),
        };
        Session::try_output(&output(Some("csv"), Some("file"))).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "there");
        // Nor is it lost to a run that has found nothing, or made by one.
        Session::new(&output(None, Some("file"))).finish().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "there");
        Session::try_output(&output(None, Some("report.html"))).unwrap();
        assert!(!folder.join("report.html").exists());
        let error = Session::try_output(&output(None, Some("none/report.html"))).unwrap_err();
        assert!(error.to_string().contains("none/report.html"), "{error}");
        assert!(Session::try_output(&output(Some("file"), None)).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
