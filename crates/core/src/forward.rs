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
use crate::job::{JobId, Lane, NodeId};
use crate::metrics as m;
use crate::shared::Shared;
use crate::transport::{Control, portions};

/// A job that was hinted here, and its type.
pub(crate) struct Unserved {
    pub(crate) ready: Ready,
    pub(crate) job_type: String,
}

/// Give each of these jobs to another node that serves it. Returns those that were.
pub(crate) fn send(node: &Shared, unserved: Vec<Unserved>) -> HashSet<JobId> {
    let candidates = node.fleet.takers(node.options.heard_within(), node.id);
    let addressed = address(unserved, &candidates);
    let mut forwarded = HashSet::new();
    for (to, jobs) in addressed {
        forwarded.extend(jobs.iter().map(|ready| ready.hint.id));
        counter!(m::HINTS_FORWARDED).increment(jobs.len() as u64);
        tracing::debug!(node = %to, jobs = jobs.len(), "jobs of types that this node does not serve are forwarded");
        for jobs in portions(jobs) {
            node.hook.tell(Control::Forwarded { node: to, jobs });
        }
    }
    forwarded
}

/// These jobs were forwarded to this node.
pub(crate) fn receive(node: &Arc<Shared>, jobs: Vec<Ready>) {
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
    let mut by_type: HashMap<(String, Lane), Vec<NodeId>> = HashMap::new();
    for Unserved { ready, job_type } in unserved {
        let serving = by_type
            .entry((job_type, ready.lane.clone()))
            .or_insert_with_key(|(job_type, lane)| serving(candidates, job_type, lane));
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
fn serving(candidates: &[Candidate], job_type: &str, lane: &Lane) -> Vec<NodeId> {
    let serves = |candidate: &&Candidate| candidate.serves(job_type, lane);
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

    fn unserved(job_type: &str) -> Unserved {
        Unserved {
            ready: Ready {
                lane: Lane::default(),
                hint: Hint::new(JobId::generate()),
            },
            job_type: job_type.to_owned(),
        }
    }

    fn candidate(types: &[&str], free: u32) -> Candidate {
        Candidate {
            node: NodeId::generate(),
            types: types.iter().map(|name| (*name).into()).collect(),
            lanes: vec!["default".into()],
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
