//! Events of a job, as recorded by a reliable witness: the database, its creator, or the handler
//! that ran it.

use jobwire_core::{Fence, JobId, NodeId};
use std::sync::Arc;
use uuid::Uuid;

/// Microseconds of the database's clock.
pub type Micros = i64;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The job.
    pub job: JobId,
    /// The time at which it happened, by the database's clock.
    pub at: Micros,
    /// The time at which its statement began. The statement saw everything that was visible before.
    pub began: Micros,
    /// The time at which its transaction had committed, from which others see it.
    pub visible: Micros,
    /// The order of one job's events where times are equal.
    pub number: u64,
    /// The event.
    pub event: Event,
}

impl Entry {
    /// Creates an entry that began, happened and was visible at one time.
    #[must_use]
    pub fn at(at: Micros, number: u64, job: JobId, event: Event) -> Entry {
        Entry {
            job,
            at,
            began: at,
            visible: at,
            number,
            event,
        }
    }
}

/// The outcome of the transaction that created a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The creator got this answer, or the database shows the job.
    Committed,
    /// The creator rolled it back, or it never ended.
    RolledBack,
    /// The answer to its COMMIT was lost, and the database does not show the job.
    Unknown,
}

/// A repeating job is a series of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// The id that all jobs of the series share.
    pub id: Uuid,
    /// The number of jobs left, this one included.
    pub left: u32,
    /// The time between two due dates.
    pub every: Micros,
}

/// The creator's settings of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// Its process instance.
    pub instance: Option<Arc<str>>,
    /// Whether it excludes others of its instance.
    pub exclusive: bool,
    /// The creation sequence.
    pub order: i64,
    /// The earliest start.
    pub due: Option<Micros>,
    /// Whether it was created as a timer, to wait for its due date.
    pub waits: bool,
    /// The number of attempts.
    pub retries: i32,
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// The job whose completing transaction created this one.
    pub parent: Option<JobId>,
    /// The number of jobs that the transaction which completes this one creates.
    pub children: u32,
    /// Whether its handler leaves a row ([`Event::Effect`]) in the transaction that completes it.
    pub transactional: bool,
    /// Whether its attempts may time out. After a timeout the handler's answer is ignored.
    pub timeout: bool,
    /// The series, if it repeats.
    pub series: Option<Series>,
    /// Whether a single node serves it. A takeover then waits for this node.
    pub rare: bool,
}

impl Creation {
    /// Returns a committed job without an instance, ready at once.
    #[must_use]
    pub fn plain(order: i64) -> Creation {
        Creation {
            instance: None,
            exclusive: false,
            order,
            due: None,
            waits: false,
            retries: 3,
            outcome: Outcome::Committed,
            parent: None,
            children: 0,
            transactional: false,
            timeout: false,
            series: None,
            rare: false,
        }
    }

    /// Returns a committed exclusive job of an instance.
    #[must_use]
    pub fn exclusive(order: i64, instance: &str) -> Creation {
        Creation {
            instance: Some(instance.into()),
            exclusive: true,
            ..Creation::plain(order)
        }
    }
}

/// A change of the strikes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strikes {
    /// The number before.
    pub before: i32,
    /// The number after.
    pub after: i32,
    /// The lock that ended with the change.
    pub taken_off: Option<Fence>,
    /// Whether the job ran alone.
    pub alone: bool,
}

/// The place where a failed job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In the timer table, until this time.
    Timer(Micros),
    /// In the suspended table.
    Suspended,
}

/// A table in which a job is found at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ready, locked or running.
    Executable,
    /// Waiting for its due date.
    Timer,
    /// Suspended.
    Suspended,
    /// Failed for good.
    DeadLetter,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The job was created, or was meant to be.
    Created(Arc<Creation>),
    /// A hint was published.
    Published,
    /// The sweeper published a hint again: the job was an orphan, or its lease had expired.
    Rehinted,
    /// The job was locked.
    Locked {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
        /// The expiry of the lease.
        expires_at: Micros,
    },
    /// A transaction that stays open while the job runs locked its row. A row lock is not recorded:
    /// it is concluded from a start under a lock that no lease shows.
    RowHeld {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// The lease was renewed.
    Renewed {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
        /// The new expiry.
        expires_at: Micros,
    },
    /// The sweeper reset an expired lease.
    TakenOff {
        /// The lock.
        fence: Fence,
    },
    /// The strikes changed.
    Strikes(Strikes),
    /// A handler recorded its start.
    Started {
        /// The node.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// A handler recorded its end and its answer.
    Ended {
        /// The node.
        owner: NodeId,
        /// The lock.
        fence: Fence,
        /// Its answer.
        answer: Answer,
    },
    /// A row that the handler wrote in the transaction that completes the job has committed.
    Effect {
        /// The lock.
        fence: Fence,
    },
    /// The job was completed and deleted.
    Completed {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// The job was completed and deleted by the transaction that held its row. Concluded from the
    /// last run that had recorded that it was done.
    RowCompleted {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// An attempt ended without success, and the job waits.
    Failed {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
        /// The attempts left.
        retries: i32,
        /// The place where it waits.
        to: Waits,
    },
    /// The job became a dead letter.
    DeadLettered {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// The job was released.
    Released {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// The job was released before its start, or waits for a permit of its limit. Its strikes stay.
    Parked {
        /// The holder.
        owner: NodeId,
        /// The lock.
        fence: Fence,
    },
    /// A timer that was due became executable.
    Ready,
    /// An operator made a dead letter, a timer or a retry executable.
    Revived {
        /// The number of attempts that it got.
        retries: i32,
    },
    /// The job was suspended.
    Suspended,
    /// The job was activated, to wait for its due date or to run at once.
    Activated {
        /// Whether its due date lies in the future.
        timer: bool,
    },
    /// An operator deleted it.
    Deleted,
    /// The place in which the row was found at the end.
    Found(Place),
}

/// A handler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// A failure that costs an attempt.
    Failed,
    /// An unrecoverable failure.
    Unrecoverable,
    /// No result: a snooze, a conflict, a stop.
    Again,
}
