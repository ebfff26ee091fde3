//! Queries for jobs: conditions, orders, pages and counts.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::job::query::JobFacts;
use jobwire_core::store::SuspensionScope;
use jobwire_core::{
    Job, JobCursor, JobId, JobKind, JobQuery, JobSort, JobState, JobView, SortBy, StoreError,
    TextField, TextMatch,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use uuid::Uuid;

use super::random_jobs::{
    CATEGORIES, DEFINITIONS, INSTANCES, JOBS, KEYS, MESSAGES, PATTERNS, TENANTS, TYPES, moment,
    node, populate, quoted, wanted_values,
};
use super::world::{Bench, SqlBench, World, ids, work};

const QUERIES: usize = 160;

const CONDITIONS: usize = 32;

/// Adds the condition of this number to a query.
fn with(
    query: JobQuery,
    condition: usize,
    random: &mut SmallRng,
    start: DateTime<Utc>,
    jobs: &[(JobView, Job)],
) -> JobQuery {
    let flag = random.random_bool(0.5);
    let some = |random: &mut SmallRng| jobs[random.random_range(0..jobs.len())].0.id;
    let pick = |random: &mut SmallRng, of: &[&'static str]| of[random.random_range(0..of.len())];
    match condition {
        0 => query.id(some(random)),
        1 => {
            let ids: Vec<JobId> = (0..20).map(|_| some(random)).collect();
            query.ids(ids.into_iter().chain([JobId::generate()]))
        }
        2 => query.correlation_id(Uuid::from_u128(random.random_range(1..5))),
        3 => {
            let states = JobState::ALL.iter().copied();
            query.states(states.filter(|_| random.random_bool(0.5)))
        }
        4 => query.kinds([JobKind::ALL[random.random_range(0..3)]]),
        5 => query.job_type(pick(random, &TYPES)),
        6 => query.job_types(["work-2", "work", "none"]),
        7 => match (flag, pick(random, &INSTANCES)) {
            (true, one) => query.instance(one),
            (false, one) => query.instances([one, "none", "i2"]),
        },
        8 => query.without_instance(),
        9 => query.execution("e1"),
        10 => query.process_definition(pick(random, &DEFINITIONS)),
        11 => query.definition_key(pick(random, &["invoice", "in%oice", "in_oice"])),
        12 => query.element("start"),
        13 => query.tenant(pick(random, &TENANTS)),
        14 => query.tenant_like(pick(random, &PATTERNS)),
        15 => query.without_tenant(),
        16 => {
            let tenants = vec!["eu-1".to_owned(), "us_1".to_owned()];
            query.text(TextField::Tenant, TextMatch::OneOfOrMissing(tenants))
        }
        17 => query.category(pick(random, &CATEGORIES)),
        18 => query.category_like(pick(random, &["b*", "[c]", "%", "*", "?"])),
        19 => query.deployment("d2"),
        20 => query.lane("mail"),
        21 => query.unique_key(pick(random, &KEYS)),
        22 => {
            let wanted = wanted_values();
            query.custom_values(wanted[random.random_range(0..wanted.len())].clone())
        }
        23 => match flag {
            true => query.min_priority(random.random_range(-2..3)),
            false => query.max_priority(0).priority_other_than(-1),
        },
        24 => match flag {
            true => query.due_before(moment(random, start)),
            false => query.due_after(moment(random, start)),
        },
        25 => match flag {
            true => query.created_before(moment(random, start)),
            false => query.created_after(moment(random, start)),
        },
        26 => match random.random_range(0..4) {
            0 => query.exception_message(pick(random, &MESSAGES)),
            1 => query.exception_like(pick(random, &PATTERNS)),
            _ => query.with_exception(flag),
        },
        27 => query.retries_left(flag),
        28 => match random.random_range(0..4) {
            0 => query.lock_owner(node(1)),
            1 => query.lock_expired(flag),
            _ => query.locked(flag),
        },
        29 => match flag {
            true => query.executable(),
            false => query.exclusive(random.random_bool(0.5)),
        },
        30 => query.suspended(flag),
        _ => {
            let one = |random: &mut SmallRng| {
                let condition = random.random_range(0..CONDITIONS - 1);
                with(JobQuery::default(), condition, random, start, jobs)
            };
            query.any_of([one(random), one(random)])
        }
    }
}

pub(super) async fn the_pages_of_any_query_are_its_matches_in_order<S: SqlBench>(w: &World<S>) {
    let mut random = SmallRng::seed_from_u64(7);
    let start = DateTime::from_timestamp(Utc::now().timestamp(), 0).unwrap();
    let keys = populate(w, &mut random, start).await;
    let all = w
        .store
        .find(&JobQuery::default().limit(1_000))
        .await
        .unwrap();
    assert_eq!(all.len(), JOBS);
    let mut jobs = Vec::new();
    for view in all {
        let (view, job, _) = w.store.get(view.id).await.unwrap().unwrap();
        jobs.push((view, job));
    }
    // How often a condition let some jobs through and held others back.
    let mut told: BTreeMap<usize, usize> = BTreeMap::new();
    for n in 0..QUERIES {
        let mut query = JobQuery::default();
        // Each condition alone at first, then some together.
        let conditions: Vec<usize> = match n {
            n if n < 3 * CONDITIONS => vec![n % CONDITIONS],
            _ => (0..random.random_range(0..4))
                .map(|_| random.random_range(0..CONDITIONS))
                .collect(),
        };
        for condition in &conditions {
            query = with(query, *condition, &mut random, start, &jobs);
        }
        query = query.limit(random.random_range(3..40)).sort(JobSort {
            by: SortBy::ALL[n % SortBy::ALL.len()],
            descending: random.random_bool(0.5),
        });
        let mut expected: Vec<&JobView> = jobs
            .iter()
            .filter(|(view, job)| {
                query.matches(&JobFacts {
                    view,
                    job,
                    unique_key: keys.get(&view.id).copied(),
                    is_covered: view.tenant.as_deref() == Some("eu-1")
                        || view.process_instance.as_deref() == Some("ö"),
                    now: Utc::now(),
                })
            })
            .map(|(view, _)| view)
            .collect();
        expected.sort_by(|one, other| query.sort.compare(one, other));
        let expected: Vec<JobId> = expected.into_iter().map(|view| view.id).collect();
        if let ([condition], 1..JOBS) = (&*conditions, expected.len()) {
            *told.entry(*condition).or_default() += 1;
        }
        let place = format!("query {n}: {query:?}");
        let count = w.store.count(&query).await.unwrap();
        assert_eq!(count, expected.len() as i64, "{place}");
        let at_most = w.store.count_at_most(&query, 5).await.unwrap();
        assert_eq!(at_most, count.min(5), "{place}");
        assert_eq!(pages(w, query).await, expected, "{place}");
    }
    let silent: Vec<usize> = (0..CONDITIONS).filter(|n| !told.contains_key(n)).collect();
    assert!(silent.is_empty(), "conditions {silent:?} decided nothing");
}

/// Returns the jobs of all pages, each of which begins behind the one before.
async fn pages<S: Bench>(w: &World<S>, mut query: JobQuery) -> Vec<JobId> {
    let mut found = Vec::new();
    loop {
        let page = w.store.find(&query).await.unwrap();
        found.extend(page.iter().map(|view| view.id));
        let Some(last) = page.last().filter(|_| page.len() as i64 == query.limit) else {
            return found;
        };
        // The cursor goes through its text, as that of a caller does.
        let cursor = JobCursor::after(last, query.sort).to_string();
        query = query.after(cursor.parse().unwrap());
    }
}

pub(super) async fn a_list_goes_on_behind_a_job_that_is_gone<S: Bench>(w: &World<S>) {
    let jobs = (0..6).map(|n| work().priority([1, 3, 3, 2, 3, 1][n]));
    let made: Vec<JobId> = w
        .ready(jobs.collect())
        .await
        .iter()
        .map(|hint| hint.id)
        .collect();
    let query = JobQuery::default()
        .sort(JobSort::descending(SortBy::Priority))
        .limit(2);
    let first = w.store.find(&query).await.unwrap();
    assert_eq!((first[0].id, first[1].id), (made[4], made[2]));
    let query = query.after(JobCursor::after(
        &first[1],
        JobSort::descending(SortBy::Priority),
    ));
    w.store.delete(made[2]).await.unwrap();
    assert_eq!(pages(w, query).await, [made[1], made[3], made[5], made[0]]);
}

/// As texts, the definitions of `a-b` stand before those of `a`, and version 10 before version 2.
pub(super) async fn the_order_by_definition_key_keeps_the_versions_of_a_key_together<S: Bench>(
    w: &World<S>,
) {
    let of = |definition: &str| work().process_definition(definition);
    let jobs = vec![
        of("a:2:x"),
        of("b"),
        of("a-b:1:y"),
        work(),
        of("a:10:z"),
        of("a"),
        of(":1"),
    ];
    let made: Vec<JobId> = w.ready(jobs).await.iter().map(|hint| hint.id).collect();
    let sorted = |numbers: [usize; 7]| numbers.map(|n| made[n]);
    for (sort, expected) in [
        (
            JobSort::ascending(SortBy::DefinitionKey),
            [6, 0, 4, 5, 2, 1, 3],
        ),
        (
            JobSort::descending(SortBy::DefinitionKey),
            [1, 2, 5, 4, 0, 6, 3],
        ),
        (
            JobSort::ascending(SortBy::Definition),
            [6, 5, 2, 4, 0, 1, 3],
        ),
    ] {
        for limit in [1, 3, 100] {
            let query = JobQuery::default().sort(sort).limit(limit);
            assert_eq!(pages(w, query).await, sorted(expected), "{sort}, {limit}");
        }
    }
}

pub(super) async fn a_query_that_can_not_be_asked_is_refused<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let view = w.view(hint.id).await.unwrap();
    let by_due = JobCursor::after(&view, JobSort::ascending(SortBy::Due));
    for (wrong, said) in [
        (JobQuery::default().after(by_due), "sorted by `due`"),
        (JobQuery::default().tenant_like("a\\"), "`tenant`"),
        (JobQuery::default().instance("a\0"), "NUL"),
        (JobQuery::default().custom_values(json!(1)), "JSON object"),
        (
            JobQuery::default().any_of([JobQuery::default().limit(1)]),
            "conditions only",
        ),
        (
            JobQuery::default().any_of([JobQuery::default().instance("a\0")]),
            "NUL",
        ),
        (
            JobQuery::default().any_of(vec![JobQuery::default(); 17]),
            "more than 16",
        ),
    ] {
        for refused in [
            w.store.find(&wrong).await.map(drop),
            w.store.count(&wrong).await.map(drop),
            w.store.count_at_most(&wrong, 1).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StoreError::InvalidQuery(_)), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}

/// `json` of PostgreSQL takes values that `jsonb` refuses.
pub(super) async fn one_row_of_odd_custom_values_ends_no_query<S: SqlBench>(w: &World<S>) {
    let put = async |values: &str| {
        let quoted = quoted(values);
        w.store
            .put("job", &[("custom_values", &quoted)])
            .await
            .unwrap()
    };
    for odd in [
        r#"{"a":"\ud800","b":2}"#,
        r#"{"a":"\\\udc00","b":2}"#,
        r#"{"a":"\ud83d\\\ude00","b":2}"#,
        r#"{"a":1e400000,"b":2}"#,
        r#"{"a":-1E-400000,"b":2}"#,
    ] {
        put(odd).await;
    }
    let face = put(r#"{"a":"\ud83d\ude00 1e999999 \\ud800 \\\\","b":1}"#).await;
    let plain = put(r#"{"a":1e2,"b":1}"#).await;
    let found = |wanted: Value| w.find(JobQuery::default().custom_values(wanted));
    let mut both = found(json!({ "b": 1 })).await;
    both.sort_unstable();
    let mut expected = [face, plain];
    expected.sort_unstable();
    assert_eq!(both, expected);
    assert_eq!(found(json!({ "a": 100 })).await, [plain]);
    let text = "😀 1e999999 \\ud800 \\\\";
    assert_eq!(found(json!({ "a": text })).await, [face]);
}

pub(super) async fn a_job_that_was_created_during_a_suspension_counts_as_suspended<S: Bench>(
    w: &World<S>,
) {
    let tenant = || work().tenant("t");
    let element = || work().process_definition("d").element("e");
    let before = w.ready(vec![tenant(), element()]).await;
    for of in [
        SuspensionScope::Tenant("t".to_owned()),
        SuspensionScope::Element {
            definition: "d".to_owned(),
            element: "e".to_owned(),
        },
    ] {
        w.store.suspend(&of).await.unwrap();
    }
    let after = w.create(vec![tenant(), element()]).await.ready;
    let other = w.one(work().process_definition("d")).await;
    let mut all: Vec<_> = before.iter().map(|hint| hint.id).collect();
    all.extend(ids(&after));
    let suspended = w.find(JobQuery::default().suspended(true)).await;
    assert_eq!(suspended, all);
    assert_eq!(
        w.find(JobQuery::default().suspended(false)).await,
        [other.id]
    );
}
