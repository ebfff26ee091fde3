//! One job's whole life, judged by itself.
//!
//! A small machine follows the job from table to table and from lock to lock. What it can't judge
//! alone (instances, parents, series) it hands to [`Instances`] and [`Lineage`].

use super::checker::Limits;
use super::instance::Instances;
use super::lineage::Lineage;
use super::report::Counts;
use super::{
    Answer, Creation, Entry, Event, Invariant, Micros, Outcome, Place, Report, Violation, Waits,
};
use jobwire_core::{Fence, JobId, NodeId};
use std::sync::Arc;

/// Where the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// Not there (yet).
    Nowhere,
    In(Place),
    /// Completed or deleted.
    Gone,
}

/// A lock that has not been given up.
#[derive(Clone, Copy, Debug)]
struct Lock {
    owner: NodeId,
    fence: Fence,
    at: Micros,
    began: Micros,
    expires_at: Micros,
    taken_off: bool,
}

/// How a lock ended that did not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Completed,
    Released,
    Other,
}

/// One run of the handler.
#[derive(Clone, Copy, Debug)]
struct Run {
    owner: NodeId,
    fence: Fence,
    answer: Option<Answer>,
    ended_at: Option<Micros>,
}

pub(super) struct Single<'a> {
    limits: &'a Limits,
    report: &'a mut Report,
    instances: &'a mut Instances,
    job: JobId,
    history: &'a [Entry],
    creation: Option<Arc<Creation>>,
    place: Whereabouts,
    lock: Option<Lock>,
    /// Locks that ended otherwise than by expiry.
    ended: Vec<(Fence, End)>,
    expired_locks: u32,
    /// Locks that began as row locks.
    by_row: Vec<(NodeId, Fence)>,
    highest: Fence,
    runs: Vec<Run>,
    effects: Vec<Fence>,
    completed: Option<Fence>,
    retries: i32,
    due: Option<Micros>,
    /// Since when others see it ready.
    ready_since: Micros,
    found: Option<Place>,
}

impl<'a> Single<'a> {
    /// Judge the entries of one job, in their order.
    pub(super) fn judge(
        limits: &'a Limits,
        report: &'a mut Report,
        instances: &'a mut Instances,
        lineage: &mut Lineage,
        history: &'a [Entry],
    ) {
        let Some(first) = history.first() else { return };
        let mut single = Single {
            limits,
            report,
            instances,
            job: first.job,
            history,
            creation: None,
            place: Whereabouts::Nowhere,
            lock: None,
            ended: Vec::new(),
            expired_locks: 0,
            by_row: Vec::new(),
            highest: Fence(i64::MIN),
            runs: Vec::new(),
            effects: Vec::new(),
            completed: None,
            retries: 0,
            due: None,
            ready_since: 0,
            found: None,
        };
        for entry in history {
            single.step(entry);
        }
        single.end();
        if let Some(creation) = &single.creation {
            lineage.add(first.job, creation, single.completed.is_some());
        }
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.report.counts
    }

    fn violation(&mut self, invariant: Invariant, what: impl Into<String>) {
        self.report.add(Violation {
            invariant,
            jobs: vec![self.job],
            what: what.into(),
            history: self.history.to_vec(),
        });
    }

    fn step(&mut self, entry: &Entry) {
        if !matches!(entry.event, Event::Created(_) | Event::Published) {
            self.must_have_committed(entry);
        }
        match &entry.event {
            Event::Created(creation) => self.created(entry, creation),
            Event::Published => self.published(entry),
            Event::Rehinted => self.counts().rehints += 1,
            Event::Locked {
                owner,
                fence,
                expires_at,
            } => self.locked(entry, *owner, *fence, *expires_at),
            Event::RowHeld { owner, fence } => self.row_held(*owner, *fence),
            Event::RowCompleted { owner, fence } => self.row_completed(*owner, *fence),
            Event::Renewed {
                owner,
                fence,
                expires_at,
            } => self.renewed(entry, *owner, *fence, *expires_at),
            Event::TakenOff { fence } => self.taken_off(entry, *fence),
            Event::Started { owner, fence } => self.started(*owner, *fence),
            Event::Ended {
                owner,
                fence,
                answer,
            } => self.run_ended(entry, *owner, *fence, *answer),
            Event::Effect { fence } => self.effects.push(*fence),
            Event::Completed { owner, fence } => self.completed(entry, *owner, *fence),
            Event::Failed {
                owner,
                fence,
                retries,
                to,
            } => self.failed(entry, *owner, *fence, *retries, *to),
            Event::DeadLettered { owner, fence } => self.dead_lettered(entry, *owner, *fence),
            Event::Released { owner, fence } => {
                self.counts().releases += 1;
                self.give_up(entry, *owner, *fence, End::Released);
                self.becomes_ready(entry.visible);
            }
            Event::Ready => {
                self.expect(Place::Timer, "a timer became executable");
                if self.due.is_some_and(|due| entry.at < due) {
                    self.violation(
                        Invariant::I10,
                        "a timer became executable before its due date",
                    );
                }
                self.place = Whereabouts::In(Place::Executable);
                self.becomes_ready(entry.visible);
            }
            Event::Revived { retries } => {
                self.retries = *retries;
                self.due = None;
                self.place = Whereabouts::In(Place::Executable);
                self.becomes_ready(entry.visible);
            }
            Event::Suspended => {
                self.not_ready(entry.at);
                self.place = Whereabouts::In(Place::Suspended);
            }
            Event::Activated { timer } => {
                self.expect(Place::Suspended, "it was activated");
                self.place = Whereabouts::In(if *timer {
                    Place::Timer
                } else {
                    Place::Executable
                });
                if !timer {
                    self.becomes_ready(entry.visible);
                }
            }
            Event::Deleted => {
                self.not_ready(entry.at);
                self.place = Whereabouts::Gone;
            }
            Event::Found(place) => self.found = Some(*place),
        }
    }

    fn must_have_committed(&mut self, entry: &Entry) {
        match &self.creation {
            None => self.violation(
                Invariant::I2,
                format!("{:?}, and no committed transaction created it", entry.event),
            ),
            Some(creation) if creation.outcome == Outcome::RolledBack => self.violation(
                Invariant::I2,
                format!("{:?}, although its creation was rolled back", entry.event),
            ),
            Some(_) => {}
        }
    }

    fn created(&mut self, entry: &Entry, creation: &Arc<Creation>) {
        if self.creation.is_some() {
            self.violation(Invariant::I12, "the same id was created twice");
            return;
        }
        match creation.outcome {
            Outcome::Committed => self.counts().committed += 1,
            Outcome::RolledBack => self.counts().rolled_back += 1,
            Outcome::Unknown => self.counts().unknown += 1,
        }
        self.retries = creation.retries;
        self.due = creation.due;
        self.creation = Some(creation.clone());
        if creation.outcome == Outcome::Committed {
            self.place = Whereabouts::In(if creation.waits {
                Place::Timer
            } else {
                Place::Executable
            });
            if !creation.waits {
                self.becomes_ready(entry.visible);
            }
        }
    }

    fn published(&mut self, entry: &Entry) {
        self.counts().published += 1;
        let wrong = match self.history.iter().find_map(|e| match &e.event {
            Event::Created(creation) => Some((creation.outcome, e.visible)),
            _ => None,
        }) {
            None => Some("a hint left for a job that nobody created"),
            Some((Outcome::RolledBack, _)) => Some("a hint left for a job that was rolled back"),
            Some((Outcome::Committed, visible)) if entry.at < visible => {
                Some("a hint left before the job's transaction had committed")
            }
            Some(_) => None,
        };
        if let Some(what) = wrong {
            self.violation(Invariant::I2, what);
        }
    }

    fn expect(&mut self, place: Place, what: &str) {
        if self.place != Whereabouts::In(place) {
            let is = self.place;
            self.violation(
                Invariant::I8,
                format!("{what}, but it was {is:?}, not in {place:?}"),
            );
        }
    }

    fn becomes_ready(&mut self, since: Micros) {
        self.ready_since = since;
    }

    /// It was ready until now.
    fn not_ready(&mut self, at: Micros) {
        if self.place == Whereabouts::In(Place::Executable) && self.lock.is_none() {
            self.instances
                .ready(self.job, self.creation.as_deref(), self.ready_since, at);
        }
    }

    /// A lock that was not given up counts until its lease ended.
    fn abandon(&mut self, lock: Lock) {
        self.expired_locks += 1;
        self.hold(lock, lock.expires_at);
        self.becomes_ready(lock.expires_at);
    }

    fn hold(&mut self, lock: Lock, until: Micros) {
        self.instances.held(
            self.job,
            self.creation.as_deref(),
            lock.fence,
            lock.began,
            lock.at,
            until,
        );
    }

    fn locked(&mut self, entry: &Entry, owner: NodeId, fence: Fence, expires_at: Micros) {
        self.counts().locks += 1;
        self.expect(Place::Executable, "it was locked");
        if let Some(lock) = self.lock.take() {
            if entry.at < lock.expires_at {
                self.violation(
                    Invariant::I4,
                    format!("lock {fence} was granted while lock {} lived", lock.fence),
                );
            }
            let late = (entry.at - lock.expires_at).max(0);
            let counts = self.counts();
            counts.takeovers += 1;
            counts.takeover_total += late;
            counts.slowest_takeover = counts.slowest_takeover.max(late);
            self.abandon(lock);
        }
        self.not_ready(entry.at);
        let became_a_lease = fence == self.highest && self.by_row.contains(&(owner, fence));
        if fence <= self.highest && !became_a_lease {
            let highest = self.highest;
            self.violation(
                Invariant::I6,
                format!("lock {fence} after lock {highest}: fences must grow"),
            );
        }
        self.highest = self.highest.max(fence);
        if self.due.is_some_and(|due| entry.at < due) {
            self.violation(Invariant::I10, "it was locked before its due date");
        }
        self.lock = Some(Lock {
            owner,
            fence,
            at: entry.at,
            began: entry.began,
            expires_at,
            taken_off: false,
        });
    }

    /// What a lock of the row excludes, the database excludes: a lease that is older, and is there. One that is newer was
    /// written after the row lock had been lost.
    fn row_held(&mut self, owner: NodeId, fence: Fence) {
        self.counts().row_locks += 1;
        if let Some(lock) = self.lock
            && lock.fence < fence
        {
            self.violation(
                Invariant::I4,
                format!(
                    "its row was held with {fence} while lease {} was there",
                    lock.fence
                ),
            );
        }
        self.by_row.push((owner, fence));
        self.highest = self.highest.max(fence);
    }

    fn row_completed(&mut self, owner: NodeId, fence: Fence) {
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
            self.violation(Invariant::I6, "not the newest lock completed it");
        }
        self.completed = Some(fence);
        self.place = Whereabouts::Gone;
    }

    fn renewed(&mut self, _: &Entry, owner: NodeId, fence: Fence, expires_at: Micros) {
        self.counts().renewals += 1;
        match &mut self.lock {
            Some(lock) if lock.owner == owner && lock.fence == fence && !lock.taken_off => {
                lock.expires_at = expires_at;
            }
            _ => self.violation(
                Invariant::I4,
                format!("lock {fence} was renewed, which its node did not hold any more"),
            ),
        }
    }

    fn taken_off(&mut self, entry: &Entry, fence: Fence) {
        match &mut self.lock {
            Some(lock) if lock.fence == fence => {
                lock.taken_off = true;
                if entry.at < lock.expires_at {
                    self.violation(
                        Invariant::I4,
                        format!("the sweeper took lock {fence} off a job while it lived"),
                    );
                }
            }
            _ => self.violation(
                Invariant::I4,
                format!("the sweeper took lock {fence} off, which nobody held"),
            ),
        }
    }

    fn started(&mut self, owner: NodeId, fence: Fence) {
        self.counts().runs += 1;
        let granted = fence <= self.highest;
        if !granted {
            self.violation(
                Invariant::I4,
                format!("the handler started under lock {fence}, which nobody was given"),
            );
        }
        if self.ended.contains(&(fence, End::Completed)) {
            self.violation(
                Invariant::I4,
                format!("the handler started under lock {fence} after that had completed the job"),
            );
        }
        if self.runs.iter().any(|run| run.fence == fence) {
            self.violation(
                Invariant::I4,
                format!("the handler ran twice under lock {fence}"),
            );
        }
        let others = self.runs.iter().any(|run| {
            run.ended_at.is_none() && !self.ended.iter().any(|(ended, _)| *ended == run.fence)
        });
        if others {
            // Allowed, since locks are checked to follow each other: the other one's has expired.
            self.counts().duplicate_runs += 1;
        }
        self.runs.push(Run {
            owner,
            fence,
            answer: None,
            ended_at: None,
        });
    }

    fn run_ended(&mut self, entry: &Entry, owner: NodeId, fence: Fence, answer: Answer) {
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
                format!("a handler ended under lock {fence} that had not started"),
            ),
        }
    }

    fn has_timeout(&self) -> bool {
        self.creation.as_ref().is_some_and(|c| c.timeout)
    }

    fn run_of(&self, fence: Fence) -> Option<Run> {
        self.runs.iter().find(|run| run.fence == fence).copied()
    }

    /// Every change by a holder names the lock that is held.
    fn give_up(&mut self, entry: &Entry, owner: NodeId, fence: Fence, end: End) {
        self.ended.push((fence, end));
        match self.lock.take() {
            Some(lock) if lock.owner == owner && lock.fence == fence => {
                if lock.taken_off {
                    self.violation(
                        Invariant::I4,
                        format!("lock {fence} was used after the sweeper had taken it off"),
                    );
                }
                // A lease that ran out, and that its holder gives back later, ended by itself.
                let until = match end {
                    End::Released => entry.at.min(lock.expires_at),
                    _ => entry.at,
                };
                self.hold(lock, until);
            }
            other => {
                let held = other.map_or("none".to_owned(), |lock| lock.fence.to_string());
                self.violation(
                    Invariant::I4,
                    format!("lock {fence} changed the job, but the lock that counts is {held}"),
                );
                self.lock = other;
            }
        }
    }

    fn completed(&mut self, entry: &Entry, owner: NodeId, fence: Fence) {
        self.counts().completed += 1;
        if self.completed.is_some() {
            self.violation(Invariant::I3, "it was completed twice");
        }
        self.expect(Place::Executable, "it was completed");
        self.give_up(entry, owner, fence, End::Completed);
        if fence != self.highest {
            self.violation(Invariant::I6, "not the newest lock completed it");
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

    fn failed(&mut self, entry: &Entry, owner: NodeId, fence: Fence, retries: i32, to: Waits) {
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

    fn dead_lettered(&mut self, entry: &Entry, owner: NodeId, fence: Fence) {
        self.expect(Place::Executable, "it became a dead letter");
        self.give_up(entry, owner, fence, End::Other);
        let answer = self.run_of(fence).map(|run| run.answer);
        let had = self.retries;
        match answer {
            Some(Some(Answer::Unrecoverable)) => {}
            // The last attempt failed, panicked or timed out.
            Some(None | Some(Answer::Failed)) if had <= 1 => {}
            Some(Some(_)) if had <= 1 && self.has_timeout() => {}
            // Whoever takes its nodes down is put into quarantine.
            _ if self.expired_locks > 0 => {}
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

    fn end(&mut self) {
        if let Some(lock) = self.lock.take() {
            self.hold(lock, lock.expires_at);
        } else {
            self.not_ready(Micros::MAX);
        }
        let there = match self.place {
            Whereabouts::In(place) => Some(place),
            Whereabouts::Nowhere | Whereabouts::Gone => None,
        };
        match there {
            Some(Place::DeadLetter) => self.counts().dead += 1,
            Some(_) => self.counts().left += 1,
            None => {}
        }
        if self.limits.found && self.found != there {
            let found = self.found;
            self.violation(
                Invariant::I8,
                format!("by its history it should be in {there:?}, it was found in {found:?}"),
            );
        }
        let waits = matches!(there, Some(Place::Executable | Place::Timer));
        if waits && self.limits.drained {
            self.violation(
                Invariant::I1,
                "it was never finished, although everything was healed and drained",
            );
        }
        self.end_of_effects();
    }

    fn end_of_effects(&mut self) {
        let transactional = self.creation.as_ref().is_some_and(|c| c.transactional);
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
