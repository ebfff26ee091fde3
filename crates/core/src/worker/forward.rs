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
//! * The jobs of a type that no living node serves wait. The sweeper hints them when a node serves
//!   the type.
//!
//! A forwarded job may be lost on the way, like any hint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use metrics::counter;

use crate::fleet::Candidate;
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

/// Forwards each job to another node that serves it. Returns the ids of the forwarded jobs.
pub(crate) fn send(node: &NodeContext, unserved: Vec<Unserved>) -> HashSet<JobId> {
    let candidates = node.fleet.takers(node.options.heard_within(), node.id);
    tell(node, address(unserved, &candidates))
}

/// Forwards jobs of which only the type is known, to nodes that take all jobs of that type. Returns
/// the ids of the forwarded jobs.
pub(crate) fn send_by_type(node: &NodeContext, unserved: Vec<Unserved>) -> HashSet<JobId> {
    let mut candidates = node.fleet.takers(node.options.heard_within(), node.id);
    candidates.retain(|candidate| candidate.scope.takes_all());
    tell(node, address(unserved, &candidates))
}

fn tell(node: &NodeContext, addressed: BTreeMap<NodeId, Vec<Ready>>) -> HashSet<JobId> {
    let mut forwarded = HashSet::new();
    for (to, jobs) in addressed {
        for jobs in portions(jobs) {
            let ids: Vec<JobId> = jobs.iter().map(|ready| ready.hint.id).collect();
            if !node.hook.tell(Control::Forwarded { node: to, jobs }) {
                continue;
            }
            tracing::debug!(
                node = %to,
                jobs = ids.len(),
                "forwarded jobs that this node does not serve"
            );
            counter!(m::HINTS_FORWARDED).increment(ids.len() as u64);
            forwarded.extend(ids);
        }
    }
    forwarded
}

/// Accepts jobs that were forwarded to this node.
pub(crate) fn receive(node: &Arc<NodeContext>, jobs: Vec<Ready>) {
    let received = |ready: &Ready| node.options.receives(&ready.lane);
    let refused = jobs.into_iter().filter(received);
    let refused = refused.filter_map(|ready| node.inbox.forwarded_here(ready));
    let jobs = refused.count();
    if jobs > 0 {
        tracing::info!(
            jobs,
            "no room for forwarded jobs; the sweeper publishes their hints again"
        );
    }
}

/// Assigns the jobs to nodes.
fn address(unserved: Vec<Unserved>, candidates: &[Candidate]) -> BTreeMap<NodeId, Vec<Ready>> {
    let mut addressed: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
    // Searched once for each type and lane: a batch has few types.
    let mut by_needs: HashMap<(Needs, Lane), Vec<NodeId>> = HashMap::new();
    for Unserved { ready, needs } in unserved {
        let serving = by_needs
            .entry((needs, ready.lane.clone()))
            .or_insert_with_key(|(needs, lane)| serving(candidates, needs, lane));
        // The id chooses, so all forwarding nodes share evenly without coordination.
        let (high, low) = ready.hint.id.0.as_u64_pair();
        let place = usize::try_from((high ^ low) % serving.len().max(1) as u64).unwrap_or(0);
        if let Some(to) = serving.get(place) {
            addressed.entry(*to).or_default().push(ready);
        }
    }
    addressed
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
        let addressed = address(jobs, &nodes);
        let given = nodes
            .each_ref()
            .map(|node| addressed.get(&node.node).map_or(0, Vec::len));
        assert_eq!(given[0] + given[1], 1_000);
        assert!(given[0].abs_diff(given[1]) < 200, "{given:?}");
        assert_eq!(given[2], 0);
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
        let addressed = address(jobs, &nodes);
        assert_eq!(addressed[&nodes[1].node].len(), 2);
        assert_eq!(addressed[&nodes[0].node].len(), 1);
        assert_eq!(addressed.values().map(Vec::len).sum::<usize>(), 3);
    }
}
