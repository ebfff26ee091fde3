//! Handles the control messages that the node receives.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::log_jump;
use super::{BEATS_TRUSTED, BETWEEN_BEATS, Leader};
use crate::fleet::Beat;
use crate::job::NodeId;
use crate::transport::Control;
use crate::worker::held_hints::Question;

/// The minimum time between two searches for unhinted jobs on request of a control message.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

impl Leader {
    /// Lets a leading node run its next cycle soon, because it may have missed messages: timers may
    /// have been set. A leader that hears messages more slowly than they come misses some in each
    /// cycle, so the cycle rests.
    pub(super) fn ask_soon(&mut self) {
        if self.leads() {
            self.next_cycle = self.next_cycle.min(self.rested.max(Instant::now()));
        }
    }

    /// Returns the time until which beats keep this follower from asking the database. It differs
    /// from node to node.
    fn trusts_beats_until(&self) -> Instant {
        let (spread, _) = self.node.id.0.as_u64_pair();
        let spread = Duration::from_millis(spread % 60_000);
        (self.asked + BEATS_TRUSTED + spread).max(Instant::now())
    }

    /// Returns whether the sender has a row. Messages of other senders are ignored, and the rows
    /// are read again.
    fn is_from_member(&mut self, id: NodeId) -> bool {
        let is_member = self.node.fleet.knows(id);
        if !is_member {
            self.members.read_soon();
        }
        is_member
    }

    pub(super) async fn hear(&mut self, message: Control) {
        let node = self.node.clone();
        if let Some(sender) = message.sender()
            && !self.is_from_member(sender)
            && !matches!(
                message,
                Control::NodeAlive { .. } | Control::NodeLeaves { .. }
            )
        {
            return;
        }
        match message {
            Control::LeaderAlive {
                node: leader,
                now,
                age,
                doubt,
                ..
            } if leader != node.id && !self.leads() => {
                if let Some(doubt) = doubt {
                    self.clock.leader_doubts(doubt, node.options.lease);
                }
                if let Some(now) = now {
                    let lease = node.options.lease;
                    let jump = self.clock.heard(now, age.unwrap_or_default(), lease);
                    log_jump("the leader's beat", jump);
                }
                // A node that was told that none leads asks until it hears of the leader by the database.
                if !self.failed && self.unled_since.is_none() {
                    // While the leader sends beats, this node need not ask, but for now and then:
                    // any client that may publish can send beats.
                    let next = Instant::now() + node.options.sweep_interval;
                    self.next_cycle = next.min(self.trusts_beats_until());
                }
            }
            Control::LeaderLeaves { node: leader } if leader != node.id && !self.leads() => {
                // Spreads the followers over 50 ms; the ids are random.
                let (spread, _) = node.id.0.as_u64_pair();
                let mut pause = Duration::from_millis(spread % 50);
                if self.makes_way() {
                    // Nodes that do not hear this message ask once every interval.
                    pause += node.options.sweep_interval * 2;
                }
                self.next_cycle = (Instant::now() + pause).min(self.trusts_beats_until());
            }
            Control::TimerSet { due } if self.leads() => {
                node.leadership.next_timer.earlier(self.clock.now(), due);
            }
            Control::WhichHeld {
                node: to,
                question,
                lane,
                within,
            } => node.inbox.questions.ask(Question {
                to,
                number: question,
                lane,
                within,
            }),
            Control::NodeAlive {
                node: id,
                free,
                rescue_room,
                speaks,
                row: revision,
                lanes,
                ..
            } => {
                let own = &node.options.lanes;
                let beat = Beat {
                    revision,
                    free,
                    rescue_room,
                    speaks,
                    shares_lane: own.iter().any(|share| lanes.contains(&share.lane)),
                };
                let noted = node.fleet.note(id, beat);
                if noted.read_rows {
                    self.members.read_soon();
                }
                if noted.is_new && id != node.id {
                    // The beat names the leader to the new node, and shows that this node lives.
                    // One beat answers many new nodes.
                    self.next_beat = self.next_beat.min(self.last_beat + BETWEEN_BEATS);
                }
            }
            Control::NodeLeaves { node: id } => node.fleet.forget(id),
            Control::Look if self.leads() => {
                // Any client that may publish can ask. Requests that come too often wait for the
                // next cycle, which looks as well.
                let next = self.looked.map(|looked| looked + BETWEEN_LOOKS);
                match next.filter(|next| *next > Instant::now()) {
                    Some(next) => self.next_cycle = self.next_cycle.min(next),
                    None => {
                        self.hint_unhinted().await;
                        self.looked = Some(Instant::now());
                    }
                }
            }
            Control::Missed => self.ask_soon(),
            Control::Cancel { job } if node.leases.cancel(job) => {
                tracing::info!(%job, "a running job was asked to stop by an operator");
            }
            _ => {}
        }
    }
}
