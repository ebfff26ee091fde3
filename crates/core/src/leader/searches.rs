//! The leader's searches: for lost hints by [markers](super::sweeper), and for jobs that no node
//! takes.
//!
//! They run in a task of their own, so that neither a slow broker nor a search of a deep backlog
//! delays a leader cycle. A leader whose cycle comes late ends no lease (protocol rule 25); if its
//! searches delayed each cycle, the leases of dead nodes would not end.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::sweeper::Sweeper;
use super::unserved_lanes::UnservedLanes;
use super::unserved_types::UnservedTypes;
use super::waiting_types::WaitingTypes;
use crate::runtime::alarm;
use crate::transport::Control;
use crate::worker::context::NodeContext;
use crate::worker::leadership::LastCycle;

struct Searches {
    node: Arc<NodeContext>,
    sweeper: Sweeper,
    unserved_lanes: UnservedLanes,
    unserved_types: UnservedTypes,
    waiting_types: WaitingTypes,
    /// The last cycle of this term.
    last: Option<LastCycle>,
    /// Whether a node that serves alone has suspected the jobs that it found at its start.
    alone_pass_done: bool,
}

/// Searches after each leader cycle of this node, until it drains.
pub(crate) async fn search(node: Arc<NodeContext>) {
    let mut control = node.transport.listen();
    let mut cycles = node.leadership.last_cycle.subscribe();
    cycles.mark_changed();
    let drain = node.signals.draining.clone();
    let mut searches = Searches {
        node,
        sweeper: Sweeper::default(),
        unserved_lanes: UnservedLanes::default(),
        unserved_types: UnservedTypes::default(),
        waiting_types: WaitingTypes::default(),
        last: None,
        alone_pass_done: false,
    };
    loop {
        tokio::select! {
            biased;
            () = drain.cancelled() => break,
            heard = control.recv() => match heard {
                Ok(message) => searches.hear(message).await,
                // The sweeper sends another marker, or asks again.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break,
            },
            Ok(()) = cycles.changed() => {
                let cycle = *cycles.borrow_and_update();
                match cycle {
                    Some(cycle) => searches.after(cycle).await,
                    None => searches.end(),
                }
            }
            () = searches.next_question(), if searches.last.is_some() => {
                searches.sweeper.go_on_with_questions(&searches.node).await;
            }
        }
        let unreachable = searches.sweeper.unreachable().cloned();
        searches
            .node
            .leadership
            .unreachable
            .send_replace(unreachable);
    }
}

impl Searches {
    /// Searches after a cycle. Cycles that end meanwhile are left out, but for the last one.
    async fn after(&mut self, cycle: LastCycle) {
        let node = self.node.clone();
        match self.last.filter(|last| last.term == cycle.term) {
            // The clock was set back: jobs that are hinted after a marker has left may have become ready
            // before it.
            Some(last) if cycle.now < last.now => self.sweeper.forget(),
            Some(_) => {}
            None => {
                self.end();
                self.unserved_lanes.begin(&node);
                self.unserved_types.begin(&node);
            }
        }
        self.last = Some(cycle);
        if node.transport.is_single_node() && !self.alone_pass_done {
            // Jobs that this cycle has marked became ready after it began, and their hints are on
            // their way.
            let before = cycle.now - chrono::Duration::microseconds(1);
            self.alone_pass_done = self.sweeper.start_alone(&node, before).await;
        } else if cycle.jobs_wait && node.transport.wakes().is_some() {
            node.transport.publisher().wake(&node.fleet.lanes());
        } else if cycle.jobs_wait {
            self.sweeper
                .send_markers(&node, cycle.now, cycle.horizon)
                .await;
        }
        if cycle.jobs_wait {
            self.unserved_lanes.look(&node).await;
            self.unserved_types.look(&node).await;
            self.waiting_types.look(&node).await;
        } else {
            self.end_reports();
        }
    }

    /// Forgets what applies to a term only.
    fn end(&mut self) {
        if self.last.take().is_some() {
            self.end_reports();
            self.sweeper.forget();
        }
    }

    fn end_reports(&mut self) {
        self.unserved_lanes.end(&self.node);
        self.unserved_types.end(&self.node);
        self.waiting_types.end(&self.node);
    }

    async fn hear(&mut self, message: Control) {
        let node = self.node.clone();
        let leads = self.last.is_some();
        match message {
            Control::MarkerBack { lane, marker } if leads && marker.node == node.id => {
                self.sweeper.marker_back(&node, &lane, marker).await;
            }
            Control::Held {
                node: from,
                to,
                question,
                jobs,
                last,
            } if leads && to == node.id && node.fleet.knows(from) => {
                let sweeper = &mut self.sweeper;
                sweeper.answered(&node, from, question, jobs, last).await;
            }
            Control::NodeLeaves { node: id } => self.sweeper.left(id),
            _ => {}
        }
    }

    /// Waits until the sweeper asks a question, or stops waiting for answers.
    async fn next_question(&self) {
        alarm::at(self.sweeper.next_question()).await;
    }
}
