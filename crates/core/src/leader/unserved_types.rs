//! Finds types whose jobs wait because no living node takes them: a wrong name, a handler that no
//! node has yet, a tenant without a node. No job is lost, and none of them runs, so the leader's
//! health names the types ([`NodeHealth::unserved`](crate::node::NodeHealth::unserved)), and the
//! metric `jobwire_unserved_jobs` counts their jobs. The fault is not in this node, which stays
//! ready.
//!
//! Nodes with ranges of priorities may leave gaps between them. The log and the metric
//! `jobwire_priority_gaps` show the gaps as soon as jobs wait, whatever their priorities.
//!
//! The statement reads every executable job, so the pause after it is at least two hundred times
//! its duration, as for [lanes](super::unserved_lanes).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::priority_gap::PriorityGap;
use crate::job::query::UnservedType;
use crate::telemetry::metrics as m;
use crate::telemetry::{label, plain};
use crate::worker::context::NodeContext;

/// Maximum number of types that are reported.
const NAMED: i64 = 20;
/// Maximum number of gaps that one log names.
const NAMED_GAPS: usize = 5;
/// The pause between two questions, as a multiple of the duration of one.
const DISTANCE: u32 = 200;

/// The time at which the leader next looks for such types.
#[derive(Default)]
pub(crate) struct UnservedTypes {
    not_before: Option<Instant>,
    /// The values of the label `type` whose gauge is not 0.
    counted: BTreeSet<Arc<str>>,
    /// The gaps that the log has named.
    gaps: Vec<PriorityGap>,
}

impl UnservedTypes {
    /// Begins a term. The first question waits one interval, in which all living nodes send a beat.
    pub(crate) fn begin(&mut self, node: &NodeContext) {
        self.not_before = Some(Instant::now() + node.options.sweep_interval);
    }

    /// Reports these types, if it is time.
    pub(crate) async fn look(&mut self, node: &NodeContext) {
        let started = Instant::now();
        if self.not_before.is_some_and(|moment| started < moment) {
            return;
        }
        let services = node.fleet.services();
        self.report_gaps(node, services.priority_gaps());
        match node.store.unserved_types(&services, NAMED).await {
            Ok(found) => self.report(node, found),
            Err(error) => {
                tracing::warn!(%error, "could not look for jobs that no living node takes");
            }
        }
        let distance = (started.elapsed() * DISTANCE).max(node.options.sweep_interval);
        self.not_before = Some(Instant::now() + distance.min(Duration::from_secs(3600)));
    }

    /// Reports the types whose jobs wait, and how many of them.
    fn report(&mut self, node: &NodeContext, found: Vec<UnservedType>) {
        // Types beyond the limit share one value.
        let mut jobs: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        for of in &found {
            *jobs.entry(label::unserved_type(&of.job_type)).or_default() += of.jobs;
        }
        let set = |value: &Arc<str>, jobs: i64| {
            let gauge = node.gauges.of_type(m::UNSERVED_JOBS, value.to_string());
            #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
            gauge.set(jobs as f64);
        };
        let gone = self
            .counted
            .iter()
            .filter(|value| !jobs.contains_key(*value));
        for value in gone {
            set(value, 0);
        }
        for (value, jobs) in &jobs {
            set(value, *jobs);
        }
        self.counted = jobs.into_keys().collect();
        node.reports.set_unserved(found);
    }

    /// Reports the priorities that no living node takes.
    fn report_gaps(&mut self, node: &NodeContext, gaps: Vec<PriorityGap>) {
        #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
        node.gauges.of_node(m::PRIORITY_GAPS).set(gaps.len() as f64);
        if gaps == self.gaps {
            return;
        }
        for gap in gaps.iter().take(NAMED_GAPS) {
            tracing::warn!(
                %gap, types = %plain::one_line(&gap.types.join(", "), 1_000), gaps = gaps.len(),
                "no living node takes jobs of these priorities; widen \
                 `NodeOptions::scope` (settings `min_priority`, `max_priority`) of a node"
            );
        }
        self.gaps = gaps;
    }

    /// Clears the reports, because no job waits or another node leads.
    pub(crate) fn end(&mut self, node: &NodeContext) {
        self.report(node, Vec::new());
        self.report_gaps(node, Vec::new());
    }
}
