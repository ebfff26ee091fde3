//! Forwards hints of jobs that this node does not serve to nodes that do.

use std::collections::HashSet;
use std::time::Duration;

use chrono::Utc;
use metrics::counter;
use tokio::time::Instant;

use super::Consumer;
use super::locking::Batch;
use crate::hint::{Hint, Ready};
use crate::job::JobId;
use crate::job::scope::Needs;
use crate::runtime::fast_map::FastMap;
use crate::store::Refusal;
use crate::telemetry::metrics as m;
use crate::worker::forward::{self, Sent, Unserved};

/// The longest time for which the jobs of a node that was not heard yet wait for its first beat.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

impl Consumer {
    /// Forwards received hints of types that another node serves and this node does not. They need
    /// no slot and no statement here. Returns the other hints. A hint with a wrong type only takes
    /// a detour, because the row decides.
    pub(super) fn pass_on_by_type(&self, place: usize, mut hints: Vec<Hint>) -> Vec<Hint> {
        let types = self.node.served.types();
        let is_strange = |hint: &Hint| {
            let job_type = hint.job_type.as_ref();
            job_type.is_some_and(|job_type| types.binary_search(job_type).is_err())
        };
        if !hints.iter().any(is_strange) {
            return hints;
        }
        let lane = self.pending.lane(place);
        let strange = hints.iter().filter(|hint| is_strange(hint));
        let strange = strange.filter_map(|hint| {
            let ready = Ready {
                lane: lane.clone(),
                hint: hint.clone(),
            };
            let needs = Needs::of(hint.job_type.clone()?);
            Some(Unserved { ready, needs })
        });
        // A hint that can't be told now is decided by its lock.
        let forwarded = forward::send_by_type(&self.node, strange.collect()).forwarded;
        hints.retain(|hint| !forwarded.contains(&hint.id));
        if let Some(metrics) = self.metrics.get(place) {
            metrics.decided.increment(forwarded.len() as u64);
        }
        hints
    }

    /// Forwards jobs that this node does not serve. Jobs for which a node is expected soon, or that
    /// can't be told to it now, join `busy`. Returns the jobs whose own hints go to the broker,
    /// because nodes with older programs may serve them.
    pub(super) fn pass_on_unserved(
        &mut self,
        batch: &Batch,
        by_id: &FastMap<JobId, usize>,
        unserved: Vec<JobId>,
        needs: &[(JobId, Needs)],
        busy: &mut Vec<JobId>,
    ) -> Vec<JobId> {
        let of = |id: &JobId| by_id.get(id).and_then(|at| batch.of.get(*at));
        // A forwarded job is not forwarded again.
        let came_by_forwarding = |id: &JobId| of(id).is_some_and(|of| of.forwarded);
        let strange = needs.iter().filter(|(id, _)| !came_by_forwarding(id));
        let strange = strange.filter_map(|(id, needs)| {
            let at = *by_id.get(id)?;
            let (hint, of) = batch.hints.get(at).zip(batch.of.get(at))?;
            let ready = Ready {
                lane: self.pending.lane(of.lane),
                hint: hint.clone(),
            };
            let needs = needs.clone();
            Some(Unserved { ready, needs })
        });
        let strange: Vec<Unserved> = strange.collect();
        let node = &self.node;
        let within = node.options.heard_within().min(LONGEST_WAIT);
        let is_expected = |(id, needs): &&(JobId, Needs)| {
            of(id).filter(|of| !of.forwarded).is_some_and(|of| {
                let lane = self.pending.lane(of.lane);
                let age = (Utc::now() - of.received_at).to_std().unwrap_or_default();
                let now = Instant::now();
                let hinted = now.checked_sub(age).unwrap_or(now);
                let fleet = &node.fleet;
                fleet.may_be_served(needs, &lane, node.id, hinted, within)
            })
        };
        let expected = needs.iter().filter(is_expected).map(|(id, _)| *id);
        // Before the jobs are sent: a node whose first beat arrives now is either expected or found.
        let mut expected: HashSet<JobId> = match node.transport.is_single_node() {
            true => HashSet::new(),
            false => expected.collect(),
        };
        let Sent { forwarded, untold } = forward::send(node, strange);
        expected.retain(|id| !forwarded.contains(id));
        if !expected.is_empty() {
            node.fleet.want_rows();
        }
        expected.extend(untold);
        let mut left = unserved;
        left.retain(|id| !forwarded.contains(id) && !expected.contains(id));
        busy.extend(expected);
        let reason = Refusal::Unserved.as_str();
        counter!(m::HINTS_REFUSED, "reason" => reason).increment(left.len() as u64);
        if let Some(id) = left.first() {
            self.tell_of_unserved(*id, needs);
        }
        left.retain(|id| !came_by_forwarding(id));
        left
    }

    /// Logs an unserved job. The log is limited, because any creator may create jobs of any type.
    fn tell_of_unserved(&mut self, job: JobId, needs: &[(JobId, Needs)]) {
        let Some(more) = self.unserved.now() else {
            return;
        };
        let of = needs.iter().find(|(of, _)| *of == job);
        let closed = of.is_some_and(|(_, needs)| self.node.served.is_closed(&needs.job_type));
        let job_type = of.map(|(_, needs)| tracing::field::display(&needs.job_type));
        if closed {
            tracing::warn!(
                %job, job_type, more,
                "this node has closed the job's type because the database refuses too many of its \
                 outcomes; the job is left to other nodes and to the sweeper"
            );
        } else {
            tracing::warn!(
                %job, job_type, more,
                "no living node serves the type, deployment, category, tenant and priority of this \
                 job; it waits until a node does; `jobwire doctor` names the reason"
            );
        }
    }
}
