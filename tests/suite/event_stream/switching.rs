//! The stream beside open transactions, and jobs that are set aside.

use std::time::Duration;

use jobwire::{Client, CommitHook, JobId, NewJob, PgStore, SqlStore, SqliteStore, Store};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, database};

use super::{by_job, sqlite, switch_on, waiting};

/// A creator goes on while the switch waits for a reader.
#[tokio::test]
async fn a_switch_that_waits_for_a_reader_lets_creators_pass() {
    let store = database().await;
    switch_on(&store).await;
    let client = Client::new(store.clone(), CommitHook::disconnected());
    let mut reader = store.pool().begin().await.unwrap();
    let read = sqlx::query("SELECT FROM jobwire.job");
    read.execute(&mut *reader).await.unwrap();
    let switching = store.clone();
    let switch = tokio::spawn(async move { switching.switch_event_stream(None).await });
    eventually("the switch waits", SOON, async || {
        let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE NOT l.granted AND d.datname = current_database())";
        let waits = sqlx::query_scalar::<_, bool>(waits).fetch_one(store.pool());
        waits.await.unwrap().then_some(())
    })
    .await;
    client.create(NewJob::of("work", &1)).await.unwrap();
    reader.rollback().await.unwrap();
    switch.await.unwrap().unwrap();
    assert!(store.event_stream_state().await.unwrap().is_intact);
}

/// The snapshot of a transaction is older than the stream: its events are told.
#[tokio::test]
async fn an_older_snapshot_has_its_events() {
    let store = database().await;
    let mut old = store.pool().begin().await.unwrap();
    let snapshot =
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM jobwire.schema_version";
    sqlx::raw_sql(snapshot).execute(&mut *old).await.unwrap();
    switch_on(&store).await;
    let id = uuid::Uuid::now_v7();
    let insert = "INSERT INTO jobwire.job (id, type, correlation_id) VALUES ($1, 'work', $1)";
    let insert = sqlx::query(insert).bind(id);
    insert.execute(&mut *old).await.unwrap();
    old.commit().await.unwrap();
    let events = waiting(&store).await;
    assert_eq!(by_job(&events)[&JobId::from_uuid(id)], ["created"]);
}

/// A transaction draws its numbers, and others commit and are published before it. Its events come before
/// the later ones of its job.
#[tokio::test]
async fn an_event_that_commits_late_is_found_before_later_ones() {
    let store = database().await;
    switch_on(&store).await;
    let client = Client::new(store.clone(), CommitHook::disconnected());
    let mut late = store.pool().begin().await.unwrap();
    let id = uuid::Uuid::now_v7();
    let insert = "INSERT INTO jobwire.job (id, type, correlation_id) VALUES ($1, 'work', $1)";
    sqlx::query(insert)
        .bind(id)
        .execute(&mut *late)
        .await
        .unwrap();
    for _ in 0..5 {
        client.create(NewJob::of("work", &1)).await.unwrap();
        let page = waiting(&store).await;
        assert_eq!(page.len(), 1);
        store
            .forget_events(&[(page[0].seq, page[0].id)])
            .await
            .unwrap();
    }
    late.commit().await.unwrap();
    client.cancel(JobId::from_uuid(id)).await.unwrap();
    let events = waiting(&store).await;
    assert_eq!(
        by_job(&events)[&JobId::from_uuid(id)],
        ["created", "cancelled"]
    );
}

/// A timer that the database refuses to move, among good ones, is set aside, which is told as a dead
/// letter.
async fn a_job_that_is_set_aside_is_dead_lettered<S: SqlStore>(
    store: S,
    refuse: impl AsyncFnOnce(&S),
) {
    let client = Client::new(store.clone(), CommitHook::disconnected());
    let timer = || NewJob::of("work", &1).delay(Duration::from_secs(3_600));
    let bad = timer().element("poison");
    let id = bad.id();
    let good = (0..20).map(|_| timer());
    let all = good.chain(std::iter::once(bad)).collect();
    client.create_many(all).await.unwrap();
    refuse(&store).await;
    switch_on(&store).await;
    store.move_due_timers(100).await.unwrap();
    let events = waiting(&store).await;
    assert_eq!(by_job(&events)[&id], ["dead_lettered", "incident_opened"]);
    let mut its = events.iter().filter(|event| event.job == id);
    assert!(its.all(|event| event.retries == Some(0)));
}

#[tokio::test]
async fn a_job_that_is_set_aside_is_dead_lettered_on_sqlite() {
    let (store, home) = sqlite().await;
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let refuse = async move |_: &SqliteStore| {
        let options = url.parse::<sqlx::sqlite::SqliteConnectOptions>().unwrap();
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let refuse = "UPDATE timer_job SET due_at = 1000000;
            CREATE TRIGGER refuse BEFORE INSERT ON job WHEN NEW.element = 'poison'
            BEGIN SELECT RAISE(ABORT, 'poisoned'); END";
        sqlx::raw_sql(refuse).execute(&pool).await.unwrap();
    };
    a_job_that_is_set_aside_is_dead_lettered(store, refuse).await;
}

#[tokio::test]
async fn a_job_that_is_set_aside_is_dead_lettered_on_postgres() {
    let refuse = async |store: &PgStore| {
        let refuse = "UPDATE jobwire.timer_job SET due_at = now() - interval '1 second';
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation';
            END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON jobwire.job FOR EACH ROW
            WHEN (NEW.element = 'poison') EXECUTE FUNCTION refuse()";
        sqlx::raw_sql(refuse).execute(store.pool()).await.unwrap();
    };
    a_job_that_is_set_aside_is_dead_lettered(database().await, refuse).await;
}

/// Another program wrote the row of the stream. The driver reads only arrays that begin at 1.
#[tokio::test]
async fn a_stream_is_read_however_its_arrays_are_numbered() {
    let store = database().await;
    switch_on(&store).await;
    sqlx::raw_sql(
        "UPDATE jobwire.event_stream SET kinds = '[3:4]={created,locked}', types = '[0:0]={work}'",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let stream = store.event_stream().await.unwrap().unwrap();
    assert_eq!(stream.kinds, ["created", "locked"]);
    assert_eq!(stream.types, Some(vec!["work".to_owned()]));
}
