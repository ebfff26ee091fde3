//! Settling a batch with the statement of a dialect, without waiting for rows that the engine has
//! locked.

use std::collections::HashSet;
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::LockTerms;
use jobwire_core::{NodeId, StoreError};
use sqlx::PgPool;

use crate::columns::{columns, those};
use crate::dialect::{Dialect, Settled, Settling};
use crate::fate::Fate;
use crate::id::{engine_id, job_id};

/// The name of the statement that settles jobs whose executions were answered with success.
pub(crate) const COMPLETE: &str = "complete";

/// How long outcomes gather while the engine has as many jobs as it takes: about what an execution
/// takes that runs beside seven others. A statement for ten jobs costs little more than one for one.
pub(crate) const GATHER: Duration = Duration::from_millis(20);

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
