//! Rescue: jobs whose holder has died start before the jobs that wait in their lane.
//!
//! The hint of a rescued job would join the tail of its lane, behind all jobs that wait there. So
//! the leader does not publish it. It **addresses** the job to one node over the control channel,
//! and that node puts the hint at the head of the lane. The next free slot of that lane takes it.
//!
//! * The node serves the job's type and receives its lane. Of several such nodes, the one with the
//!   most free slots for rescued jobs by its last beat gets the job; if none has such slots, the
//!   jobs are spread evenly.
//! * A node that has just lost leases by their expiry is skipped: it may be dead.
//! * Jobs with a strike take at most a quarter of a node's slots. A suspect (two strikes) is not
//!   addressed: its hint joins the tail, and the job runs alone
//!   ([`quarantine`](crate::worker::quarantine)).
//! * A node with an older program, which does not understand such messages, is not addressed. If no
//!   node understands them, the hint is published.
//!
//! An addressed job may be lost on the way, like any hint. Its lease then still has no owner, so a
//! later leader cycle finds it again, at any backlog. It then goes to another node than before, if one
//! serves it: the first one may have died since its last beat, or have no free slot of the type. The nodes
//! are tried in turn. Each second time even one without a free slot is tried, where the job waits for the
//! next one: it may be the only one with a slot of the type.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::fleet::Candidate;
use crate::hint::Ready;
use crate::job::{JobId, Lane, NodeId};
use crate::producer::commit_hook::Cause;
use crate::store::Rescued;
use crate::transport::{Control, portions};
use crate::worker::addressed;
use crate::worker::context::NodeContext;
use crate::worker::suspects;

/// The maximum number of jobs whose nodes are remembered. Beyond it all are forgotten.
const MOST_REMEMBERED: usize = 50_000;

/// Maximum number of nodes that are remembered for a job.
const MOST_NODES: usize = 8;

/// The nodes to which each rescued job was addressed, the last one at the end, and how often it was
/// addressed.
#[derive(Debug, Default)]
pub(crate) struct LastNodes(HashMap<JobId, (Vec<NodeId>, u32)>);

impl LastNodes {
    /// Returns the nodes to which a job was addressed without being locked since, and how often it was
    /// addressed.
    fn of(&self, rescued: &Rescued) -> (&[NodeId], u32) {
        // Otherwise another node has locked it and died.
        let addressed = if rescued.owner.is_none() {
            self.0.get(&rescued.ready.hint.id)
        } else {
            None
        };
        addressed.map_or((&[], 0), |(nodes, times)| (nodes, *times))
    }

    /// Records that a job is addressed to this node.
    fn note(&mut self, rescued: &Rescued, node: NodeId) {
        if self.0.len() >= MOST_REMEMBERED {
            self.0.clear();
        }
        let (nodes, times) = self.0.entry(rescued.ready.hint.id).or_default();
        if rescued.owner.is_some() {
            nodes.clear();
            *times = 0;
        }
        nodes.retain(|before| *before != node);
        if nodes.len() >= MOST_NODES {
            nodes.remove(0);
        }
        nodes.push(node);
        *times = times.wrapping_add(1);
    }
}

/// Addresses each of these jobs to a node that serves it, or publishes its hint.
pub(crate) fn send(
    node: &Arc<NodeContext>,
    rescued: Vec<Rescued>,
    dead: &HashSet<NodeId>,
    last: &mut LastNodes,
) {
    let candidates = node.fleet.candidates(node.options.heard_within(), dead);
    let (addressed, mut rest) = address(rescued, candidates, last);
    for (to, jobs) in addressed {
        tracing::debug!(node = %to, jobs = jobs.len(), "rescued jobs are addressed");
        if to == node.id {
            addressed::take_rescued(node, jobs);
            continue;
        }
        for jobs in portions(jobs) {
            let untold = jobs.clone();
            if !node.hook.tell(Control::Rescued { node: to, jobs }) {
                rest.extend(untold);
            }
        }
    }
    // Woken nodes look for jobs with strikes only if jobs wait.
    let lanes: BTreeSet<&Lane> = rest.iter().map(|ready| &ready.lane).collect();
    let lanes: Vec<Lane> = lanes.into_iter().cloned().collect();
    node.transport.publisher().wake(&lanes);
    node.hook.publish(Cause::Sweep, rest);
}

/// Returns the jobs for each node, and those whose hints are published.
fn address(
    rescued: Vec<Rescued>,
    mut candidates: Vec<Candidate>,
    last: &mut LastNodes,
) -> (BTreeMap<NodeId, Vec<Ready>>, Vec<Ready>) {
    let mut addressed: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
    let mut rest = Vec::new();
    for rescued in rescued {
        let serves =
            |candidate: &&mut Candidate| candidate.serves(&rescued.needs, &rescued.ready.lane);
        let next = if suspects::is_suspect(rescued.strikes) {
            None
        } else {
            let (before, times) = last.of(&rescued);
            let moves = times % 2 == 1;
            let serving = candidates.iter_mut().filter(serves);
            // One with a free slot, each second time any; then the one that was not addressed for longest,
            // then the one with the most free slots, then with the fewest jobs so far.
            serving.max_by_key(|candidate| {
                let latest = before.iter().position(|node| *node == candidate.node);
                let free = candidate.free_for_rescued;
                let given = Reverse(candidate.given);
                (moves || free > 0, Reverse(latest), free, given)
            })
        };
        match next {
            Some(candidate) => {
                candidate.free_for_rescued = candidate.free_for_rescued.saturating_sub(1);
                candidate.given += 1;
                last.note(&rescued, candidate.node);
                let to = addressed.entry(candidate.node).or_default();
                to.push(rescued.ready);
            }
            None => rest.push(rescued.ready),
        }
    }
    (addressed, rest)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::hint::Hint;
    use crate::job::scope::{Needs, Scope};

    fn rescued(job_type: &str, lane: &str, strikes: i32) -> Rescued {
        Rescued {
            ready: Ready {
                lane: Lane(lane.to_owned()),
                hint: Hint::new(JobId::generate()),
            },
            needs: Needs::of(job_type),
            strikes,
            owner: None,
        }
    }

    fn candidate(types: &[&str], lanes: &[&str], free: u32) -> Candidate {
        Candidate {
            node: NodeId::generate(),
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            lanes: lanes.iter().map(|name| Lane((*name).to_owned())).collect(),
            scope: Scope::default(),
            free,
            free_for_rescued: free,
            given: 0,
        }
    }

    #[test]
    fn a_job_goes_to_a_node_that_serves_type_and_lane() {
        let [mail, print, low] = [
            candidate(&["mail"], &["default"], 1),
            candidate(&["print"], &["default"], 9),
            candidate(&["mail"], &["low"], 9),
        ];
        let to = mail.node;
        let (addressed, rest) = address(
            vec![rescued("mail", "default", 1), rescued("fax", "default", 1)],
            vec![mail, print, low],
            &mut LastNodes::default(),
        );
        assert_eq!(addressed.keys().collect::<Vec<_>>(), [&to]);
        assert_eq!(rest.len(), 1, "no node serves the other type");
    }

    #[test]
    fn free_slots_come_first_and_then_jobs_are_spread() {
        let nodes = [3, 1, 0].map(|free| candidate(&["mail"], &["default"], free));
        let ids = [nodes[0].node, nodes[1].node, nodes[2].node];
        let jobs = (0..10).map(|_| rescued("mail", "default", 1)).collect();
        let (addressed, rest) = address(jobs, nodes.into(), &mut LastNodes::default());
        assert!(rest.is_empty());
        let given = ids.map(|id| addressed.get(&id).map_or(0, Vec::len));
        assert_eq!(given.iter().sum::<usize>(), 10);
        assert!(given[0] >= 3 && given[1] >= 1, "{given:?}");
        assert!(
            given.iter().all(|given| (3..=4).contains(given)),
            "{given:?}"
        );
    }

    #[test]
    fn a_node_that_may_start_no_rescued_job_gets_none_while_another_may() {
        let full = Candidate {
            free_for_rescued: 0,
            ..candidate(&["mail"], &["default"], 44)
        };
        let other = Candidate {
            free_for_rescued: 4,
            ..candidate(&["mail"], &["default"], 30)
        };
        let (id, other_id) = (full.node, other.node);
        let jobs = (0..4).map(|_| rescued("mail", "default", 1)).collect();
        let (addressed, _) = address(jobs, vec![full, other], &mut LastNodes::default());
        assert!(!addressed.contains_key(&id));
        assert_eq!(addressed.get(&other_id).map(Vec::len), Some(4));
    }

    #[test]
    fn a_job_that_was_not_locked_goes_to_another_node_if_one_serves_it() {
        let nodes = || [(1, 9), (2, 1)].map(|(node, free)| (NodeId(Uuid::from_u128(node)), free));
        let candidates = || {
            nodes().map(|(node, free)| Candidate {
                node,
                ..candidate(&["mail"], &["default"], free)
            })
        };
        let mut last = LastNodes::default();
        let mut found = rescued("mail", "default", 1);
        let mut given = |found: &Rescued, candidates: Vec<Candidate>| {
            let (addressed, _) = address(vec![found.clone()], candidates, &mut last);
            addressed.into_keys().next()
        };
        let [(first, _), (second, _)] = nodes();
        assert_eq!(given(&found, candidates().into()), Some(first));
        assert_eq!(given(&found, candidates().into()), Some(second));
        assert_eq!(given(&found, candidates().into()), Some(first));
        let [only, _] = candidates();
        assert_eq!(
            given(&found, vec![only]),
            Some(first),
            "no other node serves it"
        );
        // It was locked meanwhile, and its new holder died.
        found.owner = Some(second);
        assert_eq!(given(&found, candidates().into()), Some(first));
    }

    #[test]
    fn a_job_that_was_not_locked_goes_to_a_full_node_each_second_time() {
        let [roomy, full] =
            [(1, 4), (2, 0)].map(|(node, free)| (NodeId(Uuid::from_u128(node)), free));
        let mut last = LastNodes::default();
        let found = rescued("mail", "default", 1);
        for to in [roomy, full, roomy, full] {
            let candidates = [full, roomy].map(|(node, free)| Candidate {
                node,
                ..candidate(&["mail"], &["default"], free)
            });
            let (addressed, _) = address(vec![found.clone()], candidates.into(), &mut last);
            assert_eq!(addressed.into_keys().collect::<Vec<_>>(), [to.0]);
        }
    }

    #[test]
    fn a_job_that_was_not_locked_is_addressed_to_each_of_three_nodes_in_turn() {
        let ids = [1, 2, 3].map(|node| NodeId(Uuid::from_u128(node)));
        let mut last = LastNodes::default();
        let found = rescued("mail", "default", 1);
        let mut given = Vec::new();
        for _ in 0..6 {
            let candidates = ids.map(|node| Candidate {
                node,
                ..candidate(&["mail"], &["default"], 4)
            });
            let (addressed, _) = address(vec![found.clone()], candidates.into(), &mut last);
            given.extend(addressed.into_keys());
        }
        assert_eq!(
            given[..3].iter().collect::<HashSet<_>>().len(),
            3,
            "{given:?}"
        );
        assert_eq!(given[..3], given[3..]);
    }

    #[test]
    fn a_suspect_is_addressed_to_no_node() {
        let node = candidate(&["mail"], &["default"], 8);
        let suspects = vec![rescued("mail", "default", 2)];
        let (addressed, rest) = address(suspects, vec![node], &mut LastNodes::default());
        assert!(addressed.is_empty());
        assert_eq!(rest.len(), 1);
    }
}
