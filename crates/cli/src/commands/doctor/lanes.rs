//! Checks the lanes: finds jobs in lanes that nodes with these settings do not receive.

use jobwire_core::{Lane, Store, StoreError};

use super::finding::Findings;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum number of lanes that are named.
const NAMED: i64 = 20;

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
    let received: Vec<Lane> = settings.lanes.iter().map(|l| l.lane.clone()).collect();
    let rules = store.lane_rules().await?;
    let mut ruled: Vec<&Lane> = rules.iter().map(|rule| &rule.lane).collect();
    ruled.sort_unstable();
    ruled.dedup();
    ruled.retain(|lane| !received.contains(lane));
    let waiting = store.lanes_outside(&received, NAMED).await?;
    if waiting.is_empty() && ruled.is_empty() {
        findings.fine(
            "lanes",
            "nothing waits in a lane that nodes with these settings do not receive",
        );
        return Ok(());
    }
    for lane in &ruled {
        findings.remark(
            "lanes",
            format!(
                "a rule sends jobs to lane {lane}, which nodes with these settings do not receive"
            ),
            format!("make sure that a node has {lane} in `lanes`"),
        );
    }
    for backlog in &waiting {
        let lane = &backlog.lane;
        let jobs = output::count(backlog.jobs.unsigned_abs(), "job");
        if ruled.contains(&lane) {
            findings.remark(
                "lanes",
                format!(
                    "{jobs} ready in lane {lane}, which nodes with these settings do not receive"
                ),
                format!("nothing to do if a node has {lane} in `lanes`"),
            );
        } else {
            findings.remark(
                "lanes",
                format!(
                    "{jobs} ready in lane {lane}, which is neither in `lanes` here nor named by a \
                     rule"
                ),
                format!(
                    "if no other node receives it: add it to `lanes`, or move its jobs: jobwire \
                     lanes move {lane} {}",
                    received.first().map_or(Lane::DEFAULT, |l| l.as_str())
                ),
            );
        }
    }
    Ok(())
}
