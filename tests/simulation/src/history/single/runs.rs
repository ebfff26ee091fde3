//! Runs of the handler and their results.

use super::locks::End;
use super::{Invariant, Place, Single, Whereabouts};
use crate::history::{Answer, Entry, Micros, Waits};
use jobwire_core::{Fence, NodeId};

/// One run of the handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) owner: NodeId,
    pub(super) fence: Fence,
    pub(super) answer: Option<Answer>,
    pub(super) ended_at: Option<Micros>,
}

impl Single<'_> {
    pub(super) fn started(&mut self, owner: NodeId, fence: Fence) {
        self.counts().runs += 1;
        let granted = fence <= self.highest;
        if !granted {
            self.violation(
                Invariant::I4,
                format!("the handler started under lock {fence}, which was never granted"),
            );
        }
        if self.ended.contains(&(fence, End::Completed)) {
            self.violation(
                Invariant::I4,
                format!(
                    "the handler started under lock {fence} after this lock had completed the job"
                ),
            );
        }
        let transactional = self.is_transactional();
        if let Some(run) = self.runs.iter_mut().find(|run| run.fence == fence) {
            if transactional && run.owner == owner {
                // The database failed and rolled back the transaction of the former run: it runs
                // again (rule 29).
                run.answer = None;
                run.ended_at = None;
                return;
            }
            self.violation(
                Invariant::I4,
                format!("the handler ran twice under lock {fence}"),
            );
        }
        let others = self.runs.iter().any(|run| {
            run.ended_at.is_none() && !self.ended.iter().any(|(ended, _)| *ended == run.fence)
        });
        if others {
            // Allowed: locks are checked to follow each other, so the other run's lease has
            // expired.
            self.counts().duplicate_runs += 1;
        }
        self.runs.push(Run {
            owner,
            fence,
            answer: None,
            ended_at: None,
        });
    }

    pub(super) fn run_ended(&mut self, entry: &Entry, owner: NodeId, fence: Fence, answer: Answer) {
        if self.ended.contains(&(fence, End::Completed)) {
            self.violation(
                Invariant::I4,
                format!("lock {fence} completed the job while its handler still ran"),
            );
        }
        let run = self.runs.iter_mut().find(|run| run.fence == fence);
        match run {
            Some(run) if run.owner == owner => {
                run.answer = Some(answer);
                run.ended_at = Some(entry.at);
            }
            _ => self.violation(
                Invariant::I4,
                format!("a handler ended under lock {fence} but had not started"),
            ),
        }
    }

    fn is_transactional(&self) -> bool {
        self.creation.as_ref().is_some_and(|c| c.transactional)
    }

    fn has_timeout(&self) -> bool {
        self.creation.as_ref().is_some_and(|c| c.timeout)
    }

    fn run_of(&self, fence: Fence) -> Option<Run> {
        self.runs.iter().find(|run| run.fence == fence).copied()
    }

    pub(super) fn completed(&mut self, entry: &Entry, owner: NodeId, fence: Fence) {
        self.counts().completed += 1;
        if self.completed.is_some() {
            self.violation(Invariant::I3, "it was completed twice");
        }
        self.expect(Place::Executable, "it was completed");
        self.give_up(entry, owner, fence, End::Completed);
        if fence != self.highest {
            self.violation(
                Invariant::I6,
                "it was completed by a lock that is not the newest",
            );
        }
        if self.limits.handlers {
            match self.run_of(fence).map(|run| run.answer) {
                Some(Some(Answer::Done)) => {}
                None => self.violation(
                    Invariant::I1,
                    format!("lock {fence} completed it, but no handler had run under it"),
                ),
                Some(None) => self.violation(
                    Invariant::I4,
                    format!("lock {fence} completed it, but its handler had not ended"),
                ),
                Some(Some(answer)) => self.violation(
                    Invariant::I4,
                    format!("lock {fence} completed it, but its handler had answered {answer:?}"),
                ),
            }
        }
        self.completed = Some(fence);
        self.place = Whereabouts::Gone;
    }

    pub(super) fn failed(
        &mut self,
        entry: &Entry,
        owner: NodeId,
        fence: Fence,
        retries: i32,
        to: Waits,
    ) {
        self.expect(Place::Executable, "an attempt failed");
        self.give_up(entry, owner, fence, End::Other);
        let spent = self.retries - retries;
        let answer = self.run_of(fence).map(|run| run.answer);
        let wrong = match (spent, answer) {
            (0, Some(Some(Answer::Failed))) => Some("an attempt failed and cost nothing"),
            (0, _) => None,
            (1, None) if self.limits.handlers => Some("an attempt was spent that never started"),
            (1, Some(Some(Answer::Again))) if !self.has_timeout() => {
                Some("an attempt was spent on a snooze, a conflict or a stop")
            }
            (1, _) if retries >= 0 => None,
            _ => Some("a failure takes exactly one attempt, and never the last"),
        };
        if let Some(what) = wrong {
            self.violation(
                Invariant::I7,
                format!("{what}: {} → {retries}", retries + spent),
            );
        }
        let counts = self.counts();
        if spent == 0 {
            counts.free_attempts += 1;
        } else {
            counts.failures += 1;
        }
        self.retries = retries;
        match to {
            Waits::Timer(due) => {
                self.due = Some(due);
                self.place = Whereabouts::In(Place::Timer);
            }
            Waits::Suspended => self.place = Whereabouts::In(Place::Suspended),
        }
    }

    pub(super) fn dead_lettered(&mut self, entry: &Entry, owner: NodeId, fence: Fence) {
        self.expect(Place::Executable, "it became a dead letter");
        let strikes = self.struck.len();
        self.give_up(entry, owner, fence, End::Other);
        let answer = self.run_of(fence).map(|run| run.answer);
        let had = self.retries;
        match answer {
            Some(Some(Answer::Unrecoverable)) => {}
            // The last attempt failed, panicked or timed out.
            Some(None | Some(Answer::Failed)) if had <= 1 => {}
            Some(Some(_)) if had <= 1 && self.has_timeout() => {}
            // A job whose holders die goes into quarantine.
            _ if (self.limits.quarantine).is_none_or(|limit| strikes >= limit)
                && self.expired_locks > 0 => {}
            None if !self.limits.handlers => {}
            _ => self.violation(
                Invariant::I7,
                format!(
                    "it became a dead letter with {had} attempts left; its handler: {answer:?}"
                ),
            ),
        }
        self.retries = 0;
        self.place = Whereabouts::In(Place::DeadLetter);
    }

    pub(super) fn row_completed(&mut self, owner: NodeId, fence: Fence) {
        self.counts().completed += 1;
        self.counts().row_completions += 1;
        if self.completed.is_some() {
            self.violation(Invariant::I3, "it was completed twice");
        }
        self.expect(Place::Executable, "it was completed");
        self.ended.push((fence, End::Completed));
        if !self.by_row.contains(&(owner, fence)) {
            self.violation(
                Invariant::I1,
                "it was deleted, and no run that held its row had ended",
            );
        }
        if let Some(lock) = self.lock {
            self.violation(
                Invariant::I4,
                format!(
                    "row lock {fence} completed it while lease {} was there",
                    lock.fence
                ),
            );
        }
        if fence != self.highest {
            self.violation(
                Invariant::I6,
                "it was completed by a lock that is not the newest",
            );
        }
        self.completed = Some(fence);
        self.place = Whereabouts::Gone;
    }

    pub(super) fn end_of_effects(&mut self) {
        let transactional = self.is_transactional();
        let expected: Vec<Fence> = self
            .completed
            .filter(|_| transactional)
            .into_iter()
            .collect();
        if self.effects != expected {
            let effects = std::mem::take(&mut self.effects);
            self.violation(
                Invariant::I3,
                format!(
                    "its completing transaction left rows under the locks {effects:?}, not {expected:?}"
                ),
            );
        }
    }
}
