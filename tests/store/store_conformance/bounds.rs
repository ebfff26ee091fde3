//! The tables accept values that fit, from any writer, and no others. Existing rows that do not fit
//! are set aside (migration 0002).

use std::time::Duration;

use jobwire_core::Calendars;
use jobwire_core::job::series::next_occurrence;
use jobwire_core::store::{Completion, OrphanQuery, SuspensionScope};
use jobwire_core::{Hint, JobId, JobState, Lane};

use super::world::{SqlBench, World, done, give_up, node, retry_after, take};

const TABLES: [&str; 4] = ["job", "timer_job", "suspended_job", "dead_letter_job"];
const MOST: &str = "1000000000";

/// Returns a text of this many bytes, as SQL.
fn text(bytes: usize) -> String {
    format!("'{}'", "x".repeat(bytes))
}

/// Returns JSON of this many bytes, as SQL.
fn json(bytes: usize) -> String {
    format!("'\"{}\"'", "x".repeat(bytes - 2))
}

/// Returns each field with the largest value that fits and one that does not.
fn bounds() -> Vec<(&'static str, String, String)> {
    let mut bounds = Vec::new();
    for field in [
        "type",
        "process_instance",
        "execution",
        "process_definition",
        "element",
        "tenant",
        "category",
        "deployment",
        "retry_policy",
        "repeat",
        "trace_parent",
    ] {
        bounds.push((field, text(1024), text(1025)));
    }
    bounds.push(("lane", text(64), text(65)));
    bounds.push(("origin", text(64), text(65)));
    bounds.push(("exception_message", text(4096), text(4097)));
    for field in ["payload", "custom_values"] {
        bounds.push((field, json(1 << 20), json((1 << 20) + 1)));
    }
    for field in ["revision", "hints", "failures"] {
        bounds.push((field, MOST.to_owned(), "1000000001".to_owned()));
    }
    bounds
}

pub(super) async fn what_does_not_fit_is_refused<S: SqlBench>(w: &World<S>) {
    for table in TABLES {
        for (field, fits, too_much) in bounds() {
            w.store.put(table, &[(field, &fits)]).await.unwrap();
            let refused = w.store.put(table, &[(field, &too_much)]).await;
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("at_most") || refused.contains("in_range"),
                "{table}.{field}: {refused}"
            );
            let update = format!("UPDATE {{s}}{table} SET {field} = {too_much}");
            assert!(
                w.store.try_execute(&update).await.is_err(),
                "{table}.{field}"
            );
        }
        let sums = [("retries", "2147483647"), ("failures", "1")];
        w.store.put(table, &sums).await.unwrap_err();
        w.store.put(table, &[("failures", "-1")]).await.unwrap_err();
        w.store
            .put(table, &[("failures", "0"), ("retries", "2147483647")])
            .await
            .unwrap();
    }
    for (table, columns, values) in [
        ("instance_lock", "process_instance", text(1025)),
        (
            "suspension",
            "scope, since, value",
            format!("'type', {{now}}, {}", text(1025)),
        ),
        (
            "lane_rule",
            "position, lane, tenant",
            format!("1, 'fast', {}", text(1025)),
        ),
    ] {
        let sql = format!("INSERT INTO {{s}}{table} ({columns}) VALUES ({values})");
        assert!(w.store.try_execute(&sql).await.is_err(), "{table}");
    }
}

/// The longest values that a program without these checks writes go through every table.
pub(super) async fn what_an_older_program_writes_fits<S: SqlBench>(w: &World<S>) {
    let long = text(1024);
    let payload = json(1 << 20);
    let row = [
        ("tenant", &*long),
        ("process_instance", &*long),
        ("trace_parent", &*long),
        ("payload", &*payload),
        ("retries", "2147483647"),
    ];
    let id = w.store.put("job", &row).await.unwrap();
    let worker = node();
    let mut hint = Hint::new(id);
    hint.instance = None;
    let job = w.hold(worker, &hint).await;
    let mut failure = retry_after(&job, Duration::ZERO);
    failure.message = Some("x".repeat(4000));
    failure.stack = Some("x".repeat(64_000));
    w.fail(worker, failure).await;
    w.make_due(id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let job = w.hold(worker, &hint).await;
    w.fail(worker, give_up(&job)).await;
    assert_eq!(w.state(id).await, Some(JobState::DeadLetter));
    w.store.retry(id, 2_147_483_647).await.unwrap();
    let scope = SuspensionScope::Type("work".to_owned());
    assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 1);
    w.store.activate(&scope).await.unwrap();
    w.hold(worker, &hint).await;
}

/// Returns a value of each kind that only an older schema accepts, with its field.
fn misfits() -> Vec<(&'static str, String)> {
    let mut misfits: Vec<_> = bounds()
        .into_iter()
        .map(|(field, _, bad)| (field, bad))
        .collect();
    misfits.retain(|(field, _)| !["revision", "hints", "failures"].contains(field));
    for field in ["revision", "hints", "failures"] {
        misfits.push((field, i32::MAX.to_string()));
    }
    misfits.push(("type", text(60_000)));
    misfits.push(("tenant", format!("'{}'", "ä".repeat(1024))));
    misfits
}

pub(super) async fn a_migration_sets_aside_what_does_not_fit<S: SqlBench>(w: &World<S>) {
    w.store.down_to(1).await;
    let mut good = Vec::new();
    for _ in 0..20 {
        good.push(w.store.put("job", &[]).await.unwrap());
    }
    let mut bad = Vec::new();
    for table in TABLES {
        for (field, value) in misfits() {
            let id = w.store.put(table, &[(field, &value)]).await.unwrap();
            bad.push((id, field, value));
        }
    }
    w.store.up().await;
    assert_eq!(w.rows("job").await, 20);
    assert_eq!(w.rows("timer_job").await + w.rows("suspended_job").await, 0);
    assert_eq!(w.rows("dead_letter_job").await, bad.len() as i64);
    for (id, field, value) in &bad {
        let (view, job, stack) = w.store.get(*id).await.unwrap().unwrap();
        assert_eq!(
            (view.state, view.retries),
            (JobState::DeadLetter, 0),
            "{field}"
        );
        let reason = job.exception_message.unwrap();
        assert!(
            reason.starts_with("set aside by migration 0002: "),
            "{reason}"
        );
        let was = stack.unwrap();
        let value = value.trim_matches(['\'', '"']);
        assert!(
            was.contains(value),
            "{field}: {}",
            was.get(..200).unwrap_or(&was)
        );
    }
    let hints: Vec<Hint> = good.into_iter().map(Hint::new).collect();
    let worker = node();
    let locked = w.lock(worker, &hints).await;
    assert_eq!(locked.jobs.len(), 20, "{:?}", locked.refused);
    let done: Vec<_> = locked.jobs.iter().map(done).collect();
    let settled = w
        .store
        .complete(worker, &done, &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied.len(), 20);
    // An older schema takes the rows back, and a second upgrade leaves as many dead letters.
    w.store.down_to(1).await;
    w.store.up().await;
    assert_eq!(w.rows("dead_letter_job").await, bad.len() as i64);
}

pub(super) async fn a_row_is_set_aside_whatever_is_in_it<S: SqlBench>(w: &World<S>) {
    let (long, worker) = (text(1024), node());
    let row = [
        ("payload", r#"'"\u0000"'"#),
        ("custom_values", r#"'{"a": 1, "a": [2]}'"#),
        ("repeat", "'nonsense'"),
        ("retry_policy", "'nonsense'"),
        ("tenant", &*long),
        ("revision", MOST),
        ("hints", MOST),
        ("failures", MOST),
        ("exclusive", "true"),
        ("process_instance", &*long),
    ];
    let job = w.store.put("job", &row).await.unwrap();
    w.hold(worker, &Hint::new(job)).await;
    let stack = format!(
        "INSERT INTO {{s}}job_exception (job_id, stack, written_at) VALUES ('{job}', 'an older stack', {{now}})"
    );
    w.store.execute(&stack).await;
    let mut ids = vec![job];
    for table in &TABLES[1..] {
        ids.push(w.store.put(table, &row).await.unwrap());
    }
    let reason = "why ".repeat(2000);
    for (table, id) in TABLES.iter().zip(&ids) {
        w.store.set_aside(table, *id, &reason).await;
        // A second call does nothing.
        if *table != "dead_letter_job" {
            w.store.set_aside(table, *id, &reason).await;
        }
        let (view, job, stack) = w.store.get(*id).await.unwrap().unwrap();
        assert_eq!(view.state, JobState::DeadLetter, "{table}");
        assert_eq!(
            (job.retries, job.failures, job.revision),
            (0, 1_000_000_000, 1_000_000_000)
        );
        assert_eq!(job.payload.get(), r#""\u0000""#);
        assert!(job.exception_message.unwrap().starts_with("why why"));
        let stack = stack.unwrap();
        assert!(
            stack.contains(&format!("\"{table}\"")) && stack.contains("nonsense"),
            "{stack}"
        );
        assert_eq!(stack.contains("an older stack"), *table == "job");
    }
    assert_eq!(w.rows("dead_letter_job").await, 4);
    assert_eq!(w.rows("job_lease").await, 0);
    // Its instance is free.
    w.store.free_instances().await.unwrap();
    assert_eq!(
        w.rows("job").await + w.rows("timer_job").await + w.rows("suspended_job").await,
        0
    );
}

pub(super) async fn an_id_that_stands_in_two_tables_gets_a_new_one<S: SqlBench>(w: &World<S>) {
    let twice = JobId::generate();
    for table in TABLES {
        let name = format!("'{table}'");
        w.store
            .put_as(twice, table, &[("tenant", &name)])
            .await
            .unwrap();
    }
    for table in ["timer_job", "suspended_job"] {
        w.store
            .set_aside(table, twice, "it stands in two tables")
            .await;
    }
    assert_eq!(w.rows("dead_letter_job").await, 3);
    assert_eq!(w.rows("job_exception").await, 2);
    let others = format!(
        "SELECT count(*) FROM {{s}}dead_letter_job WHERE id <> '{twice}' AND tenant <> 'dead_letter_job'"
    );
    assert_eq!(w.store.number(&others).await, 2);
    let told = "SELECT count(*) FROM {s}job_exception e JOIN {s}dead_letter_job d ON d.id = e.job_id WHERE e.stack LIKE '%' || d.tenant || '%'";
    assert_eq!(w.store.number(told).await, 2);
    // The executable job is still there, and runs.
    w.hold(node(), &Hint::new(twice)).await;
}

pub(super) async fn counts_stop_at_their_bound<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let most = [
        ("revision", MOST),
        ("hints", MOST),
        ("failures", MOST),
        ("retries", "2"),
    ];
    let id = w.store.put("job", &most).await.unwrap();
    let good = w.store.put("job", &[("hints", "1")]).await.unwrap();
    w.make_old(600).await;
    let soon = chrono::Utc::now() + chrono::Duration::seconds(60);
    let types = vec!["work".to_owned()];
    let mut orphans = OrphanQuery::new(Lane::default(), types, soon, 10);
    orphans.mark = true;
    let found = w.store.orphans(&orphans).await.unwrap().ready;
    assert!(found.iter().any(|ready| ready.hint.id == good), "{found:?}");
    let job = w.hold(worker, &Hint::new(id)).await;
    w.release(worker, job.held()).await;
    let job = w.hold(worker, &Hint::new(id)).await;
    let mut failure = retry_after(&job, Duration::ZERO);
    failure.to = jobwire_core::store::Destination::Retry {
        delay: Duration::ZERO,
        since: None,
        retries: 1,
        failures: 1_000_000_000,
    };
    w.fail(worker, failure).await;
    let scope = SuspensionScope::Type("work".to_owned());
    assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 2);
    w.store.activate(&scope).await.unwrap();
    w.store.move_due_timers(10).await.unwrap();
    let job = w.hold(worker, &Hint::new(id)).await;
    w.fail(worker, give_up(&job)).await;
    w.store.retry(id, 5).await.unwrap();
    w.store.retry(id, 5).await.unwrap();
    let (view, job, _) = w.store.get(id).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::Executable);
    assert_eq!((job.revision, job.retries), (1_000_000_000, 5));
    assert_eq!(
        w.store
            .number("SELECT max(CAST(hints AS bigint)) FROM {s}job")
            .await,
        1_000_000_000
    );
}

/// The next occurrence copies an existing row without checking its values again.
pub(super) async fn the_successor_of_an_odd_row_is_a_copy_of_it<S: SqlBench>(w: &World<S>) {
    let odd = [
        ("repeat", "'R/PT1.14S'"),
        ("retry_policy", "'garbage'"),
        ("payload", r#"'"\u0000"'"#),
        ("lane", "'no lane: '"),
        ("retries", "0"),
    ];
    let worker = node();
    let id = w.store.put("job", &odd).await.unwrap();
    let good = w.store.put("job", &[]).await.unwrap();
    let locked = w.lock(worker, &[Hint::new(id), Hint::new(good)]).await;
    assert_eq!(locked.jobs.len(), 2, "{:?}", locked.refused);
    let completions: Vec<_> = locked
        .jobs
        .iter()
        .map(|job| Completion {
            next: next_occurrence(&job.job, job.job.ready_at, &Calendars::default()).map(Box::new),
            ..done(job)
        })
        .collect();
    let settled = w
        .store
        .complete(worker, &completions, &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied.len(), 2);
    let next = completions
        .iter()
        .find_map(|c| c.next.as_ref())
        .unwrap()
        .id();
    let (_, next, _) = w.store.get(next).await.unwrap().unwrap();
    assert_eq!(next.repeat.as_deref(), Some("R/PT1.14S"));
    assert_eq!(next.retry_policy.as_deref(), Some("garbage"));
    assert_eq!(next.payload.get(), r#""\u0000""#);
}

/// Programs refuse such a job now. A row that an older one has written runs once.
pub(super) async fn a_row_with_an_end_and_no_series_runs<S: SqlBench>(w: &World<S>) {
    let until = [("repeat_until", "{now} - 3600 * {second}"), ("hints", "1")];
    let id = w.store.put("job", &until).await.unwrap();
    let worker = node();
    let job = w.hold(worker, &Hint::new(id)).await;
    assert!(job.job.repeat_until.is_some() && job.job.unreadable.is_none());
    let settled = w.complete(worker, &job, &take(worker)).await;
    assert_eq!(settled.applied, [id]);
    assert_eq!(w.state(id).await, None);
}
