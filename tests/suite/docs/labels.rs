//! The labels and marks of the tests that the documents name: on which databases and brokers a test
//! runs, and whether CI runs it.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, is_test_name, root};

const PAGES: [&str; 3] = [
    "docs/features.md",
    "docs/reference/guarantees.md",
    "docs/operating/faults.md",
];

const BOTH: &str = "store";
const POSTGRES: &str = "store (PostgreSQL)";
const SQLITE: &str = "store (SQLite)";

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// A test as a document names it.
struct Named<'a> {
    name: &'a str,
    /// What stands before the colon of its list, for example `store (PostgreSQL)`.
    label: &'a str,
    /// Whether `‡` follows.
    is_marked: bool,
}

/// Returns the tests that a document names. A label ends at the next label, at a semicolon and at the
/// end of the cell.
fn named(page: &str) -> Vec<Named<'_>> {
    let mut named = Vec::new();
    for line in page.lines() {
        let mut label = "";
        let mut parts = line.split('`').peekable();
        while let (Some(text), Some(name)) = (parts.next(), parts.next()) {
            if text.contains([';', '|']) {
                label = "";
            }
            if let Some(text) = text.trim_end().strip_suffix(':') {
                let last = text.rsplit([',', ';', '|']).next();
                label = last.unwrap_or_default().trim();
            }
            if is_test_name(name) {
                let is_marked = parts.peek().is_some_and(|next| next.starts_with('‡'));
                named.push(Named {
                    name,
                    label,
                    is_marked,
                });
            }
        }
    }
    named
}

/// Returns the tests of a list in a macro: one name a line.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_suffix(','))
        .filter(|name| is_test_name(name))
}

/// Returns the tests of stores, each with its label.
fn tests_of_stores() -> BTreeMap<String, &'static str> {
    let store = root().join("tests/store");
    let mut tests = BTreeMap::new();
    for path in files(".rs") {
        let Ok(file) = path.strip_prefix(&store) else {
            continue;
        };
        let is_of_sqlite = file.to_string_lossy().contains("sqlite");
        for (name, attributes) in functions(&std::fs::read_to_string(&path).unwrap()) {
            let is_test = attributes.iter().any(|a| a.starts_with("#[tokio::test"));
            if is_test && is_test_name(&name) {
                let is_of_sqlite = is_of_sqlite || name.ends_with("_on_sqlite");
                tests.insert(name, if is_of_sqlite { SQLITE } else { POSTGRES });
            }
        }
    }
    let conformance = read("tests/store/store_conformance.rs");
    let (_, on_each_store) = conformance.split_once("\nconformance! {").unwrap();
    tests.extend(listed(on_each_store).map(|name| (name.to_owned(), BOTH)));
    tests
}

/// Returns the tests of lanes that run on RabbitMQ and on Kafka, and those that run on RabbitMQ only.
fn tests_of_lanes() -> (BTreeSet<String>, BTreeSet<String>) {
    let lanes = read("tests/suite/lanes.rs");
    let (_, lists) = lanes.split_once("\non_every_broker! {").unwrap();
    let (on_every_broker, fleets) = lists.split_once("\non_fleets! {").unwrap();
    let (on_rabbitmq, on_kafka) = fleets.split_once("kafka as").unwrap();
    let owned = |text| listed(text).map(str::to_owned);
    let on_both = BTreeSet::from_iter(owned(on_every_broker).chain(owned(on_kafka)));
    let on_rabbitmq = owned(on_rabbitmq).filter(|name| !on_both.contains(name));
    let on_rabbitmq = on_rabbitmq.collect();
    (on_both, on_rabbitmq)
}

/// Returns the functions of a source file, each with its attributes.
fn functions(source: &str) -> Vec<(String, Vec<&str>)> {
    let mut found = Vec::new();
    let mut attributes = Vec::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = rest.split(|c| !is_name(c)).next().unwrap_or_default();
            found.push((name.to_owned(), std::mem::take(&mut attributes)));
        } else if line.is_empty() || line.starts_with([')', '}']) && line != ")]" {
            attributes.clear();
        }
    }
    found
}

/// Returns the tests that CI does not run. Some ignored tests are steps of `scripts/test` of their own, or
/// are run by another test.
fn long_tests() -> BTreeSet<String> {
    let is_long = |attribute: &&str| {
        attribute.starts_with("#[ignore")
            && !attribute.contains("a step of its own in scripts/test")
            && !attribute.contains("runs in a process that")
    };
    let mut long = BTreeSet::new();
    for path in files(".rs") {
        for (name, attributes) in functions(&std::fs::read_to_string(&path).unwrap()) {
            if attributes.iter().any(is_long) {
                long.insert(name);
            }
        }
    }
    long
}

/// What the sources say about the tests.
struct Tests {
    of_stores: BTreeMap<String, &'static str>,
    of_lanes_on_both: BTreeSet<String>,
    of_lanes_on_rabbitmq: BTreeSet<String>,
    long: BTreeSet<String>,
}

impl Tests {
    fn read() -> Self {
        let (of_lanes_on_both, of_lanes_on_rabbitmq) = tests_of_lanes();
        let tests = Self {
            of_stores: tests_of_stores(),
            of_lanes_on_both,
            of_lanes_on_rabbitmq,
            long: long_tests(),
        };
        for label in [BOTH, POSTGRES, SQLITE] {
            let of_label = tests.of_stores.values().filter(|found| **found == label);
            assert!(of_label.count() > 10, "{label}");
        }
        assert!(tests.of_lanes_on_both.len() > 5 && tests.long.len() > 100);
        tests
    }

    /// Returns the mistakes of a page.
    fn mistakes(&self, page: &str) -> Vec<String> {
        named(page)
            .iter()
            .filter_map(|named| self.mistake(named))
            .collect()
    }

    fn mistake(&self, named: &Named) -> Option<String> {
        let Named {
            name,
            label,
            is_marked,
        } = *named;
        let (place, _) = label.split_once(' ').unwrap_or((label, ""));
        let fits = match self.of_stores.get(name) {
            Some(&POSTGRES) => [POSTGRES, "wakes"].contains(&label),
            Some(of_store) => label == *of_store,
            None => place != "store" && label != "wakes",
        };
        if !fits {
            let of_store = self.of_stores.get(name);
            return Some(format!("{name} has the label {label:?}: {of_store:?}"));
        }
        let fits = match label {
            "lanes" => self.of_lanes_on_both.contains(name),
            "lanes (RabbitMQ)" => self.of_lanes_on_rabbitmq.contains(name),
            _ => place != "lanes",
        };
        if !fits {
            return Some(format!("{name} has the label {label:?}"));
        }
        let is_long = self.long.contains(name);
        (is_long != is_marked).then(|| format!("{name}: marked with ‡ {is_marked}, long {is_long}"))
    }
}

#[test]
fn a_label_says_where_a_test_runs_and_a_mark_that_ci_does_not_run_it() {
    let tests = Tests::read();
    for page in PAGES {
        let mistakes = tests.mistakes(&read(page));
        assert!(mistakes.is_empty(), "{page}: {mistakes:#?}");
    }
}

#[test]
fn a_wrong_label_and_a_wrong_mark_are_found() {
    let tests = Tests::read();
    let right = "| p | store: `a_created_job_is_locked_once`, `a_rolled_back_job_is_gone`, \
                 store (PostgreSQL): `a_revival_and_a_creator_at_once_make_one_job`; \
                 `a_purged_queue_is_healed`, `every_process_of_camunda_ends_over_the_endpoint`‡; \
                 lanes (RabbitMQ): `what_a_low_lane_waits_for_in_vain_goes_to_an_idle_node`; \
                 store (SQLite): `a_store_that_is_opened_again_hands_out_larger_fences` |";
    assert_eq!(tests.mistakes(right), [""; 0]);
    for wrong in [
        "store: `a_revival_and_a_creator_at_once_make_one_job`",
        "store: `a_store_that_is_opened_again_hands_out_larger_fences`",
        "store: `while_jobs_are_claimed_each_tenth_start_is_of_another_lane_under_aging`",
        "store: `a_purged_queue_is_healed`",
        "store (PostgreSQL): `a_rolled_back_job_is_gone`",
        "store (PostgreSQL): `a_store_that_is_opened_again_hands_out_larger_fences`",
        "store: `a_created_job_is_locked_once`; `a_rolled_back_job_is_gone`",
        "store: `a_created_job_is_locked_once`, crates/core: `a_rolled_back_job_is_gone`",
        "lanes: `what_a_low_lane_waits_for_in_vain_goes_to_an_idle_node`",
        "lanes (RabbitMQ): `a_node_with_some_lanes_leaves_the_others_to_others`",
        "`every_process_of_camunda_ends_over_the_endpoint`",
        "`a_purged_queue_is_healed`‡",
    ] {
        assert_eq!(tests.mistakes(wrong).len(), 1, "{wrong}");
    }
}
