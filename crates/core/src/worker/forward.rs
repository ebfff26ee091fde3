//! Forwarding: passes a hint to a node that serves its job.
//!
//! The nodes of a lane may have different handlers: during a deployment that adds a type, only some
//! of them serve it. A node that receives a hint of a job that it does not serve **forwards** the
//! job, over the control channel, to a living node that serves it, and settles the hint. On that
//! node the job waits like any other hint of the lane.
//!
//! * The nodes that serve the type and the lane share the jobs by id. Nodes that reported free
//!   slots are preferred.
//! * A job is forwarded once. If that node refuses it too, or has no room, the sweeper finds it.
//! * A forwarded job stays with its node while no slot is free there: the broker might give it to a
//!   node that does not serve it.
//! * An older program accepts no forwarded jobs, so it gets none.
//! * A short silence decides nothing. If no serving node sent a beat lately, the job goes to one
//!   that is not yet counted as dead.
//! * No hint is refused by rows that were read more than a second before it arrived: a node that serves it may have
//!   joined since. The node keeps the hint until it has read the rows again, and a moment longer if
//!   a serving node has a new row and was not heard yet.
//! * A job that can't be told to its node now is tried again, like a busy row.
//! * The jobs of a type that no living node serves wait. The sweeper hints them when a node serves
//!   the type.
//! * A node that stops publishes the jobs that are still addressed to it
//!   ([`addressed`](super::addressed)).
//!
//! A forwarded job may be lost on the way, like any hint.

use std::collections::{BTreeMap, HashMap, HashSet};

use metrics::counter;

use crate::fleet::{Candidate, SILENCE};
use crate::hint::Ready;
use crate::job::scope::Needs;
use crate::job::{JobId, Lane, NodeId};
use crate::telemetry::metrics as m;
use crate::transport::{Control, portions};
use crate::worker::context::NodeContext;

/// A job that was hinted here, and the type and scope that a node needs to run it.
pub(crate) struct Unserved {
    pub(crate) ready: Ready,
    pub(crate) needs: Needs,
}

/// The jobs for which a serving node was found.
#[derive(Default)]
pub(crate) struct Sent {
    /// The jobs that are on their way to the node.
    pub(crate) forwarded: HashSet<JobId>,
    /// The jobs that the control channel does not take now.
    pub(crate) untold: Vec<JobId>,
}

/// Forwards each job to another node that serves it.
pub(crate) fn send(node: &NodeContext, unserved: Vec<Unserved>) -> Sent {
    let lately = node.fleet.takers(node.options.heard_within(), node.id);
    let (mut addressed, rest) = address(unserved, &lately);
    if !rest.is_empty() {
        let living = node.fleet.takers(SILENCE, node.id);
        for (to, mut jobs) in address(rest, &living).0 {
            addressed.entry(to).or_default().append(&mut jobs);
        }
    }
    tell(node, addressed)
}

/// Forwards jobs of which only the type is known, to nodes that take all jobs of that type.
pub(crate) fn send_by_type(node: &NodeContext, unserved: Vec<Unserved>) -> Sent {
    let mut candidates = node.fleet.takers(node.options.heard_within(), node.id);
    candidates.retain(|candidate| candidate.scope.takes_all());
    tell(node, address(unserved, &candidates).0)
}

fn tell(node: &NodeContext, addressed: BTreeMap<NodeId, Vec<Ready>>) -> Sent {
    let mut sent = Sent::default();
    for (to, jobs) in addressed {
        for jobs in portions(jobs) {
            let ids: Vec<JobId> = jobs.iter().map(|ready| ready.hint.id).collect();
            if !node.hook.tell(Control::Forwarded { node: to, jobs }) {
                sent.untold.extend(ids);
                continue;
            }
            tracing::debug!(
                node = %to,
                jobs = ids.len(),
                "forwarded jobs that this node does not serve, or has no slot for"
            );
            counter!(m::HINTS_FORWARDED).increment(ids.len() as u64);
            sent.forwarded.extend(ids);
        }
    }
    sent
}

/// Assigns the jobs to nodes. Returns the jobs that none of the candidates serves, too.
fn address(
    unserved: Vec<Unserved>,
    candidates: &[Candidate],
) -> (BTreeMap<NodeId, Vec<Ready>>, Vec<Unserved>) {
    let mut rest = Vec::new();
    let mut addressed: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
    // Searched once for each type and lane: a batch has few types.
    let mut by_needs: HashMap<(Needs, Lane), Vec<NodeId>> = HashMap::new();
    for job in unserved {
        let serving = by_needs
            .entry((job.needs.clone(), job.ready.lane.clone()))
            .or_insert_with_key(|(needs, lane)| serving(candidates, needs, lane));
        // The id chooses, so all forwarding nodes share evenly without coordination.
        let (high, low) = job.ready.hint.id.0.as_u64_pair();
        let place = usize::try_from((high ^ low) % serving.len().max(1) as u64).unwrap_or(0);
        match serving.get(place) {
            Some(to) => addressed.entry(*to).or_default().push(job.ready),
            None => rest.push(job),
        }
    }
    (addressed, rest)
}

/// Returns the serving nodes with free slots, or all serving nodes if none has any.
fn serving(candidates: &[Candidate], needs: &Needs, lane: &Lane) -> Vec<NodeId> {
    let serves = |candidate: &&Candidate| candidate.serves(needs, lane);
    let serving: Vec<&Candidate> = candidates.iter().filter(serves).collect();
    let any_free = serving.iter().any(|candidate| candidate.free > 0);
    let meant = serving
        .into_iter()
        .filter(|candidate| !any_free || candidate.free > 0);
    meant.map(|candidate| candidate.node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;
    use crate::job::scope::Scope;

    fn unserved(job_type: &str) -> Unserved {
        Unserved {
            ready: Ready {
                lane: Lane::default(),
                hint: Hint::new(JobId::generate()),
            },
            needs: Needs::of(job_type),
        }
    }

    fn candidate(types: &[&str], free: u32) -> Candidate {
        Candidate {
            node: NodeId::generate(),
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            lanes: [Lane::default()].into(),
            scope: Scope::default(),
            free,
            free_for_rescued: free,
            given: 0,
        }
    }

    #[test]
    fn nodes_that_serve_a_type_share_its_jobs() {
        let nodes = [
            candidate(&["mail"], 3),
            candidate(&["mail", "fax"], 3),
            candidate(&["fax"], 3),
        ];
        let jobs = (0..1_000).map(|_| unserved("mail")).collect();
        let (addressed, rest) = address(jobs, &nodes);
        let given = nodes
            .each_ref()
            .map(|node| addressed.get(&node.node).map_or(0, Vec::len));
        assert_eq!(given[0] + given[1], 1_000);
        assert!(given[0].abs_diff(given[1]) < 200, "{given:?}");
        assert_eq!((given[2], rest.len()), (0, 0));
    }

    #[test]
    fn a_node_with_free_slots_comes_first_and_a_busy_one_is_better_than_none() {
        let nodes = [candidate(&["mail", "fax"], 0), candidate(&["mail"], 1)];
        let jobs = vec![
            unserved("mail"),
            unserved("mail"),
            unserved("fax"),
            unserved("post"),
        ];
        let (addressed, rest) = address(jobs, &nodes);
        assert_eq!(addressed[&nodes[1].node].len(), 2);
        assert_eq!(addressed[&nodes[0].node].len(), 1);
        assert_eq!(addressed.values().map(Vec::len).sum::<usize>(), 3);
        assert_eq!(rest.len(), 1, "no node serves it");
    }
}
