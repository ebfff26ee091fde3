//! Quarantine: a job that takes its node down is found, and the innocents beside it are not blamed
//! (protocol rule 26).
//!
//! When a node dies, everything it held gets a **strike**, counted by the leader's turn that ends the lease. Most
//! of it is innocent, so the first strikes change nothing. A job with [`SUSPECT`] of them runs **alone**:
//! the node takes nothing new, lets what runs come to an end, notes in the lease that the job is alone now,
//! and only then starts it. From there on only deaths while alone are counted, so what merely waited beside
//! a killer keeps its strikes. At [`quarantine_after`](crate::NodeOptions::quarantine_after) the job goes
//! to the dead letters, with the reason. An attempt that ends in any orderly way clears the strikes.
//!
//! ```text
//!   death 1, in company ──► strike 1     death 2, in company ──► strike 2: a suspect, runs alone
//!   death 3, alone ──► strike 3: dead letter "quarantined"
//! ```
//! Long jobs may keep a node from ever being empty: after a lease's length the suspect starts in company,
//! and its lease does not say "alone".

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;

use crate::job::{Job, LockToken};
use crate::store::{Destination, Failure};
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::lease_book::Lease;

/// So many strikes make a suspect. The stores' statements know the same number.
const SUSPECT: i32 = 2;

/// A job with so many strikes runs alone.
pub(crate) const fn is_suspect(strikes: i32) -> bool {
    strikes >= SUSPECT
}

/// How many suspects wait or run on a node.
#[derive(Debug, Default)]
pub(crate) struct Suspects(AtomicUsize);

impl Suspects {
    /// While there is one, the node takes nothing else.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One of them.
pub(crate) struct Suspect(Arc<NodeContext>);

impl Suspect {
    fn enter(node: &Arc<NodeContext>) -> Self {
        node.suspects.0.fetch_add(1, Ordering::Relaxed);
        Self(node.clone())
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.suspects.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a locked job may start now.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are started, and that is the small one"
)]
pub(crate) enum Admission {
    /// Yes, on this slot.
    Start(OwnedSemaphorePermit, Option<Suspect>),
    /// No, and this is what becomes of it.
    End(Ending, Option<OwnedSemaphorePermit>),
}

/// Let an innocent job start at once, a suspect when it is alone, and a guilty one never.
pub(crate) async fn admit(
    node: &Arc<NodeContext>,
    job: &Job,
    strikes: i32,
    held: &LockToken,
    lease: &Lease,
    slot: OwnedSemaphorePermit,
) -> Admission {
    let limit = i32::try_from(node.options.quarantine_after).unwrap_or(i32::MAX);
    if limit == 0 || !is_suspect(strikes) {
        return Admission::Start(slot, None);
    }
    if strikes >= limit {
        return Admission::End(dead_letter(job, strikes, held), Some(slot));
    }
    let suspect = Suspect::enter(node);
    // Its own slot back first: two suspects that each kept one would wait for each other.
    drop(slot);
    tracing::warn!(
        job = %held.id, job_type = %job.job_type, strikes,
        "the nodes that held this job have died; it waits to run alone"
    );
    let slots = u32::try_from(node.options.concurrency).unwrap_or(u32::MAX);
    let wait = async {
        let all = node.slots.clone().acquire_many_owned(slots);
        match tokio::time::timeout(node.options.lease, all).await {
            Ok(all) => all.map(|all| (all, true)),
            // Not while the first request waits: it gathers every slot that comes free.
            Err(_) => (node.slots.clone().acquire_owned().await).map(|one| (one, false)),
        }
    };
    let waited = tokio::select! {
        biased;
        () = lease.stop.token().cancelled() => None,
        // What cannot start is given back, not held until the end of the shutdown.
        () = node.draining.cancelled() => None,
        waited = wait => waited.ok(),
    };
    match waited {
        Some((slots, true)) => match note(node, held).await {
            Ok(()) => Admission::Start(slots, Some(suspect)),
            Err(ending) => Admission::End(ending, Some(slots)),
        },
        Some((slot, false)) => Admission::Start(slot, Some(suspect)),
        None if lease.lost.is_given() => Admission::End(Ending::Lost, None),
        None => Admission::End(Ending::Release, None),
    }
}

/// Write down that it is alone. Where that fails it runs all the same, and its death will not count.
async fn note(node: &NodeContext, held: &LockToken) -> Result<(), Ending> {
    match node.store.run_alone(node.id, held).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Ending::Lost),
        Err(error) => {
            tracing::warn!(job = %held.id, %error, "it could not be noted that the job runs alone");
            Ok(())
        }
    }
}

fn dead_letter(job: &Job, strikes: i32, held: &LockToken) -> Ending {
    let message = format!(
        "quarantined: {strikes} nodes in a row died while they held this job, the last one while nothing else ran on it; \
         find out why (memory, a crash in native code, an exit call), then retry it"
    );
    tracing::error!(job = %held.id, job_type = %job.job_type, strikes, "the job is quarantined");
    Ending::Failed {
        failure: Failure {
            held: held.clone(),
            to: Destination::DeadLetter,
            message: Some(message),
            stack: None,
        },
        outcome: "quarantined",
    }
}
