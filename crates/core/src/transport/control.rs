//! Control messages between nodes, and their reading. Any client that may publish to the broker can
//! write them.
//!
//! A message is read only within bounds: its size before it is decoded, and the number of types and
//! lanes of a node. So a flood of large messages costs a bounded amount of memory.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{MAX_CONTROL_BYTES, MAX_HELD_IN_MESSAGE, MAX_MEMBER_LANES, MAX_MEMBER_TYPES};
use crate::hint::{MAX_HINTS_PER_MESSAGE, Marker, Ready};
use crate::job::new_job::MAX_FIELD_BYTES;
use crate::job::{JobId, Lane, NodeId};

/// The reason why a control message was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadControl {
    /// The message is too large.
    #[error("a control message of {0} bytes is too large; the limit is {MAX_CONTROL_BYTES} bytes")]
    TooLarge(usize),
    /// The message is not JSON, or has no known form.
    #[error("a control message can't be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The protocol level of this program. A node of level 1 answers [`Control::WhichHeld`] and takes
/// [`Control::Forwarded`] jobs; a node that sends no level does neither.
pub const SPOKEN: u32 = 1;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(level: &u32) -> bool {
    *level == 0
}

/// A control message between nodes, sent best effort: a lost one costs only latency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Control {
    /// The leader lives, and repeats this within a third of its lease.
    LeaderAlive {
        /// The leading node.
        node: NodeId,
        /// Its term.
        term: i64,
        /// The time of the database's clock, as far as the leader knows. A new leader compares its
        /// own reading with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        now: Option<DateTime<Utc>>,
        /// The time since the database last answered the leader, in milliseconds. It shows a new
        /// leader whether the database was away.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "optional_millis"
        )]
        age: Option<Duration>,
        /// The remaining time in which the leader ends no lease, in milliseconds, because the clock
        /// jumped or the database was away. Nodes that started since learn it from here.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "optional_millis"
        )]
        doubt: Option<Duration>,
    },
    /// The leader has resigned. Another node should lead at once.
    LeaderLeaves {
        /// The node that led.
        node: NodeId,
    },
    /// A timer was created.
    TimerSet {
        /// Its due date.
        due: DateTime<Utc>,
    },
    /// A marker is back: everything published before it has been decided.
    MarkerBack {
        /// The lane of the marker.
        lane: Lane,
        /// The marker.
        marker: Marker,
    },
    /// A node lives and serves these types and lanes.
    NodeAlive {
        /// The node.
        node: NodeId,
        /// Handler types it serves.
        types: Vec<String>,
        /// Lanes it receives.
        lanes: Vec<Lane>,
        /// Free slots. A node that sends this field takes [`Rescued`](Control::Rescued) jobs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free: Option<u32>,
        /// The number of rescued jobs that the node may start now. Absent from older programs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rescue_room: Option<u32>,
        /// The protocol level of the node: up to [`SPOKEN`].
        #[serde(default, skip_serializing_if = "is_zero")]
        speaks: u32,
        /// The revision of the node's row, which holds its types and lanes. Nodes of older programs
        /// have no row, and their types and lanes are read from this message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        row: Option<i64>,
    },
    /// The leader asks every node for the hints of a lane that it holds. A marker is back that may
    /// have overtaken them.
    WhichHeld {
        /// The leader.
        node: NodeId,
        /// The number of the question.
        question: u64,
        /// The lane.
        lane: Lane,
        /// The time, in milliseconds, within which requeued hints count as held.
        #[serde(with = "millis")]
        within: Duration,
    },
    /// The answer to [`WhichHeld`](Control::WhichHeld), or a part of it.
    Held {
        /// The node that answers.
        node: NodeId,
        /// The leader.
        to: NodeId,
        /// The number of the question.
        question: u64,
        /// Jobs whose hints the node holds undecided or has requeued.
        jobs: Vec<JobId>,
        /// Whether this is the last part.
        last: bool,
    },
    /// Jobs of dead holders, for one node, which starts them before the waiting jobs of their
    /// lanes.
    Rescued {
        /// The node.
        node: NodeId,
        /// The jobs, each with its lane.
        jobs: Vec<Ready>,
    },
    /// Jobs for one node, of types that the sender does not serve.
    Forwarded {
        /// The node.
        node: NodeId,
        /// The jobs, each with its lane.
        jobs: Vec<Ready>,
    },
    /// A node has stopped taking work.
    NodeLeaves {
        /// The node.
        node: NodeId,
    },
    /// A tool without a transport has created jobs without hints. The leader looks for them.
    Look,
    /// The node that runs this job is asked to stop it.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Messages of other processes may have been lost: the connection that carries them is new. A
    /// transport tells it to the listeners of its own process, and never sends it.
    #[serde(skip)]
    Missed,
    /// A message of a newer node.
    #[serde(other)]
    Unknown,
}

impl Control {
    /// Returns the node that sent the message. Messages of tools name none.
    pub(crate) const fn sender(&self) -> Option<NodeId> {
        match self {
            Self::LeaderAlive { node, .. }
            | Self::LeaderLeaves { node }
            | Self::NodeAlive { node, .. }
            | Self::WhichHeld { node, .. }
            | Self::Held { node, .. }
            | Self::NodeLeaves { node } => Some(*node),
            _ => None,
        }
    }

    /// Reads a message from the broker. Types and lanes beyond the limits are left out, as are
    /// those that no job can have.
    ///
    /// # Errors
    /// Fails if the message is larger than [`MAX_CONTROL_BYTES`] or unreadable.
    pub fn read(text: &[u8]) -> Result<Self, BadControl> {
        if text.len() > MAX_CONTROL_BYTES {
            return Err(BadControl::TooLarge(text.len()));
        }
        let mut control = serde_json::from_slice(text)?;
        match &mut control {
            Self::NodeAlive { types, lanes, .. } => {
                types.retain(|name| name.len() <= MAX_FIELD_BYTES);
                types.truncate(MAX_MEMBER_TYPES);
                types.shrink_to_fit();
                lanes.retain(|lane| Lane::is_valid(&lane.0));
                lanes.truncate(MAX_MEMBER_LANES);
                lanes.shrink_to_fit();
            }
            Self::Held { jobs, .. } => {
                jobs.truncate(MAX_HELD_IN_MESSAGE);
                jobs.shrink_to_fit();
            }
            Self::Rescued { jobs, .. } | Self::Forwarded { jobs, .. } => {
                let fits = |text: &Option<String>| {
                    text.as_ref()
                        .is_none_or(|text| text.len() <= MAX_FIELD_BYTES)
                };
                jobs.retain(|job| Lane::is_valid(&job.lane.0) && fits(&job.hint.trace_parent));
                jobs.truncate(MAX_HINTS_PER_MESSAGE);
                jobs.shrink_to_fit();
            }
            _ => {}
        }
        Ok(control)
    }

    /// Returns whether a message addresses jobs to a node. Without it, their hints are lost.
    #[must_use]
    pub fn addresses_jobs(&self) -> bool {
        matches!(self, Self::Rescued { .. } | Self::Forwarded { .. })
    }

    /// Returns whether a message says that a node lives now. A late one makes a dead node look alive.
    #[must_use]
    pub fn is_beat(&self) -> bool {
        matches!(self, Self::LeaderAlive { .. } | Self::NodeAlive { .. })
    }

    /// Writes a message that every node can read. If a node has too many types for one message, it
    /// contains as many as fit.
    ///
    /// # Errors
    /// Fails if the message is too large for a reader.
    pub fn write(&self) -> Result<Vec<u8>, BadControl> {
        let mut text = serde_json::to_vec(self)?;
        if let Self::NodeAlive {
            node,
            types,
            lanes,
            free,
            rescue_room,
            speaks,
            row,
        } = self
        {
            let mut named = types.len().min(MAX_MEMBER_TYPES);
            while text.len() > MAX_CONTROL_BYTES && named > 0 {
                named /= 2;
                text = serde_json::to_vec(&Self::NodeAlive {
                    node: *node,
                    types: types.iter().take(named).cloned().collect(),
                    lanes: lanes.clone(),
                    free: *free,
                    rescue_room: *rescue_room,
                    speaks: *speaks,
                    row: *row,
                })?;
            }
        }
        if text.len() > MAX_CONTROL_BYTES {
            return Err(BadControl::TooLarge(text.len()));
        }
        Ok(text)
    }
}

/// Durations as milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u64::deserialize(deserializer)?))
    }
}

/// Like [`millis`], for an optional duration.
mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        super::millis::serialize(&time.unwrap_or_default(), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(types: Vec<String>, lanes: Vec<Lane>) -> Control {
        Control::NodeAlive {
            node: NodeId::generate(),
            types,
            lanes,
            free: None,
            rescue_room: None,
            speaks: 0,
            row: None,
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_not_decoded() {
        // Valid except for its size, so that only the size is the reason for the refusal.
        let mut text = serde_json::to_vec(&Control::Look).expect("JSON");
        text.resize(MAX_CONTROL_BYTES, b' ');
        assert_eq!(Control::read(&text).expect("it fits"), Control::Look);
        text.push(b' ');
        assert!(matches!(
            Control::read(&text),
            Err(BadControl::TooLarge(n)) if n == MAX_CONTROL_BYTES + 1
        ));
    }

    #[test]
    fn types_and_lanes_beyond_the_limits_are_left_out() {
        let types = (0..5_000).map(|n| format!("t{n}")).collect();
        let lanes = (0..500).map(|n| Lane(format!("l{n}"))).collect();
        let text = serde_json::to_vec(&alive(types, lanes)).expect("JSON");
        let Ok(Control::NodeAlive { types, lanes, .. }) = Control::read(&text) else {
            panic!("it fits");
        };
        assert_eq!(
            (types.len(), lanes.len()),
            (MAX_MEMBER_TYPES, MAX_MEMBER_LANES)
        );
        assert!(types.capacity() <= MAX_MEMBER_TYPES && lanes.capacity() <= MAX_MEMBER_LANES);
    }

    #[test]
    fn names_that_no_job_can_have_are_left_out() {
        let types = vec!["x".repeat(MAX_FIELD_BYTES + 1), "mail".to_owned()];
        let lanes = vec![Lane("a\u{1b}[2Jb".to_owned()), Lane::default()];
        let text = serde_json::to_vec(&alive(types, lanes)).expect("JSON");
        let Ok(Control::NodeAlive { types, lanes, .. }) = Control::read(&text) else {
            panic!("it fits");
        };
        assert_eq!(
            (types, lanes),
            (vec!["mail".to_owned()], vec![Lane::default()])
        );
    }

    #[test]
    fn a_node_with_very_many_types_is_heard_all_the_same() {
        let types = (0..1_000).map(|n| format!("{n:0>200}")).collect();
        let text = alive(types, vec![Lane::default()])
            .write()
            .expect("it fits");
        let Ok(Control::NodeAlive { types, lanes, .. }) = Control::read(&text) else {
            panic!("it is read");
        };
        assert!(types.len() >= 200, "{}", types.len());
        assert_eq!(lanes, [Lane::default()]);
    }
}
