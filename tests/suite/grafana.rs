//! The dashboard, the alert rules and their documents name metrics that exist. A real Prometheus
//! that scraped a loaded fleet answers each of their queries.
//!
//! Time budget: 90 s, half of it the unit tests of the rules and the load.

mod alerts;
mod dashboard;
pub(crate) mod exposition;
mod load;
mod metrics_page;
mod promql;
mod scraped;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn grafana(name: &str) -> PathBuf {
    repository().join("grafana").join(name)
}

/// Asserts that a generated document is up to date. With `WRITE_DOCS=1` it writes the document
/// instead.
fn assert_made(file: &Path, expected: &str) {
    let found = std::fs::read_to_string(file).unwrap_or_default();
    if found == expected {
        return;
    }
    let name = file.strip_prefix(repository()).unwrap_or(file).display();
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(file, expected).unwrap();
        return;
    }
    panic!(
        "{name} is out of date. `WRITE_DOCS=1 cargo test -p jobwire-tests --test suite grafana` updates it:\n{expected}"
    );
}

/// Like `assert_made`, for a table inside a document, between `<!-- NAME -->` and `<!-- end of NAME
/// -->`.
fn assert_table_made(file: &Path, name: &str, table: &str) {
    // Two tests write tables in one file.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let text = std::fs::read_to_string(file).unwrap();
    let (start, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let (before, rest) = text.split_once(&start).expect("the beginning of the table");
    let (_, after) = rest.split_once(&end).expect("the end of the table");
    assert_made(file, &format!("{before}{start}{table}{end}{after}"));
}

/// Returns a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
