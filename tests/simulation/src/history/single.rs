//! The life of one job, judged by itself.
//!
//! A small state machine follows the job from table to table and from lock to lock. Checks that
//! concern several jobs (instances, parents, series) go to [`Instances`] and [`Lineage`].

mod locks;
mod runs;
mod strikes;

use self::locks::{End, Lock};
use self::runs::Run;
use super::checker::Limits;
use super::instance::Instances;
use super::lineage::Lineage;
use super::report::Counts;
use super::{Creation, Entry, Event, Invariant, Micros, Outcome, Place, Report, Violation};
use jobwire_core::{Fence, JobId, NodeId};
use std::sync::Arc;

/// The place of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// In no table (yet).
    Nowhere,
    In(Place),
    /// Completed or deleted.
    Gone,
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
    /// Locks that ended other than by expiry.
    ended: Vec<(Fence, End)>,
    expired_locks: u32,
    /// The locks whose ends are strikes.
    struck: Vec<Fence>,
    /// Locks that began as row locks.
    by_row: Vec<(NodeId, Fence)>,
    highest: Fence,
    runs: Vec<Run>,
    effects: Vec<Fence>,
    completed: Option<Fence>,
    retries: i32,
    due: Option<Micros>,
    /// The time from which others see it ready.
    ready_since: Micros,
    found: Option<Place>,
    /// The end of the lease of a dead holder, and the number of hints since, until the next lock.
    taken_off: Option<(Micros, u32)>,
}

impl<'a> Single<'a> {
    /// Judges the entries of one job, in order.
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
            struck: Vec::new(),
            by_row: Vec::new(),
            highest: Fence::new(i64::MIN),
            runs: Vec::new(),
            effects: Vec::new(),
            completed: None,
            retries: 0,
            due: None,
            ready_since: 0,
            found: None,
            taken_off: None,
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

    fn rehinted(&mut self, entry: &Entry) {
        let rare = self.is_rare();
        let taken_off = match &mut self.taken_off {
            Some((since, hints)) => {
                *hints += 1;
                Some((*since, *hints))
            }
            None => None,
        };
        let counts = self.counts();
        counts.rehints += 1;
        if rare {
            counts.rare_rehints += 1;
        } else if taken_off.is_some() {
            counts.takeover_rehints += 1;
        }
        // The pauses before the second hint and the following ones are 1, 2, 4 … times the first.
        if let (Some((since, hints)), Some(first)) = (taken_off, self.limits.hinted_after)
            && hints >= 2
        {
            let pauses = (1_i64 << (hints - 1).min(20)) - 1;
            let late = entry.at - since;
            if late < pauses * first * 9 / 10 {
                self.violation(
                    Invariant::I11,
                    format!("hint {hints} after the end of a lease came {late} µs after that end"),
                );
            }
        }
    }

    fn step(&mut self, entry: &Entry) {
        if let Event::Locked { .. }
        | Event::Suspended
        | Event::Activated { .. }
        | Event::Revived { .. }
        | Event::Deleted = entry.event
        {
            self.taken_off = None;
        }
        if !matches!(entry.event, Event::Created(_) | Event::Published) {
            self.must_have_committed(entry);
        }
        match &entry.event {
            Event::Created(creation) => self.created(entry, creation),
            Event::Published => self.published(entry),
            Event::Rehinted => self.rehinted(entry),
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
            Event::TakenOff { fence } => {
                self.taken_off = Some((entry.at, 0));
                self.taken_off(entry, *fence);
            }
            Event::Strikes(strikes) => self.strikes_changed(*strikes),
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
            Event::Released { owner, fence } => self.released(entry, *owner, *fence),
            Event::Parked { owner, fence } => {
                let struck = std::mem::take(&mut self.struck);
                self.released(entry, *owner, *fence);
                self.struck = struck;
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

    fn released(&mut self, entry: &Entry, owner: NodeId, fence: Fence) {
        self.counts().releases += 1;
        self.give_up(entry, owner, fence, End::Released);
        self.becomes_ready(entry.visible);
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

    fn is_rare(&self) -> bool {
        self.creation.as_ref().is_some_and(|creation| creation.rare)
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
            None => Some("a hint was published for a job that was not created"),
            Some((Outcome::RolledBack, _)) => Some("a hint was published for a rolled-back job"),
            Some((Outcome::Committed, visible)) if entry.at < visible => {
                Some("a hint was published before the job's transaction had committed")
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

    /// Ends the span in which the job was ready.
    fn not_ready(&mut self, at: Micros) {
        if self.place == Whereabouts::In(Place::Executable) && self.lock.is_none() {
            self.instances
                .ready(self.job, self.creation.as_deref(), self.ready_since, at);
        }
    }

    fn end(&mut self) {
        if let Some(lock) = self.lock.take() {
            self.hold(lock, lock.taken_off.unwrap_or(lock.expires_at));
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
                format!("its history ends in {there:?}, but it was found in {found:?}"),
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
}
