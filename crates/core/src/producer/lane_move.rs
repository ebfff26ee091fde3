//! Moves jobs from one lane to another, to drain a retired lane.
//!
//! The lane in the job's row counts (protocol rule 31), so a move changes that row. A move goes
//! page by page, each in a short transaction, at a limited rate. Timers, suspended jobs and dead
//! letters come first; they will become ready in the new lane. Ready jobs follow, and get a new
//! `ready_at` and a hint in the new lane. A locked job does not move: its holder decides its
//! outcome. So a run may leave jobs behind, and the next run finds them. Hints that wait in the old
//! lane are harmless: they still lead to their jobs, or are refused.
//!
//! A lane becomes empty only if no jobs are created in it any more. Change the rules and the
//! creators first.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{JobState, Lane};
use crate::producer::commit_hook::{Cause, CommitHook};
use crate::store::error::StoreError;
use crate::store::{LanePage, Origin, Store};

/// The default rate, in jobs per second.
pub const DEFAULT_RATE: u32 = 1_000;
/// The maximum number of jobs in one transaction.
const PAGE: u32 = 500;
/// The page size is chosen for at least this many pages per second, so that a slow rate is even.
const PAGES_A_SECOND: u32 = 4;

/// A move of all jobs of one lane to another.
#[derive(Clone, Debug)]
pub struct LaneMove {
    /// The lane that is drained.
    pub from: Lane,
    /// The lane that gets its jobs.
    pub to: Lane,
    /// The maximum number of jobs per second.
    pub rate: u32,
}

/// The numbers of jobs that were moved to the other lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LaneMoved {
    /// Ready jobs.
    pub ready: u64,
    /// Timers and waiting retries.
    pub timers: u64,
    /// Suspended jobs.
    pub suspended: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Hints published to the new lane. Ready jobs without one wait in an instance whose next job
    /// is hinted.
    pub hints: u64,
}

impl LaneMoved {
    /// Returns the number of all moved jobs.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.ready + self.timers + self.suspended + self.dead_letters
    }
}

impl LaneMove {
    /// Creates a move with the default rate.
    #[must_use]
    pub fn new(from: Lane, to: Lane) -> Self {
        Self {
            from,
            to,
            rate: DEFAULT_RATE,
        }
    }

    /// Returns the problems of the move, each with the remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        // Another writer may have put jobs into a lane of any name.
        if !Lane::is_valid(&self.to.0) {
            found.push(format!(
                "`{}` is not a lane name; use 1 to 64 letters, digits, `-`, `_` or `.`",
                self.to.0.escape_debug()
            ));
        }
        if self.from == self.to {
            found.push(format!(
                "lane `{}` is named twice; name another one to move its jobs to",
                self.from.0.escape_debug()
            ));
        }
        if self.rate == 0 {
            found.push("the rate is 0; give 1 job a second or more".to_owned());
        }
        found
    }

    /// Moves the present jobs of the lane, publishes hints through `hook`, and reports progress
    /// after each page. The move may be stopped at any time: moved jobs stay moved, and another run
    /// continues.
    ///
    /// With a [disconnected](CommitHook::disconnected) hook, the leader finds the ready jobs.
    ///
    /// # Errors
    /// [`StoreError::Config`] if there are [`problems`](Self::problems), before any job is moved;
    /// otherwise a database error.
    pub async fn run(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        mut progress: impl FnMut(LaneMoved),
    ) -> Result<LaneMoved, StoreError> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(StoreError::Config(problems.join("; ")));
        }
        let mut moved = LaneMoved::default();
        let started = Instant::now();
        for state in [
            JobState::Timer,
            JobState::Suspended,
            JobState::DeadLetter,
            // Last, because it also finds jobs that become ready meanwhile.
            JobState::Executable,
        ] {
            let mut page = LanePage {
                from: self.from.clone(),
                to: self.to.clone(),
                state,
                after: None,
                at_most: i64::from((self.rate / PAGES_A_SECOND).clamp(1, PAGE)),
                origin: if hook.is_connected() {
                    Origin::Hook
                } else {
                    Origin::Sql
                },
            };
            loop {
                let done = store.move_lane(&page).await?;
                match state {
                    JobState::Executable => moved.ready += done.moved,
                    JobState::Timer => moved.timers += done.moved,
                    JobState::Suspended => moved.suspended += done.moved,
                    JobState::DeadLetter => moved.dead_letters += done.moved,
                }
                moved.hints += done.ready.len() as u64;
                hook.publish(Cause::Operator, done.ready);
                progress(moved);
                page.after = done.after;
                if page.after.is_none() {
                    break;
                }
                #[allow(clippy::cast_precision_loss, reason = "a pace needs no 53 bits")]
                let due = moved.jobs() as f64 / f64::from(self.rate);
                tokio::time::sleep_until(started + Duration::from_secs_f64(due)).await;
            }
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_moved_is_said_at_once() {
        let lane = |name: &str| Lane(name.to_owned());
        assert!(LaneMove::new(lane("a"), lane("b")).problems().is_empty());
        let bad = LaneMove {
            rate: 0,
            ..LaneMove::new(lane("a b"), lane("a b"))
        };
        let said = bad.problems().join("\n");
        for part in ["not a lane name", "named twice", "rate is 0"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}
