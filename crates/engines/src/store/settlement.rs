//! Settling a batch of jobs whose executions have ended.

use jobwire_core::NodeId;
use jobwire_core::job::LockToken;
use jobwire_core::store::{BatchOutcome, Handoff};

use super::{EngineStore, Result};
use crate::dialect::{Settled, Settling};
use crate::fate::Fate;
use crate::settling;

impl EngineStore {
    pub(super) async fn settle(
        &self,
        statement: &'static str,
        owner: NodeId,
        held: Vec<LockToken>,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (dialect, connections) = (self.dialect(), &self.0.connections);
        let settling = |held: LockToken| Settling {
            unanswered: self.0.parts.calls.is_open(held.fence),
            held,
        };
        // This node has no room for a job that it gives back, nor for its siblings.
        let (back, ended): (Vec<LockToken>, Vec<LockToken>) = held
            .into_iter()
            .partition(|held| self.0.parts.calls.is_given_back(held.fence));
        let take = match then {
            Handoff::Take(terms) => Some(terms),
            Handoff::Hint => None,
        };
        let mut all = Settled::default();
        // The locks of an answer must not be lost with the failure of a later statement.
        for (held, take) in [(back, None), (ended, take)] {
            if held.is_empty() {
                continue;
            }
            let jobs: Vec<Settling> = held.into_iter().map(settling).collect();
            let settled = self
                .run_locking(statement, || {
                    settling::settle(dialect, &connections.keyed.inner, owner, &jobs, take)
                })
                .await;
            match settled {
                Ok(settled) => all.add(settled),
                Err(error) if all.fates.is_empty() => return Err(error),
                // The first statement has committed. These jobs are settled by the next one.
                Err(_) => all
                    .fates
                    .extend(jobs.iter().map(|job| (job.held.id, Fate::Busy))),
            }
        }
        Ok(self.outcome(statement, all))
    }

    fn outcome(&self, statement: &str, settled: Settled) -> BatchOutcome {
        let mut outcome = BatchOutcome {
            next: settled.next,
            ready: settled.ready,
            timer: settled.timer,
            ..BatchOutcome::default()
        };
        for (id, fate) in settled.fates {
            self.0.parts.settled(statement, id, fate);
            match fate {
                Fate::Lost => {}
                Fate::Busy => outcome.left.push(id),
                _ => outcome.applied.push(id),
            }
        }
        outcome
    }
}
