//! What can happen to a job, as somebody saw it who can't be mistaken: the database, its
//! creator, or the handler that ran it.

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
    /// When it happened, by the database's clock.
    pub at: Micros,
    /// When the statement that did it began: what had become visible before, it saw.
    pub began: Micros,
    /// When its transaction had committed: from then on others see it.
    pub visible: Micros,
    /// The order of things that happened to one job, where times don't tell.
    pub number: u64,
    /// What happened.
    pub event: Event,
}

impl Entry {
    /// Something that began, happened and was visible at one moment.
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

/// What became of the transaction that created a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its creator was told so, or the database shows the job.
    Committed,
    /// Its creator undid it, or never came to its end.
    RolledBack,
    /// The answer to its COMMIT was lost, and the database does not show the job.
    Unknown,
}

/// A repeating job is a series of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// What all of them share.
    pub id: Uuid,
    /// How many are left, this one included.
    pub left: u32,
    /// From one due date to the next.
    pub every: Micros,
}

/// What a creator said of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// Its process instance.
    pub instance: Option<Arc<str>>,
    /// Whether it excludes others of its instance.
    pub exclusive: bool,
    /// The creation sequence.
    pub order: i64,
    /// Not before this moment.
    pub due: Option<Micros>,
    /// It was created among the timers, to wait for its due date.
    pub waits: bool,
    /// Attempts.
    pub retries: i32,
    /// What became of the transaction.
    pub outcome: Outcome,
    /// The job whose completing transaction created this one.
    pub parent: Option<JobId>,
    /// How many jobs the transaction that completes this one creates.
    pub children: u32,
    /// Whether its handler leaves a row ([`Event::Effect`]) in the transaction that completes it.
    pub transactional: bool,
    /// Whether its attempts may run into a timeout, after which the handler's answer counts for nothing.
    pub timeout: bool,
    /// Whether it repeats.
    pub series: Option<Series>,
    /// Whether a single node serves it: a takeover waits for this node.
    pub rare: bool,
}

impl Creation {
    /// A committed job without an instance, ready at once.
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

    /// A committed exclusive job of an instance.
    #[must_use]
    pub fn exclusive(order: i64, instance: &str) -> Creation {
        Creation {
            instance: Some(instance.into()),
            exclusive: true,
            ..Creation::plain(order)
        }
    }
}

/// How the strikes of a lease changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strikes {
    /// How many there were.
    pub before: i32,
    /// How many there are.
    pub after: i32,
    /// With the end of this lock.
    pub taken_off: Option<Fence>,
    /// The job ran alone.
    pub alone: bool,
}

/// Where a job that failed waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In the timer table, until then.
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
    /// Put aside.
    Suspended,
    /// Failed for good.
    DeadLetter,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Created: once a job, or meant to be.
    Created(Arc<Creation>),
    /// A hint for it left its process.
    Published,
    /// The sweeper took it for an orphan, or found it behind an expired lock, and had it hinted again.
    Rehinted,
    /// Locked.
    Locked {
        /// By whom.
        owner: NodeId,
        /// With which token.
        fence: Fence,
        /// Until when.
        expires_at: Micros,
    },
    /// Its row was locked, by a transaction that stays open while it runs. Nothing writes that down: it is concluded
    /// from a start under a lock that no lease knows.
    RowHeld {
        /// By whom.
        owner: NodeId,
        /// With which token.
        fence: Fence,
    },
    /// The lease was made longer.
    Renewed {
        /// By whom.
        owner: NodeId,
        /// Of which lock.
        fence: Fence,
        /// Until when.
        expires_at: Micros,
    },
    /// The sweeper took an expired lock off its owner.
    TakenOff {
        /// Which lock.
        fence: Fence,
    },
    /// Its strikes changed.
    Strikes(Strikes),
    /// A handler says that it begins.
    Started {
        /// On which node.
        owner: NodeId,
        /// Under which lock.
        fence: Fence,
    },
    /// The handler says that it ends and what it answers.
    Ended {
        /// On which node.
        owner: NodeId,
        /// Under which lock.
        fence: Fence,
        /// Its answer.
        answer: Answer,
    },
    /// A row that the handler wrote in the transaction that completes the job has committed.
    Effect {
        /// Under which lock.
        fence: Fence,
    },
    /// Done and deleted.
    Completed {
        /// By whom.
        owner: NodeId,
        /// With which lock.
        fence: Fence,
    },
    /// Done, and deleted by a transaction that held its row; concluded from the last run that had said so.
    RowCompleted {
        /// By whom.
        owner: NodeId,
        /// With which lock.
        fence: Fence,
    },
    /// Not done; waits.
    Failed {
        /// By whom.
        owner: NodeId,
        /// With which lock.
        fence: Fence,
        /// Attempts left.
        retries: i32,
        /// Where it waits.
        to: Waits,
    },
    /// Not done, and never again by itself.
    DeadLettered {
        /// By whom.
        owner: NodeId,
        /// With which lock.
        fence: Fence,
    },
    /// Given back.
    Released {
        /// By whom.
        owner: NodeId,
        /// Which lock.
        fence: Fence,
    },
    /// A timer that was due became executable.
    Ready,
    /// An operator made a dead letter, a timer or a retry executable.
    Revived {
        /// With so many attempts.
        retries: i32,
    },
    /// Put aside.
    Suspended,
    /// Brought back, to wait for its due date or to run at once.
    Activated {
        /// Its due date lies ahead.
        timer: bool,
    },
    /// An operator deleted it.
    Deleted,
    /// The row was found there when everything was over.
    Found(Place),
}

/// What a handler answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// An attempt that counts as failed.
    Failed,
    /// Failed for good: never again.
    Unrecoverable,
    /// Neither: a snooze, a conflict, a stop.
    Again,
}
