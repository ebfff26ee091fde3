//! Tests of handlers without a broker and without a node, on a database in memory.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use jobwire_core::{Client, CommitHook, Handlers, HandlerResult, JobArgs, NewJob, Running, testing};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendInvoice { order: u64 }
//!
//! impl JobArgs for SendInvoice {
//!     const TYPE: &'static str = "send-invoice";
//! }
//!
//! async fn send_invoice(job: Running<SendInvoice>) -> HandlerResult<()> {
//!     if job.payload.order == 0 {
//!         return Err("there is no order 0".into());
//!     }
//!     Ok(())
//! }
//!
//! // The handler alone.
//! let job = testing::running(NewJob::new(&SendInvoice { order: 17 }))?;
//! assert!(send_invoice(job).await.is_ok());
//!
//! // Handlers over a database: run everything that is due.
//! let store = testing::store().await?;
//! let client = Client::new(store.clone(), CommitHook::disconnected());
//! client.create(NewJob::new(&SendInvoice { order: 17 })).await?;
//! let waiting = testing::jobs(&store, SendInvoice::TYPE).await?;
//! assert_eq!(waiting[0].decode::<SendInvoice>()?.order, 17);
//!
//! let mut handlers = Handlers::default();
//! handlers.job(send_invoice);
//! let ran = testing::run_due(&store, &handlers).await?;
//! assert_eq!(ran.done.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) }).map_err(|e| e.to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use chrono::Utc;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::job::new_job::NewJob;
use crate::job::query::{JobQuery, JobView};
use crate::job::{Fence, Job, JobId, JobState, Lane, NodeId};
use crate::node::{Executed, Node, StartError};
use crate::producer::commit_hook::CommitHook;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};
use crate::transport::in_process::InProcessTransport;
use crate::worker::checkpoint::Checkpoints;
use crate::worker::handler::{Handlers, Running, Stop, StopSignal};
use crate::worker::handler_transaction::HandlerTransaction;

/// The maximum number of jobs that [`run_due`] runs. Handlers that create jobs of their own type
/// could otherwise run forever.
const MOST: usize = 10_000;

/// Returns a job as a handler receives it, for a test that calls the handler. The job is in no
/// database and has no transaction. Cancel [`Running::stop`] to test the stop of the handler.
///
/// # Errors
/// Fails if the job is invalid, or its payload is not a `P`.
pub fn running<P: DeserializeOwned>(
    job: NewJob,
) -> Result<Running<P>, Box<dyn std::error::Error + Send + Sync>> {
    let job = job.into_job(1, Utc::now(), Lane::default())?;
    Ok(Running {
        payload: job.decode()?,
        job: Arc::new(job),
        fence: Fence(1),
        node: NodeId::generate(),
        stop: Stop(StopSignal::OfAttempt(CancellationToken::new())),
        sealed: false,
        transaction: HandlerTransaction::default(),
        lease: Arc::default(),
        leases: None,
        checkpoints: Checkpoints::in_memory(),
    })
}

/// Creates a database in memory with Jobwire's tables. It lives as long as the store.
///
/// # Errors
/// An error of SQLite.
#[cfg(feature = "sqlite")]
pub async fn store() -> Result<SqliteStore, StoreError> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    Ok(store)
}

/// Returns the jobs of a type in any state, oldest first, at most 10,000.
///
/// # Errors
/// A database error.
pub async fn jobs(store: &dyn Store, job_type: &str) -> Result<Vec<Job>, StoreError> {
    let filter = JobQuery::default().job_type(job_type).limit(10_000);
    let mut jobs = Vec::new();
    for view in store.find(&filter).await? {
        jobs.extend(store.get(view.id).await?.map(|(_, job, _)| job));
    }
    Ok(jobs)
}

/// The jobs that [`run_due`] ran.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Ran {
    /// Jobs that are done, in the order of their runs.
    pub done: Vec<JobId>,
    /// Jobs that ran and are not done, in their present state: a retry is in the timer table, a
    /// dead letter in the table of dead letters.
    pub left: Vec<JobView>,
    /// Executable jobs that could not be locked: no handler serves them, their instance is held, an
    /// earlier job of the instance comes first, or they are suspended.
    pub refused: Vec<JobId>,
}

/// Runs one executable job.
///
/// # Errors
/// The same as those of [`NodeBuilder::execute`](crate::node::NodeBuilder::execute).
pub async fn run_job<S: Store + Clone>(
    store: &S,
    handlers: &Handlers,
    id: JobId,
) -> Result<Executed, StartError> {
    Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .hook(CommitHook::disconnected())
        .handlers(handlers.clone())
        .execute(id, std::future::pending())
        .await
}

/// Runs all due jobs one by one in the order of creation, and the jobs that they create, until no
/// job is due. It does not wait: a retry in ten seconds is [left](Ran::left).
///
/// # Errors
/// The same as those of [`run_job`], and [`StoreError::Config`] if handlers create jobs without
/// end.
pub async fn run_due<S: Store + Clone>(store: &S, handlers: &Handlers) -> Result<Ran, StartError> {
    let mut ran = Ran::default();
    let mut runs = 0;
    loop {
        store.move_due_timers(1_000).await?;
        let filter = JobQuery::default()
            .states([JobState::Executable])
            .limit(1_000);
        let mut progress = false;
        for view in store.find(&filter).await? {
            if ran.refused.contains(&view.id) {
                continue;
            }
            match run_job(store, handlers, view.id).await? {
                Executed::Done => {
                    ran.left.retain(|left| left.id != view.id);
                    ran.done.push(view.id);
                }
                Executed::Left(view) => {
                    ran.left.retain(|left| left.id != view.id);
                    ran.left.push(*view);
                }
                Executed::Refused(_) => {
                    ran.refused.push(view.id);
                    continue;
                }
                Executed::SiblingFirst(_) => {
                    ran.refused.push(view.id);
                    continue;
                }
            }
            progress = true;
            runs += 1;
            if runs > MOST {
                let text = format!(
                    "more than {MOST} jobs became due; check whether handlers create jobs without \
                     end"
                );
                return Err(StoreError::Config(text).into());
            }
        }
        if !progress {
            return Ok(ran);
        }
        // A job that could not be locked before may be free now.
        ran.refused.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use metrics::Gauge;
    use tokio::time::Instant;

    use super::running;
    use crate::job::LockToken;
    use crate::job::new_job::NewJob;
    use crate::worker::handler::Running;
    use crate::worker::lease_book::LeaseBook;

    /// Nothing has marked the lease as lost yet, as on a node that was frozen.
    #[tokio::test(start_paused = true)]
    async fn a_running_job_is_held_as_long_as_its_lease_is_trusted() {
        let book = Arc::new(LeaseBook::new(Duration::from_secs(10), Gauge::noop()));
        let mut running: Running = running(NewJob::of("send-invoice", &())).unwrap();
        assert!(running.is_held(), "a job of a test is in no book");
        running.leases = Some(book.clone());
        assert!(!running.is_held());
        let held = LockToken {
            id: running.job.id,
            fence: running.fence,
            instance: None,
        };
        let sent = Instant::now();
        book.under_way().expect(held.fence, sent);
        book.hold(held, 0, sent).expect("it was expected");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(running.is_held());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!running.is_held() && !running.stop.is_cancelled());
    }
}
