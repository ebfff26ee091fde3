//! Texts of another program that are not UTF-8, and ids with a rest behind a NUL: SQLite takes them.
//! Such a row stops no other one.

use std::time::Duration;

use jobwire_core::store::attempts::IncidentFilter;
use jobwire_core::store::{
    ClaimOf, ClaimPage, Handoff, LanePage, Origin, OrphanQuery, SuspensionScope,
};
use jobwire_core::{JobId, JobQuery, JobState, Lane, NewJob, PeriodicJob, SqliteStore, Store};

use super::super::world::{LEADER, SqlBench, World, ids, job_ids, node, terms, work};

/// A text that is not UTF-8.
const BAD: &str = "CAST(x'6100ff' AS TEXT)";
/// More rows than a page has.
const MANY: i64 = 1_100;

type Sqlite = World<SqliteStore>;

/// Writes a job that was never hinted, and returns its id.
async fn put(w: &Sqlite, table: &str, columns: &[(&str, &str)]) -> JobId {
    w.store.put(table, columns).await.unwrap()
}

/// Writes many jobs whose ids have a rest behind a NUL. They come first in every order.
async fn put_unnamed(w: &Sqlite, table: &str) {
    let id =
        "CAST(CAST(printf('00000000-0000-0000-0000-%012d', value) AS BLOB) || x'00ff' AS TEXT)";
    let (column, due) = match table {
        "timer_job" => (", due_at", ", 1"),
        _ => ("", ""),
    };
    let sql = format!(
        "INSERT INTO {table} (id, correlation_id, seq, type{column})
         WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {MANY})
         SELECT {id}, {id}, -value, 'work'{due} FROM n"
    );
    assert_eq!(w.store.execute(&sql).await, MANY.unsigned_abs());
}

async fn orphans(w: &Sqlite) -> Vec<JobId> {
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let mut query = OrphanQuery::new(Lane::default(), terms(node()).types, now, 100);
    query.whole = true;
    ids(&w.store.orphans(&query).await.unwrap().ready)
}

/// Writes a bad text into every table that has one.
async fn put_bad_everywhere(w: &Sqlite) {
    let bad_job = [
        ("tenant", BAD),
        ("process_instance", BAD),
        ("execution", BAD),
        ("element", BAD),
        ("process_definition", BAD),
        ("category", BAD),
        ("exception_message", BAD),
        ("trace_parent", BAD),
        ("repeat", BAD),
    ];
    for table in ["job", "timer_job", "suspended_job", "dead_letter_job"] {
        put(w, table, &bad_job).await;
        put(w, table, &[("type", BAD), ("lane", BAD)]).await;
        let exclusive = [("process_instance", BAD), ("exclusive", "1")];
        put(w, table, &exclusive).await;
    }
    let id = "'00000000-0000-7000-8000-000000000017'";
    for (table, row) in [
        (
            "periodic_job(name, schedule, template, next_due, created_at, changed_at)",
            format!("{BAD}, 'R/PT1H', '{{\"type\":\"work\"}}', 1, 0, 0"),
        ),
        (
            "periodic_job(name, schedule, template, next_due, created_at, changed_at)",
            format!("'unreadable', {BAD}, '{{\"type\":\"work\"}}', 1, 0, 0"),
        ),
        (
            "suspension(scope, value, since)",
            "'type', CAST(x'6200ff' AS TEXT), 0".to_owned(),
        ),
        (
            "suspension(scope, value, since)",
            format!("'element', {BAD}, 0"),
        ),
        (
            "lane_rule(position, type, category, tenant, lane)",
            format!("1, {BAD}, {BAD}, {BAD}, 'a'"),
        ),
        (
            "priority_rule(scope, type, process_definition, element, priority, since)",
            format!("'override', {BAD}, {BAD}, {BAD}, 1, 0"),
        ),
        (
            "node(id, revision, types, lanes, host, version, transport, started_at, seen_at)",
            format!("{id}, 1, '[]', '[]', {BAD}, {BAD}, {BAD}, {{now}}, {{now}}"),
        ),
        (
            "node(id, revision, types, lanes, host, version, transport, started_at, seen_at)",
            format!("{BAD}, 1, '[]', '[]', 'h', '1', 't', {{now}}, {{now}}"),
        ),
        (
            "attempt(fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome, message, stack, keep_until)",
            format!("-1, {id}, {BAD}, {BAD}, {BAD}, {BAD}, 0, 0, {BAD}, {BAD}, {BAD}, {{now}}"),
        ),
        (
            "incident(job_id, opened_at, type, process_instance, process_definition, element, tenant, message, resolution)",
            format!("{BAD}, 1, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}"),
        ),
        (
            "event(kind, job_id, type, process_instance, process_definition, element, tenant, category, trace_parent, message)",
            format!("'created', {id}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}, {BAD}"),
        ),
        (
            "event(kind, job_id, type)",
            format!("'created', {BAD}, 'work'"),
        ),
        (
            "event_stream(only_row, source, kinds, keep, since)",
            format!("1, {BAD}, '[]', 60000000, 0"),
        ),
        (
            "batch(id, name, callback_id, callback, created_at)",
            format!("{id}, {BAD}, {id}, {BAD}, 1"),
        ),
        ("batch_member(batch_id, job_id)", format!("{id}, {BAD}")),
        (
            "unique_job(type, tenant, key, job_id, held_until, dead_letters, seen_at)",
            format!("'work', '', 'taken', {BAD}, {{now}} + 3600 * {{second}}, 0, 0"),
        ),
        (
            "unique_job(type, tenant, key, job_id, dead_letters, seen_at)",
            format!("{BAD}, {BAD}, {BAD}, {BAD}, 0, 0"),
        ),
        (
            "unique_dead_letter(job_id, type, tenant, key)",
            format!("{BAD}, {BAD}, {BAD}, {BAD}"),
        ),
        (
            "permit_key(limit_name, key, size, used_at)",
            format!("{BAD}, {BAD}, 1, {{now}}"),
        ),
        (
            "permit(limit_name, key, node, number, expires_at)",
            format!("{BAD}, 'k', {BAD}, 1, {{now}}"),
        ),
        (
            "waiting_job(job_id, limit_name, key, type, seq)",
            format!("{BAD}, {BAD}, {BAD}, {BAD}, 1"),
        ),
        (
            "instance_lock(process_instance, fence)",
            format!("{BAD}, 1"),
        ),
        (
            "job_exception(job_id, stack, written_at)",
            format!("{BAD}, {BAD}, 0"),
        ),
        (
            "job_progress(job_id, fence, message)",
            format!("{BAD}, 1, {BAD}"),
        ),
        ("unannounced_job(job_id, noted_at)", format!("{BAD}, 1")),
        (
            "leader(role, node, term, transport, expires_at)",
            format!("'leader', {BAD}, 1, {BAD}, 0"),
        ),
    ] {
        let (table, columns) = table.split_once('(').unwrap();
        let sql = format!("INSERT INTO {table} ({columns} VALUES ({row})");
        assert_eq!(w.store.execute(&sql).await, 1, "{table}");
    }
}

#[tokio::test]
async fn a_text_that_is_not_utf8_stops_no_other_row() {
    let w = Sqlite::open().await;
    // Before the rules and the suspensions.
    let orphan = w.one(work()).await.id;
    let periodic = PeriodicJob::new("honest", "R/PT1H", NewJob::of("work", &17));
    w.store.declare_periodic_jobs(&[periodic]).await.unwrap();
    put_bad_everywhere(&w).await;
    let unhinted = put(&w, "job", &[]).await;

    // The periodic jobs.
    w.store
        .execute("UPDATE periodic_job SET next_due = 2 WHERE name = 'honest'")
        .await;
    let due = w.store.due_periodic_jobs(None, 1).await.unwrap();
    assert_eq!(due.names, ["unreadable"]);
    assert!(w.store.fire_periodic_job("unreadable").await.is_err());
    let due = w.store.due_periodic_jobs(None, 100).await.unwrap();
    // It stays due: a newer program may read it.
    assert_eq!(due.names, ["unreadable", "honest"]);
    assert!(w.store.fire_periodic_job("honest").await.unwrap().advanced);
    assert_eq!(w.store.periodic_jobs().await.unwrap().len(), 3);
    let still = "SELECT count(*) FROM periodic_job WHERE next_due <= {now}";
    assert_eq!(w.store.number(&still.replace("{now}", "2")).await, 1);

    // The jobs that the leader and the sweeper hint.
    let report = w.lead(LEADER).await;
    assert!(ids(&report.unhinted).contains(&unhinted));
    assert!(w.store.unhinted(100).await.unwrap().is_empty());
    w.make_old(60).await;
    assert!(orphans(&w).await.contains(&orphan));
    w.store.note_unannounced(&[orphan]).await.unwrap();
    let announced = w.store.announce_noted(100).await.unwrap();
    assert_eq!(ids(&announced.ready), [orphan]);
    assert_eq!(w.rows("unannounced_job").await, 0);
    w.store.move_due_timers(100).await.unwrap();
    w.store.free_instances().await.unwrap();
    assert_eq!(w.rows("instance_lock").await, 0);

    // The lists.
    let all = w.store.find(&JobQuery::default().limit(100)).await.unwrap();
    assert!(
        all.iter()
            .any(|view| view.tenant.as_deref() == Some("a\0\u{fffd}"))
    );
    for view in &all {
        assert!(w.store.get(view.id).await.unwrap().is_some());
    }
    let errors = w.store.errors(None, 100).await.unwrap();
    assert!(errors.iter().any(|group| group.message == "a\0\u{fffd}"));
    let incidents = w.store.incidents(&IncidentFilter::default()).await.unwrap();
    assert!(incidents.iter().any(|of| of.job_type == "a\0\u{fffd}"));
    let recorded: JobId = "00000000-0000-7000-8000-000000000017".parse().unwrap();
    assert_eq!(w.store.attempts(recorded, 10).await.unwrap().len(), 1);
    assert!(!w.store.lanes().await.unwrap().is_empty());
    let received = [Lane::default()];
    assert!(
        !w.store
            .lanes_outside(&received, 10)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(w.store.lane_rules().await.unwrap().len(), 1);
    assert_eq!(w.store.priority_rules().await.unwrap().len(), 1);
    // The value of the other one is no element.
    assert_eq!(w.store.suspensions().await.unwrap().len(), 1);
    assert_eq!(w.store.nodes().await.unwrap().len(), 1);
    assert_eq!(w.store.batches(true, 10).await.unwrap().len(), 1);
    assert_eq!(w.store.open_batches(None, 10).await.unwrap().number, 1);
    let batch = w.store.batches(true, 10).await.unwrap()[0].id;
    w.store.batch_members(batch, None, 10).await.unwrap();
    let services = terms(node()).types.into();
    assert!(
        !w.store
            .unserved_types(&services, 10)
            .await
            .unwrap()
            .is_empty()
    );
    w.store.sweepable(&services, &received).await.unwrap();
    w.store.waiting_for_permits(10).await.unwrap();
    w.store.stalled_keys(&[]).await.unwrap();
    assert_eq!(w.rows("permit_key").await, 0);
    w.store.pending_jobs(10).await.unwrap();
    assert!(w.store.event_stream().await.unwrap().is_some());
    w.store.event_stream_state().await.unwrap();
    let events = w.store.next_events(10).await.unwrap();
    assert_eq!(events.len(), 1);

    // What writes.
    let created = w.create(vec![work().unique("taken"), work()]).await;
    let again: Vec<_> = created.ready.into_iter().map(|r| r.hint).collect();
    assert_eq!(again.len(), 1);
    let locked = w.store.lock(&terms(node()), &again).await.unwrap();
    assert_eq!(locked.jobs.len(), 1);
    w.store.prune_history(Duration::ZERO, 100).await.unwrap();
    let scope = SuspensionScope::Type("work".to_owned());
    w.store.suspend(&scope).await.unwrap();
    w.store.activate(&scope).await.unwrap();
}

/// Its hint names no instance, so it is locked by its id.
#[tokio::test]
async fn a_job_whose_text_is_not_utf8_is_unreadable_and_its_neighbours_run() {
    let w = Sqlite::open().await;
    let tenant = put(&w, "job", &[("tenant", BAD)]).await;
    let columns = [("process_instance", BAD), ("exclusive", "1")];
    let exclusive = put(&w, "job", &columns).await;
    let payload = put(&w, "job", &[("payload", "CAST(x'22ff22' AS TEXT)")]).await;
    let good = put(&w, "job", &[]).await;
    let ready = w.store.unhinted(100).await.unwrap();
    let hints: Vec<_> = ready.into_iter().map(|ready| ready.hint).collect();
    let owner = node();
    let locked = w.store.lock(&terms(owner), &hints).await.unwrap();
    let mut unreadable: Vec<JobId> = Vec::new();
    for of in &locked.jobs {
        if of.job.unreadable.is_some() {
            unreadable.push(of.job.id);
        }
    }
    unreadable.sort();
    assert_eq!(unreadable, [tenant, exclusive, payload]);
    assert!(job_ids(&locked.jobs).contains(&good));
    let buried: Vec<_> = locked
        .jobs
        .iter()
        .map(super::super::world::give_up)
        .collect();
    let buried = w.store.fail(owner, &buried, &Handoff::Hint).await.unwrap();
    assert_eq!(buried.applied.len(), 4);
    let letters = JobQuery::default().states([JobState::DeadLetter]);
    assert_eq!(w.store.count(&letters).await.unwrap(), 4);
}

#[tokio::test]
async fn schedules_without_a_readable_name_hold_up_no_other() {
    let w = Sqlite::open().await;
    let periodic = PeriodicJob::new("honest", "R/PT1H", NewJob::of("work", &17));
    w.store.declare_periodic_jobs(&[periodic]).await.unwrap();
    w.store
        .execute("UPDATE periodic_job SET next_due = 2")
        .await;
    let sql = format!(
        "INSERT INTO periodic_job (name, schedule, template, next_due, created_at, changed_at)
         WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {MANY})
         SELECT CAST(CAST(value AS BLOB) || x'ff' AS TEXT), 'R/PT1H', '{{\"type\":\"work\"}}', 1, 0, 0 FROM n"
    );
    w.store.execute(&sql).await;
    let due = w.store.due_periodic_jobs(None, 100).await.unwrap();
    assert_eq!(due.names, ["honest"]);
    assert!(w.store.fire_periodic_job("honest").await.unwrap().advanced);
    // The leader does not look for them again at once.
    let now = chrono::Utc::now();
    assert!(
        w.lead(LEADER)
            .await
            .next_periodic
            .is_some_and(|at| at > now)
    );
    let due = w.store.due_periodic_jobs(None, 100).await.unwrap();
    assert!(due.names.is_empty());
}

/// The checks of the tables read an id up to its first NUL.
#[tokio::test]
async fn jobs_without_a_readable_id_hold_up_no_other() {
    let w = Sqlite::open().await;
    for table in ["job", "timer_job", "suspended_job", "dead_letter_job"] {
        put_unnamed(&w, table).await;
    }
    let found = w.store.find(&JobQuery::default()).await.unwrap();
    assert!(found.is_empty());
    let unhinted = put(&w, "job", &[]).await;
    let timer = put(&w, "timer_job", &[]).await;
    assert_eq!(ids(&w.lead(LEADER).await.unhinted), [unhinted]);
    assert!(w.store.unhinted(100).await.unwrap().is_empty());
    let moved = w.store.move_due_timers(100).await.unwrap();
    assert_eq!(ids(&moved.ready), [timer]);
    w.make_old(60).await;
    assert_eq!(orphans(&w).await, [unhinted, timer]);
    assert_eq!(w.store.find(&JobQuery::default()).await.unwrap().len(), 2);
    assert_eq!(w.store.count(&JobQuery::default()).await.unwrap(), 2);
    let page = ClaimPage {
        lane: Lane::default(),
        of: ClaimOf::Next {
            after: None,
            look_at: 10,
        },
        at_most: 10,
    };
    let owner = node();
    let claimed = w.store.claim(&terms(owner), &page).await.unwrap();
    assert_eq!(job_ids(&claimed.jobs), [unhinted, timer]);
    for job in &claimed.jobs {
        w.release(owner, job.held()).await;
    }
    let page = LanePage {
        from: Lane::default(),
        to: Lane::unchecked("fast"),
        state: JobState::Executable,
        after: None,
        at_most: 10,
        origin: Origin::Hook,
    };
    assert_eq!(w.store.move_lane(&page).await.unwrap().moved, 2);
    let scope = SuspensionScope::Type("work".to_owned());
    w.store.suspend(&scope).await.unwrap();
    w.store.activate(&scope).await.unwrap();
    assert_eq!(w.store.find(&JobQuery::default()).await.unwrap().len(), 2);
}

/// Such a job is no sibling.
#[tokio::test]
async fn a_job_without_a_readable_id_holds_no_instance_up() {
    let w = Sqlite::open().await;
    let id = "CAST(x'30303030303030302d303030302d303030302d303030302d30303030303030303030303100ff' AS TEXT)";
    let sql = format!(
        "INSERT INTO job (id, correlation_id, seq, type, exclusive, process_instance) VALUES ({id}, {id}, -1, 'work', 1, 'i')"
    );
    w.store.execute(&sql).await;
    let hint = w.one(work().instance("i")).await;
    w.make_old(60).await;
    let id = hint.id;
    assert_eq!(orphans(&w).await, [id]);
    let locked = w.store.lock(&terms(node()), &[hint]).await.unwrap();
    assert_eq!(job_ids(&locked.jobs), [id]);
}
