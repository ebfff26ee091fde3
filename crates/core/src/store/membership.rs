//! Membership: the nodes of a fleet, and the jobs that each of them takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::scope::{Group, Names, Scope, Services};
use crate::job::{Lane, NodeId};
use crate::store::attempts::AttemptsKept;
use crate::store::error::StoreError;
use crate::telemetry::log_throttle::LogThrottle;

/// Maximum number of nodes that are read.
pub const MAX_NODES: usize = 1_024;
/// Maximum number of names of one kind that a node takes.
pub const MAX_NAMES: usize = 4_096;
/// Maximum number of bytes of all names of a node.
const MAX_NAME_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes of a row that is read. A node writes no larger one.
pub(super) const ROW_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of bytes of all rows of one read. The smallest rows are read first, so large ones hide
/// no smaller one.
pub(super) const READ_BYTES: usize = 32 * 1024 * 1024;

/// A node's own description, as it writes it to its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The node.
    pub id: NodeId,
    /// The revision, which grows with every change.
    pub revision: i64,
    /// The types that it serves.
    pub types: Vec<String>,
    /// The lanes that it receives.
    pub lanes: Vec<Lane>,
    /// The jobs of these types that it takes.
    pub scope: Scope,
    /// The host on which it runs.
    pub host: String,
    /// The program's version.
    pub version: String,
    /// Its transport.
    pub transport: String,
    /// The types whose attempts it records. Empty for a node of an older version.
    pub attempts_kept: AttemptsKept,
}

/// A node as recorded in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node's own description.
    pub membership: Membership,
    /// The time of its start, by the database's clock.
    pub started_at: DateTime<Utc>,
    /// The time at which it last wrote its row.
    pub seen_at: DateTime<Utc>,
    /// The time between that write and this read, by the database's clock. Of a write that seems to lie in
    /// the future: zero up to five minutes, and the distance beyond.
    pub silent_for: Duration,
}

/// The holder of leases that have not expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The node that the leases name.
    pub owner: NodeId,
    /// The number of its leases.
    pub jobs: u64,
    /// The time until the last of them expires, by the database's clock.
    pub remaining: Duration,
}

/// The age of a row from which its node counts as dead, if no beats are received. A node writes its
/// row once a minute, so it may miss two writes.
const LIVES: Duration = Duration::from_secs(150);

/// A date that lies further in the future is no sign of life. The clock was set back by more, or
/// another program has written the row.
pub(super) const AHEAD: Duration = Duration::from_secs(300);

/// Returns the time for which a node is silent, by the age of its row in seconds. The age of a row from
/// the future is negative.
#[doc(hidden)]
#[must_use]
pub fn silence(age: f64) -> Duration {
    let silent = if age < -AHEAD.as_secs_f64() {
        -age
    } else {
        age.max(0.0)
    };
    Duration::try_from_secs_f64(silent).unwrap_or(Duration::MAX)
}

impl NodeView {
    /// Returns whether the node has written its row lately.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.silent_for <= LIVES
    }
}

/// The lines about unreadable rows: any unknown id makes a node read the rows.
static UNREADABLE: LazyLock<Mutex<LogThrottle>> = LazyLock::new(Mutex::default);

/// Returns the error of a row that a read leaves out because of its size.
pub(super) fn too_large(id: impl std::fmt::Display, bytes: i64) -> StoreError {
    StoreError::BadRow(format!(
        "the row of node {id} has {bytes} bytes and is left out: a read takes at most {ROW_BYTES} bytes of a \
         row and {READ_BYTES} of all rows, the smallest first"
    ))
}

/// Returns the rows that can be read. A node with an unreadable row is left out.
pub(super) fn readable(rows: impl Iterator<Item = Result<NodeView, StoreError>>) -> Vec<NodeView> {
    let (mut read, mut bad, mut first) = (Vec::new(), 0_u32, None);
    for row in rows {
        match row {
            Ok(node) => read.push(node),
            Err(error) => {
                bad += 1;
                first.get_or_insert(error);
            }
        }
    }
    let mut throttle = UNREADABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = first
        && let Some(more) = throttle.now()
    {
        tracing::warn!(
            rows = bad, %error, more,
            "rows of the table `node` can't be read and are ignored; delete the rows that no node wrote"
        );
    }
    read
}

/// Returns the text of the column `attempts_kept`: an object of types with milliseconds, or none.
pub(super) fn kept_as_text(kept: &AttemptsKept) -> Option<String> {
    let millis = |keep: &Duration| u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let of_types = kept
        .iter()
        .map(|(of, keep)| (of.clone(), millis(keep).into()));
    (!kept.is_empty()).then(|| serde_json::Value::Object(of_types.collect()).to_string())
}

/// Reads the column `attempts_kept`. What can't be read is left out: the node serves its types all the
/// same.
pub(super) fn read_kept(text: Option<&str>) -> AttemptsKept {
    let kept: Option<BTreeMap<String, serde_json::Value>> =
        text.and_then(|text| serde_json::from_str(text).ok());
    kept.into_iter()
        .flatten()
        .filter_map(|(of, millis)| Some((of, Duration::from_millis(millis.as_u64()?))))
        .take(MAX_NAMES)
        .collect()
}

/// Returns the services of the living nodes among these.
#[must_use]
pub fn services_of(nodes: &[NodeView]) -> Services {
    let living = nodes.iter().filter(|node| node.lives());
    let groups = living.map(|node| Group {
        types: node.membership.types.clone(),
        scope: node.membership.scope.clone(),
    });
    Services::of(groups.collect())
}

/// Returns the lanes that the living nodes receive, each once, in order.
#[must_use]
pub fn received_by(nodes: &[NodeView]) -> Vec<Lane> {
    let living = nodes.iter().filter(|node| node.lives());
    let lanes: BTreeSet<&Lane> = living.flat_map(|node| &node.membership.lanes).collect();
    lanes.into_iter().cloned().collect()
}

impl Membership {
    /// Rejects values that the tables refuse, with a message that names the field.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), StoreError> {
        let named = |names: &Names| names.iter().flatten().map(String::len).collect::<Vec<_>>();
        let kinds = [
            ("types", self.types.iter().map(String::len).collect()),
            (
                "lanes",
                self.lanes.iter().map(|lane| lane.0.len()).collect(),
            ),
            ("deployments", named(&self.scope.deployments)),
            ("categories", named(&self.scope.categories)),
            ("tenants", named(&self.scope.tenants)),
            (
                "attempts_kept",
                self.attempts_kept.keys().map(String::len).collect(),
            ),
        ];
        let mut bytes = 0;
        for (kind, lengths) in kinds {
            if lengths.len() > MAX_NAMES {
                return Err(StoreError::Config(format!(
                    "`{kind}` of a node has {} names, more than {MAX_NAMES}; spread them over \
                     several nodes",
                    lengths.len()
                )));
            }
            bytes += lengths.iter().sum::<usize>();
        }
        if bytes > MAX_NAME_BYTES {
            return Err(StoreError::Config(format!(
                "the names that a node takes have {bytes} bytes, more than {MAX_NAME_BYTES}; \
                 spread them over several nodes"
            )));
        }
        let row = self.bytes_as_json();
        if row > ROW_BYTES {
            return Err(StoreError::Config(format!(
                "the names that a node takes have {row} bytes as JSON, more than {ROW_BYTES}; use fewer quotes \
                 and control characters in them, or spread them over several nodes"
            )));
        }
        Ok(())
    }

    /// Returns the number of bytes of the texts of the row, with the names as JSON.
    fn bytes_as_json(&self) -> usize {
        let list = |names: &mut dyn Iterator<Item = &str>| {
            let each = names.map(|name| serde_json::Value::from(name).to_string().len() + 1);
            each.sum::<usize>() + 2
        };
        let named = |names: &Names| {
            let names = names.as_ref();
            names.map_or(0, |names| list(&mut names.iter().map(String::as_str)))
        };
        let texts = [&self.host, &self.version, &self.transport];
        list(&mut self.types.iter().map(String::as_str))
            + list(&mut self.lanes.iter().map(|lane| &*lane.0))
            + named(&self.scope.deployments)
            + named(&self.scope.categories)
            + named(&self.scope.tenants)
            + kept_as_text(&self.attempts_kept).map_or(0, |text| text.len())
            + texts.into_iter().map(String::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_far_in_the_future_is_no_sign_of_life() {
        let seconds = |age| silence(age).as_secs();
        assert_eq!([-300.0, -1.0, 0.0, 7.0].map(seconds), [0, 0, 0, 7]);
        assert_eq!([-600.0, 1e300].map(seconds), [600, u64::MAX]);
    }

    #[test]
    fn a_node_whose_row_would_be_too_large_to_be_read_is_refused() {
        let of = |name: &str| Membership {
            id: NodeId::generate(),
            revision: 1,
            types: vec![name.to_owned(); MAX_NAMES],
            lanes: Vec::new(),
            scope: Scope::default(),
            host: "h".repeat(255),
            version: "1.2.3".to_owned(),
            transport: "amqp".to_owned(),
            attempts_kept: AttemptsKept::new(),
        };
        of(&"x".repeat(255)).check().unwrap();
        let quotes = of(&"\"".repeat(255)).check().unwrap_err().to_string();
        assert!(quotes.contains("bytes as JSON"), "{quotes}");
        let long = of(&"x".repeat(257)).check().unwrap_err().to_string();
        assert!(long.contains("spread them"), "{long}");
    }

    #[test]
    fn of_the_types_that_record_attempts_only_the_unreadable_ones_are_left_out() {
        let kept = AttemptsKept::from([("mail".to_owned(), Duration::from_millis(1_500))]);
        assert_eq!(read_kept(kept_as_text(&kept).as_deref()), kept);
        let odd = r#"{"fax": -1, "mail": 1500, "print": "7d"}"#;
        assert_eq!(read_kept(Some(odd)), kept);
        for text in ["[]", "null", "7", "{", r#"{"mail": {}}"#] {
            assert_eq!(read_kept(Some(text)), AttemptsKept::new(), "{text}");
        }
        let many: Vec<String> = (0..=MAX_NAMES).map(|of| format!("\"{of}\": 1")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(read_kept(Some(&many)).len(), MAX_NAMES);
    }
}
