//! The event stream: what is written with which change, and what reaches the consumers of a broker. That
//! the kinds are exact, the scenario of `events` tests on both databases. Budget: 15 s.

pub(crate) mod brokers;
pub(crate) mod deaths;
mod switching;

use std::collections::BTreeMap;
use std::time::Duration;

use jobwire::event::{EventStream, StreamedEvent};
use jobwire::store::{Change, SuspensionScope};
use jobwire::{Client, CommitHook, JobId, NewJob, PgStore, SqlStore, SqliteStore, Store};
use jobwire_harness::world::database;
use jobwire_tests::Scratch;

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) async fn sqlite() -> (SqliteStore, Scratch) {
    let home = Scratch::new();
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let store = SqliteStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    (store, home)
}

fn stream() -> EventStream {
    EventStream::new("jobwire/test")
}

async fn switch_on(store: &impl Store) {
    store.switch_event_stream(Some(&stream())).await.unwrap();
}

async fn waiting(store: &impl Store) -> Vec<StreamedEvent> {
    store.next_events(100_000).await.unwrap()
}

/// Returns the kinds of the events of each job, in their order.
fn by_job(events: &[StreamedEvent]) -> BTreeMap<JobId, Vec<&str>> {
    let mut kinds: BTreeMap<JobId, Vec<&str>> = BTreeMap::new();
    for event in events {
        kinds.entry(event.job).or_default().push(&event.kind);
    }
    kinds
}

/// What is rolled back is not told, and neither is a suspension. An event has the fields of its job.
async fn events_are_those_of_committed_changes<S: SqlStore>(store: S) {
    switch_on(&store).await;
    let client = Client::new(store.clone(), CommitHook::disconnected());
    let mut tx = client.begin().await.unwrap();
    tx.create(NewJob::of("work", &1)).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(waiting(&store).await, []);

    let job = NewJob::of("work", &1)
        .delay(HOUR)
        .instance("order-17")
        .tenant("north")
        .max_attempts(5);
    let job = client.create(job).await.unwrap();
    let scope = SuspensionScope::Type("work".to_owned());
    store.suspend(&scope).await.unwrap();
    let later = chrono::Utc::now() + HOUR;
    let later = chrono::DateTime::from_timestamp(later.timestamp(), 0).unwrap();
    let moved = Change::Reschedule(later);
    client.change(&[job], &moved).await.unwrap();
    store.activate(&scope).await.unwrap();
    client.change(&[job], &Change::Suspend).await.unwrap();
    client.change(&[job], &Change::Activate).await.unwrap();
    let events = waiting(&store).await;
    let kinds = ["created", "timer_scheduled", "rescheduled"];
    assert_eq!(by_job(&events), BTreeMap::from([(job, kinds.to_vec())]));
    for event in &events {
        assert_eq!(event.job_type, "work");
        assert_eq!(event.process_instance.as_deref(), Some("order-17"));
        assert_eq!(event.tenant.as_deref(), Some("north"));
        assert_eq!(event.retries, Some(5));
        assert_eq!(event.correlation_id.map(JobId::from_uuid), Some(job));
        assert_eq!(event.key(), "order-17");
    }
    assert_eq!(events[2].due_at, Some(later));
    let ids: std::collections::BTreeSet<_> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn events_are_those_of_committed_changes_on_sqlite() {
    let (store, _home) = sqlite().await;
    events_are_those_of_committed_changes(store).await;
}

#[tokio::test]
async fn events_are_those_of_committed_changes_on_postgres() {
    events_are_those_of_committed_changes(database().await).await;
}

/// Only the kinds and types that were asked for are written. Old events are dropped, newer ones stay.
async fn the_stream_has_what_was_asked_for<S: SqlStore>(store: S, age: impl AsyncFn(&S)) {
    let asked = stream().kinds(["created"]).types(["work"]).keep(HOUR);
    store.switch_event_stream(Some(&asked)).await.unwrap();
    let client = Client::new(store.clone(), CommitHook::disconnected());
    let job = client.create(NewJob::of("work", &1).delay(HOUR)).await;
    let job = job.unwrap();
    client.create(NewJob::of("other", &1)).await.unwrap();
    let events = waiting(&store).await;
    assert_eq!(by_job(&events), BTreeMap::from([(job, vec!["created"])]));
    let state = store.event_stream_state().await.unwrap();
    assert_eq!((state.stream, state.waiting), (Some(asked.clone()), 1));
    assert!(state.is_intact && state.oldest.is_some());
    assert_eq!(store.event_stream().await.unwrap(), Some(asked));

    assert_eq!(store.drop_old_events(10).await.unwrap(), 0);
    client.create(NewJob::of("work", &5)).await.unwrap();
    age(&store).await;
    client.create(NewJob::of("work", &2)).await.unwrap();
    // Of the events of a key that failed for long, the old ones are dropped.
    let events = waiting(&store).await;
    let failed = [1, 2].map(|place: usize| (events[place].seq, events[place].id));
    assert_eq!(store.drop_failed_events(&failed).await.unwrap(), 1);
    assert_eq!(store.drop_failed_events(&failed).await.unwrap(), 0);
    assert_eq!(store.drop_old_events(10).await.unwrap(), 1);
    let left = waiting(&store).await;
    assert_eq!(left.len(), 1);
    assert_ne!(left[0].job, job);
    let published = (left[0].seq, left[0].id);
    assert_eq!(store.forget_events(&[published]).await.unwrap(), 1);
    assert_eq!(store.waiting_events().await.unwrap(), (0, None));

    let bad = stream().kinds(["started"]);
    let refused = store.switch_event_stream(Some(&bad)).await.unwrap_err();
    assert!(refused.to_string().contains("`started`"), "{refused}");
    client.create(NewJob::of("work", &3)).await.unwrap();
    assert_eq!(store.switch_event_stream(None).await.unwrap(), 1);
    client.create(NewJob::of("work", &4)).await.unwrap();
    assert_eq!(waiting(&store).await, []);
    let state = store.event_stream_state().await.unwrap();
    assert!(state.is_intact && state.stream.is_none());
}

#[tokio::test]
async fn the_stream_has_what_was_asked_for_on_sqlite() {
    let (store, home) = sqlite().await;
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let age = async move |_: &SqliteStore| {
        let options = url.parse::<sqlx::sqlite::SqliteConnectOptions>().unwrap();
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let older = "UPDATE event SET at = at - 3601000000";
        sqlx::query(older).execute(&pool).await.unwrap();
    };
    the_stream_has_what_was_asked_for(store, age).await;
}

#[tokio::test]
async fn the_stream_has_what_was_asked_for_on_postgres() {
    let age = async |store: &PgStore| {
        let older = "UPDATE jobwire.event SET at = at - interval '3601 seconds'";
        sqlx::query(older).execute(store.pool()).await.unwrap();
    };
    the_stream_has_what_was_asked_for(database().await, age).await;
}

/// Jobs of plain SQL are in the stream, created by a role that has no right on the events.
#[tokio::test]
async fn jobs_of_plain_sql_are_in_the_stream() {
    let store = database().await;
    switch_on(&store).await;
    let mut connection = store.pool().acquire().await.unwrap();
    let role = format!("creator_{}", uuid::Uuid::new_v4().simple());
    let grants = format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA jobwire TO {role};
         GRANT INSERT ON jobwire.job TO {role}; GRANT USAGE ON SEQUENCE jobwire.job_seq TO {role};
         DO $$ DECLARE door regprocedure; BEGIN
             FOR door IN SELECT oid::regprocedure FROM pg_proc
                 WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'create_job'
             LOOP EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {role}', door); END LOOP;
         END $$;
         SET ROLE {role}"
    );
    let run = sqlx::raw_sql(sqlx::AssertSqlSafe(grants));
    run.execute(&mut *connection).await.unwrap();
    let called: uuid::Uuid = sqlx::query_scalar("SELECT jobwire.create_job(type => 'work')")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let inserted = uuid::Uuid::now_v7();
    let insert = "INSERT INTO jobwire.job (id, type, correlation_id) VALUES ($1, 'work', $1)";
    let insert = sqlx::query(insert).bind(inserted);
    insert.execute(&mut *connection).await.unwrap();
    let reset = format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}");
    let reset = sqlx::raw_sql(sqlx::AssertSqlSafe(reset));
    reset.execute(&mut *connection).await.unwrap();
    let deleted = "DELETE FROM jobwire.job WHERE id = $1";
    let deleted = sqlx::query(deleted).bind(inserted);
    deleted.execute(&mut *connection).await.unwrap();
    let events = waiting(&store).await;
    let expected = [
        (JobId::from_uuid(called), vec!["created"]),
        (JobId::from_uuid(inserted), vec!["created", "cancelled"]),
    ];
    assert_eq!(by_job(&events), BTreeMap::from(expected));
}

/// Without the stream no table has a trigger of it, and no event is written. The plan of a statement shows
/// the triggers that it calls.
#[tokio::test]
async fn a_stream_that_is_off_costs_nothing() {
    let store = database().await;
    let plan = async || -> String {
        let statement = "EXPLAIN (ANALYZE, TIMING off, SUMMARY off, FORMAT text)
            INSERT INTO jobwire.job (id, type, correlation_id)
            VALUES (gen_random_uuid(), 'work', gen_random_uuid())";
        let lines: Vec<String> = sqlx::query_scalar(statement)
            .fetch_all(store.pool())
            .await
            .unwrap();
        lines.join("\n")
    };
    let triggers = async || -> i64 {
        let count = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'event\\_%'";
        let count = sqlx::query_scalar(count).fetch_one(store.pool());
        count.await.unwrap()
    };
    for _ in 0..2 {
        let off = plan().await;
        assert!(!off.contains("event_added"), "{off}");
        assert_eq!(triggers().await, 0);
        assert_eq!(waiting(&store).await, []);
        switch_on(&store).await;
        let on = plan().await;
        assert!(on.contains("event_added"), "{on}");
        assert_eq!(triggers().await, 11);
        assert_eq!(waiting(&store).await.len(), 1);
        store.switch_event_stream(None).await.unwrap();
    }
}
