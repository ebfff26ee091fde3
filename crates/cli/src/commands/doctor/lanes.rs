//! Checks the lanes: finds jobs, and rules for jobs, in lanes that no living node receives.

use std::collections::BTreeSet;

use jobwire_core::store::{NodeView, received_by};
use jobwire_core::{Lane, Store, StoreError};

use super::finding::Findings;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum number of lanes that are named.
const NAMED: usize = 20;

pub(super) async fn examine(settings: &Settings, store: &dyn Store, findings: &mut Findings) {
    if let Err(error) = look(settings, store, findings).await {
        findings.error("lanes", Error::Store(error));
    }
}

async fn look(
    settings: &Settings,
    store: &dyn Store,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let nodes = store.nodes().await?;
    // Without a living node the settings of the next one decide.
    let (received, nobody) = match nodes.iter().any(NodeView::lives) {
        true => (received_by(&nodes), "no living node receives"),
        false => (
            settings.lanes.iter().map(|l| l.lane.clone()).collect(),
            "nodes with these settings do not receive",
        ),
    };
    let rules = store.lane_rules().await?;
    let ruled: BTreeSet<&Lane> = rules.iter().map(|rule| &rule.lane).collect();
    let mut ruled: Vec<&Lane> = ruled.into_iter().collect();
    ruled.retain(|lane| !received.contains(lane));
    let waiting = store
        .lanes_outside(&received, i64::try_from(NAMED).unwrap_or(i64::MAX))
        .await?;
    if waiting.is_empty() && ruled.is_empty() {
        findings.fine("lanes", format!("nothing waits in a lane that {nobody}"));
        return Ok(());
    }
    for lane in ruled.iter().take(NAMED) {
        findings.remark(
            "lanes",
            format!("a rule sends jobs to lane {lane}, which {nobody}"),
            format!("add {lane} to `lanes` of a node, or change the rule"),
        );
    }
    if ruled.len() > NAMED {
        findings.remark(
            "lanes",
            format!("rules send jobs to {} more such lanes", ruled.len() - NAMED),
            "`jobwire lanes list` lists the rules",
        );
    }
    for backlog in &waiting {
        let lane = &backlog.lane;
        let jobs = output::count(backlog.jobs.unsigned_abs(), "job");
        // The first lanes are those for urgent jobs.
        let default = received.iter().find(|lane| lane.as_str() == Lane::DEFAULT);
        let to = default.or(received.last());
        let to = to.map_or(Lane::DEFAULT, |lane| lane.as_str());
        let is_option = [lane.as_str(), to].iter().any(|name| name.starts_with('-'));
        let moving = format!(
            "move its jobs: jobwire lanes move {}{} {}",
            if is_option { "-- " } else { "" },
            output::shell_word(lane.as_str()),
            output::shell_word(to)
        );
        let remedy = match Lane::is_valid(lane.as_str()) {
            true => format!("add {lane} to `lanes` of a node, or {moving}"),
            false => moving,
        };
        findings.remark(
            "lanes",
            format!("{jobs} ready in lane {lane}, which {nobody}"),
            remedy,
        );
    }
    Ok(())
}
