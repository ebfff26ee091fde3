//! Renewal: the task that keeps this node's leases alive while their jobs run.
//!
//! It looks at the [book](crate::worker::lease_book) twelve times a lease, and asks the database only where something is to be said:
//! a lease that is older than a third of its length, a [doubt](crate::worker::under_way), a strike to take back. After each
//! renewal it also [reconciles](crate::worker::lost_leases) the book with the database, in a task of its own: a
//! reconciliation that hangs or gets no connection delays no renewal.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::job::LockToken;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::lost_leases;

/// Renew until the node has ended. Nothing held and nothing in doubt costs no statement.
pub(crate) async fn renew_all(node: Arc<NodeContext>) {
    lost_leases::begin();
    let book = node.leases.clone();
    let pace = (book.length() / 12).max(Duration::from_millis(20));
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut renewal: Option<JoinHandle<bool>> = None;
    let mut reconciliation: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            biased;
            () = node.ended.cancelled() => break,
            _ = ticks.tick() => {}
        }
        // On every tick, also while a renewal hangs.
        book.expire();
        if renewal
            .as_ref()
            .is_some_and(|running| !running.is_finished())
        {
            continue;
        }
        let renewed = match renewal.take() {
            Some(done) => {
                let healthy = done.await.unwrap_or(false);
                book.set_healthy(healthy);
                healthy
            }
            None => false,
        };
        let look = renewed || book.wants_look();
        if (look || book.has_lost()) && reconciliation.as_ref().is_none_or(JoinHandle::is_finished)
        {
            reconciliation = Some(tokio::spawn(reconcile(node.clone(), look)));
        }
        let due = book.due();
        if due.is_empty() {
            // A lease that could not be renewed stays due until it is lost.
            book.set_healthy(true);
        } else {
            renewal = Some(tokio::spawn(renew(node.clone(), due)));
        }
    }
    let until = Instant::now() + node.store.outcome_within();
    if let Some(open) = reconciliation {
        // No other look can begin before.
        let _ = tokio::time::timeout_at(until, open).await;
    }
    // Outcomes that are refused are given up, each with a doubt.
    node.refused.close();
    let _ = tokio::time::timeout_at(until, node.refused.wait()).await;
    if book.is_in_doubt() {
        lost_leases::last_look(&node).await;
    }
}

/// False where leases could not be renewed.
async fn renew(node: Arc<NodeContext>, due: Vec<LockToken>) -> bool {
    let book = &node.leases;
    let sent = Instant::now();
    match node.store.renew(node.id, book.length(), &due).await {
        Ok(answer) => {
            counter!(m::LEASES_RENEWED).increment(answer.renewed.len() as u64);
            book.renewed(&due, &answer, sent);
            true
        }
        Err(error) => {
            tracing::warn!(leases = due.len(), %error, "leases could not be renewed; no new work until they can");
            false
        }
    }
}

/// What this says comes late at worst: where it fails, the next one says it again.
async fn reconcile(node: Arc<NodeContext>, look: bool) {
    let book = &node.leases;
    if look && let Err(error) = lost_leases::look(&node).await {
        tracing::debug!(%error, "leases that name this node could not be looked for");
    }
    let lost = book.lost();
    if !lost.is_empty() {
        match node.store.clear_strike(&lost).await {
            Ok(true) => book.absolved(lost.len()),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(jobs = lost.len(), %error, "strikes could not be taken back yet");
            }
        }
    }
}
