//! Batches that the database refuses to lock, and the hint at fault.

use metrics::counter;

use super::Consumer;
use super::locking::Batch;
use super::waiting::Tried;
use crate::store::{Refusal, StoreError};
use crate::telemetry::metrics as m;

impl Consumer {
    /// Handles a batch that could not be locked. A batch that the database refuses is tried in
    /// smaller ones, down to the hint at fault. That hint is settled once other jobs were locked
    /// meanwhile. Returns true if the next batch need not wait.
    pub(super) async fn not_locked(&mut self, batch: Batch, error: &StoreError) -> bool {
        let hints = batch.hints.len();
        for of in &batch.of {
            self.schedule.requeue(of.lane);
        }
        if error.is_answer() {
            self.lock_size.was_refused(hints);
            if hints > 1 {
                tracing::debug!(
                    hints,
                    %error,
                    "the database refused to lock hinted jobs; trying fewer at once"
                );
                self.put_back(batch);
                return true;
            }
            return self.is_refused(batch, error).await;
        }
        tracing::warn!(hints, %error, "could not lock hinted jobs; retrying");
        self.node.reports.part("database", Some(error.to_string()));
        self.put_back(batch);
        false
    }

    /// Handles a hint that was refused alone.
    pub(super) async fn is_refused(&mut self, batch: Batch, error: &StoreError) -> bool {
        let Some((hint, of)) = batch.hints.first().zip(batch.of.first()) else {
            return true;
        };
        let job = hint.id;
        if matches!(of.tried, Tried::Refused(then) if self.locked > then) {
            if let Some(more) = self.node.reports.throttled_lines.now("refused") {
                tracing::error!(
                    %job, %error, more,
                    "the database refuses to lock this job but locks others; its hint is settled, \
                     and the sweeper publishes it again. Fix the cause named in the error (a \
                     constraint, a trigger, a lock that a transaction holds), or delete the job"
                );
            }
            let reason = Refusal::Refused.as_str();
            counter!(m::HINTS_REFUSED, "reason" => reason).increment(1);
            self.settle(batch, &[], &[]).await;
            return true;
        }
        if let Some(more) = self.node.reports.throttled_lines.now("not locked") {
            tracing::warn!(
                %job, %error, more,
                "could not lock this job; trying others before it is tried again"
            );
        }
        let again = matches!(of.tried, Tried::Refused(_));
        if again && !error.is_row_fault() && !error.is_lock_timeout() {
            // Nothing was locked since the last refusal, and the error does not point to a row.
            self.node.reports.part("database", Some(error.to_string()));
        }
        for mut waiting in batch.into_waiting() {
            waiting.of.tried = Tried::Refused(self.locked);
            waiting.of.rescued = false;
            waiting.of.woken = false;
            self.pending.push_again(waiting);
        }
        !again
    }

    pub(super) fn put_back(&mut self, batch: Batch) {
        for waiting in batch.into_waiting().rev() {
            self.pending.put_back(waiting);
        }
    }
}
