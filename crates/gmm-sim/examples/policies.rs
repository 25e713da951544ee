//! Prints the tables of `docs/policies.md`; with `--write`, puts them there and draws the plot.

#[cfg(not(shuttle))]
#[path = "../tests/simulation/mod.rs"]
mod simulation;

#[cfg(not(shuttle))]
fn main() -> std::io::Result<()> {
    use std::fs;

    use simulation::document::{
        measure_changing, measure_steady, plot, table_of_changing, table_of_steady,
    };

    /// Between these lines of the document are the tables.
    const BEGIN: &str = "<!-- tables: begin -->\n";
    const END: &str = "<!-- tables: end -->\n";

    let (steady, changing) = (measure_steady(), measure_changing());
    let tables = format!("{}\n{}", table_of_steady(&steady), table_of_changing(&changing));
    print!("{tables}");
    if std::env::args().any(|argument| argument == "--write") {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let path = format!("{docs}/policies.md");
        let document = fs::read_to_string(&path)?;
        let marked = document.split_once(BEGIN).and_then(|(head, rest)| {
            let (_, tail) = rest.split_once(END)?;
            Some(format!("{head}{BEGIN}\n{tables}\n{END}{tail}"))
        });
        let Some(document) = marked else {
            return Err(std::io::Error::other("docs/policies.md lacks the marks of the tables"));
        };
        fs::write(path, document)?;
        fs::write(format!("{docs}/policies.svg"), plot(&steady))?;
    }
    Ok(())
}

#[cfg(shuttle)]
fn main() {}
