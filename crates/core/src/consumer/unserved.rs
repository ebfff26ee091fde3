//! Hints of jobs whose type this node does not serve: they are forwarded where another node does.

use std::collections::HashMap;

use metrics::counter;

use super::{Batch, Consumer};
use crate::forward::{self, Unserved};
use crate::hint::Ready;
use crate::job::JobId;
use crate::metrics as m;
use crate::store::Refusal;

impl Consumer {
    /// The types of these jobs are not served here. Returns those whose hint, if it is of this node's own making, goes to
    /// the broker: nodes of older programs may serve them.
    pub(super) fn pass_on_unserved(
        &mut self,
        batch: &Batch,
        by_id: &HashMap<JobId, usize>,
        unserved: Vec<JobId>,
        types: &[(JobId, String)],
    ) -> Vec<JobId> {
        let of = |id: &JobId| by_id.get(id).and_then(|at| batch.of.get(*at));
        // A job that was forwarded to this node is not passed on.
        let came_by_forwarding = |id: &JobId| of(id).is_some_and(|of| of.forwarded);
        let strange = types.iter().filter(|(id, _)| !came_by_forwarding(id));
        let strange = strange.filter_map(|(id, job_type)| {
            let at = *by_id.get(id)?;
            let (hint, of) = batch.hints.get(at).zip(batch.of.get(at))?;
            let ready = Ready {
                lane: self.pending.lane(of.lane),
                hint: hint.clone(),
            };
            let job_type = job_type.clone();
            Some(Unserved { ready, job_type })
        });
        let forwarded = forward::send(&self.node, strange.collect());
        let mut left = unserved;
        left.retain(|id| !forwarded.contains(id));
        let reason = Refusal::Unserved.as_str();
        counter!(m::HINTS_REFUSED, "reason" => reason).increment(left.len() as u64);
        if let Some(id) = left.first() {
            self.tell_of_unserved(*id, types);
        }
        left.retain(|id| !came_by_forwarding(id));
        left
    }

    /// Anybody may create jobs of any type, so this is told now and then.
    fn tell_of_unserved(&mut self, job: JobId, types: &[(JobId, String)]) {
        let Some(more) = self.unserved.now() else {
            return;
        };
        let of = types.iter().find(|(of, _)| *of == job);
        let closed = of.is_some_and(|(_, name)| self.node.served.is_closed(name));
        let job_type = of.map(|(_, job_type)| tracing::field::display(job_type));
        if closed {
            tracing::warn!(
                %job, job_type, more,
                "the database refuses too many outcomes of this type; its job is left to other nodes, and to the sweeper"
            );
        } else {
            tracing::warn!(
                %job, job_type, more,
                "no node that lives has a handler for the type of a job; it waits until one has"
            );
        }
    }
}
