//! `lanes list`.

use chrono::{SubsecRound, Utc};
use jobwire_core::store::{Gate, PauseScope};
use jobwire_core::{Lane, LaneRule, LaneShare, LaneView, Store, job::duration};
use serde::Serialize;

use crate::error::Error;
use crate::output;
use crate::settings::Settings;

#[derive(Serialize)]
struct Listed {
    rules: Vec<LaneRule>,
    lanes: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    view: LaneView,
    /// The weight of the lane on nodes with these settings, if they receive it.
    weight: Option<u32>,
    /// Whether the lane, or everything, is paused.
    paused: bool,
}

pub(super) async fn list(settings: &Settings, store: &dyn Store, json: bool) -> Result<(), Error> {
    let rules = store.lane_rules().await?;
    let gates = store.suspensions().await?;
    let gates: Vec<Gate> = gates.into_iter().map(|view| view.gate).collect();
    let lanes = complete(settings, &rules, &gates, store.lanes().await?);
    let listed = Listed { rules, lanes };
    if json {
        return output::json(&listed);
    }
    if listed.rules.is_empty() {
        output::line("no rules: jobs whose creator names no lane get `default`")?;
    } else {
        let rows: Vec<[String; 6]> = listed.rules.iter().enumerate().map(rule).collect();
        let head = ["rule", "type", "category", "tenant", "priority", "lane"];
        output::table(head, &rows)?;
    }
    output::line("")?;
    let rows: Vec<[String; 10]> = listed.lanes.iter().map(row).collect();
    let head = [
        "lane",
        "ready",
        "running",
        "on nodes",
        "timers",
        "suspended",
        "dead letters",
        "oldest ready",
        "weight here",
        "paused",
    ];
    output::table(head, &rows)
}

/// Adds the lanes of the settings and of the rules that have no jobs.
fn complete(
    settings: &Settings,
    rules: &[LaneRule],
    gates: &[Gate],
    views: Vec<LaneView>,
) -> Vec<Line> {
    let known = settings.lanes.iter().map(|share| &share.lane);
    let known = known.chain(rules.iter().map(|rule| &rule.lane));
    let known = known.chain(gates.iter().filter_map(|gate| match gate {
        Gate::Pause(PauseScope::Lane(lane)) => Some(lane),
        _ => None,
    }));
    let mut views = views;
    for lane in known {
        if !views.iter().any(|view| view.lane == *lane) {
            views.push(empty(lane.clone()));
        }
    }
    views.sort_by(|a, b| a.lane.cmp(&b.lane));
    let weight = |lane: &Lane| {
        let of = |share: &&LaneShare| share.lane == *lane;
        settings.lanes.iter().find(of).map(|share| share.weight)
    };
    let is_paused = |lane: &Lane| {
        let pauses = |gate: &Gate| match gate {
            Gate::Pause(PauseScope::Lane(paused)) => paused == lane,
            Gate::Pause(PauseScope::All) => true,
            _ => false,
        };
        gates.iter().any(pauses)
    };
    let line = |view: LaneView| Line {
        weight: weight(&view.lane),
        paused: is_paused(&view.lane),
        view,
    };
    views.into_iter().map(line).collect()
}

fn empty(lane: Lane) -> LaneView {
    LaneView {
        lane,
        ready: 0,
        running: 0,
        timers: 0,
        suspended: 0,
        dead_letters: 0,
        oldest_ready_at: None,
        nodes: 0,
    }
}

fn rule((at, rule): (usize, &LaneRule)) -> [String; 6] {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let priority = match (rule.min_priority, rule.max_priority) {
        (None, None) => "-".to_owned(),
        (Some(min), None) => format!("{min} and more"),
        (None, Some(max)) => format!("{max} and less"),
        (Some(min), Some(max)) => format!("{min} to {max}"),
    };
    [
        (at + 1).to_string(),
        text(&rule.job_type),
        text(&rule.category),
        text(&rule.tenant),
        priority,
        rule.lane.to_string(),
    ]
}

fn row(line: &Line) -> [String; 10] {
    let view = &line.view;
    let age = view.oldest_ready_at.map_or("-".to_owned(), |since| {
        let age = (Utc::now() - since).to_std().unwrap_or_default();
        let at = since
            .trunc_subsecs(0)
            .to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        let whole = std::time::Duration::from_secs(age.as_secs().max(1));
        format!("{at} ({})", duration::write(whole))
    });
    [
        view.lane.to_string(),
        view.ready.to_string(),
        view.running.to_string(),
        view.nodes.to_string(),
        view.timers.to_string(),
        view.suspended.to_string(),
        view.dead_letters.to_string(),
        age,
        line.weight.map_or("-".to_owned(), |w| w.to_string()),
        if line.paused { "yes" } else { "-" }.to_owned(),
    ]
}
