//! The hint: a message that says that a job is ready.
//!
//! A lost hint costs latency, never a job. A forged or duplicate one costs one refused lock. So a
//! hint carries only the id, routing data, and the times from which latency is measured.
//!
//! # Wire format, version 1
//! A message is one JSON object, UTF-8, at most [`MAX_MESSAGE_BYTES`] long. docs/reference/hints.md
//! describes it for publishers in other languages; they need only `v` and `hints[].id`.
//! docs/reference/hint-vectors.json has messages with their meaning, for readers and writers in any
//! language; Jobwire's tests read it too. `wire.rs` documents the strictness of the reader.
//!
//! ```json
//! {"v":1,"at":1763695885123456,"hints":[{"id":"0198c0de-…","i":"order-17","c":1763695885120000,"t":"00-…-01"}]}
//! {"v":1,"at":1763695885123456,"marker":{"n":42,"by":"5f0c…"}}
//! ```
//! | field | meaning |
//! | --- | --- |
//! | `v` | version of the format; a reader refuses an unknown one |
//! | `at` | the time of publication, microseconds since 1970 UTC (optional) |
//! | `hints[].id` | the job |
//! | `hints[].i` | the process instance of an exclusive job: "try this instance" (optional; a value that no job can have is read as absent) |
//! | `hints[].y` | the type of a job that is not exclusive, or of an exclusive one that a node has given back because it had no slot of the type: a node that does not serve it forwards the hint (optional; a value that no job can have is read as absent) |
//! | `hints[].c` | the time at which the creating transaction's COMMIT returned, microseconds (optional) |
//! | `hints[].t` | W3C `traceparent` (optional) |
//! | `marker` | instead of hints: the sweeper's numbered marker (see [`crate::leader::sweeper`]) |

pub mod packing;
mod wire;

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod vectors;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::new_job::NewJob;
use crate::job::{JobId, Lane, NodeId};
use wire::{instance, micros};

/// The newest version of the wire format that this program reads and writes.
pub const WIRE_VERSION: u32 = 1;
/// Maximum size of a message; a larger one is settled and counted as unreadable.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Maximum number of hints in one message; a message with more is unreadable.
pub const MAX_HINTS_PER_MESSAGE: usize = 512;

/// The announcement that a job is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// The job.
    pub id: JobId,
    /// The process instance of an exclusive job: any of its ready jobs may be locked.
    #[serde(
        rename = "i",
        default,
        skip_serializing_if = "instance::stays_out",
        deserialize_with = "instance::read"
    )]
    pub instance: Option<String>,
    /// The type of a job that is not exclusive, or of an exclusive one that a node has given back
    /// because it had no slot of the type: a node that does not serve it forwards the hint without
    /// asking the database. The row decides the job's type.
    #[serde(
        rename = "y",
        default,
        skip_serializing_if = "instance::stays_out",
        deserialize_with = "instance::read"
    )]
    pub job_type: Option<String>,
    /// The time at which the creating transaction's COMMIT returned, by the producer's clock.
    #[serde(
        rename = "c",
        default,
        skip_serializing_if = "Option::is_none",
        with = "micros"
    )]
    pub committed_at: Option<DateTime<Utc>>,
    /// W3C trace context.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
}

impl Hint {
    /// Creates a hint for one job, without the optional parts.
    #[must_use]
    pub fn new(id: JobId) -> Self {
        Self {
            id,
            instance: None,
            job_type: None,
            committed_at: None,
            trace_parent: None,
        }
    }
}

/// The hint of a job that became ready, and the lane that it goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The lane of the hint.
    pub lane: Lane,
    /// The hint.
    pub hint: Hint,
}

impl Ready {
    /// Returns the hint of a created job. Its lane is that of the job, or `ruled`, or `default`.
    pub(crate) fn of(job: &NewJob, ruled: Option<Lane>) -> Self {
        let exclusive = job.is_exclusive();
        Self {
            lane: job.lane.clone().or(ruled).unwrap_or_default(),
            hint: Hint {
                id: job.id,
                instance: job.process_instance.clone().filter(|_| exclusive),
                job_type: (!exclusive).then(|| job.job_type.clone()),
                committed_at: None,
                trace_parent: job.trace_parent.clone(),
            },
        }
    }
}

/// The content of a message on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Jobs that are ready.
    Hints(Vec<Hint>),
    /// The sweeper's marker: when it is back, every hint published before it has been decided.
    Marker(Marker),
}

/// A numbered marker on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marker {
    /// The number, which grows with every marker of one sweeper.
    #[serde(rename = "n")]
    pub number: u64,
    /// The node whose sweeper sent it. Other sweepers ignore it.
    #[serde(rename = "by")]
    pub node: NodeId,
}

/// A message of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The time of publication, by the publisher's clock.
    pub published_at: Option<DateTime<Utc>>,
    /// The content.
    pub body: Body,
}

/// The reason why a message can't be read. Such a message is settled, counted and logged, and not
/// redelivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnreadableHint {
    /// The message is larger than [`MAX_MESSAGE_BYTES`].
    #[error("the message has {0} bytes; the maximum is {MAX_MESSAGE_BYTES}")]
    TooLarge(usize),
    /// The message is not the JSON that the format describes.
    #[error("the message is not a hint: {0}")]
    Malformed(String),
    /// The message has another version of the format; a newer program wrote it.
    #[error(
        "the message has format version {0}; this program reads version {WIRE_VERSION}: upgrade it"
    )]
    UnknownVersion(u32),
    /// The message has more hints than [`MAX_HINTS_PER_MESSAGE`], or none.
    #[error("the message has {0} hints; 1 to {MAX_HINTS_PER_MESSAGE} are allowed")]
    BadCount(usize),
}

impl Message {
    /// Creates a message of hints, published now.
    #[must_use]
    pub fn hints(hints: Vec<Hint>) -> Self {
        Self {
            published_at: Some(Utc::now()),
            body: Body::Hints(hints),
        }
    }

    /// Creates a message with a marker, published now.
    #[must_use]
    pub fn marker(marker: Marker) -> Self {
        Self {
            published_at: Some(Utc::now()),
            body: Body::Marker(marker),
        }
    }

    /// Returns the bytes to publish.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Reads a message. Any publisher can have written it, so it is not trusted.
    ///
    /// # Errors
    /// Fails with [`UnreadableHint`]; the caller settles the message and counts it.
    pub fn decode(bytes: &[u8]) -> Result<Self, UnreadableHint> {
        wire::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_as_it_was_written() {
        let mut hint = Hint::new(JobId::generate());
        hint.instance = Some("order-17".to_owned());
        hint.committed_at = DateTime::from_timestamp_micros(1_763_695_885_123_456);
        hint.trace_parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
        let mut sent = Message::hints(vec![hint, Hint::new(JobId::generate())]);
        sent.published_at = DateTime::from_timestamp_micros(1_763_695_885_200_000);
        assert_eq!(Message::decode(&sent.encode()), Ok(sent));
    }

    #[test]
    fn the_shortest_hint_of_another_language_is_understood() {
        let text = br#"{"v":1,"hints":[{"id":"0198c0de-0000-7000-8000-000000000001"}]}"#;
        let message = Message::decode(text).unwrap();
        assert!(matches!(message.body, Body::Hints(hints) if hints.len() == 1));
    }

    #[test]
    fn unreadable_messages_say_why() {
        let decode = |text: &str| Message::decode(text.as_bytes()).unwrap_err();
        assert!(matches!(decode(""), UnreadableHint::Malformed(_)));
        assert!(matches!(decode("\u{0}\u{1}"), UnreadableHint::Malformed(_)));
        assert!(matches!(decode("{\"v\":1}"), UnreadableHint::BadCount(0)));
        assert!(matches!(
            decode("{\"v\":9,\"x\":{}}"),
            UnreadableHint::UnknownVersion(9)
        ));
        assert!(matches!(
            decode("{\"v\":2,\"hints\":\"packed\"}"),
            UnreadableHint::UnknownVersion(2)
        ));
        assert!(matches!(
            decode("{\"v\":1,\"hints\":[{\"id\":\"1; DROP TABLE job\"}]}"),
            UnreadableHint::Malformed(_)
        ));
        assert!(matches!(
            decode("{\"v\":1,\"at\":9223372036854775807,\"hints\":[]}"),
            UnreadableHint::Malformed(_)
        ));
        let large = vec![b' '; MAX_MESSAGE_BYTES + 1];
        assert!(matches!(
            Message::decode(&large),
            Err(UnreadableHint::TooLarge(_))
        ));
    }
}
