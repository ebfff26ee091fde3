//! Forwarding: a hint reaches a node that serves its job's type.
//!
//! The nodes of a lane need not have the same handlers: during a deploy that brings a new type, some of them know it and
//! others do not. A node that received a hint which it can't serve **forwards** the job to a living node that can, over
//! the control channel, and settles the hint. There it waits like any other hint of the lane.
//!
//! * The nodes that serve type and lane share the jobs by their ids; nodes that reported free slots come first.
//! * A job is forwarded once. Where it is refused as well, or the node has no room for so many, the sweeper has it.
//! * A forwarded job stays with its node while no slot is free there: back at the broker it would come to a node
//!   again that can't serve it.
//! * An older program takes nothing that is forwarded, so it is given nothing.
//! * A type that no living node serves is a gate: its jobs wait, and are hinted by the sweeper when such a node is there.
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

/// A job that was hinted here, and what a node must serve to run it.
pub(crate) struct Unserved {
    pub(crate) ready: Ready,
    pub(crate) needs: Needs,
}

/// Give each of these jobs to another node that serves it. Returns those that were.
pub(crate) fn send(node: &NodeContext, unserved: Vec<Unserved>) -> HashSet<JobId> {
    let candidates = node.fleet.takers(node.options.heard_within(), node.id);
    tell(node, address(unserved, &candidates))
}

/// The same for jobs of which only the type is known: they are given to nodes that take all jobs of it.
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
            tracing::debug!(node = %to, jobs = ids.len(), "jobs that this node does not serve are forwarded");
            counter!(m::HINTS_FORWARDED).increment(ids.len() as u64);
            forwarded.extend(ids);
        }
    }
    forwarded
}

/// These jobs were forwarded to this node.
pub(crate) fn receive(node: &Arc<NodeContext>, jobs: Vec<Ready>) {
    let received = |ready: &Ready| node.options.receives(&ready.lane);
    let refused = jobs.into_iter().filter(received);
    let refused = refused.filter_map(|ready| node.forwarded_here(ready));
    let jobs = refused.count();
    if jobs > 0 {
        tracing::info!(
            jobs,
            "no room for jobs that were forwarded; the sweeper hints them"
        );
    }
}

/// Which node gets which jobs.
fn address(unserved: Vec<Unserved>, candidates: &[Candidate]) -> BTreeMap<NodeId, Vec<Ready>> {
    let mut addressed: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
    // A batch has few types.
    let mut by_needs: HashMap<(Needs, Lane), Vec<NodeId>> = HashMap::new();
    for Unserved { ready, needs } in unserved {
        let serving = by_needs
            .entry((needs, ready.lane.clone()))
            .or_insert_with_key(|(needs, lane)| serving(candidates, needs, lane));
        // All nodes that forward share alike, without a word between them.
        let (high, low) = ready.hint.id.0.as_u64_pair();
        let place = usize::try_from((high ^ low) % serving.len().max(1) as u64).unwrap_or(0);
        if let Some(to) = serving.get(place) {
            addressed.entry(*to).or_default().push(ready);
        }
    }
    addressed
}

/// Those with free slots, or all where none has any.
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
