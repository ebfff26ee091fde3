//! The requests and answers of the endpoint. Times are milliseconds since 1970.

use chrono::{DateTime, Utc};
use jobwire_core::NodeId;
use jobwire_core::job::LockToken;
use jobwire_core::job::scope::Names;
use jobwire_core::store::LockTerms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::engine_id;
use crate::owner::owner;
use crate::row::EngineRow;

/// A request without fields.
#[derive(Serialize)]
pub(super) struct Nothing {}

/// The answer of an operation that returns nothing.
#[derive(Deserialize)]
pub(super) struct Done {}

pub(super) fn millis(duration: Duration) -> u64 {
    // The endpoint refuses longer leases.
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The node and the filters of a lock request.
#[derive(Serialize)]
pub(super) struct Terms<'a> {
    node: String,
    fence: i64,
    lease: u64,
    tenants: Option<&'a BTreeSet<String>>,
    categories: Option<&'a BTreeSet<String>>,
}

impl<'a> Terms<'a> {
    pub(super) fn of(terms: &'a LockTerms, fence: i64) -> Self {
        let names = |names: &'a Names| -> Option<&'a BTreeSet<String>> { names.as_ref() };
        Self {
            node: terms.owner.to_string(),
            fence,
            lease: millis(terms.lease),
            tenants: names(&terms.scope.tenants),
            categories: names(&terms.scope.categories),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Wanted<'a> {
    pub(super) id: String,
    pub(super) instance: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct Lock<'a> {
    #[serde(flatten)]
    pub(super) terms: Terms<'a>,
    pub(super) jobs: Vec<Wanted<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Locked {
    pub(super) jobs: Vec<EngineRow>,
    pub(super) refused: Vec<Refused>,
}

#[derive(Deserialize)]
pub(super) struct Refused {
    pub(super) id: String,
    pub(super) why: String,
    #[serde(default)]
    pub(super) job: Option<EngineRow>,
}

/// A lock that a node holds.
#[derive(Serialize)]
pub(super) struct Held {
    pub(super) id: String,
    owner: String,
    instance: Option<String>,
    unanswered: bool,
}

impl Held {
    /// Returns the lock; `None` if the id is not one of the engine.
    pub(super) fn of(node: NodeId, held: &LockToken, unanswered: bool) -> Option<Self> {
        Some(Self {
            id: engine_id(held.id)?,
            owner: owner(node, held.fence),
            instance: held.instance.clone(),
            unanswered,
        })
    }
}

#[derive(Serialize)]
pub(super) struct Renew {
    pub(super) lease: u64,
    pub(super) held: Vec<Held>,
}

#[derive(Deserialize)]
pub(super) struct Renewed {
    pub(super) renewed: Vec<String>,
    pub(super) busy: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Lost {
    pub(super) node: String,
    pub(super) lease: u64,
    pub(super) known: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Jobs {
    pub(super) jobs: Vec<EngineRow>,
}

#[derive(Serialize)]
pub(super) struct Settle<'a> {
    pub(super) held: Vec<Held>,
    pub(super) take: Option<Terms<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Settled {
    pub(super) fates: Vec<Fate>,
    pub(super) next: Vec<EngineRow>,
    pub(super) ready: Vec<EngineRow>,
}

#[derive(Deserialize)]
pub(super) struct Fate {
    pub(super) id: String,
    pub(super) fate: String,
    #[serde(default, with = "chrono::serde::ts_milliseconds_option")]
    pub(super) due: Option<DateTime<Utc>>,
}

#[derive(Serialize)]
pub(super) struct Run<'a> {
    pub(super) id: &'a str,
    pub(super) owner: &'a str,
    pub(super) lease: u64,
}

#[derive(Serialize)]
pub(super) struct AtMost {
    pub(super) at_most: i64,
}

#[derive(Deserialize)]
pub(super) struct Timers {
    pub(super) ready: Vec<EngineRow>,
    #[serde(default, with = "chrono::serde::ts_milliseconds_option")]
    pub(super) next_due: Option<DateTime<Utc>>,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) now: DateTime<Utc>,
}

#[derive(Deserialize)]
pub(super) struct Rescued {
    pub(super) jobs: Vec<EngineRow>,
    pub(super) timers: u64,
    pub(super) ready: Vec<EngineRow>,
}

#[derive(Serialize)]
pub(super) struct Orphans {
    pub(super) after: Option<String>,
    #[serde(with = "chrono::serde::ts_milliseconds_option")]
    pub(super) created_before: Option<DateTime<Utc>>,
    pub(super) limit: i64,
}

#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) jobs: Vec<EngineRow>,
    pub(super) next: Option<String>,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) now: DateTime<Utc>,
}

#[derive(Serialize)]
pub(super) struct Lead {
    pub(super) node: String,
    pub(super) transport: &'static str,
    pub(super) lease: u64,
}

#[derive(Deserialize)]
pub(super) struct Leads {
    pub(super) leads: bool,
    pub(super) term: i64,
    pub(super) node: String,
    pub(super) transport: String,
    pub(super) remaining: u64,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) now: DateTime<Utc>,
}

#[derive(Serialize)]
pub(super) struct OfNode {
    pub(super) node: String,
}

#[derive(Serialize)]
pub(super) struct Join {
    pub(super) node: String,
    pub(super) about: String,
}

#[derive(Deserialize)]
pub(super) struct Nodes {
    pub(super) nodes: Vec<Member>,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) now: DateTime<Utc>,
}

#[derive(Deserialize)]
pub(super) struct Member {
    pub(super) node: String,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) started: DateTime<Utc>,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) seen: DateTime<Utc>,
    pub(super) about: String,
}

#[derive(Clone, Serialize, Default)]
pub(super) struct Find {
    pub(super) states: Vec<&'static str>,
    pub(super) ids: Option<Vec<String>>,
    pub(super) instance: Option<String>,
    pub(super) handler: Option<String>,
    /// The id after which the list begins.
    pub(super) after: Option<String>,
    pub(super) limit: i64,
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct Found {
    pub(super) jobs: Vec<EngineRow>,
    /// Whether there may be more.
    #[serde(default)]
    pub(super) cut: bool,
}

/// The numbers of unlocked jobs.
#[derive(Deserialize)]
pub(super) struct Waiting {
    pub(super) kinds: Vec<Kind>,
}

/// The number of unlocked jobs with the same properties.
#[derive(Deserialize)]
pub(super) struct Kind {
    pub(super) handler: Option<String>,
    pub(super) category: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) jobs: i64,
}

#[derive(Deserialize)]
pub(super) struct Released {
    pub(super) released: u64,
    /// The locks that have not expired: their executions may still run.
    #[serde(default)]
    pub(super) left: u64,
}

#[derive(Deserialize)]
pub(super) struct Clock {
    #[serde(with = "chrono::serde::ts_milliseconds")]
    pub(super) now: DateTime<Utc>,
}

/// The state of the engine, as the endpoint reports it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Probe {
    pub(super) contract: u32,
    pub(super) engine: String,
    pub(super) version: Option<String>,
    /// Whether the engine's own executor is active.
    pub(super) executor: bool,
    pub(super) database: String,
    /// The lead of the clock of the engine's machine over that of the database, in milliseconds.
    pub(super) clock_ahead: i64,
    pub(super) ids: Vec<String>,
    pub(super) other_scopes: i64,
    pub(super) handlers: Vec<String>,
    /// Whether an engine node has locked jobs.
    pub(super) polls: bool,
}
