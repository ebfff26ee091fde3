//! The shadow report: how long the engine's jobs wait for their start now, and how long they would
//! wait over Jobwire. It only reads, and needs no schema, no slot and no node.
//!
//! The engine's jobs are looked at in short intervals. A job has started when its row is locked or
//! gone. The time over Jobwire is an estimate from what this machine measures meanwhile: the answer
//! of a statement by key and of a request to the engine.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jobwire_core::StoreError;
use sqlx::Row;
use tokio::time::Instant;

use crate::EngineStore;
use crate::executing::Executing as _;
use crate::http::Answer;
use crate::zone::is_moment;

/// The pause between two looks; at least ten times as long as a look takes.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of jobs that a look reads. Beyond it, jobs that are gone can't be told.
const MOST: usize = 10_000;
/// The interval between two requests to the engine.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(500);
/// The time within which a request must be answered.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// The time from a commit to the arrival of its hint that the estimate allows for.
const HINT: Duration = Duration::from_millis(1);

/// Selects the jobs that may start now. Only Camunda's table has `suspension_state_`.
const JOBS: &str = concat!(
    "
SELECT j.id_, j.lock_exp_time_ IS NOT NULL,
    CASE WHEN ",
    is_moment!("greatest($AGE, j.duedate_)"),
    " THEN extract(epoch FROM (clock_timestamp() AT TIME ZONE $1) - greatest($AGE, j.duedate_))::double precision END
FROM act_ru_job j
WHERE (j.duedate_ IS NULL OR j.duedate_ <= clock_timestamp() AT TIME ZONE $1) AND coalesce(j.retries_, 1) > 0
    AND coalesce((to_jsonb(j) ->> 'suspension_state_')::integer, 1) = 1
LIMIT 10001"
);

const BY_KEY: &str = "SELECT j.lock_exp_time_ FROM act_ru_job j WHERE j.id_ = $1";

/// Durations, of which the report names the median and the 99th percentile.
#[derive(Clone, Debug, Default)]
pub struct Durations(Vec<Duration>);

impl Durations {
    fn add(&mut self, one: Duration) {
        self.0.push(one);
    }

    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the median and the 99th percentile, unless there are none.
    #[must_use]
    pub fn median_and_p99(&self) -> Option<[Duration; 2]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |part: usize| sorted.get((sorted.len() - 1) * part / 100).copied();
        if sorted.is_empty() {
            return None;
        }
        Some([at(50)?, at(99)?])
    }
}

/// A shadow report.
#[derive(Debug, Default)]
pub struct ShadowReport {
    /// The time for which the jobs were watched.
    pub watched: Duration,
    /// The waits of the jobs that started meanwhile: from their creation or due date to the start.
    pub waits: Durations,
    /// The waits so far of the jobs that have not started.
    pub waiting: Durations,
    /// The answers to a statement by key.
    pub statements: Durations,
    /// The answers to a request to the engine; none if it can't be reached.
    pub requests: Durations,
    /// The reason why requests failed, if one did.
    pub unreachable: Option<String>,
    /// Whether at some moment more jobs waited than a look reads. Then only starts that were seen as
    /// locks are counted.
    pub is_cut: bool,
}

impl ShadowReport {
    /// Returns the expected median and 99th percentile of the wait over Jobwire, while a node has a
    /// free slot: a hint, two statements and a request.
    #[must_use]
    pub fn over_jobwire(&self) -> Option<[Duration; 2]> {
        let [statement, slow_statement] = self.statements.median_and_p99()?;
        let [request, slow_request] = self.requests.median_and_p99()?;
        Some([
            HINT + statement * 2 + request,
            HINT + slow_statement * 2 + slow_request,
        ])
    }
}

/// A job as a look saw it.
struct Seen {
    id: String,
    is_locked: bool,
    age: Duration,
}

/// The jobs of the last look. Plain logic: the caller passes what each look saw.
#[derive(Default)]
struct Watch {
    /// The jobs without a lock, with their ages.
    waiting: HashMap<String, Duration>,
    locked: HashSet<String>,
    /// Whether the last look showed all jobs. False before the first one.
    showed_all: bool,
}

impl Watch {
    /// Records a look, `after` the one before. Returns the waits of the jobs that have started.
    fn looked(&mut self, seen: Vec<Seen>, after: Duration, is_cut: bool) -> Vec<Duration> {
        let mut started = Vec::new();
        let (mut waiting, mut locked) = (HashMap::new(), HashSet::new());
        for Seen { id, is_locked, age } in seen {
            if !is_locked {
                waiting.insert(id, age);
                continue;
            }
            match self.waiting.remove(&id) {
                // It was locked at some time since the last look.
                Some(before) => started.push(before + after / 2),
                // It was created and locked since the last look.
                None if self.showed_all && !self.locked.contains(&id) => {
                    started.push(age.min(after) / 2);
                }
                None => {}
            }
            locked.insert(id);
        }
        if !is_cut {
            let gone = self
                .waiting
                .iter()
                .filter(|(id, _)| !waiting.contains_key(*id));
            started.extend(gone.map(|(_, age)| *age + after / 2));
        }
        (self.waiting, self.locked, self.showed_all) = (waiting, locked, !is_cut);
        started
    }
}

/// Watches the engine's jobs for this time. Changes nothing.
///
/// # Errors
/// As the database reports.
pub(crate) async fn report(
    store: &EngineStore,
    watched: Duration,
) -> Result<ShadowReport, StoreError> {
    let pool = store.pool();
    let zone = &store.options().zone;
    let age = if store.dialect().tells_age() {
        "j.create_time_"
    } else {
        // The engine does not write when a job was created: its wait begins when it is first seen.
        "NULL"
    };
    let jobs = JOBS.replace("$AGE", age);
    let mut report = ShadowReport::default();
    let (mut watch, mut first_seen) = (Watch::default(), HashMap::new());
    let (began, mut last, mut next_request) = (Instant::now(), Instant::now(), Instant::now());
    loop {
        let asked = Instant::now();
        let rows = sqlx::query(sqlx::AssertSqlSafe(&*jobs))
            .bind(zone)
            .fetch_all(pool)
            .await?;
        let took = asked.elapsed();
        let is_cut = rows.len() > MOST;
        report.is_cut |= is_cut;
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, is_locked): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
            let age = match row.try_get::<Option<f64>, _>(2)? {
                // The engine's clock may be ahead.
                Some(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                None => first_seen.entry(id.clone()).or_insert(asked).elapsed(),
            };
            seen.push(Seen { id, is_locked, age });
        }
        let by_key = seen
            .first()
            .map_or_else(|| "-".to_owned(), |job| job.id.clone());
        for wait in watch.looked(seen, asked - last, is_cut) {
            report.waits.add(wait);
        }
        first_seen.retain(|id, _| watch.waiting.contains_key(id));
        last = asked;
        let asked = Instant::now();
        sqlx::query(BY_KEY)
            .bind(by_key)
            .fetch_optional(pool)
            .await?;
        report.statements.add(asked.elapsed());
        if Instant::now() >= next_request {
            next_request = Instant::now() + BETWEEN_REQUESTS;
            request(store, &mut report).await;
        }
        if began.elapsed() >= watched {
            break;
        }
        tokio::time::sleep(PAUSE.max(took * 10)).await;
    }
    report.watched = began.elapsed();
    for age in watch.waiting.into_values() {
        report.waiting.add(age);
    }
    Ok(report)
}

/// Sends a request to one address of the engine.
async fn request(store: &EngineStore, report: &mut ShadowReport) {
    let routes = store.parts().routes.all();
    let Some(rest) = routes.first().map(|route| route.rest()) else {
        return;
    };
    let asked = Instant::now();
    let about = store.dialect().about();
    // A look must not be late because the engine hangs.
    let Ok(answer) = tokio::time::timeout(REQUEST_WITHIN, rest.ask(&about)).await else {
        let url = rest.url_shown();
        report.unreachable = Some(format!("{url} did not answer within {REQUEST_WITHIN:?}"));
        return;
    };
    if answer == Answer::Executed {
        report.requests.add(asked.elapsed());
        return;
    }
    let url = rest.url_shown();
    report.unreachable = Some(match answer.problem() {
        Some(said) => format!("{url}: {said}"),
        None => format!("{url} is not an interface of the engine"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn seen(jobs: &[(&str, bool, u32)]) -> Vec<Seen> {
        let seen = jobs.iter().map(|(id, is_locked, age)| Seen {
            id: (*id).to_owned(),
            is_locked: *is_locked,
            age: *age * MILLI,
        });
        seen.collect()
    }

    #[test]
    fn a_job_has_waited_until_it_is_locked_or_gone() {
        let mut watch = Watch::default();
        let first = seen(&[("runs", true, 9_000), ("a", false, 100), ("b", false, 200)]);
        assert!(watch.looked(first, MILLI, false).is_empty());
        // `a` is locked, `b` is gone, and `new` was created and locked in between.
        let second = seen(&[("runs", true, 9_050), ("a", true, 150), ("new", true, 20)]);
        let mut waits = watch.looked(second, 50 * MILLI, false);
        waits.sort_unstable();
        assert_eq!(waits, [10 * MILLI, 125 * MILLI, 225 * MILLI]);
        assert!(watch.looked(seen(&[]), 50 * MILLI, false).is_empty());
    }

    #[test]
    fn a_job_that_a_cut_look_does_not_show_has_not_started() {
        let mut watch = Watch::default();
        watch.looked(seen(&[("a", false, 100), ("b", false, 100)]), MILLI, false);
        let waits = watch.looked(seen(&[("a", true, 150)]), 50 * MILLI, true);
        assert_eq!(waits, [125 * MILLI]);
        // It may have been locked long ago, and not been shown.
        let waits = watch.looked(seen(&[("c", true, 150)]), 50 * MILLI, false);
        assert!(waits.is_empty());
    }

    #[test]
    fn the_estimate_needs_answers_of_the_database_and_of_the_engine() {
        let mut report = ShadowReport::default();
        report.statements.add(2 * MILLI);
        assert_eq!(report.over_jobwire(), None);
        report.requests.add(5 * MILLI);
        assert_eq!(report.over_jobwire(), Some([10 * MILLI, 10 * MILLI]));
        for slow in 1..=100 {
            report.statements.add(slow * MILLI);
        }
        assert_eq!(
            report.statements.median_and_p99(),
            Some([50 * MILLI, 99 * MILLI])
        );
    }
}
