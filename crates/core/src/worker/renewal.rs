//! Renewal: the task that renews this node's leases while their jobs run.
//!
//! It checks the [book](crate::worker::lease_book) twelve times per lease, and sends a statement
//! only for a lease that is older than a third of its length, for a job that is said to be
//! cancelled, for a [doubt](crate::worker::under_way), or for a strike to take back. After each renewal it also
//! [reconciles](crate::worker::lost_leases) the book with the database, in a separate task: a
//! reconciliation that hangs or gets no connection delays no renewal.
//!
//! The monotonic clock stands still while a machine sleeps, so the book trusts its leases for longer
//! than they last. Where the wall clock has run ahead of the monotonic one since the last check, all
//! leases are renewed at once, and the database names those that another node has taken.
//!
//! On the same pace it writes the [progress](crate::worker::life_signs) that handlers have reported:
//! one statement for all jobs of the node, in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::counter;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::job::LockToken;
use crate::job::progress::Progress;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::lost_leases;

/// The time for which cancelled jobs gather before the database is asked about them. It limits the
/// statements that a flood of control messages causes.
const ASKED_TOGETHER: Duration = Duration::from_millis(50);

/// Renews leases until the node has ended. Sends no statement while no lock is held or in doubt.
pub(crate) async fn renew_all(node: Arc<NodeContext>) {
    lost_leases::begin();
    let book = node.leases.clone();
    let pace = (book.length() / 12).max(Duration::from_millis(20));
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut renewal: Option<JoinHandle<bool>> = None;
    let mut writing: Option<JoinHandle<()>> = None;
    let mut reconciliation: Option<JoinHandle<()>> = None;
    let mut last = Check::now();
    loop {
        tokio::select! {
            biased;
            () = node.signals.ended.cancelled() => break,
            _ = ticks.tick() => {}
            // One statement for all cancels of a moment.
            () = book.asked() => tokio::time::sleep(ASKED_TOGETHER).await,
        }
        // Runs on every tick, even while a renewal hangs.
        book.expire();
        let now = Check::now();
        if now.wall_ran_ahead(last, pace) {
            tracing::info!(
                "the machine slept, or its clock was set; all leases are renewed at once"
            );
            book.ask_about_all();
        }
        last = now;
        if writing.as_ref().is_none_or(JoinHandle::is_finished) {
            let reports = book.take_progress();
            writing = (!reports.is_empty()).then(|| tokio::spawn(write(node.clone(), reports)));
        }
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
        // No other look can begin before this one has ended.
        let _ = tokio::time::timeout_at(until, open).await;
    }
    // Refused outcomes are given up, and each raises a doubt.
    node.refused.tasks.close();
    let _ = tokio::time::timeout_at(until, node.refused.tasks.wait()).await;
    if book.is_in_doubt() {
        lost_leases::last_look(&node).await;
    }
}

/// A moment by both clocks.
#[derive(Clone, Copy)]
struct Check {
    monotonic: Instant,
    wall: DateTime<Utc>,
}

impl Check {
    fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: Utc::now(),
        }
    }

    /// Returns whether the wall clock has run ahead of the monotonic one by more than this since an
    /// earlier check.
    fn wall_ran_ahead(self, earlier: Self, by: Duration) -> bool {
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        let wall = self.wall.signed_duration_since(earlier.wall).to_std();
        wall.is_ok_and(|wall| wall > monotonic.saturating_add(by))
    }
}

/// Renews these leases. Returns false if the statement failed.
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
            tracing::warn!(
                leases = due.len(),
                %error,
                "leases could not be renewed; the node takes no new jobs until they can"
            );
            false
        }
    }
}

/// Writes the progress of running jobs. What could not be written is tried again.
async fn write(node: Arc<NodeContext>, mut reports: Vec<(LockToken, Progress)>) {
    match node.store.report_progress(node.id, &reports).await {
        // The others have lost their locks, or their rows were locked.
        Ok(written) => reports.retain(|(held, _)| !written.contains(&held.id)),
        Err(error) => {
            tracing::debug!(
                jobs = reports.len(), %error,
                "the progress of jobs could not be written; trying again"
            );
        }
    }
    node.leases.progress_not_written(reports);
}

/// Looks for lost leases if `look` is set, and takes strikes back. A failure is harmless: the next
/// call tries again.
async fn reconcile(node: Arc<NodeContext>, look: bool) {
    let book = &node.leases;
    if look && let Err(error) = lost_leases::look(&node).await {
        tracing::debug!(%error, "could not look for lost leases; the next renewal tries again");
    }
    let lost = book.lost();
    if !lost.is_empty() {
        match node.store.clear_strike(&lost).await {
            Ok(true) => book.strikes_cleared(lost.len()),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(jobs = lost.len(), %error, "could not take strikes back yet");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_slept_is_told_from_a_node_that_was_frozen() {
        let pace = Duration::from_secs(2);
        let minute = Duration::from_secs(60);
        let before = Check::now();
        let after = |monotonic, wall: chrono::TimeDelta| Check {
            monotonic: before.monotonic + monotonic,
            wall: before.wall + wall,
        };
        let slept = after(pace, chrono::TimeDelta::seconds(62));
        assert!(slept.wall_ran_ahead(before, pace));
        // Both clocks run while a process is frozen.
        let frozen = after(minute, chrono::TimeDelta::seconds(60));
        assert!(!frozen.wall_ran_ahead(before, pace));
        let set_back = after(pace, chrono::TimeDelta::seconds(-60));
        assert!(!set_back.wall_ran_ahead(before, pace));
    }
}
