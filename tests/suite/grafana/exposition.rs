//! The response of `/metrics` matches the table of metrics, in the format of Prometheus.

use std::collections::{BTreeMap, BTreeSet};

use jobwire_core::telemetry::metrics::{ALL, Kind, Metric};

/// Asserts that every `jobwire_` metric has its help and type, that histograms have buckets, that
/// the labels are those of the table, and that no metric is missing from the table.
pub(crate) fn check(exposition: &str) {
    let mut helps = BTreeMap::new();
    let mut types = BTreeMap::new();
    for line in exposition.lines().filter(|line| line.starts_with("# ")) {
        let mut parts = line.splitn(4, ' ').skip(1);
        let (what, name, text) = (parts.next(), parts.next(), parts.next());
        let into = if what == Some("HELP") {
            &mut helps
        } else {
            &mut types
        };
        into.insert(name.unwrap_or_default(), text.unwrap_or_default());
    }
    for (name, kind) in types
        .iter()
        .filter(|(name, _)| name.starts_with("jobwire_"))
    {
        let metric = ALL.iter().find(|metric| metric.name == *name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not in the table of metrics"));
        let expected = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Seconds | Kind::Count => "histogram",
        };
        assert_eq!(*kind, expected, "the type of {name}");
        assert_eq!(helps.get(name), Some(&metric.help), "the help of {name}");
        series(exposition, metric);
    }
}

fn series(exposition: &str, metric: &Metric) {
    let is_histogram = matches!(metric.kind, Kind::Seconds | Kind::Count);
    let mut buckets = 0;
    for line in exposition.lines() {
        let Some(rest) = line.strip_prefix(metric.name) else {
            continue;
        };
        let end = rest.find(['{', ' ']).unwrap_or(rest.len());
        let (suffix, rest) = rest.split_at(end);
        if is_histogram != ["_bucket", "_sum", "_count"].contains(&suffix) {
            // A longer name of another metric.
            continue;
        }
        buckets += usize::from(suffix == "_bucket");
        let labels = rest
            .strip_prefix('{')
            .and_then(|r| r.split_once('}'))
            .map_or("", |(l, _)| l);
        let mut found: BTreeSet<&str> = labels
            .split("\",")
            .filter_map(|label| Some(label.split_once('=')?.0))
            .collect();
        assert_eq!(found.remove("le"), suffix == "_bucket", "{line}");
        assert_eq!(
            found,
            metric.labels.iter().copied().collect(),
            "the labels of {line}"
        );
    }
    assert_eq!(is_histogram, buckets > 0, "the buckets of {}", metric.name);
}
