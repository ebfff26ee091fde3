//! The job: plain data, and its validation.
//!
//! A [`Job`] is a unit of work that exists in exactly one of the job tables ([`JobState`]). It
//! keeps its [`JobId`] when it moves between them. The right to run it is proved by its lease
//! ([`LockToken`]), not by the job.

pub mod any_error;
pub mod args;
pub mod batch;
pub mod calendar;
pub mod definition_key;
pub mod duration;
pub mod gate;
mod invalid_job;
mod local;
pub mod new_job;
pub mod periodic;
pub mod priority_gap;
pub mod progress;
pub mod query;
pub mod repeat;
pub mod retry;
pub mod scope;
pub mod sealed;
pub mod series;
pub mod tags;
pub(crate) mod template;
pub(crate) mod text;
pub mod unique;

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::job::scope::Needs;

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub(crate) Uuid);

        impl Ord for $name {
            /// The order of the bytes, compared as one number.
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.as_u128().cmp(&other.0.as_u128())
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Creates an id from a UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Returns the UUID.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }


        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

uuid_newtype! {
    /// The id of a job: a version-7 UUID. A job keeps it when it moves between tables.
    JobId
}

uuid_newtype! {
    /// The id of one start of one process. It is random, never a host or pod name: a reused name
    /// could be mistaken for a living owner.
    NodeId
}

uuid_newtype! {
    /// The id of a [batch](crate::Batch): a version-7 UUID.
    BatchId
}

impl BatchId {
    /// Creates a new, time-ordered id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl JobId {
    /// Creates a new, time-ordered id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl NodeId {
    /// Creates a new, random id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::new_v4())
    }
}

/// The number of one lock. Fences only grow, and no fence is given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub(crate) i64);

impl Fence {
    /// Creates a fence from its number.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Returns the number, as the database stores it.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A FIFO queue or topic of hints. Its name consists of letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub(crate) String);

/// The error for an invalid lane name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a lane's name: use 1 to 64 letters, digits, `-`, `_` and `.`")]
pub struct BadLane(pub String);

impl Lane {
    /// The lane of a job for which neither its creator nor a rule names one.
    pub const DEFAULT: &'static str = "default";

    /// The lane of a [history job](new_job::NewJob::history) whose creator names none.
    pub const HISTORY: &'static str = "history";

    /// Creates a lane of this name.
    ///
    /// # Errors
    /// [`BadLane`] if the name is not [valid](Self::is_valid).
    pub fn new(name: impl Into<String>) -> Result<Self, BadLane> {
        let name = name.into();
        if Self::is_valid(&name) {
            Ok(Self(name))
        } else {
            Err(BadLane(name))
        }
    }

    /// Creates a lane from the name in a row or a message, without a check.
    #[doc(hidden)]
    #[must_use]
    pub fn unchecked(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether every broker accepts this name.
    #[must_use]
    pub fn is_valid(name: &str) -> bool {
        (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    }
}

impl Default for Lane {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl std::str::FromStr for Lane {
    type Err = BadLane;

    fn from_str(name: &str) -> Result<Self, BadLane> {
        Self::new(name)
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word for SQL, JSON and the command line.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Returns the value for this word.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// The kind of a job.
    JobKind {
        /// Created to run as soon as possible.
        Message = "message",
        /// Created to run at a date, once or repeatedly.
        Timer = "timer",
        /// Writes history, apart from the business transaction.
        History = "history",
    }
}

text_enum! {
    /// The state of a job, which is the table that holds it.
    JobState {
        /// Ready, locked or running.
        Executable = "executable",
        /// Waiting for its due date: a timer, or a retry.
        Timer = "timer",
        /// Suspended until its activation.
        Suspended = "suspended",
        /// Not tried again until an operator retries it.
        DeadLetter = "dead-letter",
    }
}

/// A unit of work, as a handler receives it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The id, kept when the job moves between tables.
    pub id: JobId,
    /// The creation order, which the database assigns at insert.
    pub seq: i64,
    /// The number of changes by operators and moves.
    pub revision: i32,
    /// The kind of the job.
    pub kind: JobKind,
    /// The type, which names the handler.
    pub job_type: String,
    /// The handler's input, as JSON text.
    pub payload: Box<RawValue>,
    /// The process instance the job belongs to.
    pub process_instance: Option<String>,
    /// The execution within the instance.
    pub execution: Option<String>,
    /// The process definition.
    pub process_definition: Option<String>,
    /// The element (activity) of the definition.
    pub element: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The category, for routing.
    pub category: Option<String>,
    /// The deployment, for routing.
    pub deployment: Option<String>,
    /// The priority. Larger is more urgent.
    pub priority: i64,
    /// Whether the job is exclusive: at most one exclusive job of an instance runs at a time.
    pub exclusive: bool,
    /// The number of attempts left, the next one included.
    pub retries: i32,
    /// The number of attempts that failed.
    pub failures: i32,
    /// The waits between attempts; the type's policy if `None`. See [`crate::job::retry`].
    pub retry_policy: Option<String>,
    /// The earliest start.
    pub due_at: Option<DateTime<Utc>>,
    /// The interval of a repeating job, for example `R3/PT10M`.
    pub repeat: Option<String>,
    /// The time after which no occurrence is due.
    pub repeat_until: Option<DateTime<Utc>>,
    /// The id that all occurrences of a repeating job share.
    pub correlation_id: Uuid,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The time at which the job last became ready, by the database's clock.
    pub ready_at: DateTime<Utc>,
    /// The lane of its hints.
    pub lane: Lane,
    /// Whether the creator named the lane. A job whose lane the rules chose (`false`) gets a new
    /// lane when its priority changes. `None` if it is not known: the lane stays.
    pub lane_named: Option<bool>,
    /// The last failure's message.
    pub exception_message: Option<String>,
    /// Free values that travel with the job, as JSON text.
    pub custom_values: Option<Box<RawValue>>,
    /// W3C trace context of the creator.
    pub trace_parent: Option<String>,
    /// The parts of the job's row that can't be read and were replaced by defaults. Such a job
    /// becomes a dead letter; no handler runs it.
    pub unreadable: Option<String>,
}

impl Job {
    /// Decodes the payload.
    ///
    /// # Errors
    /// Fails if the JSON does not have the shape of `P`.
    pub fn decode<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_str(self.payload.get())
    }

    /// Returns the properties that a node must serve to run this job.
    #[must_use]
    pub fn needs(&self) -> Needs {
        Needs {
            job_type: self.job_type.clone(),
            deployment: self.deployment.clone(),
            category: self.category.clone(),
            tenant: self.tenant.clone(),
            priority: Some(self.priority),
        }
    }

    /// Returns the instance in which this job excludes others; `None` if it is not exclusive.
    #[must_use]
    pub fn exclusive_instance(&self) -> Option<&str> {
        self.process_instance.as_deref().filter(|_| self.exclusive)
    }
}

/// The proof of a lock. Every statement that completes, fails, renews or releases a job names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockToken {
    /// The job.
    pub id: JobId,
    /// The fence of this lock.
    pub fence: Fence,
    /// The instance that the job holds, if it is exclusive.
    pub instance: Option<String>,
}

/// A job and the lock that this node has on it.
#[derive(Clone, Debug)]
pub struct LockedJob {
    /// The job. Shared, because a job is large and is passed on many times until its handler runs.
    pub job: Arc<Job>,
    /// The fence of this lock.
    pub fence: Fence,
    /// The number of nodes in a row that died, or lost their lease, while they held this job.
    pub strikes: i32,
    /// The time of the lock by the database's clock. The next occurrence of a series is dated by it.
    /// A store whose jobs have no series may give `ready_at`.
    pub locked_at: DateTime<Utc>,
}

impl LockedJob {
    /// Returns the lock token.
    #[must_use]
    pub fn held(&self) -> LockToken {
        LockToken {
            id: self.job.id,
            fence: self.fence,
            instance: self.job.exclusive_instance().map(str::to_owned),
        }
    }
}
