//! The job: plain data, no behaviour beyond validation.
//!
//! A [`Job`] is a unit of work that exists in exactly one of the job tables ([`JobState`]). It keeps
//! its [`JobId`] through every move. What proves the right to run it is not here but in its lease
//! ([`LockToken`]).

pub mod args;
pub mod duration;
pub mod new_job;
pub mod query;
pub mod repeat;
pub mod retry;
pub mod scope;

use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::job::scope::Needs;

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub(crate) Uuid);

        impl $name {
            /// The id with this UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID.
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
    /// A job's identity: a version-7 UUID, kept through every move between tables.
    JobId
}

uuid_newtype! {
    /// One start of one process. Random, never a host or pod name, so that a reused name can't be
    /// mistaken for a living owner.
    NodeId
}

impl JobId {
    /// A fresh, time-ordered id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl NodeId {
    /// A fresh, random id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::new_v4())
    }
}

/// The token of one lock: it only grows, and no value is ever given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub(crate) i64);

impl Fence {
    /// The fence with this number.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number, as the database stores it.
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

/// A queue or topic that keeps first-in-first-out order. Letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub(crate) String);

/// A name that is no lane's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a lane's name: use 1 to 64 letters, digits, `-`, `_` and `.`")]
pub struct BadLane(pub String);

impl Lane {
    /// The lane of jobs that name none.
    pub const DEFAULT: &'static str = "default";

    /// A lane of this name.
    ///
    /// # Errors
    /// [`BadLane`] unless the name [is valid](Self::is_valid).
    pub fn new(name: impl Into<String>) -> Result<Self, BadLane> {
        let name = name.into();
        if Self::is_valid(&name) {
            Ok(Self(name))
        } else {
            Err(BadLane(name))
        }
    }

    /// A lane as a row or a message names it, which may be invalid.
    #[doc(hidden)]
    #[must_use]
    pub fn unchecked(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Is this a name that every broker can carry?
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

            /// The word used in SQL, JSON and on the command line.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value that this word names.
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
    /// What made the job.
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
    /// The table a job lives in.
    JobState {
        /// Ready: locked, running, or waiting for a worker.
        Executable = "executable",
        /// Waits for its due date: a timer, or a retry.
        Timer = "timer",
        /// Put aside until somebody activates it.
        Suspended = "suspended",
        /// Failed for good; an operator decides.
        DeadLetter = "dead-letter",
    }
}

/// A unit of work as a worker sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Identity, kept through every move.
    pub id: JobId,
    /// Creation order, drawn by the database at insert.
    pub seq: i64,
    /// Counts changes by operators and moves.
    pub revision: i32,
    /// What made the job.
    pub kind: JobKind,
    /// Names the handler.
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
    /// Larger is more urgent.
    pub priority: i64,
    /// At most one exclusive job of a process instance runs at a time.
    pub exclusive: bool,
    /// Attempts left, the coming one included.
    pub retries: i32,
    /// Attempts that failed so far.
    pub failures: i32,
    /// How to wait between attempts; the type's policy where `None`. See [`crate::job::retry`].
    pub retry_policy: Option<String>,
    /// Not before this moment.
    pub due_at: Option<DateTime<Utc>>,
    /// How a repeating timer goes on, for example `R3/PT10M`.
    pub repeat: Option<String>,
    /// No occurrence after this moment.
    pub repeat_until: Option<DateTime<Utc>>,
    /// Shared by all occurrences of a repeating job.
    pub correlation_id: Uuid,
    /// When the job was created.
    pub created_at: DateTime<Utc>,
    /// When the job last became ready, by the database's clock.
    pub ready_at: DateTime<Utc>,
    /// The lane that its hints take.
    pub lane: Lane,
    /// The last failure's message.
    pub exception_message: Option<String>,
    /// Free values that travel with the job, as JSON text.
    pub custom_values: Option<Box<RawValue>>,
    /// W3C trace context of the creator.
    pub trace_parent: Option<String>,
    /// What of the job's row can't be read, and was replaced by a default. Such a job runs no handler and becomes a
    /// dead letter; no handler sees one.
    pub unreadable: Option<String>,
}

impl Job {
    /// Decode the payload.
    ///
    /// # Errors
    /// Where the JSON does not have the shape of `P`.
    pub fn decode<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_str(self.payload.get())
    }

    /// What a node must serve to run this job.
    #[must_use]
    pub fn needs(&self) -> Needs {
        Needs {
            job_type: self.job_type.clone(),
            deployment: self.deployment.clone(),
            category: self.category.clone(),
            tenant: self.tenant.clone(),
        }
    }

    /// The instance in which this job excludes others, if it is exclusive.
    #[must_use]
    pub fn exclusive_instance(&self) -> Option<&str> {
        self.process_instance.as_deref().filter(|_| self.exclusive)
    }
}

/// Proof of a lock: named in every complete, fail, renew and release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockToken {
    /// The job.
    pub id: JobId,
    /// The token of this lock.
    pub fence: Fence,
    /// The instance that the job holds, if it is exclusive.
    pub instance: Option<String>,
}

/// A job together with the lock that this node has on it.
#[derive(Clone, Debug)]
pub struct LockedJob {
    /// The job.
    pub job: Job,
    /// The token of this lock.
    pub fence: Fence,
    /// How often in a row a node died, or lost its lease, while it held this job.
    pub strikes: i32,
}

impl LockedJob {
    /// The proof to hand back.
    #[must_use]
    pub fn held(&self) -> LockToken {
        LockToken {
            id: self.job.id,
            fence: self.fence,
            instance: self.job.exclusive_instance().map(str::to_owned),
        }
    }
}
