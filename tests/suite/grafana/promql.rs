//! Finds the metrics and labels in a PromQL expression. It parses only as much of the language as
//! that needs.

use std::collections::BTreeSet;

use jobwire_core::telemetry::metrics::{ALL, Kind, Metric};

/// `name{label OP "value", …}` of a `jobwire` metric.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector {
    pub(super) name: String,
    pub(super) matchers: Vec<(String, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) selectors: Vec<Selector>,
    /// The labels of `by`, `on` and the other grouping keywords.
    pub(super) grouping: BTreeSet<String>,
}

const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// The labels that Prometheus adds to every series.
const OF_THE_TARGET: [&str; 2] = ["job", "instance"];
/// The labels whose values users choose.
const FREE: [&str; 5] = ["job", "instance", "lane", "type", "le"];

impl Names {
    pub(super) fn of(expression: &str) -> Names {
        let mut names = Names::default();
        let mut rest = expression;
        while let Some(first) = rest.chars().next() {
            if first == '"' {
                rest = string(rest).1;
            } else if first.is_ascii_digit() {
                // A number or a duration.
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            } else if is_word(first) {
                let (word, after) = split_while(rest, is_word);
                rest = after;
                if word.starts_with("jobwire") {
                    let (matchers, after) = matchers(after);
                    rest = after;
                    let name = word.to_owned();
                    names.selectors.push(Selector { name, matchers });
                } else if GROUPING.contains(&word)
                    && let Some(list) = after.trim_start().strip_prefix('(')
                {
                    let (list, after) = list.split_once(')').expect("a closing parenthesis");
                    let labels = list.split(',').map(str::trim).filter(|l| !l.is_empty());
                    names.grouping.extend(labels.map(str::to_owned));
                    rest = after;
                }
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
        names
    }

    /// Asserts that every metric is in the table, every label is one of its labels, and every value
    /// is listed in its help text. `recorded` contains the names of recording rules.
    pub(super) fn check(&self, place: &str, recorded: &[String]) {
        let mut labels: BTreeSet<&str> = OF_THE_TARGET.into();
        labels.insert("le");
        for selector in &self.selectors {
            if recorded.contains(&selector.name) {
                continue;
            }
            let metric = metric(&selector.name)
                .unwrap_or_else(|| panic!("{place}: no metric is scraped as {}", selector.name));
            labels.extend(metric.labels);
            for (label, values) in &selector.matchers {
                let is_bound = label == "le" && selector.name.ends_with("_bucket");
                assert!(
                    is_bound
                        || OF_THE_TARGET.contains(&label.as_str())
                        || metric.labels.contains(&label.as_str()),
                    "{place}: {} has no label {label}",
                    selector.name
                );
                if !FREE.contains(&label.as_str()) {
                    let known = |value: &str| {
                        metric
                            .help
                            .split(|c: char| !is_value(c))
                            .any(|word| word == value)
                    };
                    for value in values.split('|') {
                        assert!(
                            known(value),
                            "{place}: the help of {} does not list {label}={value:?}: {}",
                            metric.name,
                            metric.help
                        );
                    }
                }
            }
        }
        for label in &self.grouping {
            assert!(
                labels.contains(label.as_str()),
                "{place}: no metric here has the label {label}"
            );
        }
    }
}

/// Returns the metric of a scraped name: histograms end in `_bucket`, `_sum` or `_count`.
pub(super) fn metric(scraped: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| match metric.kind {
        Kind::Counter | Kind::Gauge => scraped == metric.name,
        Kind::Seconds | Kind::Count => scraped
            .strip_prefix(metric.name)
            .is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end)),
    })
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Returns whether a character is part of a value in a help text; a colon ends the value.
fn is_value(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn split_while(text: &str, of: fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()))
}

/// Returns the content of the string at the start of `text`, and the rest.
fn string(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return (&text[1..at], &text[at + 1..]),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("a string without an end: {text}")
}

fn matchers(text: &str) -> (Vec<(String, String)>, &str) {
    let mut found = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return (found, text);
    };
    loop {
        rest = rest.trim_start_matches([' ', ',', '\n']);
        if let Some(after) = rest.strip_prefix('}') {
            return (found, after);
        }
        let (label, after) = split_while(rest, is_word);
        assert!(!label.is_empty(), "not a matcher: {rest}");
        let (value, after) = string(after.trim_start_matches(['=', '!', '~', ' ']));
        found.push((label.to_owned(), value.to_owned()));
        rest = after;
    }
}

#[test]
fn names_are_found_and_words_of_the_language_are_not() {
    let names = Names::of(
        r#"histogram_quantile(0.5, sum by (le, lane) (rate(jobwire_a_bucket{lane=~"x|\"}", le="1"}[5m])))
           / on (job) group_left () jobwire_b offset 10m"#,
    );
    let matcher = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    let expected = [
        Selector {
            name: "jobwire_a_bucket".to_owned(),
            matchers: vec![matcher("lane", r#"x|\"}"#), matcher("le", "1")],
        },
        Selector {
            name: "jobwire_b".to_owned(),
            matchers: vec![],
        },
    ];
    assert_eq!(names.selectors, expected);
    assert_eq!(
        names.grouping.into_iter().collect::<Vec<_>>(),
        ["job", "lane", "le"]
    );
}

#[test]
fn a_histogram_is_scraped_by_its_parts_only() {
    assert!(metric("jobwire_statement_seconds_bucket").is_some());
    assert!(metric("jobwire_statement_seconds").is_none());
    assert!(metric("jobwire_leader").is_some());
    assert!(metric("jobwire_leader_count").is_none());
}

#[test]
#[should_panic(expected = "does not list outcome=\"dead_letter\"")]
fn a_value_that_nobody_records_is_found() {
    Names::of(r#"jobwire_jobs_finished_total{outcome=~"done|dead_letter"}"#).check("here", &[]);
}
