//! A batch of short jobs that one transaction holds by row locks (protocol rule 35).
//!
//! The transaction that locked the rows stays open while the jobs run. It ends in one of two ways:
//!
//! * **Committed**, when all jobs have ended or [`PATIENCE`] is over. The transaction deletes the
//!   jobs that are plainly done. Every other job gets a lease in it and continues as a leased job:
//!   failed jobs, jobs to release and jobs that still run. So a handler that is slower than it
//!   declared costs only a lease, and does not occupy the connection.
//! * **Lost**, with its connection or because this node was silent for too long. Nothing was
//!   committed. Jobs that still run are asked to stop, all jobs are hinted again, and for half
//!   a minute this node takes no row locks: the delay may recur, and a lease tolerates it.
//!
//! A job that is plainly done frees its slot at once, because the size and the number of batches
//! are bounded. Any other job keeps its slot until the completer's queue has accepted its outcome.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, histogram};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::hint::{Hint, Ready};
use crate::job::{Job, JobId, LockToken, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::runtime::fast_map::FastMap;
use crate::runtime::supervisor::survived;
use crate::store::{BatchOutcome, RowHold, RowsCommitted, StoreError};
use crate::telemetry::metrics as m;
use crate::worker::attempt::{Attempt, AttemptFate};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::finished::{Ending, Finished, Outcomes};
use crate::worker::slot_pool::Slot;
use crate::worker::stages::Stages;

/// The time from the lock statement until jobs that have not ended get leases.
const PATIENCE: Duration = Duration::from_millis(100);
/// Starts the jobs of a batch, each on its slot, and the task that ends the batch.
pub(crate) fn start(
    node: &Arc<NodeContext>,
    hold: Box<dyn RowHold>,
    sent: Instant,
    at_most: Duration,
    count: usize,
    jobs: impl Iterator<Item = (LockedJob, Stages, Slot)>,
) {
    let (sender, outcomes) = mpsc::channel(count.max(1));
    let mut batch = Batch {
        node: node.clone(),
        open: FastMap::with_capacity_and_hasher(count, Default::default()),
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

/// The jobs that the transaction holds and that are not accounted for yet.
struct Batch {
    node: Arc<NodeContext>,
    open: FastMap<JobId, (LockToken, Arc<Job>)>,
}

/// Gives up the remaining jobs, for example after a panic, so that the node does not trust their
/// lost locks.
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
        // The time of these jobs was over before they started. Their rows are not touched, because
        // another node may hold them.
        let (late, mut rest): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|finished| matches!(finished.ending, Ending::Lost));
        let leased = self.others_than(done.iter().chain(&late));
        match self.commit(hold, &done, leased).await {
            Ok(refusal) => {
                let done = match refusal {
                    None => done,
                    Some(refusal) => {
                        tracing::warn!(
                            jobs = done.len(),
                            %refusal,
                            "the database refuses to delete a batch of short jobs; they get leases, and are \
                             completed without those that it refuses"
                        );
                        self.node.row_pause.begin();
                        rest.extend(done);
                        Vec::new()
                    }
                };
                if !late.is_empty() {
                    self.node.row_pause.begin();
                }
                let again = late.iter().map(|finished| ready(&finished.job));
                self.node.hook.publish(Cause::Requeue, again.collect());
                for finished in &done {
                    if let (Some(teller), Ending::Done(done)) =
                        (self.node.teller(), &finished.ending)
                    {
                        teller.completed(&finished.job, done, &BatchOutcome::default());
                    }
                }
                self.close(done, AttemptFate::Committed);
                self.close(late, AttemptFate::Lost);
                self.open.clear();
                // The other jobs are held by leases and end like all leased jobs.
                for finished in rest {
                    self.node.accept(finished).await;
                }
                while let Some(finished) = outcomes.recv().await {
                    self.node.accept(finished).await;
                }
            }
            Err(error) => {
                tracing::warn!(
                    jobs = self.open.len(),
                    %error,
                    "could not commit a batch of short jobs; its jobs run again"
                );
                self.give_up(error.changed_nothing());
                let fate = if error.changed_nothing() {
                    AttemptFate::Lost
                } else {
                    AttemptFate::Unknown
                };
                self.close(done, fate);
                self.close(late, AttemptFate::Lost);
                self.close(rest, AttemptFate::Lost);
                while let Some(finished) = outcomes.recv().await {
                    self.close(vec![finished], AttemptFate::Lost);
                }
            }
        }
    }

    /// Commits the batch. Returns why the database refuses the `done` jobs, which are then held by leases, too.
    async fn commit(
        &self,
        hold: Box<dyn RowHold>,
        done: &[Finished],
        mut leased: Vec<LockToken>,
    ) -> Result<Option<StoreError>, StoreError> {
        let done: Vec<LockToken> = done.iter().map(|finished| finished.held.clone()).collect();
        // The crash points mark where a completed job may be lost or doubled. A batch that
        // completes no job has none.
        if !done.is_empty() {
            histogram!(m::COMPLETE_BATCH).record(done.len() as f64);
            crash_point!("rows-held");
        }
        let sent = Instant::now();
        let RowsCommitted { refusal } = self.node.asks(hold.commit(&done, &leased)).await?;
        if !done.is_empty() {
            crash_point!("rows-committed");
        }
        if refusal.is_some() {
            leased.extend(done);
        }
        self.node.leases.leased(&leased, sent);
        Ok(refusal)
    }

    fn others_than<'a>(&self, ended: impl Iterator<Item = &'a Finished>) -> Vec<LockToken> {
        let ended: Vec<JobId> = ended.map(|finished| finished.held.id).collect();
        // A job ends once.
        if ended.len() == self.open.len() {
            return Vec::new();
        }
        let ended: HashSet<JobId> = ended.into_iter().collect();
        let open = self.open.values().map(|(held, _)| held);
        open.filter(|held| !ended.contains(&held.id))
            .cloned()
            .collect()
    }

    /// Counts attempts whose fate is decided, and forgets their jobs.
    fn close(&mut self, finished: Vec<Finished>, fate: AttemptFate) {
        let now = Instant::now();
        for finished in finished {
            let Finished {
                held,
                job,
                ending,
                finished_at,
                ..
            } = finished;
            if fate == AttemptFate::Lost && matches!(ending, Ending::Done(_)) {
                counter!(m::FENCED, "operation" => "complete").increment(1);
                tracing::warn!(
                    job = %held.id,
                    fence = %held.fence,
                    "the lock was lost; the outcome of the job was discarded"
                );
            }
            Attempt::of(job, &ending, finished_at).count(&self.node, fate, now);
            self.node.leases.forget(&held);
            self.open.remove(&held.id);
        }
    }

    /// Handles the loss of the transaction. If only the answer to its commit was lost, some of its
    /// jobs have leases. They are found and released as lost leases, since their handlers may still
    /// run.
    fn give_up(&self, changed_nothing: bool) {
        self.node.row_pause.begin();
        let held = || self.open.values().map(|(held, _)| held);
        self.node.leases.lose(held());
        for held in held() {
            self.node.leases.forget(held);
            if !changed_nothing {
                self.node.may_have_lost(held.clone());
            }
        }
        let again = self.open.values().map(|(_, job)| ready(job));
        self.node.hook.publish(Cause::Requeue, again.collect());
    }
}

/// Returns whether the job only has to be deleted.
fn is_plainly_done(finished: &Finished) -> bool {
    match &finished.ending {
        Ending::Done(completion) => completion.next.is_none() && !completion.has_traces,
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
