//! The question: which hints of this lane does each node hold?
//!
//! A marker that is back has been decided by one node. Hints that stood before it in the lane may still wait on other
//! nodes, or were returned to the broker meanwhile. The leader asks before it calls a job lost, and only where one would
//! be: all nodes that receive the lane answer with the hints that they hold or have returned since the marker left.
//!
//! A node that does not answer delays the lane by one marker, and never longer: the next time its silence is taken for
//! an answer. A node whose program is too old to answer is not waited for; the hints that it holds may be sent twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Before, LaneState, Sent, Sweeper, query};
use crate::job::{JobId, Lane, NodeId};
use crate::shared::Shared;
use crate::transport::Control;

/// So long the nodes have to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// A node that was silent for so many intervals is not asked.
const SILENT: u32 = 2;
/// Jobs that all answers together may name: a forged answer costs so much memory and no more.
const MOST_HELD: usize = 200_000;

/// A question that is open.
pub(super) struct Asked {
    number: u64,
    before: Before,
    /// They have not answered yet.
    missing: HashSet<NodeId>,
    held: HashSet<JobId>,
    until: Instant,
}

impl Sweeper {
    /// A marker is back. Where jobs are suspected, ask the nodes; otherwise nothing is to be done.
    async fn ask(&mut self, node: &Arc<Shared>, lane: &Lane, sent: Sent) {
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
            // The pages look at the whole lane as well.
            state.not_whole_before = None;
        }
        let within = node.options.sweep_interval * SILENT;
        let missing = node.fleet.answering(lane, within);
        if missing.is_empty() {
            return self.begin(node, lane, sent.before, Arc::default()).await;
        }
        self.next += 1;
        let asked = Asked {
            number: self.next,
            before: sent.before,
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

    /// A node has answered, or begun to.
    pub(crate) async fn answered(
        &mut self,
        node: &Arc<Shared>,
        from: NodeId,
        question: u64,
        jobs: Vec<JobId>,
        last: bool,
    ) {
        let mut lanes = self.lanes.iter_mut();
        let open = lanes.find_map(|(lane, state)| {
            let asked = state.question.as_mut()?;
            (asked.number == question).then_some((lane, asked))
        });
        let Some((lane, asked)) = open else {
            return;
        };
        if !asked.missing.contains(&from) {
            return;
        }
        let room = MOST_HELD.saturating_sub(asked.held.len());
        asked.held.extend(jobs.into_iter().take(room));
        if last {
            asked.missing.remove(&from);
        }
        if asked.missing.is_empty() {
            let lane = lane.clone();
            self.go_on(node, &lane, true).await;
        }
    }

    /// When the next question is to be asked, or the first open one has waited long enough.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        let moments = self.lanes.values().flat_map(|lane| {
            let asks = lane.returned.as_ref().map(|(_, moment)| *moment);
            let waits = lane.question.as_ref().map(|asked| asked.until);
            asks.into_iter().chain(waits)
        });
        moments.min()
    }

    /// Ask the questions that are due, and wait no longer for nodes that had their time to answer.
    pub(crate) async fn go_on_with_questions(&mut self, node: &Arc<Shared>) {
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
            let silent = state
                .question
                .as_ref()
                .map_or(0, |asked| asked.missing.len());
            tracing::info!(%lane, silent, "nodes did not say which hints they hold");
            if state.was_unanswered {
                self.go_on(node, &lane, false).await;
            } else {
                state.was_unanswered = true;
                state.question = None;
            }
        }
    }

    /// The node leads no more: markers and questions of this term mean nothing in its next one.
    pub(crate) fn forget(&mut self) {
        self.lanes.clear();
        self.horizons.clear();
    }

    async fn go_on(&mut self, node: &Arc<Shared>, lane: &Lane, answered: bool) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        if answered {
            state.was_unanswered = false;
        }
        if let Some(asked) = state.question.take() {
            let held = asked.held.into_iter().collect();
            self.begin(node, lane, asked.before, held).await;
        }
    }
}
