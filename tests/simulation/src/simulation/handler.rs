//! The handlers of a simulation, and the events that they record.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::worker::handler::Handlers;
use jobwire_core::worker::handler::{
    HandlerError, HandlerOptions, HandlerResult, Outcome, Running,
};
use jobwire_core::{NewJob, RetryPolicy};
use tokio::time::sleep;

use super::link::Link;
use super::store::MemoryStore;
use crate::history::{Answer, Event};

/// Completed in the handler's own transaction, which also writes a row.
pub(super) const TRANSACTIONAL: &str = "transactional";
const PLAIN: &str = "plain";
/// At most one job runs at a time on each node.
const NARROW: &str = "narrow";
/// Has a timeout of three seconds.
pub(super) const TIMED: &str = "timed";

/// The result of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Done,
    /// Fails this many times, then is done.
    Fails(u8),
    /// Always fails.
    Hopeless,
    /// Fails as unrecoverable.
    GivesUp,
    /// Snoozes once.
    Snoozes,
    Panics,
}

/// A job and its behaviour.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) job_type: &'static str,
    pub(super) instance: Option<u8>,
    pub(super) concurrent: bool,
    pub(super) millis: u64,
    pub(super) deed: Deed,
    pub(super) obeys: bool,
    /// Milliseconds from its creation to its due date.
    pub(super) due_in: Option<u64>,
    pub(super) repeat: Option<String>,
}

impl Work {
    /// The types.
    pub(super) const TYPES: [&'static str; 4] = [PLAIN, NARROW, TIMED, TRANSACTIONAL];

    pub(super) fn new_job(&self, now: chrono::DateTime<chrono::Utc>) -> NewJob {
        let (deed, count) = match self.deed {
            Deed::Done => (0, 0),
            Deed::Fails(count) => (1, count),
            Deed::Hopeless => (2, 0),
            Deed::GivesUp => (3, 0),
            Deed::Snoozes => (4, 0),
            Deed::Panics => (5, 0),
        };
        let payload = (self.millis, deed, count, self.obeys);
        let mut job = NewJob::of(self.job_type, &payload);
        if let Some(instance) = self.instance {
            job = job.instance(format!("i{instance}"));
            if self.concurrent {
                job = job.concurrent();
            }
        }
        if let Some(millis) = self.due_in {
            let millis = i64::try_from(millis).unwrap_or(0);
            job = job.due(now + chrono::Duration::milliseconds(millis));
        }
        if let Some(repeat) = &self.repeat {
            job = job.repeat_text(repeat.clone());
        }
        job
    }
}

type Payload = (u64, u8, u8, bool);

async fn run(link: Arc<Link>, store: MemoryStore, job: Running<Payload>) -> HandlerResult<Outcome> {
    let (millis, deed, count, obeys) = job.payload;
    // A timed handler must obey: its answer after the timeout would count if a shutdown came first.
    let obeys = obeys || job.job.job_type == TIMED;
    let (id, owner, fence) = (job.job.id, job.node, job.fence);
    link.gate().await;
    store.database().record(id, Event::Started { owner, fence });
    let stopped = tokio::select! {
        biased;
        () = job.stop.cancelled(), if obeys => true,
        () = sleep(Duration::from_millis(millis)) => false,
    };
    link.gate().await;
    // The process may have been frozen beyond the timeout.
    let stopped = stopped || (job.job.job_type == TIMED && job.stop.is_cancelled());
    let ends = |answer| {
        let ended = Event::Ended {
            owner,
            fence,
            answer,
        };
        store.database().record(id, ended);
    };
    if stopped {
        // The timeout may have stopped it, which counts as a failure.
        if job.job.job_type != TIMED {
            ends(Answer::Again);
        }
        return Err(HandlerError::conflict("asked to stop"));
    }
    let failed_enough = job.job.failures >= i32::from(count);
    match deed {
        1 if !failed_enough => {
            ends(Answer::Failed);
            Err(HandlerError::retry("no luck"))
        }
        2 => {
            ends(Answer::Failed);
            Err(HandlerError::retry("never any luck"))
        }
        3 => {
            ends(Answer::Unrecoverable);
            Err(HandlerError::unrecoverable("it is invalid"))
        }
        4 if job.job.due_at.is_none() => {
            ends(Answer::Again);
            Ok(Outcome::Snooze(Duration::from_millis(700)))
        }
        5 if job.job.failures == 0 => {
            ends(Answer::Failed);
            // Not panic!: the panic hook would print each of them.
            std::panic::resume_unwind(Box::new("bad luck"));
        }
        _ => {
            ends(Answer::Done);
            Ok(Outcome::Done)
        }
    }
}

/// Returns the handlers of one node.
pub(super) fn handlers(link: &Arc<Link>, store: &MemoryStore) -> Handlers {
    let mut handlers = Handlers::default();
    let retry = RetryPolicy::Fixed(Duration::from_millis(900));
    for job_type in Work::TYPES {
        let options = HandlerOptions::default().retry(retry.clone());
        let options = match job_type {
            NARROW => options.concurrency(1),
            TIMED => options.timeout(Duration::from_secs(3)),
            TRANSACTIONAL => options.in_transaction(),
            _ => options,
        };
        let (link, store) = (link.clone(), store.clone());
        handlers.add_with(job_type, options, move |job: Running<Payload>| {
            run(link.clone(), store.clone(), job)
        });
    }
    handlers
}
