//! Answers the leader's question which hints of a lane this node holds.

use std::time::Duration;

use chrono::Utc;

use super::Consumer;
use super::full::others_serve;
use crate::job::JobId;
use crate::transport::{Control, MAX_HELD_IN_MESSAGE};
use crate::worker::held_hints::Question;

/// The maximum number of jobs in one answer. Further jobs may be hinted twice.
const MOST_ANSWERED: usize = 16 * MAX_HELD_IN_MESSAGE;
/// The time for which an own hint counts as held. After that the sweeper may hint the job again, so
/// that it runs on a node with a free slot instead of waiting behind an hour-long job. A node that
/// cannot renew its leases holds no own hints.
const OWN_COUNT_FOR: Duration = Duration::from_secs(60);

impl Consumer {
    /// Sends the leader the jobs of the lane whose hints this node holds.
    pub(super) fn answer(&mut self, question: &Question) {
        let lanes = &self.node.options.lanes;
        let Some(place) = lanes.iter().position(|share| share.lane == question.lane) else {
            return;
        };
        self.receive_at_once();
        let unsettled = self.undecided.values().filter(|of| of.lane == place);
        let received = unsettled.flat_map(|of| of.jobs.iter().copied());
        let mut jobs: Vec<JobId> = received.collect();
        let asked = self.asked.iter().filter(|(_, of)| **of == place);
        jobs.extend(asked.map(|(job, _)| *job));
        if self.node.leases.healthy() {
            jobs.extend(self.node.inbox.waiting(&question.lane));
            let others_serve = others_serve(&self.node);
            let since = Utc::now() - OWN_COUNT_FOR;
            let own = self.pending.own(place, since, |of| !others_serve(of));
            jobs.extend(own);
        }
        jobs.extend(self.returned.within(place, question.within));
        // A saturated node requeues the same hints repeatedly.
        jobs.sort_unstable();
        jobs.dedup();
        jobs.truncate(MOST_ANSWERED);
        tracing::debug!(
            lane = %question.lane,
            jobs = jobs.len(),
            "answering the leader's question about held hints"
        );
        let mut parts = jobs.chunks(MAX_HELD_IN_MESSAGE);
        let mut next = Some(parts.next().unwrap_or_default());
        while let Some(part) = next {
            next = parts.next();
            self.node.hook.tell(Control::Held {
                node: self.node.id,
                to: question.to,
                question: question.number,
                jobs: part.to_vec(),
                last: next.is_none(),
            });
        }
    }
}
