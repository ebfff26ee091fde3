//! The leader's question to the nodes: which hints of this lane do they hold?
//!
//! One node has decided a returned marker. Hints that were before the marker in the lane may still
//! wait on other nodes, or may have been requeued meanwhile. So the leader asks before it treats
//! jobs as orphans. All nodes that receive the lane answer with the hints that they hold or have
//! requeued since the marker left. Without a candidate for an orphan the leader does not ask.
//!
//! A node that does not answer delays the lane by at most one marker. The next time, the silence of
//! the same node counts as an answer ([`Silent`]). Between nodes the next question needs the next
//! marker, which proves that the broker takes the leader's messages; in one process the leader asks
//! again at once. A node that stops requeues its hints, so the
//! leader asks again behind the next marker. The leader does not wait for a node whose program is
//! too old to answer; the hints that this node holds may be sent twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{LaneState, Sent, Sweeper, query};
use crate::fleet::SILENCE;
use crate::job::{JobId, Lane, NodeId};
use crate::transport::Control;
use crate::worker::context::NodeContext;

/// The time within which nodes must answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of jobs in all answers to one question. It bounds the memory that a forged answer
/// costs.
const MOST_HELD: usize = 200_000;

/// An open question.
pub(super) struct Asked {
    number: u64,
    /// The returned marker.
    sent: Sent,
    /// The nodes that have not answered yet.
    missing: HashSet<NodeId>,
    held: HashSet<JobId>,
    until: Instant,
}

/// The nodes that did not answer a question of this lane, and no later one.
#[derive(Default)]
pub(super) struct Silent(HashSet<NodeId>);

impl Silent {
    /// Records nodes that did not answer in time. Returns false if one of them had not been silent
    /// before; it is asked once more.
    fn expects_no_answer(&mut self, missing: &HashSet<NodeId>) -> bool {
        let known = missing.is_subset(&self.0);
        self.0.extend(missing);
        known
    }

    fn answered(&mut self, node: NodeId) {
        self.0.remove(&node);
    }
}

impl Sweeper {
    /// Asks the nodes after a marker has returned, if there are candidates for orphans.
    async fn ask(&mut self, node: &Arc<NodeContext>, lane: &Lane, sent: Sent) {
        let Some(state) = self.lanes.get(lane) else {
            return;
        };
        let whole = state.looks_at_whole();
        let mut suspects = query(node, lane, sent.before, 1);
        suspects.whole = whole;
        let found = self.look(node, &suspects).await;
        if found.is_none_or(|page| page.ready.is_empty()) {
            return;
        }
        if whole && let Some(state) = self.lanes.get_mut(lane) {
            // The pages read the whole lane as well.
            state.not_whole_before = None;
        }
        let missing = node.fleet.answering(lane, SILENCE);
        if missing.is_empty() {
            return self.begin(node, lane, sent.before, Arc::default()).await;
        }
        let asked = Asked {
            number: node.leadership.number(),
            sent,
            missing,
            held: HashSet::new(),
            until: Instant::now() + PATIENCE,
        };
        node.hook.tell(Control::WhichHeld {
            node: node.id,
            question: asked.number,
            lane: lane.clone(),
            within: sent.since.elapsed() + PATIENCE,
        });
        if let Some(state) = self.lanes.get_mut(lane) {
            state.question = Some(asked);
        }
    }

    /// Records an answer, or a part of one.
    pub(crate) async fn answered(
        &mut self,
        node: &Arc<NodeContext>,
        from: NodeId,
        question: u64,
        jobs: Vec<JobId>,
        last: bool,
    ) {
        let mut lanes = self.lanes.iter_mut();
        let open = lanes.find_map(|(lane, state)| {
            let asked = state.question.as_mut()?;
            (asked.number == question).then_some((lane, asked, &mut state.silent))
        });
        let Some((lane, asked, silent)) = open else {
            return;
        };
        if !asked.missing.contains(&from) {
            return;
        }
        let room = MOST_HELD.saturating_sub(asked.held.len());
        asked.held.extend(jobs.into_iter().take(room));
        if last {
            asked.missing.remove(&from);
            silent.answered(from);
        }
        if asked.missing.is_empty() {
            let lane = lane.clone();
            self.go_on(node, &lane).await;
        }
    }

    /// Handles a node that stops: it answers no more, and its hints go back to the broker.
    pub(crate) fn left(&mut self, node: NodeId) {
        for state in self.lanes.values_mut() {
            let _ = state
                .question
                .take_if(|asked| asked.missing.contains(&node));
            state.silent.answered(node);
        }
    }

    /// Returns the time at which the next question is asked or the first open one times out.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        let moments = self.lanes.values().flat_map(|lane| {
            let asks = lane.returned.as_ref().map(|(_, moment)| *moment);
            let waits = lane.question.as_ref().map(|asked| asked.until);
            asks.into_iter().chain(waits)
        });
        moments.min()
    }

    /// Asks the questions that are due, and ends those that have timed out.
    pub(crate) async fn go_on_with_questions(&mut self, node: &Arc<NodeContext>) {
        let now = Instant::now();
        let is_due = |(lane, state): (&Lane, &mut LaneState)| {
            let (sent, _) = state.returned.take_if(|(_, moment)| *moment <= now)?;
            Some((lane.clone(), sent))
        };
        let due: Vec<(Lane, Sent)> = self.lanes.iter_mut().filter_map(is_due).collect();
        for (lane, sent) in due {
            self.ask(node, &lane, sent).await;
        }
        let is_late = |(lane, state): (&Lane, &LaneState)| {
            let late = state.question.as_ref()?.until <= now;
            late.then(|| lane.clone())
        };
        let late: Vec<Lane> = self.lanes.iter().filter_map(is_late).collect();
        for lane in late {
            let Some(state) = self.lanes.get_mut(&lane) else {
                continue;
            };
            let Some(asked) = &state.question else {
                continue;
            };
            let silent = asked.missing.len();
            tracing::info!(%lane, silent, "nodes did not answer in time which hints they hold");
            if state.silent.expects_no_answer(&asked.missing) {
                self.go_on(node, &lane).await;
            } else {
                if node.transport.is_single_node() {
                    state.returned.get_or_insert((asked.sent, now));
                }
                state.question = None;
            }
        }
    }

    /// Forgets all markers and questions when the node stops leading; they do not apply to its next
    /// term.
    pub(crate) fn forget(&mut self) {
        self.lanes.clear();
        self.horizons.clear();
        self.unreachable.clear();
    }

    async fn go_on(&mut self, node: &Arc<NodeContext>, lane: &Lane) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        if let Some(asked) = state.question.take() {
            let held = asked.held.into_iter().collect();
            self.begin(node, lane, asked.sent.before, held).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_node_may_be_silent_once() {
        let nodes = |numbers: &[u128]| -> HashSet<NodeId> {
            let ids = numbers
                .iter()
                .map(|number| NodeId(Uuid::from_u128(*number)));
            ids.collect()
        };
        let mut silent = Silent::default();
        assert!(!silent.expects_no_answer(&nodes(&[1])));
        assert!(silent.expects_no_answer(&nodes(&[1])));
        // The silence of one node does not count as the answer of another.
        assert!(!silent.expects_no_answer(&nodes(&[1, 2])));
        assert!(silent.expects_no_answer(&nodes(&[1, 2])));
        silent.answered(NodeId(Uuid::from_u128(2)));
        assert!(silent.expects_no_answer(&nodes(&[1])));
        assert!(!silent.expects_no_answer(&nodes(&[2])));
    }
}
