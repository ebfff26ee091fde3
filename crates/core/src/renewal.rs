//! Renewal: the task that keeps this node's leases alive while their jobs run.
//!
//! It looks at the [book](crate::lease) twelve times a lease, and asks the database only where something is to be said: a
//! lease that is older than a third of its length, a [doubt](crate::under_way), a strike to take back. With each renewal it
//! also [reconciles](crate::reconciliation) the book with the database.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use crate::job::Held;
use crate::metrics as m;
use crate::reconciliation;
use crate::shared::Shared;

/// Renew until the node has ended. Nothing held and nothing in doubt costs no statement.
pub(crate) async fn renew_all(node: Arc<Shared>) {
    let book = node.leases.clone();
    let pace = (book.length() / 12).max(Duration::from_millis(20));
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut renewal: Option<tokio::task::JoinHandle<bool>> = None;
    loop {
        tokio::select! {
            biased;
            () = node.ended.cancelled() => break,
            _ = ticks.tick() => {}
        }
        // On every tick, also while a renewal hangs.
        book.expire();
        if let Some(running) = &renewal {
            if !running.is_finished() {
                continue;
            }
            if let Some(done) = renewal.take() {
                book.set_healthy(done.await.unwrap_or(false));
            }
        }
        let due = book.due();
        if due.is_empty() && !book.wants_look() && !book.has_lost() {
            if book.len() == 0 {
                book.set_healthy(true);
            }
            continue;
        }
        renewal = Some(tokio::spawn(renew(node.clone(), due)));
    }
    if book.is_in_doubt() {
        reconciliation::last_look(&node).await;
    }
}

/// One round. False where leases could not be renewed.
async fn renew(node: Arc<Shared>, due: Vec<Held>) -> bool {
    let book = &node.leases;
    if !due.is_empty() {
        let sent = Instant::now();
        match node.store.renew(node.id, book.length(), &due).await {
            Ok(answer) => {
                counter!(m::LEASES_RENEWED).increment(answer.renewed.len() as u64);
                book.renewed(&due, &answer, sent);
            }
            Err(error) => {
                tracing::warn!(leases = due.len(), %error, "leases could not be renewed; no new work until they can");
                return false;
            }
        }
    }
    // What it says comes late at worst: the next round says it again.
    if (!due.is_empty() || book.wants_look())
        && let Err(error) = reconciliation::look(&node).await
    {
        tracing::debug!(%error, "leases that name this node could not be looked for");
        return due.is_empty() || book.healthy();
    }
    let lost = book.lost();
    if !lost.is_empty() {
        match node.store.absolve(&lost).await {
            Ok(()) => book.absolved(lost.len()),
            Err(error) => {
                tracing::debug!(jobs = lost.len(), %error, "strikes could not be taken back yet");
            }
        }
    }
    true
}
