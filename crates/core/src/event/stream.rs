//! The event stream: which events of jobs are published to the broker, and their form.
//!
//! ```
//! use std::time::Duration;
//! use jobwire_core::event::EventStream;
//!
//! let stream = EventStream::new("jobwire/orders")
//!     .kinds(["succeeded", "dead_lettered"])
//!     .types(["send-invoice"])
//!     .keep(Duration::from_secs(3_600));
//! assert!(stream.check().is_ok());
//! ```
//!
//! The stream is a setting of the database, so that all writers agree on it:
//! [`Store::switch_event_stream`](crate::Store::switch_event_stream) switches it on and off.
//! Triggers write an event in the transaction of its change. The leader publishes the events as
//! `CloudEvents`, in their order by [key](StreamedEvent::key), at least once, and deletes what the broker
//! has confirmed.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::job::{JobId, NodeId};

/// The kinds of events that the stream can have. `started` and `rejected` change no row that
/// outlives them, so they have no event.
pub const STREAMED_KINDS: [&str; 12] = [
    "created",
    "timer_scheduled",
    "timer_fired",
    "locked",
    "succeeded",
    "failed",
    "retries_decremented",
    "dead_lettered",
    "cancelled",
    "rescheduled",
    "incident_opened",
    "incident_closed",
];

/// The content type of an event on the broker.
pub const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

/// The start of the type of each event.
const TYPE_PREFIX: &str = "io.jobwire.job.";
/// Maximum number of types of an [`EventStream`].
const MAX_TYPES: usize = 1_000;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 1_024;
/// Maximum length of a source, in bytes.
const MAX_SOURCE: usize = 256;
/// Minimum and maximum of [`EventStream::keep`].
const KEEP: (Duration, Duration) = (
    Duration::from_secs(60),
    Duration::from_secs(10 * 365 * 24 * 3_600),
);

/// The options of the event stream. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventStream {
    /// The `source` of the events: names this database among the publishers of the consumers. At
    /// most 256 bytes, a URI reference.
    pub source: String,
    /// The kinds of events. Default: all of [`STREAMED_KINDS`].
    pub kinds: Vec<String>,
    /// The types of the jobs; `None` means all. Default: all.
    pub types: Option<Vec<String>>,
    /// The time for which an event waits for the broker. After that it is dropped and counted.
    /// Default: one day; at least a minute.
    pub keep: Duration,
}

impl EventStream {
    /// Returns a stream of all kinds and types.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            kinds: STREAMED_KINDS.iter().map(ToString::to_string).collect(),
            types: None,
            keep: Duration::from_secs(24 * 3_600),
        }
    }

    /// Sets the [kinds](Self::kinds).
    #[must_use]
    pub fn kinds<T: Into<String>>(mut self, kinds: impl IntoIterator<Item = T>) -> Self {
        self.kinds = kinds.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the [types](Self::types).
    #[must_use]
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.types = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the time for which an event [waits](Self::keep).
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Checks the options.
    ///
    /// # Errors
    /// The problem and its remedy, as text.
    pub fn check(&self) -> Result<(), String> {
        let is_reference = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
        if self.source.is_empty()
            || self.source.len() > MAX_SOURCE
            || !self.source.chars().all(is_reference)
        {
            return Err(format!(
                "the source of the event stream is no URI reference of 1 to {MAX_SOURCE} ASCII \
                 characters; use for example `jobwire/orders`"
            ));
        }
        if self.kinds.is_empty() || self.kinds.len() > STREAMED_KINDS.len() {
            return Err("the event stream has no kinds; name some, or switch it off".to_owned());
        }
        for kind in &self.kinds {
            if !STREAMED_KINDS.contains(&&**kind) {
                return Err(format!(
                    "`{}` is not a kind of the event stream; use some of {}",
                    kind.escape_debug(),
                    STREAMED_KINDS.join(", ")
                ));
            }
        }
        if let Some(types) = &self.types {
            let fits = |name: &String| !name.is_empty() && name.len() <= MAX_NAME;
            if types.is_empty() || types.len() > MAX_TYPES || !types.iter().all(fits) {
                return Err(format!(
                    "the types of the event stream are not 1 to {MAX_TYPES} names of 1 to \
                     {MAX_NAME} bytes; name no type for the events of all types"
                ));
            }
        }
        if self.keep < KEEP.0 || self.keep > KEEP.1 {
            return Err(
                "the time for which the event stream keeps events (`--keep`) is less than a minute or \
                 more than ten years; use for example `1d`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// The state of the event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventStreamState {
    /// The options; `None` while it is switched off.
    pub stream: Option<EventStream>,
    /// Whether the triggers are those of the options. If not, switch the stream on or off again.
    pub is_intact: bool,
    /// The number of events that wait, at most [`COUNTED_EVENTS`].
    pub waiting: i64,
    /// The time of the oldest of them.
    pub oldest: Option<DateTime<Utc>>,
}

impl EventStreamState {
    pub(crate) fn new(
        stream: Option<EventStream>,
        is_intact: bool,
        waiting: i64,
        oldest: Option<DateTime<Utc>>,
    ) -> Self {
        Self {
            stream,
            is_intact,
            waiting,
            oldest,
        }
    }
}

/// Waiting events are counted up to this number.
pub const COUNTED_EVENTS: i64 = 100_000;

/// An event that waits to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamedEvent {
    /// Its number in the database. The events of a job have growing numbers.
    pub seq: i64,
    /// Its identity, the same each time it is published.
    pub id: Uuid,
    /// The time of the change, by the database's clock.
    pub at: DateTime<Utc>,
    /// One of [`STREAMED_KINDS`].
    pub kind: String,
    /// The job.
    pub job: JobId,
    /// The type of the job.
    pub job_type: String,
    /// Its process instance.
    pub process_instance: Option<String>,
    /// Its process definition.
    pub process_definition: Option<String>,
    /// Its element.
    pub element: Option<String>,
    /// Its tenant.
    pub tenant: Option<String>,
    /// Its category.
    pub category: Option<String>,
    /// Its correlation id.
    pub correlation_id: Option<Uuid>,
    /// Its trace parent.
    pub trace_parent: Option<String>,
    /// The number of the attempt, from 1: of `locked`, `succeeded` and `failed`.
    pub attempt: Option<i32>,
    /// The attempts left.
    pub retries: Option<i32>,
    /// The date of `timer_scheduled`, `rescheduled` and `created`.
    pub due_at: Option<DateTime<Utc>>,
    /// The message of `failed` and `incident_opened`, at most 4,000 bytes.
    pub message: Option<String>,
    /// The node that has locked the job.
    pub node: Option<NodeId>,
    /// The fence of its lock.
    pub fence: Option<i64>,
}

/// An event in its form on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutgoingEvent {
    /// The key of its order.
    pub key: String,
    /// The kind.
    pub kind: String,
    /// The type of the job.
    pub job_type: String,
    /// The `CloudEvent`, as JSON.
    pub body: Vec<u8>,
}

impl OutgoingEvent {
    /// Returns an event with this key, kind, type of job and body.
    pub fn new(
        key: impl Into<String>,
        kind: impl Into<String>,
        job_type: impl Into<String>,
        body: Vec<u8>,
    ) -> Self {
        Self {
            key: key.into(),
            kind: kind.into(),
            job_type: job_type.into(),
            body,
        }
    }
}

#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: Uuid,
    source: &'a str,
    #[serde(rename = "type")]
    event_type: String,
    subject: JobId,
    time: String,
    datacontenttype: &'static str,
    partitionkey: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlationid: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    job: JobId,
    kind: &'a str,
    #[serde(rename = "type")]
    job_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_instance: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_definition: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    element: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<i64>,
}

fn rfc3339(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

impl StreamedEvent {
    /// Returns the key of the order: the process instance, or the job if it has none. Events with
    /// one key are published in their order.
    #[must_use]
    pub fn key(&self) -> String {
        // An attribute of a CloudEvent is not empty and has no control characters.
        let plain = |c: char| if c.is_control() { '_' } else { c };
        match self.process_instance.as_deref() {
            None | Some("") => self.job.to_string(),
            Some(instance) => instance.chars().map(plain).collect(),
        }
    }

    /// Returns the event in its form on the broker: a `CloudEvent` 1.0 as JSON. It never has the
    /// payload of the job.
    #[must_use]
    pub fn outgoing(&self, source: &str) -> OutgoingEvent {
        let key = self.key();
        let event = CloudEvent {
            specversion: "1.0",
            id: self.id,
            source,
            event_type: format!("{TYPE_PREFIX}{}", self.kind),
            subject: self.job,
            time: rfc3339(self.at),
            datacontenttype: "application/json",
            partitionkey: &key,
            correlationid: self.correlation_id,
            // An empty attribute is not allowed.
            traceparent: self.trace_parent.as_deref().filter(|text| !text.is_empty()),
            data: Data {
                job: self.job,
                kind: &self.kind,
                job_type: &self.job_type,
                process_instance: self.process_instance.as_deref(),
                process_definition: self.process_definition.as_deref(),
                element: self.element.as_deref(),
                tenant: self.tenant.as_deref(),
                category: self.category.as_deref(),
                attempt: self.attempt,
                retries: self.retries,
                due_at: self.due_at.map(rfc3339),
                message: self.message.as_deref(),
                node: self.node,
                fence: self.fence,
            },
        };
        // Numbers and texts always serialise.
        let body = serde_json::to_vec(&event).unwrap_or_default();
        OutgoingEvent::new(key, &self.kind, &self.job_type, body)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn event(seq: i64, instance: Option<&str>) -> StreamedEvent {
        StreamedEvent {
            seq,
            id: Uuid::from_u128(7),
            at: DateTime::from_timestamp_micros(1_700_000_000_123_456).unwrap(),
            kind: "failed".to_owned(),
            job: JobId(Uuid::from_u128(8)),
            job_type: "send-invoice".to_owned(),
            process_instance: instance.map(str::to_owned),
            process_definition: None,
            element: None,
            tenant: None,
            category: None,
            correlation_id: Some(Uuid::from_u128(8)),
            trace_parent: None,
            attempt: Some(1),
            retries: Some(2),
            due_at: None,
            message: Some("the printer is on fire".to_owned()),
            node: None,
            fence: None,
        }
    }

    #[test]
    fn an_event_is_a_cloud_event() {
        let sent = event(1, Some("order-17")).outgoing("jobwire/orders");
        assert_eq!(sent.key, "order-17");
        let body: serde_json::Value = serde_json::from_slice(&sent.body).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "specversion": "1.0",
                "id": "00000000-0000-0000-0000-000000000007",
                "source": "jobwire/orders",
                "type": "io.jobwire.job.failed",
                "subject": "00000000-0000-0000-0000-000000000008",
                "time": "2023-11-14T22:13:20.123456Z",
                "datacontenttype": "application/json",
                "partitionkey": "order-17",
                "correlationid": "00000000-0000-0000-0000-000000000008",
                "data": {
                    "job": "00000000-0000-0000-0000-000000000008",
                    "kind": "failed",
                    "type": "send-invoice",
                    "process_instance": "order-17",
                    "attempt": 1,
                    "retries": 2,
                    "message": "the printer is on fire",
                },
            })
        );
        let job = Uuid::from_u128(8).to_string();
        for (instance, key) in [(None, &*job), (Some(""), &*job), (Some("a\nb"), "a_b")] {
            assert_eq!(event(1, instance).key(), key);
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused_with_the_remedy() {
        let stream = || EventStream::new("jobwire/orders");
        stream().check().unwrap();
        for (bad, problem) in [
            (EventStream::new(""), "source"),
            (EventStream::new("a b"), "source"),
            (stream().kinds(["started"]), "`started`"),
            (stream().kinds::<String>([]), "kinds"),
            (stream().types::<String>([]), "types"),
            (stream().types([""]), "types"),
            (stream().keep(Duration::from_secs(1)), "minute"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
