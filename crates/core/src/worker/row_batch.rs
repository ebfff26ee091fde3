//! A batch of short jobs that one transaction holds (protocol rule 35).
//!
//! The transaction that locked the rows stays open while the jobs run, and ends in one of two ways:
//!
//! * **Committed**, when all have ended or [`PATIENCE`] is over: what is done is deleted in it. Everything else gets a
//!   lease in it and goes on as a job that is held by one: what failed, what wants to be given back, and what still
//!   runs. So a handler that is slower than it declared costs no more than a lease, and the connection is not held
//!   across it.
//! * **Lost**, with its connection or because this node was silent for too long: then nothing has happened. What still
//!   runs is asked to stop, all are hinted again, and for [`PAUSE`] this node holds nothing by its row: whatever took
//!   so long here may do so again, and a lease bears it.
//!
//! What is plainly done frees its slot at once, since a batch and the number of batches are bounded. Everything else
//! keeps it until the queue of outcomes has accepted it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{counter, histogram};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::hint::{Hint, Ready};
use crate::job::{Job, JobId, LockToken, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::survived;
use crate::store::{RowHold, StoreError};
use crate::telemetry::metrics as m;
use crate::worker::completer::{Attempt, AttemptFate};
use crate::worker::context::NodeContext;
use crate::worker::executor::{self, Outcomes, Stages};
use crate::worker::finished::{Ending, Finished};

/// What has not ended so long after the rows were asked for gets a lease.
const PATIENCE: Duration = Duration::from_millis(100);
/// Leases only, for so long after a batch was lost.
const PAUSE: Duration = Duration::from_secs(30);

/// No row locks for a while.
#[derive(Default)]
pub(crate) struct RowPause(Mutex<Option<Instant>>);

impl RowPause {
    pub(crate) fn is_over(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_none_or(|until| Instant::now() >= until)
    }

    fn begin(&self) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(Instant::now() + PAUSE);
    }
}

/// Start the jobs of a batch, each on its slot, and see to their end.
pub(crate) fn start(
    node: &Arc<NodeContext>,
    hold: Box<dyn RowHold>,
    sent: Instant,
    at_most: Duration,
    count: usize,
    jobs: impl Iterator<Item = (LockedJob, Stages, OwnedSemaphorePermit)>,
) {
    let (sender, outcomes) = mpsc::channel(count.max(1));
    let mut batch = Batch {
        node: node.clone(),
        open: HashMap::with_capacity(count),
    };
    for (locked, stages, slot) in jobs {
        let held = locked.held();
        let lease = node.leases.hold_row(held.clone(), sent, at_most);
        let job = executor::start_under(
            node,
            locked,
            lease,
            stages,
            slot,
            Outcomes::OfBatch(sender.clone()),
        );
        batch.open.insert(held.id, (held, job));
    }
    drop(sender);
    node.jobs.spawn(async move {
        survived("row-batch", batch.run(hold, sent, outcomes)).await;
    });
}

/// What the transaction holds and is not accounted for yet.
struct Batch {
    node: Arc<NodeContext>,
    open: HashMap<JobId, (LockToken, Arc<Job>)>,
}

/// Whatever happens, the node does not go on believing that it holds these.
impl Drop for Batch {
    fn drop(&mut self) {
        if !self.open.is_empty() {
            self.give_up(false);
        }
    }
}

impl Batch {
    async fn run(
        mut self,
        hold: Box<dyn RowHold>,
        sent: Instant,
        mut outcomes: mpsc::Receiver<Finished>,
    ) {
        let mut ended = Vec::with_capacity(self.open.len());
        let patience = tokio::time::sleep_until(sent + PATIENCE);
        tokio::pin!(patience);
        while ended.len() < self.open.len() {
            let (seen, room) = (ended.len(), self.open.len() - ended.len());
            tokio::select! {
                biased;
                count = outcomes.recv_many(&mut ended, room) => if count == 0 { break },
                () = &mut patience => break,
            }
            for finished in ended.iter_mut().skip(seen) {
                if is_plainly_done(finished) {
                    finished.kept = None;
                }
            }
        }
        let (done, rest): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_plainly_done);
        // Whose time was over before it began: its row is left alone, and somebody else may have it.
        let (late, rest): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|finished| matches!(finished.ending, Ending::Lost));
        let leased = self.others_than(done.iter().chain(&late));
        match self.commit(hold, &done, &leased).await {
            Ok(()) => {
                if !late.is_empty() {
                    self.node.row_pause.begin();
                }
                let again = late.iter().map(|finished| ready(&finished.job));
                self.node.hook.publish(Cause::Requeue, again.collect());
                for finished in done {
                    self.close(finished, AttemptFate::Committed);
                }
                for finished in late {
                    self.close(finished, AttemptFate::Lost);
                }
                self.open.clear();
                // The others are held by leases, and end as all that are.
                for finished in rest {
                    self.node.accept(finished).await;
                }
                while let Some(finished) = outcomes.recv().await {
                    self.node.accept(finished).await;
                }
            }
            Err(error) => {
                tracing::warn!(jobs = self.open.len(), %error, "a batch could not be committed; its jobs run again");
                self.give_up(error.changed_nothing());
                for finished in done {
                    let fate = if error.changed_nothing() {
                        AttemptFate::Lost
                    } else {
                        AttemptFate::Unknown
                    };
                    self.close(finished, fate);
                }
                for finished in late.into_iter().chain(rest) {
                    self.close(finished, AttemptFate::Lost);
                }
                while let Some(finished) = outcomes.recv().await {
                    self.close(finished, AttemptFate::Lost);
                }
            }
        }
    }

    async fn commit(
        &self,
        hold: Box<dyn RowHold>,
        done: &[Finished],
        leased: &[LockToken],
    ) -> Result<(), StoreError> {
        let ids: Vec<JobId> = done.iter().map(|finished| finished.held.id).collect();
        // The crash points are where a completed job may be lost or doubled: a batch that completes none has none.
        if !ids.is_empty() {
            histogram!(m::COMPLETE_BATCH).record(ids.len() as f64);
            crash_point!("rows-held");
        }
        let sent = Instant::now();
        self.node.asks(hold.commit(&ids, leased)).await?;
        if !ids.is_empty() {
            crash_point!("rows-committed");
        }
        self.node.leases.leased(leased, sent);
        Ok(())
    }

    fn others_than<'a>(&self, ended: impl Iterator<Item = &'a Finished>) -> Vec<LockToken> {
        let ended: HashSet<JobId> = ended.map(|finished| finished.held.id).collect();
        if ended.len() == self.open.len() {
            return Vec::new();
        }
        let open = self.open.values().map(|(held, _)| held);
        open.filter(|held| !ended.contains(&held.id))
            .cloned()
            .collect()
    }

    /// An attempt whose outcome is committed, or never will be.
    fn close(&mut self, finished: Finished, fate: AttemptFate) {
        let Finished {
            held,
            job,
            ending,
            finished_at,
            ..
        } = finished;
        if fate == AttemptFate::Lost && matches!(ending, Ending::Done(_)) {
            counter!(m::FENCED, "operation" => "complete").increment(1);
            tracing::warn!(job = %held.id, fence = %held.fence, "the lock was lost; nothing was changed");
        }
        Attempt::of(job, &ending, finished_at).count(&self.node, fate);
        self.node.leases.forget(&held);
        self.open.remove(&held.id);
    }

    /// The transaction is lost. Where only its commit's answer was lost, some of its jobs have leases; reconciliation
    /// finds and releases them, since their handlers may still run.
    fn give_up(&self, changed_nothing: bool) {
        self.node.row_pause.begin();
        let held = || self.open.values().map(|(held, _)| held);
        self.node.leases.lose(held());
        for held in held() {
            self.node.leases.forget(held);
            if !changed_nothing {
                self.node.is_in_doubt(held);
            }
        }
        let again = self.open.values().map(|(_, job)| ready(job));
        self.node.hook.publish(Cause::Requeue, again.collect());
    }
}

/// Nothing is to be done but to delete it.
fn is_plainly_done(finished: &Finished) -> bool {
    match &finished.ending {
        Ending::Done(completion) => completion.next.is_none() && !completion.failed_before,
        _ => false,
    }
}

fn ready(job: &Job) -> Ready {
    Ready {
        lane: job.lane.clone(),
        hint: Hint {
            job_type: Some(job.job_type.clone()),
            trace_parent: job.trace_parent.clone(),
            ..Hint::new(job.id)
        },
    }
}
