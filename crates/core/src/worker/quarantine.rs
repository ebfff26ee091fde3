//! Quarantine: finds a job that kills its node. The jobs that run beside it are not affected
//! (protocol rule 26).
//!
//! When a node dies, each job that it held gets a **strike**, counted by the leader cycle that ends
//! the lease. Most of these jobs did not kill the node, so the first strike has no effect. A job
//! with two strikes runs **alone** in its process: once it has a permit and a slot of its type, where
//! the type has a [limit](crate::Limit) or a limit of its own on each node, the process takes no new
//! job, lets running jobs end, notes in the lease that the job runs alone, and then starts it. From then on only a death
//! while the job runs alone counts, so a job that only waited beside the cause gets no more
//! strikes. At [`quarantine_after`](crate::NodeOptions::quarantine_after) strikes the job becomes a
//! dead letter, with the reason. An attempt that ends without the death of its node clears the
//! strikes.
//!
//! ```text
//!   death 1, in company ──► strike 1     death 2, in company ──► strike 2: a suspect, runs alone
//!   death 3, alone ──► strike 3: dead letter "quarantined"
//! ```
//! Long jobs may keep a node from ever being empty. After the length of a lease the suspect starts
//! beside them, and its lease does not note that it runs alone.

use std::sync::Arc;

use crate::job::{Job, LockToken};
use crate::store::{Destination, Failure};
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::lease_book::Lease;
use crate::worker::slot_pool::Slot;
use crate::worker::slots::TypeSlot;
use crate::worker::suspects::{Suspect, is_suspect};

/// The decision whether a locked job may start.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are started, and that is the small one"
)]
pub(crate) enum Admission<G> {
    /// The job starts, on these slots. A suspect has what it needs for its limits.
    Start(Slot, Option<Suspect>, Option<G>),
    /// The job does not start and ends like this.
    End(Ending, Option<Slot>),
}

/// Admits a job at once, or a suspect when it is alone. A job with
/// [`quarantine_after`](crate::NodeOptions::quarantine_after) strikes becomes a dead letter. A suspect
/// gets a slot of its type and its permit from `limits`, before its node ends its other jobs for it, which
/// may take long. The argument is the slot of its type that was taken before the lock.
pub(crate) async fn admit<G>(
    node: &Arc<NodeContext>,
    job: &Job,
    strikes: i32,
    held: &LockToken,
    lease: &Lease,
    mut slot: Slot,
    limits: impl AsyncFnOnce(Option<TypeSlot>) -> Result<G, Ending>,
) -> Admission<G> {
    let limit = i32::try_from(node.options.quarantine_after).unwrap_or(i32::MAX);
    if limit == 0 || !is_suspect(strikes) {
        return Admission::Start(slot, None, None);
    }
    let type_slot = slot.of_type.take();
    if strikes >= limit {
        return Admission::End(dead_letter(job, strikes, held), Some(slot));
    }
    // A job that waits for a permit or a slot of its type is no reason to end other jobs.
    let given = match limits(type_slot).await {
        Ok(given) => Some(given),
        Err(ending) => return Admission::End(ending, Some(slot)),
    };
    let suspect = node.suspects.enter();
    // The job's own slot is freed first: two suspects that each kept one would wait for each other.
    drop(slot);
    tracing::warn!(
        job = %held.id, job_type = %job.job_type, strikes,
        "the nodes that held this job died; it waits to run alone"
    );
    let slots = &node.slots.of_node;
    let wait = async {
        match tokio::time::timeout(node.options.lease, slots.take_all()).await {
            Ok(all) => (all, true),
            // Requested only after the first request ended, because the first one gathers every
            // slot that becomes free.
            Err(_) => (slots.take().await, false),
        }
    };
    let waited = tokio::select! {
        biased;
        () = lease.stop.token().cancelled() => None,
        // A suspect that cannot start is released now and not held until the end of the shutdown.
        () = node.signals.draining.cancelled(), if !node.signals.one_job.is_cancelled() => None,
        waited = wait => Some(waited),
    };
    match waited {
        Some((slots, true)) => match note(node, held).await {
            Ok(()) => Admission::Start(slots, Some(suspect), given),
            Err(ending) => Admission::End(ending, Some(slots)),
        },
        Some((slot, false)) => Admission::Start(slot, Some(suspect), given),
        None if lease.lost.is_given() => Admission::End(Ending::Lost, None),
        None => Admission::End(Ending::Release, None),
    }
}

/// Notes in the lease that the job runs alone. If this fails, the job still runs, and a death of
/// the node does not count.
async fn note(node: &NodeContext, held: &LockToken) -> Result<(), Ending> {
    match node.store.run_alone(node.id, held).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Ending::Lost),
        Err(error) => {
            tracing::warn!(
                job = %held.id,
                %error,
                "could not note in the lease that the job runs alone; a death of this node does \
                 not count"
            );
            Ok(())
        }
    }
}

fn dead_letter(job: &Job, strikes: i32, held: &LockToken) -> Ending {
    let message = format!(
        "quarantined: {strikes} nodes in a row died while they held this job, the last one while \
         nothing else ran on it; find out why (memory, a crash in native code, an exit call), then \
         retry it"
    );
    tracing::error!(
        job = %held.id,
        job_type = %job.job_type,
        strikes,
        "the job is quarantined as a dead letter; find out why its nodes died, then retry it"
    );
    Ending::Failed {
        failure: Box::new(Failure {
            held: held.clone(),
            to: Destination::DeadLetter,
            message: Some(message),
            stack: None,
            attempt: None,
        }),
        outcome: "quarantined",
    }
}
