//! The alert rules, as Prometheus itself reads them.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use jobwire_tests::{Prometheus, eventually, http, prometheus};
use serde_json::Value;

use super::promql::Names;
use super::{assert_table_made, cell, grafana};

/// Returns every rule that this Prometheus loaded, once it has evaluated all of them.
pub(super) async fn rules(prometheus: &Prometheus) -> Vec<Value> {
    eventually(
        "all rules to be evaluated",
        Duration::from_secs(30),
        async || {
            let response = http::get(&prometheus.address(), "/api/v1/rules")
                .await
                .ok()?;
            let answer: Value = serde_json::from_str(&response.body).ok()?;
            let groups = answer["data"]["groups"].as_array()?;
            let rules: Vec<Value> = groups
                .iter()
                .flat_map(|group| group["rules"].as_array().into_iter().flatten())
                .cloned()
                .collect();
            let evaluated = rules.iter().all(|rule| rule["health"] != "unknown");
            (evaluated && !rules.is_empty()).then_some(rules)
        },
    )
    .await
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[tokio::test]
async fn every_rule_names_what_exists_and_says_what_to_do() {
    let file = grafana("alerts.yaml");
    let prometheus = Prometheus::start(&[], &[&file]).await;
    let rules = rules(&prometheus).await;
    let of_type = |kind: &str| {
        rules
            .iter()
            .filter(move |rule| rule["type"] == kind)
            .collect::<Vec<_>>()
    };
    let recorded: Vec<_> = of_type("recording")
        .iter()
        .map(|rule| text(&rule["name"]).to_owned())
        .collect();
    for rule in &rules {
        let name = text(&rule["name"]);
        assert_eq!(rule["health"], "ok", "{name}: {}", rule["lastError"]);
        Names::of(text(&rule["query"])).check(name, &recorded);
    }
    let mut table =
        String::from("| alert | severity | what it means and what to do |\n| --- | --- | --- |\n");
    for alert in of_type("alerting") {
        let name = text(&alert["name"]);
        let severity = text(&alert["labels"]["severity"]);
        assert!(["page", "ticket"].contains(&severity), "{name}: {severity}");
        let description = text(&alert["annotations"]["description"]);
        assert!(
            description.len() > 60 && description.ends_with('.'),
            "{name}: {description}"
        );
        assert!(!text(&alert["annotations"]["summary"]).is_empty(), "{name}");
        let _ = writeln!(table, "| `{name}` | {severity} | {} |", cell(description));
    }
    assert_table_made(&grafana("README.md"), "alerts", &table);
}

#[test]
fn promtool_finds_no_mistake() {
    assert_eq!(prometheus::check_rules(&grafana("alerts.yaml")), Ok(()));
}

#[test]
fn the_rules_fire_when_they_should() {
    // `check_rules` fails if promtool is missing.
    prometheus::check_rules(&grafana("alerts.yaml")).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(grafana("alerts_test.yaml"))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}
