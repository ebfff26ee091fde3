//! The documents tell the truth that can be checked: tests that they name and files that they link exist.
//! Budget: 1 s.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file with this ending, without what is built or hidden.
pub(crate) fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    directories.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found
}

/// Names that read like those of our tests: words in lower case, four at least.
fn test_names(text: &str) -> BTreeSet<&str> {
    text.split('`')
        .filter(|span| span.matches('_').count() >= 3 || span.len() > 25 && span.contains('_'))
        .filter(|span| {
            span.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect()
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    assert_named_tests_exist("docs/guarantees.md");
}

#[test]
fn every_test_that_the_page_of_faults_names_exists() {
    assert_named_tests_exist("docs/faults.md");
}

fn assert_named_tests_exist(page: &str) {
    let sources: Vec<String> = files(".rs")
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let page = std::fs::read_to_string(root().join(page)).unwrap();
    let named = test_names(&page);
    assert!(named.len() > 50, "only {} tests are named", named.len());
    // Cases of the conformance suites are generic functions.
    let is_there = |name: &str| {
        let forms = [format!("fn {name}("), format!("fn {name}<")];
        sources.iter().any(|s| forms.iter().any(|f| s.contains(f)))
    };
    let missing: Vec<&&str> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn every_file_that_a_document_links_exists() {
    let mut broken = Vec::new();
    for path in files(".md") {
        let text = std::fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1) {
            let target = target.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !path.parent().unwrap().join(target).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

#[test]
fn the_hint_in_the_guide_is_one_that_nodes_read() {
    let guide = std::fs::read_to_string(root().join("docs/hints.md")).unwrap();
    let sample = guide.split("```json\n").nth(1).unwrap();
    let sample = sample.split("```").next().unwrap().trim();
    let message = jobwire_core::hint::Message::decode(sample.as_bytes()).unwrap();
    assert!(matches!(message.body, jobwire_core::hint::Body::Hints(hints) if hints.len() == 1));
}
