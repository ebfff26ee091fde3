//! One loaded fleet, one Prometheus: every query has an answer, and the numbers match the events.

use std::time::Duration;

use jobwire_core::telemetry::metrics as m;
use jobwire_tests::wait::patience;
use jobwire_tests::{Prometheus, eventually, http};
use serde_json::Value;

use super::dashboard::Dashboard;
use super::load::{self, Load, Recorder};
use super::promql::{Names, metric};
use super::{alerts, exposition, grafana};

/// Metrics that a healthy fleet without an engine does not touch: a query on one of them may return
/// nothing.
const QUIET: [&str; 37] = [
    m::NEGATIVE_LATENCY,
    m::HINTS_DROPPED,
    m::HINTS_UNREADABLE,
    m::HINTS_REDELIVERED,
    m::HINTS_RETURNED,
    m::EVENTS_DROPPED,
    m::STREAM_PUBLISHED,
    m::STREAM_FAILURES,
    m::STREAM_DROPPED,
    m::BATCHES_ENDED,
    m::STATEMENT_ERRORS,
    m::FENCED,
    m::BROKER_RECONNECTS,
    m::TASK_RESTARTS,
    m::SET_ASIDE,
    m::STUCK_BATCHES,
    m::TAP_ROWS,
    m::TAP_EARLY,
    m::TAP_GAPS,
    m::SUSPENSIONS,
    m::PRIORITY_GAPS,
    m::JOBS_PARKED,
    m::JOBS_WAITING,
    m::ELASTIC_SLOTS,
    m::TAP_COMMIT_TO_HINT,
    // There is no process engine.
    m::ENGINE_OUTCOMES,
    m::ENGINE_EXECUTION,
    m::ENGINE_EXECUTIONS,
    m::ENGINE_UNANSWERED,
    m::ENGINE_FAILURES,
    m::ENGINE_BREAKER,
    m::ENGINE_ADDRESSES_AWAY,
    m::ENGINE_UNSERVED,
    m::ENGINE_ZONE,
    m::ENGINE_RESCUED,
    m::ENGINE_CANCELLED,
    m::ENGINE_UNKNOWN_IDS,
];

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_loaded_fleet_answers_every_question() {
    let recorder = Recorder::install();
    let load = Load::prepare(&recorder).await;
    let (_first, first) = load.node().await;
    let (_second, second) = load.node().await;
    let targets = [first.clone(), second.clone(), load.producer()];
    let prometheus = Prometheus::start(&targets, &[&grafana("alerts.yaml")]).await;
    // Rates need a scrape from before the load.
    until(&prometheus, "count(up == 1)", 3).await;
    until(&prometheus, "sum(jobwire_leader)", 1).await;
    load.create().await;

    what_was_counted_happened(&prometheus).await;
    for address in [&first, &second] {
        let served = eventually("the node to serve its metrics", SOON, async || {
            http::get(address, "/metrics").await.ok()
        })
        .await;
        assert_eq!(served.status, 200);
        exposition::check(&served.body);
    }
    tokio::select! {
        () = every_panel_answers(&prometheus) => {}
        () = load.keep_creating() => {}
    }
    every_rule_answers(&prometheus).await;
}

/// Returns the value of an expression that has one.
async fn value(prometheus: &Prometheus, expression: &str) -> Option<f64> {
    number(&prometheus.query(expression).await[0])
}

fn number(sample: &Value) -> Option<f64> {
    sample["value"][1].as_str()?.parse().ok()
}

async fn until(prometheus: &Prometheus, expression: &str, expected: usize) {
    let expected_value = f64::from(u32::try_from(expected).unwrap());
    let reached = jobwire_tests::wait::within(patience(SOON), async || {
        let found = value(prometheus, expression).await?;
        (found.to_bits() == expected_value.to_bits()).then_some(())
    });
    if reached.await.is_none() {
        let found = value(prometheus, expression).await;
        panic!("{expression} is {found:?} and not {expected}");
    }
}

async fn what_was_counted_happened(prometheus: &Prometheus) {
    let dead = load::REFUSED + load::RETRIED;
    let created = load::DONE - load::TIMERS - load::BY_SQL + dead + load::UNSERVED;
    let finished = r#"sum(jobwire_jobs_finished_total{outcome="NAME"})"#;
    until(prometheus, &finished.replace("NAME", "done"), load::DONE).await;
    until(prometheus, &finished.replace("NAME", "dead-letter"), dead).await;
    until(
        prometheus,
        &finished.replace("NAME", "retry"),
        load::RETRIED,
    )
    .await;
    until(prometheus, "sum(jobwire_jobs_created_total)", created).await;
    until(
        prometheus,
        r#"sum(jobwire_hints_published_total{cause="commit"})"#,
        created,
    )
    .await;
    // A due timer is hinted, or the leader that moves it starts it without a hint, depending on
    // timing.
    let due = r#"(sum(jobwire_hints_published_total{cause="timer"}) or vector(0))
                 + (sum(jobwire_jobs_locked_total{source="timer"}) or vector(0))"#;
    until(prometheus, due, load::TIMERS + load::RETRIED).await;
    until(
        prometheus,
        r#"sum(jobwire_swept_total{class="unhinted"})"#,
        load::BY_SQL,
    )
    .await;
    // Every published hint arrived. A returned hint arrives once more: on a slow machine a row is
    // busy, or no slot is free, for longer than a node keeps a hint.
    let arrived = "sum(jobwire_hints_published_total) + (sum(jobwire_hints_returned_total) or vector(0)) \
                   - sum(jobwire_hints_received_total)";
    until(prometheus, arrived, 0).await;
    // Every locked job finished.
    for (one, other) in [
        ("jobwire_jobs_locked_total", "jobwire_jobs_finished_total"),
        (
            "jobwire_jobs_finished_total",
            "jobwire_execution_seconds_count",
        ),
    ] {
        until(prometheus, &format!("sum({one}) - sum({other})"), 0).await;
    }
    until(
        prometheus,
        r#"sum(jobwire_hints_refused_total{reason="unserved"})"#,
        load::UNSERVED,
    )
    .await;
    let unserved = r#"sum(jobwire_unserved_jobs{type="nobody-serves-this"})"#;
    until(prometheus, unserved, load::UNSERVED).await;
    until(prometheus, "sum(jobwire_jobs_in_flight)", 0).await;
    until(prometheus, "jobwire:executable_jobs", load::UNSERVED).await;
    until(prometheus, "jobwire:dead_letter_jobs", dead).await;
    until(prometheus, "jobwire:leased_jobs", 0).await;
}

async fn every_panel_answers(prometheus: &Prometheus) {
    for query in Dashboard::read().queries() {
        let names = Names::of(&query.expression);
        let quiet = names.selectors.iter().any(|selector| {
            metric(&selector.name).is_some_and(|metric| QUIET.contains(&metric.name))
        });
        if quiet {
            // The query must succeed; its result may be empty.
            prometheus.query(&query.expression).await;
            continue;
        }
        let what = format!(
            "panel {:?} to show something for {}",
            query.panel, query.expression
        );
        eventually(&what, SOON, async || {
            let found = prometheus.query(&query.expression).await;
            let samples = found.as_array()?;
            samples
                .iter()
                .filter_map(number)
                .any(f64::is_finite)
                .then_some(())
        })
        .await;
    }
}

async fn every_rule_answers(prometheus: &Prometheus) {
    for rule in alerts::rules(prometheus).await {
        let name = alerts::text(&rule["name"]);
        assert_eq!(rule["health"], "ok", "{name}: {}", rule["lastError"]);
        prometheus.query(alerts::text(&rule["query"])).await;
    }
    // A healthy fleet has one alert: the type without a handler. On a busy machine, jobs may also
    // start late.
    let firing =
        "count by (alertname) (ALERTS{alertstate='firing', alertname!~'JobwireStartsLate.*'})";
    let firing = eventually("the alert of the unserved type", SOON, async || {
        let firing = prometheus.query(firing).await;
        let names = firing
            .as_array()?
            .iter()
            .map(|alert| alert["metric"]["alertname"].clone());
        let names: Vec<_> = names.collect();
        (!names.is_empty()).then_some(names)
    });
    assert_eq!(firing.await, [Value::from("JobwireTypeUnserved")]);
}
