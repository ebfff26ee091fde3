//! A trigger waits for a lock that is not given back: the row of the trigger waits, and the others of its page do not.

use std::cell::Cell;
use std::time::Duration;

use jobwire_core::{CommitHook, NewJob, PgOptions, PgStore, Store};
use jobwire_tests::{eventually, shared};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::SOON;

const GOOD: usize = 20;
const WAITING: usize = 3;

/// A statement may take two seconds.
async fn store() -> (String, PgStore) {
    let url = shared::postgres().await.create_database().await;
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(2);
    let store = PgStore::connect_with(&url, options).await.unwrap();
    store.migrate().await.unwrap();
    for sql in [
        "CREATE TABLE public.door (open boolean)",
        "INSERT INTO public.door VALUES (true)",
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM FROM public.door FOR UPDATE; RETURN NEW; END $$",
        "CREATE TRIGGER wait BEFORE INSERT ON jobwire.job FOR EACH ROW
         WHEN (NEW.element = 'waits') EXECUTE FUNCTION public.wait()",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    (url, store)
}

async fn timers(store: &PgStore, many: usize, element: &str) {
    let mut tx = store
        .jobs(CommitHook::disconnected())
        .begin()
        .await
        .unwrap();
    for _ in 0..many {
        let timer = NewJob::of("noop", &json!({})).element(element);
        tx.create(timer.delay(Duration::from_secs(3600)))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    let due = "UPDATE jobwire.timer_job SET due_at = due_at - interval '2 hours'";
    sqlx::query(due).execute(store.pool()).await.unwrap();
}

/// Timers that one move brings.
async fn moved(store: &PgStore) -> usize {
    let moved = store.move_due_timers(1_000).await;
    moved.map_or(0, |moved| moved.ready.len())
}

#[tokio::test]
async fn a_timer_whose_trigger_waits_for_a_lock_holds_up_no_other() {
    let (url, store) = store().await;
    timers(&store, WAITING, "waits").await;
    timers(&store, GOOD, "").await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut holds = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM public.door FOR UPDATE")
        .execute(&mut *holds)
        .await
        .unwrap();
    // Three moves run into the deadline before it is taken for a row's doing; then each search comes a few rows closer.
    let got = Cell::new(0);
    eventually("the rows that wait are told apart", SOON, async || {
        got.set(got.get() + moved(&store).await);
        let stuck = store.stuck();
        stuck
            .first()
            .filter(|stuck| stuck.jobs == WAITING)
            .map(drop)
    })
    .await;
    assert_eq!(got.get(), GOOD);
    // Those that come later do not meet the deadline again.
    timers(&store, GOOD, "").await;
    assert_eq!(moved(&store).await, GOOD);
    holds.rollback().await.unwrap();
    let rest = Cell::new(0);
    eventually("the timers that waited are moved", SOON, async || {
        rest.set(rest.get() + moved(&store).await);
        (rest.get() == WAITING && store.stuck().is_empty()).then_some(())
    })
    .await;
}
