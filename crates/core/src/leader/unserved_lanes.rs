//! Finds lanes in which jobs wait although no node receives them: a wrong name, a lane whose last
//! node was removed, a rule that was written before its node. No job is lost, and none of them
//! runs, so the leader reports the lanes to the operator.
//!
//! Beats show the lanes that living nodes receive. While jobs wait, the leader asks the database
//! from time to time for jobs in other lanes. The statement reads every executable job. The pause
//! after it is at least two hundred times its duration, so it uses at most half a percent of one
//! connection.
//!
//! A lane whose nodes are busy with a better lane is received, and is never reported here (protocol
//! rule 23).

use std::time::Duration;

use metrics::Gauge;
use tokio::time::Instant;

use crate::job::Lane;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;

/// Maximum number of lanes that are reported.
const NAMED: i64 = 20;
/// The pause between two questions, as a multiple of the duration of one.
const DISTANCE: u32 = 200;

/// The leader's knowledge of such lanes.
#[derive(Default)]
pub(crate) struct UnservedLanes {
    not_before: Option<Instant>,
    named: Vec<Lane>,
}

impl UnservedLanes {
    /// Begins a term. The first question waits one interval, in which all living nodes send a beat.
    pub(crate) fn begin(&mut self, node: &NodeContext) {
        self.not_before = Some(Instant::now() + node.options.sweep_interval);
        for lane in node.fleet.lanes() {
            gauge(node, &lane).set(0.0);
        }
    }

    /// Reports the lanes without a node in which jobs wait, if it is time.
    pub(crate) async fn look(&mut self, node: &NodeContext) {
        let started = Instant::now();
        if self.not_before.is_some_and(|moment| started < moment) {
            return;
        }
        let received = node.fleet.lanes();
        let found = match node.store.lanes_outside(&received, NAMED).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "could not look for lanes that no living node receives");
                Vec::new()
            }
        };
        let distance = (started.elapsed() * DISTANCE).max(node.options.sweep_interval * 3);
        self.not_before = Some(Instant::now() + distance.min(Duration::from_secs(3600)));
        self.end_all_but(node, found.iter().map(|backlog| &backlog.lane));
        for backlog in found {
            if !self.named.contains(&backlog.lane) {
                tracing::warn!(
                    lane = %backlog.lane.0.escape_debug(), jobs = backlog.jobs,
                    "jobs wait in a lane that no living node receives; add it to \
                     `NodeOptions::lanes` (setting `lanes`) of a node, or move them with \
                     `Client::move_lane` (`jobwire lanes move`)"
                );
                self.named.push(backlog.lane.clone());
            }
            #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
            gauge(node, &backlog.lane).set(backlog.jobs as f64);
        }
    }

    /// Clears the reports, because no job waits or another node leads.
    pub(crate) fn end(&mut self, node: &NodeContext) {
        self.end_all_but(node, std::iter::empty());
    }

    fn end_all_but<'a>(
        &mut self,
        node: &NodeContext,
        found: impl Iterator<Item = &'a Lane> + Clone,
    ) {
        self.named.retain(|lane| {
            let stays = found.clone().any(|l| l == lane);
            if !stays {
                gauge(node, lane).set(0.0);
            }
            stays
        });
    }
}

fn gauge(node: &NodeContext, lane: &Lane) -> Gauge {
    let lane = label::lane(lane).to_string();
    node.gauges.of_lane(m::UNRECEIVED, lane)
}
