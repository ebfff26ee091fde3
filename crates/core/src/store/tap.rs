//! The commit tap of a store: it reports jobs that other programs commit by plain SQL.
//!
//! The commit hook hints a job that the library creates. A job of plain SQL has no hint until the
//! leader finds it. With a tap, the leader learns of such a job shortly after its commit. A tap may
//! miss jobs, so the leader cycle still looks for unhinted jobs.

use std::fmt;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::{JobId, text_enum};

text_enum! {
    /// The condition under which the leader uses the commit tap of its store.
    TapMode {
        /// The leader uses the tap if an operator has set it up (`jobwire tap create`) and the
        /// server allows it.
        Auto = "auto",
        /// The leader always uses the tap. While it cannot, it looks for unhinted jobs every
        /// second.
        On = "on",
        /// The leader does not use the tap.
        Off = "off",
    }
}

/// The answer of a store that was asked for its commit tap.
pub enum TapOffer {
    /// The tap, which begins to connect.
    Open(Box<dyn CommitTap>),
    /// The tap is not set up, or the store has none. The text has the remedy.
    NotSetUp(String),
    /// The tap is set up, but the server does not allow it. The text has the reason and the remedy.
    Unusable(String),
}

impl TapOffer {
    /// Returns the answer of a store without a tap.
    pub(super) fn missing(store: &str) -> Self {
        Self::NotSetUp(format!("the store `{store}` has no commit tap"))
    }
}

impl fmt::Debug for TapOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(_) => f.write_str("Open"),
            Self::NotSetUp(text) => f.debug_tuple("NotSetUp").field(text).finish(),
            Self::Unusable(text) => f.debug_tuple("Unusable").field(text).finish(),
        }
    }
}

/// Reports committed jobs. It ends when it is dropped.
#[async_trait]
pub trait CommitTap: Send {
    /// Waits for news. Nothing is lost if the future is dropped.
    async fn next(&mut self) -> TapNews;

    /// Returns news that have already arrived.
    fn try_next(&mut self) -> Option<TapNews>;
}

/// A report of a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapNews {
    /// The tap stands and reports jobs that commit from now on. Jobs that committed before may be
    /// missing.
    Standing,
    /// The tap does not stand. It tries again.
    Gap {
        /// The reason.
        why: String,
        /// Whether the gap lasts until an operator changes a setting or a right.
        lasts: bool,
    },
    /// Jobs and timers that one transaction of plain SQL created. A large transaction takes many
    /// reports.
    Committed(Committed),
}

/// Jobs and timers of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Executable jobs. They may become visible some milliseconds after the report.
    pub jobs: Vec<JobId>,
    /// The number of timers.
    pub timers: usize,
    /// The earliest due date of the timers.
    pub due: Option<DateTime<Utc>>,
    /// The time of the commit, by the database's clock.
    pub at: DateTime<Utc>,
    /// The time of the report, by the database's clock.
    pub now: DateTime<Utc>,
}

/// The jobs of a report, after [`Store::mark_hinted`](super::Store::mark_hinted).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Jobs that had no hint and now count as hinted. The caller publishes their hints.
    pub ready: Vec<Ready>,
    /// Jobs that had a hint before.
    pub hinted: Vec<JobId>,
}
