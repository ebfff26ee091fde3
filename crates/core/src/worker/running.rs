//! A running job, and the trait of the code that runs it.

use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::job::progress::{MAX_PROGRESS_BYTES, Progress};
use crate::job::text::storable;
use crate::job::{Fence, Job, LockToken, NodeId};
use crate::worker::checkpoint::{CheckpointError, Checkpoints};
use crate::worker::handler_transaction::{HandlerTransaction, TransactionError, TransactionGuard};
use crate::worker::lease_book::{Lease, LeaseBook};
use crate::worker::outcome::{HandlerResult, Outcome};

/// A running job: its data, and the handler's access to the node.
pub struct Running<P = ()> {
    /// The decoded payload.
    pub payload: P,
    /// The job.
    pub job: Arc<Job>,
    /// The fence of this lock. Pass it to systems that can refuse an older one.
    pub fence: Fence,
    /// The node that runs it.
    pub node: NodeId,
    /// Cancelled when the job must stop: shutdown, timeout, a lost lease, an operator's cancel.
    pub stop: Stop,
    /// Whether fields of the job are encrypted in the database.
    pub(crate) sealed: bool,
    pub(crate) transaction: HandlerTransaction,
    pub(crate) lease: Arc<Lease>,
    /// `None` for a job of a test, which is in no database.
    pub(crate) leases: Option<Arc<LeaseBook>>,
    pub(crate) checkpoints: Checkpoints,
}

/// A [`CancellationToken`] that is created on first use: `job.stop.cancelled().await`,
/// `job.stop.is_cancelled()`, or, to pass it on, `CancellationToken::clone(&job.stop)`.
#[derive(Clone)]
pub struct Stop(pub(crate) StopSignal);

#[derive(Clone)]
pub(crate) enum StopSignal {
    OfLease(Arc<Lease>),
    OfAttempt(CancellationToken),
}

impl Stop {
    /// Returns whether the job must stop. Creates no token.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match &self.0 {
            StopSignal::OfLease(lease) => lease.stop.is_given(),
            StopSignal::OfAttempt(attempt) => attempt.is_cancelled(),
        }
    }
}

impl Deref for Stop {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        match &self.0 {
            StopSignal::OfLease(lease) => lease.stop.token(),
            StopSignal::OfAttempt(attempt) => attempt,
        }
    }
}

impl<P> Running<P> {
    /// Returns the transaction that completes this job, if its handler is registered
    /// [`in_transaction`](crate::HandlerOptions::in_transaction). Its writes are committed together
    /// with the job's completion, or not at all. `S` is the store, for example
    /// [`PgStore`](crate::PgStore).
    ///
    /// # Errors
    /// [`TransactionError`] if the handler is not registered with this option, or if the node has
    /// another kind of store.
    pub async fn transaction<S: crate::store::SqlStore>(
        &self,
    ) -> Result<TransactionGuard<S>, TransactionError> {
        self.transaction.lock().await
    }

    pub(crate) fn with_payload<Q>(self, payload: Q) -> Running<Q> {
        Running {
            payload,
            job: self.job,
            fence: self.fence,
            node: self.node,
            stop: self.stop,
            sealed: self.sealed,
            transaction: self.transaction,
            lease: self.lease,
            leases: self.leases,
            checkpoints: self.checkpoints,
        }
    }

    /// Shows that the handler still works. A type with a
    /// [`heartbeat_timeout`](crate::HandlerOptions::heartbeat_timeout) has to call it more often than
    /// that. It costs a few nanoseconds, and sends nothing.
    pub fn heartbeat(&self) {
        self.lease.signs().give();
    }

    /// Reports how far the handler has come, which also counts as a [heartbeat](Self::heartbeat).
    ///
    /// A report costs no statement: the node writes the last one of each job at most twelve times
    /// for each length of a lease (every 2.5 s), all together. [`JobView::progress`](crate::JobView)
    /// and `jobwire jobs show` have it.
    pub fn progress(&self, progress: impl Into<Progress>) {
        let mut progress = progress.into();
        // The field is public.
        progress.text = progress.text.map(|text| storable(text, MAX_PROGRESS_BYTES));
        self.lease.signs().report(progress);
    }

    /// Saves a checkpoint, which the next attempt of this job [reads](Self::checkpoint). It replaces
    /// an earlier one, and also counts as a [heartbeat](Self::heartbeat). It is committed when this
    /// returns, under the lock of the job: a node that has lost the lock changes nothing. It lives as
    /// long as the job, through retries, takeovers and moves. Each call is a statement.
    ///
    /// # Errors
    /// [`CheckpointError`]: the checkpoint has more than
    /// [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES), the handler works in the completing
    /// transaction, the lock is lost, or the database failed.
    pub async fn save_checkpoint<T: Serialize + Sync>(
        &self,
        checkpoint: &T,
    ) -> Result<(), CheckpointError> {
        if self.transaction.is_there() {
            return Err(CheckpointError::InTransaction);
        }
        let held = LockToken {
            id: self.job.id,
            fence: self.fence,
            instance: None,
        };
        let (job, lease) = (&self.job, &self.lease);
        self.checkpoints.save(job, &held, lease, checkpoint).await
    }

    /// Returns the last checkpoint that this or an earlier attempt has
    /// [saved](Self::save_checkpoint); `None` if there is none. Each call is a statement.
    ///
    /// # Errors
    /// [`CheckpointError`]: the checkpoint is no `T`, or the database failed.
    pub async fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, CheckpointError> {
        self.checkpoints.read(&self.job, &self.lease).await
    }

    /// Returns whether the node still trusts its lock of this job, by the monotonic clock of its
    /// machine. A node that was frozen may have lost the lock before [`stop`](Self::stop) is cancelled.
    /// So a handler that has waited asks before an act that another node must not repeat.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let held = LockToken {
            id: self.job.id,
            fence: self.fence,
            instance: None,
        };
        let leases = self.leases.as_ref();
        leases.is_none_or(|leases| leases.trusts(&held))
    }

    /// Returns whether an operator has cancelled this job. [`stop`](Self::stop) is cancelled then, too.
    /// The job is deleted, whatever the handler answers.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lease.cancelled.is_given()
    }
}

/// Runs jobs of one type.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one job. The [module](crate::worker::handler) describes the answers.
    async fn run(&self, job: Running) -> HandlerResult<Outcome>;
}
