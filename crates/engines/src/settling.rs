//! Settling a batch with the statement of a dialect, without waiting for rows that the engine has
//! locked.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::LockTerms;
use jobwire_core::{NodeId, StoreError};
use sqlx::PgPool;
use tokio::time::Instant;

use crate::columns::{columns, those};
use crate::dialect::{Dialect, Settled, Settling};
use crate::fate::Fate;
use crate::id::{engine_id, job_id};

/// How long outcomes gather while the node is saturated: about what an execution takes that runs
/// beside seven others. A statement for ten jobs costs little more than one for one.
pub(crate) const GATHER: Duration = Duration::from_millis(20);
/// The turns of statements that settle executed jobs while the engine has as many jobs as it takes.
///
/// A commit frees slots for a moment, so the node does not count as saturated right after it. These
/// turns keep the statements apart anyway.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Option<Instant>>);

impl Turns {
    /// Waits for a turn. Turns are [`GATHER`] apart.
    pub(crate) async fn take(&self) {
        let now = Instant::now();
        let turn = {
            // A poisoned lock means that a thread panicked; the moment is still whole.
            let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = next.map_or(now, |next| next.max(now));
            *next = Some(turn + GATHER);
            turn
        };
        tokio::time::sleep_until(turn).await;
    }
}

/// The pauses before further tries for rows that the engine has locked.
const BUSY: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(40),
];

/// Returns the instances of which this node has locked no next job. Their first jobs may be jobs of
/// other nodes, and no other part hints them. A node that takes all jobs needs no such search.
pub(crate) fn for_others(
    terms: &LockTerms,
    mut left: Vec<String>,
    next: &[LockedJob],
) -> Vec<String> {
    if terms.scope.takes_all() {
        return Vec::new();
    }
    let taken = next.iter();
    let taken: HashSet<&str> = taken
        .filter_map(|locked| locked.job.process_instance.as_deref())
        .collect();
    left.retain(|instance| !taken.contains(instance.as_str()));
    left
}

/// Settles a batch. Reports rows that stay locked by the engine as busy.
pub(crate) async fn settle(
    dialect: &dyn Dialect,
    pool: &PgPool,
    node: NodeId,
    jobs: &[Settling],
    take: Option<&LockTerms>,
) -> Result<Settled, StoreError> {
    let mut settled = Settled::default();
    let unanswered = jobs.iter().filter(|job| job.unanswered);
    let unanswered: Vec<String> = unanswered
        .filter_map(|job| engine_id(job.held.id))
        .collect();
    let mut open = columns(node, jobs.iter().map(|job| &job.held));
    let mut pauses = BUSY.iter();
    loop {
        let settles = dialect.settle_once(pool, &open, &unanswered, take, &mut settled);
        let busy: HashSet<String> = settles.await?;
        if busy.is_empty() {
            return Ok(settled);
        }
        let Some(pause) = pauses.next() else {
            let busy = busy.iter().filter_map(|id| job_id(id).ok());
            settled.fates.extend(busy.map(|id| (id, Fate::Busy)));
            return Ok(settled);
        };
        tokio::time::sleep(*pause).await;
        open = those(open, &busy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_are_apart_and_the_first_one_comes_at_once() {
        let (turns, began) = (Turns::default(), Instant::now());
        turns.take().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        turns.take().await;
        assert_eq!(began.elapsed(), GATHER);
        tokio::time::advance(GATHER * 3).await;
        turns.take().await;
        assert_eq!(began.elapsed(), GATHER * 4);
    }
}
