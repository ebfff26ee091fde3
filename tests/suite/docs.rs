//! Checks of the documents: the tests that they name and the files that they link exist, and the
//! summary and the lists of the engines' settings are complete. Budget: 1 s.

mod engine_settings;
mod labels;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every file with this ending, without build output and hidden folders.
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

/// Returns the names that look like test names: lower case, with at least three underscores, or
/// long. Metrics begin with `jobwire_`.
fn test_names(text: &str) -> BTreeSet<&str> {
    text.split('`').filter(|span| is_test_name(span)).collect()
}

fn is_test_name(span: &str) -> bool {
    let is_long = span.matches('_').count() >= 3 || span.len() > 25 && span.contains('_');
    let mut bytes = span.bytes();
    is_long
        && !span.starts_with("jobwire_")
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    assert_named_tests_exist("docs/reference/guarantees.md");
}

#[test]
fn every_test_that_the_page_of_faults_names_exists() {
    assert_named_tests_exist("docs/operating/faults.md");
}

#[test]
fn every_test_that_the_page_of_features_names_exists() {
    assert_named_tests_exist("docs/features.md");
}

fn assert_named_tests_exist(page: &str) {
    let sources: Vec<String> = files(".rs")
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let page = std::fs::read_to_string(root().join(page)).unwrap();
    let named = test_names(&page);
    assert!(named.len() > 50, "only {} tests are named", named.len());
    // Conformance tests are generic functions.
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

/// The book has only the pages of its summary.
#[test]
fn the_summary_lists_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let pages = files(".md").into_iter();
    let missing: Vec<String> = pages
        .filter_map(|page| Some(page.strip_prefix(&docs).ok()?.display().to_string()))
        .filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// `scripts/test-producers` runs the programs.
#[test]
fn every_page_of_a_producer_shows_its_program() {
    let page = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let pages: Vec<String> = std::fs::read_dir(root().join("docs/producers"))
        .unwrap()
        .map(|entry| page(entry.unwrap().path()))
        .collect();
    let mut programs = 0;
    for ending in ["main.rs", "Producer.java", "producer.py", "main.go"] {
        let sources = files(ending).into_iter();
        for source in sources.filter(|path| path.starts_with(root().join("tests/producers"))) {
            let program = std::fs::read_to_string(&source).unwrap();
            programs += 1;
            assert!(
                pages.iter().any(|page| page.contains(&program)),
                "no page of docs/producers has {}",
                source.display()
            );
        }
    }
    assert_eq!(programs, 9);
}

#[test]
fn the_hint_in_the_guide_is_one_that_nodes_read() {
    let guide = std::fs::read_to_string(root().join("docs/reference/hints.md")).unwrap();
    let sample = guide.split("```json\n").nth(1).unwrap();
    let sample = sample.split("```").next().unwrap().trim();
    let message = jobwire_core::hint::Message::decode(sample.as_bytes()).unwrap();
    assert!(matches!(message.body, jobwire_core::hint::Body::Hints(hints) if hints.len() == 1));
}

/// A migration that has been applied anywhere must not change: sqlx would refuse the database. Add
/// a new migration instead, here too.
#[test]
fn migrations_that_have_landed_are_as_they_were() {
    let landed = [
        ("postgres/0001_jobs.up.sql", "46865396128b9855"),
        ("postgres/0002_bounds.up.sql", "480c1616e614ec5a"),
        ("postgres/0003_nodes.up.sql", "7d654af99f18ba03"),
        ("postgres/0004_periodic_jobs.up.sql", "63bcdf94fa183137"),
        ("postgres/0005_history.up.sql", "19ed7b3abc75e717"),
        ("postgres/0006_pauses.up.sql", "33d5431190bdb581"),
        ("postgres/0007_priorities.up.sql", "2210248898fe7b06"),
        ("postgres/0008_unique_jobs.up.sql", "fc4c2760744f8413"),
        ("postgres/0009_running_jobs.up.sql", "5bf394c4a9e3478e"),
        ("postgres/0010_permits.up.sql", "9325ac5708d6f1ca"),
        ("postgres/0011_batches.up.sql", "48c74a0d49756e85"),
        ("postgres/0012_event_stream.up.sql", "2c988f8e19b574e8"),
        ("postgres/0013_search_paths.up.sql", "51ae1d0d63362699"),
        (
            "postgres/0014_attempts_of_dead_nodes.up.sql",
            "c0dbe8d7e9548d91",
        ),
        ("postgres/0015_bounds_of_reports.up.sql", "54c889fc3571cf3c"),
        (
            "postgres/0016_element_suspensions.up.sql",
            "16447af1acb8ad17",
        ),
        ("postgres/0017_fair_limits.up.sql", "5de939b685505b10"),
        ("postgres/0018_unannounced_jobs.up.sql", "2f4f182f5122eaa2"),
        (
            "postgres/0019_jobs_without_turns.up.sql",
            "4c399d3a47b0eceb",
        ),
        ("postgres/0020_definition_keys.up.sql", "929985826d98ddb9"),
        ("sqlite/0001_jobs.up.sql", "615fa2f46fffec6f"),
        ("sqlite/0002_bounds.up.sql", "545dea97bf113a18"),
        ("sqlite/0003_nodes.up.sql", "f7d4aa302eca084c"),
        ("sqlite/0004_periodic_jobs.up.sql", "a7ba61ce10ae95d1"),
        ("sqlite/0005_history.up.sql", "959ca8d3842df78d"),
        ("sqlite/0006_pauses.up.sql", "c0b9da1b25f12fa9"),
        ("sqlite/0007_priorities.up.sql", "8841dd3484d31912"),
        ("sqlite/0008_unique_jobs.up.sql", "f910a84a1a0fd5ec"),
        ("sqlite/0009_running_jobs.up.sql", "96faa6029e00695d"),
        ("sqlite/0010_permits.up.sql", "9635de4db5d2da58"),
        ("sqlite/0011_batches.up.sql", "651e3ab5433e79b8"),
        ("sqlite/0012_event_stream.up.sql", "b6102760b9738c2e"),
        ("sqlite/0013_search_paths.up.sql", "ba04c67f91d3df7c"),
        (
            "sqlite/0014_attempts_of_dead_nodes.up.sql",
            "f698204896a9b8c6",
        ),
        ("sqlite/0015_bounds_of_reports.up.sql", "6b4fc9ba5adbfdde"),
        ("sqlite/0016_element_suspensions.up.sql", "98d4caa89569c546"),
        ("sqlite/0017_fair_limits.up.sql", "ec317c86dac97b9b"),
        ("sqlite/0018_unannounced_jobs.up.sql", "273cce12f3cca917"),
        ("sqlite/0019_jobs_without_turns.up.sql", "2dd4871846f871fc"),
        ("sqlite/0020_definition_keys.up.sql", "b507f9c7fa47a339"),
    ];
    let postgres = sqlx::migrate!("../migrations/postgres");
    let sqlite = sqlx::migrate!("../migrations/sqlite");
    let of = |name: &str, migrator: &sqlx::migrate::Migrator| {
        let up = migrator
            .iter()
            .filter(|m| m.migration_type.is_up_migration());
        up.map(|m| {
            let digits = m.checksum.iter().take(8).map(|byte| format!("{byte:02x}"));
            let description = m.description.replace(' ', "_");
            let file = format!("{name}/{:04}_{description}.up.sql", m.version);
            (file, digits.collect::<String>())
        })
        .collect::<Vec<_>>()
    };
    let now = [of("postgres", &postgres), of("sqlite", &sqlite)].concat();
    let landed = landed.map(|(file, checksum)| (file.to_owned(), checksum.to_owned()));
    assert_eq!(now, landed, "add a migration instead of editing one");
}
