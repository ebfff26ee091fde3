//! Lists of recorded attempts: conditions, orders and pages.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::store::attempts::{
    Attempt, AttemptCursor, AttemptField, AttemptOutcome, AttemptQuery, AttemptSort, AttemptView,
};
use jobwire_core::store::{Completion, Failure, Handoff};
use jobwire_core::{Fence, JobId, StoreError, TextMatch};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::bed::Bed;
use super::random_jobs::{INSTANCES, PATTERNS, TENANTS, TYPES, moment, node, quoted};
use super::world::{SqlBench, World, done, retry_after, work};

const ATTEMPTS: usize = 80;

const CONDITIONS: usize = 14;

const QUERIES: usize = 120;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A row of the table `attempt`.
#[derive(Clone)]
struct Row {
    fence: i64,
    job: JobId,
    job_type: &'static str,
    instance: Option<&'static str>,
    tenant: Option<&'static str>,
    node: u128,
    started_at: DateTime<Utc>,
    outcome: &'static str,
}

impl Row {
    fn new(fence: i64) -> Self {
        Self {
            fence,
            job: JobId::generate(),
            job_type: "work",
            instance: None,
            tenant: None,
            node: 1,
            started_at: DateTime::from_timestamp(1_800_000_000 + fence, 0).unwrap(),
            outcome: "done",
        }
    }

    async fn write<S: SqlBench>(&self, w: &World<S>) {
        let started = match w.store.name() {
            "postgres" => format!("timestamptz '{}'", self.started_at.to_rfc3339()),
            _ => self.started_at.timestamp_micros().to_string(),
        };
        let text = |text: Option<&str>| text.map_or("NULL".to_owned(), quoted);
        let row = format!(
            "INSERT INTO {{s}}attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome,
                 keep_until)
             VALUES ({}, '{}', '{}', {}, {}, '{}', {started}, {started} + {{second}}, '{}', {{now}} + 3600 * {{second}})",
            self.fence,
            self.job,
            self.job_type,
            text(self.instance),
            text(self.tenant),
            node(self.node),
            self.outcome,
        );
        assert_eq!(w.store.execute(&row).await, 1);
    }

    /// Says whether the attempt fulfils the conditions of a query.
    fn matches(&self, query: &AttemptQuery) -> bool {
        let text = |field| match field {
            AttemptField::Type => Some(self.job_type),
            AttemptField::Instance => self.instance,
            _ => self.tenant,
        };
        let of_outcome = query.outcomes.iter().any(|of| of.as_str() == self.outcome);
        query.ids.as_ref().is_none_or(|ids| ids.contains(&self.job))
            && query.texts.iter().all(|(of, is)| is.matches(text(*of)))
            && (query.outcomes.is_empty() || of_outcome)
            && query.node.is_none_or(|of| of == node(self.node))
            && query.started_after.is_none_or(|at| self.started_at > at)
            && query.started_before.is_none_or(|at| self.started_at < at)
    }
}

/// Writes random attempts of few jobs.
async fn populate<S: SqlBench>(
    w: &World<S>,
    random: &mut SmallRng,
    start: DateTime<Utc>,
) -> Vec<Row> {
    let jobs: Vec<JobId> = (0..10).map(|_| JobId::generate()).collect();
    let mut rows = Vec::new();
    for n in 0..ATTEMPTS {
        let maybe = |random: &mut SmallRng, among: &[&'static str]| {
            among
                .choose(random)
                .copied()
                .filter(|_| random.random_bool(0.7))
        };
        let row = Row {
            job: *jobs.choose(random).unwrap(),
            job_type: TYPES.choose(random).unwrap(),
            instance: maybe(random, &INSTANCES),
            tenant: maybe(random, &TENANTS),
            node: random.random_range(1..4),
            started_at: moment(random, start),
            outcome: AttemptOutcome::ALL.choose(random).unwrap().as_str(),
            // Not in the order in which they are written.
            ..Row::new(1 + 7 * ((n as i64 * 37) % ATTEMPTS as i64))
        };
        row.write(w).await;
        rows.push(row);
    }
    rows
}

/// Adds the condition of this number to a query.
fn with(
    query: AttemptQuery,
    condition: usize,
    random: &mut SmallRng,
    start: DateTime<Utc>,
    rows: &[Row],
) -> AttemptQuery {
    let pick = |random: &mut SmallRng, of: &[&'static str]| *of.choose(random).unwrap();
    let some = |random: &mut SmallRng| rows.choose(random).unwrap().job;
    match condition {
        0 => query.id(some(random)),
        1 => {
            let ids = [some(random), some(random), JobId::generate()];
            query.ids(ids)
        }
        2 => query.job_type(pick(random, &TYPES)),
        3 => query.job_types(["work-2", "work", "none"]),
        4 => query.instance(pick(random, &INSTANCES)),
        5 => query.instances([pick(random, &INSTANCES), "none", "i2"]),
        6 => query.without_instance(),
        7 => query.tenant(pick(random, &TENANTS)),
        8 => query.tenant_like(pick(random, &PATTERNS)),
        9 => query.without_tenant(),
        10 => {
            let tenants = vec!["eu-1".to_owned(), "us_1".to_owned()];
            query.text(AttemptField::Tenant, TextMatch::OneOfOrMissing(tenants))
        }
        11 => {
            let outcomes = AttemptOutcome::ALL.iter().copied();
            query.outcomes(outcomes.filter(|_| random.random_bool(0.3)))
        }
        12 => query.node(node(random.random_range(1..5))),
        _ => match random.random_range(0..3) {
            0 => query.started_after(moment(random, start)),
            1 => query.started_before(moment(random, start)),
            _ => {
                let end = start + chrono::TimeDelta::hours(2);
                query.started_after(start).started_before(end)
            }
        },
    }
}

/// Returns the attempts of all pages, each of which begins behind the one before.
async fn pages<S: SqlBench>(w: &World<S>, mut query: AttemptQuery) -> Vec<i64> {
    let client = Bed::new(w).client;
    let mut found = Vec::new();
    loop {
        let page = client.attempts_page(&query).await.unwrap();
        assert!(page.attempts.len() as i64 <= query.limit, "{query:?}");
        found.extend(page.attempts.iter().map(|view| view.fence.number()));
        let Some(next) = page.next else {
            return found;
        };
        // The cursor goes through its text, as that of a caller does.
        query = query.after(next.to_string().parse().unwrap());
    }
}

fn fences(attempts: &[AttemptView]) -> Vec<i64> {
    attempts.iter().map(|view| view.fence.number()).collect()
}

pub(super) async fn the_pages_of_any_query_for_attempts_are_its_matches_in_order<S: SqlBench>(
    w: &World<S>,
) {
    let mut random = SmallRng::seed_from_u64(7);
    let start = DateTime::from_timestamp(Utc::now().timestamp(), 0).unwrap();
    let mut rows = populate(w, &mut random, start).await;
    rows.sort_by_key(|row| row.fence);
    // How often a condition let some attempts through and held others back.
    let mut told: BTreeMap<usize, usize> = BTreeMap::new();
    for n in 0..QUERIES {
        // Each condition alone at first, then some together.
        let conditions: Vec<usize> = match n {
            n if n < 3 * CONDITIONS => vec![n % CONDITIONS],
            _ => (0..random.random_range(0..4))
                .map(|_| random.random_range(0..CONDITIONS))
                .collect(),
        };
        let mut query = AttemptQuery::default();
        for condition in &conditions {
            query = with(query, *condition, &mut random, start, &rows);
        }
        query = query
            .sort(AttemptSort::ALL[n % 2])
            .limit(random.random_range(1..30));
        if query.check().is_err() {
            continue;
        }
        let expected = rows.iter().filter(|row| row.matches(&query));
        let mut expected: Vec<i64> = expected.map(|row| row.fence).collect();
        if query.sort == AttemptSort::Newest {
            expected.reverse();
        }
        if let ([condition], 1..ATTEMPTS) = (&*conditions, expected.len()) {
            *told.entry(*condition).or_default() += 1;
        }
        assert_eq!(
            pages(w, query.clone()).await,
            expected,
            "query {n}: {query:?}"
        );
    }
    let silent: Vec<usize> = (0..CONDITIONS).filter(|n| !told.contains_key(n)).collect();
    assert!(silent.is_empty(), "conditions {silent:?} decided nothing");
    let none = AttemptQuery::default().ids([]);
    assert!(w.store.find_attempts(&none).await.unwrap().is_empty());
    let few = AttemptQuery::default().limit(-1);
    assert!(w.store.find_attempts(&few).await.unwrap().is_empty());
}

/// The attempts of jobs that ran, as the transitions of a node record them.
pub(super) async fn attempts_of_all_jobs_are_listed_by_what_they_are<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    let recorded = |instance: &str, outcome| {
        Some(Box::new(Attempt {
            job_type: "work".to_owned(),
            process_instance: Some(instance.to_owned()),
            tenant: Some("t".to_owned()),
            ran: Duration::from_secs(5),
            outcome,
            reason: None,
            keep: WEEK,
        }))
    };
    let (first, second) = (node(1), node(2));
    let failed = w.hold(first, &hints[0]).await;
    let failure = Failure {
        attempt: recorded("a", "retry"),
        ..retry_after(&failed, Duration::from_secs(60))
    };
    w.fail(first, failure).await;
    let completed = w.hold(second, &hints[1]).await;
    let completion = Completion {
        attempt: recorded("b", "done"),
        ..done(&completed)
    };
    let completions = [completion];
    let settled = w.store.complete(second, &completions, &Handoff::Hint);
    assert_eq!(settled.await.unwrap().applied, [hints[1].id]);
    let lost = w.hold(second, &hints[2]).await;
    w.expire(hints[2].id).await;
    w.lead_recording(WEEK).await;

    let list = async |query: AttemptQuery| w.store.find_attempts(&query).await.unwrap();
    let all = AttemptQuery::default;
    let newest = list(all()).await;
    let expected = [lost.fence, completed.fence, failed.fence].map(Fence::number);
    assert_eq!(fences(&newest), expected);
    let [died, _, retried] = &newest[..] else {
        panic!("{newest:?}");
    };
    let shown = (
        retried.process_instance.as_deref(),
        retried.tenant.as_deref(),
    );
    assert_eq!(shown, (Some("a"), Some("t")));
    assert_eq!((retried.job, retried.node), (hints[0].id, first));
    assert_eq!(retried.message.as_deref(), Some("no luck"));
    assert_eq!(retried.stack.as_deref(), Some("at the first step"));
    assert_eq!(
        (died.process_instance.as_deref(), died.node),
        (None, second)
    );
    // By id a row has the same fields.
    let by_id = w.store.attempts(hints[0].id, 10).await.unwrap();
    assert_eq!(format!("{by_id:?}"), format!("[{retried:?}]"));

    // The attempt of the dead node started at its lock, and the others 5 s before their ends.
    let lately = died.started_at - Duration::from_secs(2);
    for (query, expected) in [
        (all().job_type("work"), &[2, 1, 0][..]),
        (all().job_type("other"), &[]),
        (all().instance("b"), &[1]),
        (all().without_tenant(), &[2]),
        (all().outcomes([AttemptOutcome::NodeDied]), &[2]),
        (all().node(second), &[2, 1]),
        (all().node(second).sort(AttemptSort::Oldest), &[1, 2]),
        (all().id(hints[0].id), &[0]),
        (all().started_after(lately), &[2]),
        (all().started_before(lately), &[1, 0]),
    ] {
        let found = list(query.clone()).await;
        let jobs: Vec<JobId> = found.iter().map(|attempt| attempt.job).collect();
        let expected: Vec<JobId> = expected.iter().map(|n: &usize| hints[*n].id).collect();
        assert_eq!(jobs, expected, "{query:?}");
    }
}

/// An attempt that ends late has an old place. It is on a page that is read later, and on no other.
pub(super) async fn a_list_of_attempts_goes_on_behind_one_that_is_gone<S: SqlBench>(w: &World<S>) {
    for fence in [10, 20, 30, 40, 50, 60] {
        Row::new(fence).write(w).await;
    }
    for (sort, first, then) in [
        (AttemptSort::Newest, [60, 50], [45, 40, 30, 20, 10]),
        (AttemptSort::Oldest, [10, 20], [30, 40, 45, 50, 60]),
    ] {
        let query = AttemptQuery::default().sort(sort).limit(2);
        let page = w.store.find_attempts(&query).await.unwrap();
        assert_eq!(fences(&page), first);
        let gone = "DELETE FROM {s}attempt WHERE fence = ";
        assert_eq!(w.store.execute(&format!("{gone}{}", first[1])).await, 1);
        Row::new(45).write(w).await;
        let rest = query.after(AttemptCursor::after(&page[1], sort));
        assert_eq!(pages(w, rest).await, then);
        w.store.execute(&format!("{gone}45")).await;
        Row::new(first[1]).write(w).await;
    }
}

pub(super) async fn a_query_for_attempts_that_can_not_be_asked_is_refused<S: SqlBench>(
    w: &World<S>,
) {
    Row::new(1).write(w).await;
    let query = AttemptQuery::default;
    let attempts = w.store.find_attempts(&query()).await.unwrap();
    let oldest = AttemptCursor::after(&attempts[0], AttemptSort::Oldest);
    let started = attempts[0].started_at;
    for (wrong, said) in [
        (query().after(oldest), "sorted by `oldest`"),
        (query().instance("a\0"), "NUL"),
        (query().tenant_like("a\\"), "`tenant`"),
        (
            query().started_after(DateTime::<Utc>::MIN_UTC),
            "`started_after`",
        ),
        (
            query().started_after(started).started_before(started),
            "give a later date",
        ),
    ] {
        let error = w.store.find_attempts(&wrong).await.unwrap_err();
        assert!(matches!(error, StoreError::InvalidQuery(_)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("query for attempts: "), "{error}");
        assert!(text.contains(said), "{error}");
    }
}

/// Other programs with the rights of a node write the table, too.
pub(super) async fn one_odd_row_ends_no_list_of_attempts<S: SqlBench>(w: &World<S>) {
    for fence in [10, 30] {
        Row::new(fence).write(w).await;
    }
    let columns =
        "fence, job_id, type, node, started_at, ended_at, outcome, message, stack, keep_until";
    let odd = match w.store.name() {
        "postgres" => format!(
            "INSERT INTO {{s}}attempt ({columns}) VALUES (-20, gen_random_uuid(), '', gen_random_uuid(), '4713-01-01 BC',
                 '262142-12-31', '', repeat('x', 65536), repeat('x', 1048576), now() + interval '1 day')"
        ),
        _ => format!(
            "INSERT INTO {{s}}attempt ({columns}) VALUES (-20, 'no id', CAST(x'ff' AS TEXT), 'no id',
                 -9223372036854775808, 9223372036854775807, CAST(x'ff00' AS TEXT), 'a' || char(0), NULL, 9223372036854775807)"
        ),
    };
    assert_eq!(w.store.execute(&odd).await, 1);
    let query = AttemptQuery::default();
    let found = w.store.find_attempts(&query).await.unwrap();
    assert_eq!(fences(&found), [30, 10, -20]);
    assert!(serde_json::to_string(&found).is_ok());
    assert_eq!(pages(w, query.limit(1)).await, [30, 10, -20]);
}
