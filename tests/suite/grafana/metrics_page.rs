//! docs/reference/metrics.md, generated from the table of metrics.

use std::fmt::Write;

use jobwire_core::telemetry::metrics::{ALL, COUNT_BUCKETS, Kind, SECONDS_BUCKETS};

use super::{assert_made, cell, repository};

const HEAD: &str = "\
# Metrics

<!-- Made from crates/core/src/telemetry/metrics.rs; a test compares them. -->

`jobwire run` serves the metrics at `/metrics` for Prometheus. A program that uses the library
records them with the crate `metrics`, for the exporter that it installs. Labels never hold ids, so
their number stays bounded.
[grafana](https://github.com/jobwire/jobwire/blob/main/grafana/README.md) has a dashboard and alert rules.

The stages add up: `commit_to_publish` + `publish_to_receive` + `receive_to_lock` + `lock_to_start`
is `commit_to_start`, up to the skew between the clocks of producer and worker, which is counted.

For metrics \"reported by the leader\", only the node whose `jobwire_leader` is 1 has the current
value; a former leader still shows its last value. A counter with labels appears when it first
counts.

";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| name | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n");
    for metric in ALL {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Seconds | Kind::Count => "histogram",
        };
        let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {kind} | {} | {} | {} |",
            metric.name,
            unit(metric.name, metric.kind),
            labels.join(", "),
            cell(metric.help),
        );
    }
    let _ = write!(
        page,
        "\nHistograms of seconds have the bounds {}; those of counts {}.\n",
        listed(SECONDS_BUCKETS),
        listed(COUNT_BUCKETS)
    );
    page
}

/// Returns the unit, which the end of the name gives by convention; counts have none.
fn unit(name: &str, kind: Kind) -> &'static str {
    match kind {
        Kind::Seconds => "seconds",
        _ if name.ends_with("_seconds") => "seconds",
        _ if ["_up", "_blocked", "_leader", "_info", "_open"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            "0 or 1"
        }
        _ if name.contains("jobs") || name == "jobwire_slots" => "jobs",
        _ if name.contains("hints") => "hints",
        _ if name.ends_with("_messages") => "messages",
        _ if name.ends_with("_consumers") => "consumers",
        _ if name.contains("executions") => "executions",
        _ if name.contains("lease") => "leases",
        _ => "",
    }
}

fn listed(bounds: &[f64]) -> String {
    let bounds: Vec<_> = bounds.iter().map(ToString::to_string).collect();
    bounds.join(", ")
}

#[test]
fn the_page_of_metrics_is_the_table() {
    assert_made(&repository().join("docs/reference/metrics.md"), &page());
}
