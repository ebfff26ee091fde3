//! What nodes tell each other, and how it is read: anybody who may publish to the broker can write it.
//!
//! A message is read only within bounds: its size before it is decoded, and the number of types and lanes
//! that a node names. So a flood of large messages costs a bounded amount of memory.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{MAX_CONTROL_BYTES, MAX_HELD_IN_MESSAGE, MAX_MEMBER_LANES, MAX_MEMBER_TYPES};
use crate::hint::{MAX_HINTS_PER_MESSAGE, Marker, Ready};
use crate::job::new_job::MAX_FIELD_BYTES;
use crate::job::{JobId, Lane, NodeId};

/// Why a control message was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadControl {
    /// It is too large.
    #[error("a control message of {0} bytes is too large; the limit is {MAX_CONTROL_BYTES} bytes")]
    TooLarge(usize),
    /// It is not JSON, or not of a known form.
    #[error("a control message can't be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// What this program understands. A node of level 1 answers [`Control::WhichHeld`] and takes [`Control::Forwarded`] jobs;
/// one that says nothing does neither.
pub const SPOKEN: u32 = 1;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(level: &u32) -> bool {
    *level == 0
}

/// What nodes tell each other, best effort: losing one costs latency only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Control {
    /// The leader lives, and will say so again within a third of its lease.
    LeaderAlive {
        /// The leading node.
        node: NodeId,
        /// Its term.
        term: i64,
        /// What the database's clock shows, as far as the leader knows: a new leader compares with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        now: Option<DateTime<Utc>>,
        /// So many milliseconds ago the database has answered the leader: a new leader learns by it whether the
        /// database was away.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "optional_millis"
        )]
        age: Option<Duration>,
        /// For so many milliseconds the leader ends no lease, since the clock jumped or the database
        /// was away: a node that has come since learns it.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "optional_millis"
        )]
        doubt: Option<Duration>,
    },
    /// The leader steps down; somebody else should lead at once.
    LeaderLeaves {
        /// The node that led.
        node: NodeId,
    },
    /// A timer was created that is due then.
    TimerSet {
        /// Its due date.
        due: DateTime<Utc>,
    },
    /// A marker came back: what was published before it has been decided.
    MarkerBack {
        /// The lane it travelled.
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
        /// Slots that are free for more work. A node that says so takes [`Rescued`](Control::Rescued) jobs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free: Option<u32>,
        /// Which of these messages it understands: up to [`SPOKEN`].
        #[serde(default, skip_serializing_if = "is_zero")]
        speaks: u32,
        /// The revision of the node's row, which says what it serves. Nodes of older programs have none, and read types and
        /// lanes here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        row: Option<i64>,
    },
    /// The leader asks every node which hints of a lane it holds: a marker is back that may have overtaken them.
    WhichHeld {
        /// The leader.
        node: NodeId,
        /// The number of the question.
        question: u64,
        /// The lane.
        lane: Lane,
        /// Hints that were returned to the broker within so many milliseconds count, too.
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
        /// Jobs whose hints the node holds undecided, or has returned.
        jobs: Vec<JobId>,
        /// No part follows.
        last: bool,
    },
    /// Jobs whose holder has died, for one node: it starts them before what waits there in their lanes.
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
    /// Jobs without a hint were created (by a tool that has no transport of its own): look for them.
    Look,
    /// Ask whoever runs this job to stop it.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Something that a newer node says.
    #[serde(other)]
    Unknown,
}

impl Control {
    /// The node that says this, where one does: what tools say names none.
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

    /// Read a message as it came from the broker. Types and lanes beyond the limits are left out, as are
    /// those that no job can have.
    ///
    /// # Errors
    /// It is larger than [`MAX_CONTROL_BYTES`], or unreadable.
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

    /// Write a message so that every node reads it: of a node with very many types, as many are named as fit.
    ///
    /// # Errors
    /// It is too large for a reader.
    pub fn write(&self) -> Result<Vec<u8>, BadControl> {
        let mut text = serde_json::to_vec(self)?;
        if let Self::NodeAlive {
            node,
            types,
            lanes,
            free,
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

/// A duration in milliseconds.
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

/// The same where it may be unknown.
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
            speaks: 0,
            row: None,
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_not_decoded() {
        // Valid but for its size, so that only the size refuses it.
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
