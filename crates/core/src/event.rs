//! Events of jobs, for listeners in this process.
//!
//! A listener gets typed events of the jobs of its process: created, locked, started, succeeded,
//! failed and so on. It is registered on a [node](crate::node::NodeBuilder::listener), on a
//! [client](crate::Client::listener) or on the [hook](crate::CommitHook::listener) that several of
//! them share.
//!
//! ```no_run
//! # async fn example(store: jobwire_core::PgStore, transport: std::sync::Arc<dyn jobwire_core::Transport>) -> Result<(), Box<dyn std::error::Error>> {
//! use jobwire_core::{JobEvent, JobEventKind, Node};
//!
//! let node = Node::builder(store, transport)
//!     .listener(|event: &JobEvent| {
//!         if let JobEventKind::Failed { error, retries } = &event.kind {
//!             println!("job {} failed: {error}; {retries} attempts left", event.job);
//!         }
//!     })
//!     .start()
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # When an event is told
//! After the commit of its change, by the process that made the change. So an event of a transaction
//! that rolls back is never told, and listeners have no common list of events: a node tells what it
//! does itself, the leader tells which timers fired, and a client tells what it creates and changes.
//! The events of all programs are in the [event stream](stream).
//!
//! # What a listener may do
//! Each listener has its own thread and a buffer of [`LISTENER_BUFFER`] events. It may block: it
//! stops neither the node nor another listener. If its buffer is full, further events are dropped
//! and counted. If it panics, the panic is logged and counted, and the next event follows.
//!
//! A listener is told each event at most once. Events are lost if the buffer is full, and if the
//! process dies. Work that must follow a job belongs into the handler, or into another job.
//!
//! A listener that holds a client over its own hook is told the events of what it does itself, and
//! its thread lives as long as the process.
//!
//! # Order
//! A listener gets the events of one process in the order in which they were told, and so the events
//! of one attempt in their order. Between processes there is no order.
//!
//! # Cost
//! Without a listener nothing is built and nothing is sent. With one, the client's operations on
//! existing jobs make one more query, which finds the open incidents of the jobs.
//!
//! # Metrics
//! `jobwire_events_dropped_total`, by reason: `full`, `panicked`, `no-thread`.

pub(crate) mod listeners;
pub mod stream;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{Fence, Job, JobId, NodeId};

pub use listeners::{LISTENER_BUFFER, Listeners};
pub use stream::EventStream;

/// An event of a job. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobEvent {
    /// The time at which this process told it, by this machine's clock.
    pub at: DateTime<Utc>,
    /// The node that made the change; `None` for a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The job.
    pub job: JobId,
    /// The handler type; `None` if only the id is known, as in a client's deletion.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// The process instance, if the job has one and it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_instance: Option<String>,
    /// The kind of the event.
    #[serde(flatten)]
    pub kind: JobEventKind,
}

/// A kind of event of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobEventKind {
    /// The transaction that creates the job has committed. Jobs that plain SQL creates
    /// (`jobwire.create_job`) have no such event, since no program of Jobwire makes that commit.
    Created,
    /// The job waits for a date: a new timer, or the next attempt of a failed job. If its scope is
    /// suspended, it waits in the suspended table.
    TimerScheduled {
        /// The date. The database's clock decides it; after a wait this is the date by this machine's
        /// clock.
        due_at: DateTime<Utc>,
    },
    /// The date of a timer or of a waiting retry has come, and the job is executable. Told by the
    /// leader.
    TimerFired,
    /// A node has locked the job to run it.
    Locked {
        /// The fence of the lock.
        fence: Fence,
    },
    /// The handler was called.
    Started,
    /// The completion of the job has committed, and the job is gone.
    Succeeded,
    /// An attempt has failed: an error, a panic, a timeout, or a conflict.
    Failed {
        /// The message, cut to 4,000 bytes.
        error: String,
        /// The attempts left. 0: the job is a dead letter.
        retries: i32,
    },
    /// A failure has cost attempts. A conflict costs none.
    RetriesDecremented {
        /// The attempts left.
        retries: i32,
    },
    /// The job is a dead letter.
    DeadLettered,
    /// The job was deleted without being done: by [`cancel`](crate::Client::cancel),
    /// [`delete`](crate::Client::delete) or [`end`](crate::Client::end).
    Cancelled,
    /// The job was given back without an outcome, and no attempt was spent: the node stopped, the
    /// handler was removed, the database failed the attempt, or an operator took the lock.
    Rejected,
    /// The job got another date: by a handler's [`Snooze`](crate::Outcome::Snooze), or by an operator.
    Rescheduled {
        /// The date; `None` means at once. After a wait (`Snooze`), it is by this machine's clock.
        due_at: Option<DateTime<Utc>>,
    },
    /// A dead letter has opened an [incident](crate::Client::incidents).
    IncidentOpened {
        /// The message of the failure.
        message: String,
    },
    /// The incident of a dead letter is closed: an operator has revived or deleted the job.
    IncidentClosed,
}

impl JobEventKind {
    /// Returns the name, as in the JSON of the event: `created`, `timer_scheduled` and so on.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::TimerScheduled { .. } => "timer_scheduled",
            Self::TimerFired => "timer_fired",
            Self::Locked { .. } => "locked",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed { .. } => "failed",
            Self::RetriesDecremented { .. } => "retries_decremented",
            Self::DeadLettered => "dead_lettered",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
            Self::Rescheduled { .. } => "rescheduled",
            Self::IncidentOpened { .. } => "incident_opened",
            Self::IncidentClosed => "incident_closed",
        }
    }
}

/// Receives the events of jobs. Closures of `&JobEvent` are listeners. See the [module](self).
///
/// For work in async code, send the event to a channel of its own with `try_send`.
pub trait JobListener: Send + 'static {
    /// Receives an event, on the listener's own thread. It may block, and it may panic.
    fn on_event(&mut self, event: &JobEvent);
}

impl<F: FnMut(&JobEvent) + Send + 'static> JobListener for F {
    fn on_event(&mut self, event: &JobEvent) {
        self(event);
    }
}

impl JobEvent {
    /// Returns an event of a job of which only the id is known.
    pub(crate) fn of_id(job: JobId, kind: JobEventKind) -> Self {
        Self {
            at: Utc::now(),
            node: None,
            job,
            job_type: None,
            process_instance: None,
            kind,
        }
    }

    pub(crate) fn of(job: &Job, kind: JobEventKind) -> Self {
        Self {
            job_type: Some(job.job_type.clone()),
            process_instance: job.process_instance.clone(),
            ..Self::of_id(job.id, kind)
        }
    }

    pub(crate) fn of_new(job: &NewJob, kind: JobEventKind) -> Self {
        Self {
            job_type: Some(job.job_type.clone()),
            process_instance: job.process_instance.clone(),
            ..Self::of_id(job.id, kind)
        }
    }

    /// Returns an event of a job that became ready, with the fields that its hint has.
    pub(crate) fn of_ready(ready: &Ready, kind: JobEventKind) -> Self {
        Self {
            job_type: ready.hint.job_type.clone(),
            process_instance: ready.hint.instance.clone(),
            ..Self::of_id(ready.hint.id, kind)
        }
    }

    /// Sets the node.
    pub(crate) fn by(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_event_is_that_of_its_json() {
        let (error, message, due_at) = (String::new(), String::new(), Utc::now());
        for kind in [
            JobEventKind::Created,
            JobEventKind::TimerScheduled { due_at },
            JobEventKind::TimerFired,
            JobEventKind::Locked { fence: Fence(7) },
            JobEventKind::Started,
            JobEventKind::Succeeded,
            JobEventKind::Failed { error, retries: 2 },
            JobEventKind::RetriesDecremented { retries: 2 },
            JobEventKind::DeadLettered,
            JobEventKind::Cancelled,
            JobEventKind::Rejected,
            JobEventKind::Rescheduled { due_at: None },
            JobEventKind::IncidentOpened { message },
            JobEventKind::IncidentClosed,
        ] {
            let name = kind.name();
            let event = JobEvent::of_id(JobId::generate(), kind);
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["kind"], name);
            assert_eq!(json["job"], event.job.to_string());
            assert_eq!(json.get("type"), None);
        }
    }
}
