//! `lanes move`.

use jobwire_core::{CommitHook, Lane, LaneMove, LaneMoved, Store};
use serde::Serialize;

use crate::connect::Outlet;
use crate::error::{Error, interrupted};
use crate::output;
use crate::settings::Settings;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    moved: LaneMoved,
    /// Jobs that are still in the lane.
    left: i64,
    /// Rules that still choose it.
    rules: Vec<usize>,
}

pub(super) async fn relocate(
    settings: &Settings,
    store: &dyn Store,
    from: String,
    to: String,
    rate: u32,
    json: bool,
) -> Result<(), Error> {
    let plan = LaneMove {
        rate,
        ..LaneMove::new(Lane::unchecked(from), Lane::unchecked(to))
    };
    let problems = plan.problems();
    if !problems.is_empty() {
        return Err(Error::Usage(problems.join("; ")));
    }
    let nodes = store.nodes().await?;
    let mut living = nodes.iter().filter(|node| node.lives());
    if !living.any(|node| node.membership.lanes.contains(&plan.to)) {
        tracing::warn!(
            lane = %plan.to,
            "no living node receives this lane; jobs moved to it wait until one does"
        );
    }
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    let mut sofar = LaneMoved::default();
    let result = plan.run(store, &hook, |moved| sofar = moved).await;
    outlet.close_and_tell().await;
    let moved = result.map_err(|error| {
        let done = format!(
            "{} moved before the error",
            output::count(sofar.jobs(), "job")
        );
        interrupted(error, &done)
    })?;
    let report = Report {
        moved,
        left: left(store, &plan.from).await?,
        rules: rules_to(store, &plan.from).await?,
    };
    if json {
        return output::json(&report);
    }
    print(&plan, &report)
}

async fn left(store: &dyn Store, lane: &Lane) -> Result<i64, Error> {
    let lanes = store.lanes().await?;
    let view = lanes.iter().find(|view| view.lane == *lane);
    Ok(view.map_or(0, |v| {
        v.ready + v.running + v.timers + v.suspended + v.dead_letters
    }))
}

async fn rules_to(store: &dyn Store, lane: &Lane) -> Result<Vec<usize>, Error> {
    let rules = store.lane_rules().await?;
    let leading = rules.iter().enumerate().filter(|(_, r)| r.lane == *lane);
    Ok(leading.map(|(at, _)| at + 1).collect())
}

fn print(plan: &LaneMove, report: &Report) -> Result<(), Error> {
    let moved = &report.moved;
    output::line(format_args!(
        "{} moved from {} to {}: {} ready, {}, {} suspended, {}",
        output::count(moved.jobs(), "job"),
        plan.from,
        plan.to,
        moved.ready,
        output::count(moved.timers, "timer"),
        moved.suspended,
        output::count(moved.dead_letters, "dead letter"),
    ))?;
    if report.left > 0 {
        output::line(format_args!(
            "{} still in {}: running, locked for a moment, or new; run this again when they have \
             ended",
            output::count(report.left.unsigned_abs(), "job"),
            plan.from
        ))?;
    }
    for rule in &report.rules {
        output::line(format_args!(
            "rule {rule} still sends jobs to {}; change it with `jobwire lanes set`",
            plan.from
        ))?;
    }
    Ok(())
}
