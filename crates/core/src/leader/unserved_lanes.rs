//! Lanes that nobody receives although jobs wait there: a wrong name, a lane whose last node was taken away,
//! a rule that was written before its node. Nothing is lost and nothing runs; somebody has to know.
//!
//! The leader hears over its broker which lanes living nodes receive. Now and then, while anything waits, it
//! asks the database for jobs in other lanes. The question reads every executable job, so it comes at a
//! distance of at least two hundred times its own length: half a percent of one connection at most.
//!
//! A lane that delivers nothing because its nodes are busy with a better one is received, and never named
//! here (protocol rule 23).

use std::time::Duration;

use metrics::gauge;
use tokio::time::Instant;

use crate::job::Lane;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;

/// At most so many lanes are named.
const NAMED: i64 = 20;
/// The distance between two questions, in the length of one.
const DISTANCE: u32 = 200;

/// What the leader knows of such lanes.
#[derive(Default)]
pub(crate) struct UnservedLanes {
    not_before: Option<Instant>,
    named: Vec<Lane>,
}

impl UnservedLanes {
    /// A term begins: who lives is heard within one interval.
    pub(crate) fn begin(&mut self, node: &NodeContext) {
        self.not_before = Some(Instant::now() + node.options.sweep_interval);
        for lane in node.fleet.lanes() {
            gauge!(m::UNRECEIVED, "lane" => label::lane(&lane)).set(0.0);
        }
    }

    /// Jobs wait: are they where somebody receives them?
    pub(crate) async fn look(&mut self, node: &NodeContext) {
        let started = Instant::now();
        if self.not_before.is_some_and(|moment| started < moment) {
            return;
        }
        let received = node.fleet.lanes();
        let found = match node.store.lanes_outside(&received, NAMED).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "lanes that nobody receives could not be looked for");
                Vec::new()
            }
        };
        let distance = (started.elapsed() * DISTANCE).max(node.options.sweep_interval * 3);
        self.not_before = Some(Instant::now() + distance.min(Duration::from_secs(3600)));
        self.end_all_but(found.iter().map(|backlog| &backlog.lane));
        for backlog in found {
            if !self.named.contains(&backlog.lane) {
                tracing::warn!(
                    lane = %backlog.lane.0.escape_debug(), jobs = backlog.jobs,
                    "jobs wait in a lane that no living node receives; add it to `lanes` of a node, or move them to \
                     another lane (jobwire lanes move)"
                );
                self.named.push(backlog.lane.clone());
            }
            #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
            gauge!(m::UNRECEIVED, "lane" => label::lane(&backlog.lane)).set(backlog.jobs as f64);
        }
    }

    /// Nothing waits, or somebody else leads.
    pub(crate) fn end(&mut self) {
        self.end_all_but(std::iter::empty());
    }

    fn end_all_but<'a>(&mut self, found: impl Iterator<Item = &'a Lane> + Clone) {
        self.named.retain(|lane| {
            let stays = found.clone().any(|l| l == lane);
            if !stays {
                gauge!(m::UNRECEIVED, "lane" => label::lane(lane)).set(0.0);
            }
            stays
        });
    }
}
