//! A received lane of a claimer.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::cursor::Cursor;
use super::turn::Turn;
use super::watch::Watch;
use crate::job::{JobId, Lane};

/// The interval between searches for rescued jobs in a lane.
const RESCUES: Duration = Duration::from_secs(1);

/// One received lane.
pub(super) struct ClaimedLane {
    pub(super) lane: Lane,
    pub(super) watch: Watch,
    /// The turn of the node, if the transport carries wakes. It then decides instead of `watch`.
    pub(super) turn: Option<Turn>,
    pub(super) cursor: Cursor,
    /// The types with a limit of their own of which the lane may have more jobs, and the position at
    /// which claiming them continues.
    pub(super) limited: BTreeMap<String, Cursor>,
    /// The time of the last search for rescued jobs.
    pub(super) rescued_at: Option<Instant>,
    /// The last rescued job that was looked at, if there may be more.
    pub(super) rescued: Option<JobId>,
    /// The last suspect that was looked at, if there may be more.
    pub(super) suspect: Option<JobId>,
    /// Whether this pass has searched the lane to its end.
    pub(super) done: bool,
    /// The number of jobs claimed since fallback began.
    pub(super) taken: u64,
}

impl ClaimedLane {
    pub(super) fn claims(&self) -> bool {
        match &self.turn {
            Some(turn) => turn.passes(),
            None => self.watch.claims(),
        }
    }

    /// Returns whether jobs of types with a limit may be claimed: also between the passes of a woken
    /// node, as soon as their slots are free.
    pub(super) fn claims_limited(&self) -> bool {
        self.turn.is_some() || self.watch.claims()
    }

    /// Begins to look for jobs of these types, which have limits of their own, from the front.
    pub(super) fn look_for_limited(&mut self, types: &[String]) {
        let all = types.iter().cloned();
        self.limited = all.map(|job_type| (job_type, Cursor::default())).collect();
    }

    /// Returns whether rescued jobs and suspects are looked for.
    pub(super) fn looks_for_struck(&self) -> bool {
        self.turn.as_ref().is_none_or(Turn::looks_for_struck)
    }

    /// Returns whether a search for rescued jobs is due.
    pub(super) fn wants_rescued(&self, now: Instant) -> bool {
        let is_due = self.rescued_at.is_none_or(|then| now - then >= RESCUES);
        is_due && self.is_open() && self.looks_for_struck()
    }

    /// Returns whether the lane gets slots in this pass.
    pub(super) fn is_open(&self) -> bool {
        self.claims() && !self.done
    }
}
