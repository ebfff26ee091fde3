//! Reports how many jobs of each type wait for a permit of a [limit](crate::Limit). The leader asks
//! while jobs wait, at the pace of [`unserved_types`](super::unserved_types).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;

/// Maximum number of types that are reported.
const NAMED: i64 = 20;
/// The pause between two questions, as a multiple of the duration of one.
const DISTANCE: u32 = 200;

/// The time of the next question, and the types that were reported.
#[derive(Default)]
pub(crate) struct WaitingTypes {
    not_before: Option<Instant>,
    told: BTreeSet<String>,
}

impl WaitingTypes {
    /// Reports the waiting jobs, if it is time.
    pub(crate) async fn look(&mut self, node: &NodeContext) {
        let started = Instant::now();
        if self.not_before.is_some_and(|moment| started < moment) || !node.store.has_permits() {
            return;
        }
        match node.store.waiting_for_permits(NAMED).await {
            Ok(found) => {
                let now: BTreeSet<String> = found.iter().map(|of| of.job_type.clone()).collect();
                for gone in self.told.difference(&now) {
                    set(node, gone, 0);
                }
                for of in &found {
                    set(node, &of.job_type, of.jobs);
                }
                self.told = now;
            }
            Err(error) => {
                tracing::warn!(%error, "could not count the jobs that wait for a permit");
            }
        }
        let distance = (started.elapsed() * DISTANCE).max(node.options.sweep_interval);
        self.not_before = Some(Instant::now() + distance.min(Duration::from_secs(3600)));
    }

    /// Clears the report, because no job waits or another node leads.
    pub(crate) fn end(&mut self, node: &NodeContext) {
        for gone in std::mem::take(&mut self.told) {
            set(node, &gone, 0);
        }
        self.not_before = None;
    }
}

fn set(node: &NodeContext, job_type: &str, jobs: i64) {
    let gauge = node.gauges.of_type(m::JOBS_WAITING, job_type.to_owned());
    #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
    gauge.set(jobs as f64);
}
