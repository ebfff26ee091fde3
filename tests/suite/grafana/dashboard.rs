//! The model of the dashboard, and the checks that need no server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

use super::promql::Names;
use super::{assert_table_made, cell, grafana};

pub(super) struct Dashboard(Value);

/// A query of a panel, with Grafana's variables replaced by values for Prometheus.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) panel: String,
    pub(super) expression: String,
}

impl Dashboard {
    pub(super) fn read() -> Dashboard {
        let text = std::fs::read_to_string(grafana("jobwire.json")).unwrap();
        Dashboard(serde_json::from_str(&text).unwrap())
    }

    /// Panels and rows, in order.
    fn all(&self) -> impl Iterator<Item = &Value> {
        self.0["panels"].as_array().into_iter().flatten()
    }

    fn panels(&self) -> impl Iterator<Item = &Value> {
        self.all().filter(|panel| panel["type"] != "row")
    }

    fn variables(&self) -> impl Iterator<Item = &Value> {
        self.0["templating"]["list"]
            .as_array()
            .into_iter()
            .flatten()
    }

    pub(super) fn queries(&self) -> Vec<Query> {
        let query = |panel: &Value, target: &Value| Query {
            panel: text(&panel["title"]),
            expression: self.substituted(&text(&target["expr"])),
        };
        self.panels()
            .flat_map(|panel| {
                panel["targets"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(move |t| (panel, t))
            })
            .map(|(panel, target)| query(panel, target))
            .collect()
    }

    fn substituted(&self, expression: &str) -> String {
        // Wide enough to contain the load when the last panel is queried on a slow machine.
        let mut expression = expression.replace("$__rate_interval", "5m");
        for variable in self.variables() {
            let all = variable["allValue"].as_str().unwrap_or_default();
            expression = expression.replace(&format!("${}", text(&variable["name"])), all);
        }
        assert!(
            !expression.contains('$'),
            "an unknown variable: {expression}"
        );
        expression
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_name_exists() {
    let dashboard = Dashboard::read();
    let queries = dashboard.queries();
    assert!(queries.len() > 40, "{}", queries.len());
    for query in queries {
        let names = Names::of(&query.expression);
        assert!(!names.selectors.is_empty(), "{query:?}");
        names.check(&query.panel, &[]);
    }
    for variable in dashboard.variables().filter(|v| v["type"] == "query") {
        let definition = text(&variable["definition"]);
        assert_eq!(definition, text(&variable["query"]["query"]));
        let asked = definition
            .strip_prefix("label_values(")
            .and_then(|d| d.strip_suffix(')'));
        let (selector, label) = asked
            .and_then(|a| a.rsplit_once(", "))
            .expect("label_values(…)");
        let mut names = Names::of(&dashboard.substituted(selector));
        names.grouping.insert(label.to_owned());
        names.check(&definition, &[]);
    }
}

#[test]
fn every_metric_is_shown_somewhere() {
    let mut shown = BTreeSet::new();
    for query in Dashboard::read().queries() {
        for selector in Names::of(&query.expression).selectors {
            shown.extend(super::promql::metric(&selector.name).map(|metric| metric.name));
        }
    }
    let all = jobwire_core::telemetry::metrics::ALL
        .iter()
        .map(|metric| metric.name);
    let missing: Vec<_> = all.filter(|name| !shown.contains(name)).collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
}

#[test]
fn every_panel_has_its_place_and_says_what_it_is_for() {
    let dashboard = Dashboard::read();
    let mut ids = BTreeSet::new();
    let mut titles = BTreeSet::new();
    let mut taken: BTreeMap<(u64, u64), String> = BTreeMap::new();
    for panel in dashboard.all() {
        let title = text(&panel["title"]);
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{title}: its id is taken"
        );
        assert!(titles.insert(title.clone()), "{title}: its title is taken");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{title} is wider than the page");
            for y in place("y")..place("y") + place("h") {
                let other = taken.insert((x, y), title.clone());
                assert_eq!(other, None, "{title} overlaps another panel");
            }
        }
    }
    for panel in dashboard.panels() {
        let title = text(&panel["title"]);
        let description = text(&panel["description"]);
        let (question, action) = description.split_once("\n\n").expect(&title);
        assert!(
            question.ends_with('?') && action.ends_with('.'),
            "{title}: {description}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title} has no unit"
        );
        // A panel that another's description names exists.
        for named in action.split('*').skip(1).step_by(2) {
            let known = titles.iter().any(|title| title.starts_with(named));
            assert!(known, "{title} refers to *{named}*, which does not exist");
        }
    }
}

#[test]
fn the_guide_lists_every_panel() {
    let mut table = String::from("| panel | question | action |\n| --- | --- | --- |\n");
    for panel in Dashboard::read().all() {
        let title = text(&panel["title"]);
        if panel["type"] == "row" {
            let _ = writeln!(table, "| **{}** | | |", cell(&title));
            continue;
        }
        let description = text(&panel["description"]);
        let (question, action) = description.split_once("\n\n").expect(&title);
        let _ = writeln!(
            table,
            "| {} | {} | {} |",
            cell(&title),
            cell(question),
            cell(action)
        );
    }
    assert_table_made(&grafana("README.md"), "panels", &table);
}
