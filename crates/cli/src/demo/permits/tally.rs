//! The observations of this process during a run: the jobs created and rolled back here, the
//! attempts that started, and their results. The account compares them with the database.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use jobwire_core::{HandlerResult, Job, JobId, JobKind, Outcome, Verdict};

use crate::demo::account::{Account, Check, Latency};
use crate::demo::ledger::{self, Entry};
use crate::demo::stage::Stage;
use crate::error::Error;

use super::{Run, exists};

/// The number of jobs of an application.
pub(super) const JOBS_EACH: u64 = 8;
/// The number of jobs that an activity creates, by its position in `event_log`.
const CREATES: [(i64, u64); 4] = [(1, 2), (2, 3), (3, 2), (4, 0)];

/// See the [module](self).
#[derive(Default)]
pub(super) struct Tally(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    committed: HashMap<JobId, Instant>,
    rolled_back: Vec<JobId>,
    /// The start of each job's first attempt.
    started: HashMap<JobId, Instant>,
    done: HashMap<JobId, u32>,
    /// The done jobs that write no row.
    done_apart: HashSet<JobId>,
    retried: u64,
    gave_up: HashSet<JobId>,
    late: Vec<Duration>,
    /// Exclusive jobs that run now, by instance.
    running: HashMap<String, JobId>,
    overlaps: Vec<String>,
}

impl Tally {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn committed(&self, id: JobId) {
        self.seen().committed.insert(id, Instant::now());
    }

    pub(super) fn rolled_back(&self, id: JobId) {
        self.seen().rolled_back.push(id);
    }

    /// Returns the number of jobs that have ended.
    pub(super) fn ended(&self) -> u64 {
        let seen = self.seen();
        (seen.done.len() + seen.gave_up.len()) as u64
    }

    pub(super) fn in_short(&self) -> String {
        let seen = self.seen();
        format!(
            "({} retried, {} dead letters, {} rolled back)",
            seen.retried,
            seen.gave_up.len(),
            seen.rolled_back.len()
        )
    }

    /// Records the start of an attempt.
    pub(super) fn start(self: &Arc<Self>, job: &Arc<Job>) -> Attempt {
        let mut seen = self.seen();
        seen.started.entry(job.id).or_insert_with(Instant::now);
        if job.kind == JobKind::Timer
            && job.failures == 0
            && let Some(due) = job.due_at
        {
            seen.late
                .push((Utc::now() - due).to_std().unwrap_or_default());
        }
        if let Some(instance) = job.exclusive_instance()
            && let Some(other) = seen.running.insert(instance.to_owned(), job.id)
        {
            seen.overlaps
                .push(format!("{other} and {} of {instance}", job.id));
        }
        drop(seen);
        Attempt {
            tally: self.clone(),
            job: job.clone(),
        }
    }
}

/// A running attempt; dropping it records its end.
pub(super) struct Attempt {
    tally: Arc<Tally>,
    job: Arc<Job>,
}

impl Attempt {
    /// Records the result.
    pub(super) fn end(self, answer: &HandlerResult<Outcome>) {
        let mut seen = self.tally.seen();
        match answer {
            Ok(Outcome::Done) => {
                *seen.done.entry(self.job.id).or_default() += 1;
                if position(&self.job.job_type).is_none() {
                    seen.done_apart.insert(self.job.id);
                }
            }
            Ok(_) => {}
            Err(error) => match error.verdict {
                Verdict::Retry(_) | Verdict::RetryAt(_) if self.job.retries > 1 => {
                    seen.retried += 1
                }
                Verdict::Retry(_) | Verdict::RetryAt(_) | Verdict::Unrecoverable => {
                    seen.gave_up.insert(self.job.id);
                }
                _ => {}
            },
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut seen = self.tally.seen();
        if let Some(instance) = self.job.exclusive_instance()
            && seen.running.get(instance) == Some(&self.job.id)
        {
            seen.running.remove(instance);
        }
    }
}

/// Returns the position of the row that an activity writes.
fn position(job_type: &str) -> Option<i64> {
    match job_type {
        "receive-application" => Some(1),
        "check-documents" => Some(2),
        "decide" => Some(3),
        "archive" => Some(4),
        _ => None,
    }
}

impl Tally {
    /// Compares the observations with the database and returns the account.
    pub(super) async fn account(
        &self,
        stage: &Stage,
        run: Run,
        since: DateTime<Utc>,
        seconds: f64,
    ) -> Result<Account, Error> {
        let (started, rolled_back) = {
            let seen = self.seen();
            (
                seen.started.keys().copied().collect::<HashSet<_>>(),
                seen.rolled_back.clone(),
            )
        };
        let rows = ledger::entries(&stage.database, since, &started).await?;
        let mut ghosts = Vec::new();
        for id in &rolled_back {
            if started.contains(id) || exists(&stage.database, *id).await? {
                ghosts.push(id.to_string());
            }
        }
        let left = u64::try_from(stage.unfinished().await?).unwrap_or_default();
        let dead = u64::try_from(stage.dead_letters().await?).unwrap_or_default();

        let seen = self.seen();
        // The jobs that a job creates exist if and only if its row exists, so the rows show their
        // number.
        let followers = rows.iter().map(|row| creates(row.position)).sum::<u64>();
        let created = seen.committed.len() as u64 + followers;
        let executed = rows.len() as u64 + seen.done_apart.len() as u64;
        let checks = vec![
            Check::equal(
                "every application was created",
                ("applications", u64::from(run.applications)),
                ("committed", seen.committed.len() as u64),
            ),
            Check::equal(
                "created = 8 jobs for each application",
                ("created", created),
                ("expected", u64::from(run.applications) * JOBS_EACH),
            ),
            Check::equal(
                "created = executed + dead-lettered + left",
                ("created", created),
                ("accounted for", executed + dead + left),
            ),
            Check::equal("nothing is left", ("left", left), ("expected", 0)),
            Check::equal(
                "the dead letters are the expected ones",
                ("dead letters", dead),
                ("expected", run.dead_letters()),
            ),
            Check::equal(
                "the jobs that gave up are the dead letters",
                ("gave up", seen.gave_up.len() as u64),
                ("dead letters", dead),
            ),
            Check::of(
                "every job that runs in its transaction wrote one row",
                once(&rows, run),
            ),
            Check::of("no job was done twice", twice(&seen)),
            Check::of("no rolled-back job exists or ran", ghosts),
            Check::of(
                "no two exclusive jobs of an application overlapped",
                seen.overlaps.clone(),
            ),
        ];
        Ok(Account {
            run: "permits",
            database: stage.database_name(),
            broker: stage.settings.broker_url.to_string(),
            nodes: stage.nodes(),
            nodes_at_work: rows.iter().map(|r| r.node).collect::<HashSet<_>>().len(),
            seconds,
            cases: seen.committed.len(),
            created,
            rolled_back: seen.rolled_back.len() as u64,
            executed,
            retried: Some(seen.retried),
            timers: Some(rows.iter().filter(|r| matches!(r.position, 3 | 4)).count() as u64),
            dead_lettered: dead,
            left,
            commit_to_start: seen.latency(),
            timer_lateness: Some(Latency::of(seen.late.clone())),
            checks,
        })
    }
}

impl Seen {
    /// Returns the latencies of the jobs that were created here. The commit times of the others are
    /// known only to the nodes.
    fn latency(&self) -> Latency {
        let waited = self.committed.iter().filter_map(|(id, committed)| {
            // The job may start before its creator has read the clock.
            Some(self.started.get(id)?.saturating_duration_since(*committed))
        });
        Latency::of(waited.collect())
    }
}

fn creates(position: i64) -> u64 {
    CREATES
        .iter()
        .find(|(p, _)| *p == position)
        .map_or(0, |(_, jobs)| *jobs)
}

fn twice(seen: &Seen) -> Vec<String> {
    // In a transaction an attempt may return "done" and then fail to commit; its row exists once.
    let apart = seen
        .done
        .iter()
        .filter(|(id, times)| **times > 1 && seen.done_apart.contains(id));
    apart
        .map(|(id, times)| format!("{id} {times} times"))
        .collect()
}

fn once(rows: &[Entry], run: Run) -> Vec<String> {
    let mut found: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    for row in rows {
        *found.entry((&row.case, row.position)).or_default() += 1;
    }
    let mut problems = Vec::new();
    for number in 1..=run.applications {
        let case = run.instance(number);
        for (position, _) in CREATES {
            let times = found
                .get(&(case.as_str(), position))
                .copied()
                .unwrap_or_default();
            if times != 1 {
                problems.push(format!("{times} rows of activity {position} in {case}"));
            }
        }
    }
    problems
}
