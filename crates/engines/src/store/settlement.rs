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
        let jobs: Vec<Settling> = held
            .into_iter()
            .map(|held| Settling {
                unanswered: self.0.calls.is_open(held.fence),
                held,
            })
            .collect();
        let take = match then {
            Handoff::Take(terms) => Some(terms),
            Handoff::Hint => None,
        };
        let settled = self
            .run_locking(statement, || {
                settling::settle(dialect, &connections.keyed.inner, owner, &jobs, take)
            })
            .await?;
        Ok(self.outcome(settled))
    }

    fn outcome(&self, settled: Settled) -> BatchOutcome {
        let mut outcome = BatchOutcome {
            next: settled.next,
            ready: settled.ready,
            timer: settled.timer,
            ..BatchOutcome::default()
        };
        for (id, fate) in settled.fates {
            self.0.meter.outcome(fate);
            match fate {
                Fate::Lost => {}
                Fate::Busy => outcome.left.push(id),
                _ => outcome.applied.push(id),
            }
        }
        outcome
    }
}
