//! Shared parts of the race tests: nodes that never sweep, short forms of the store's methods, and
//! a way to see that a database session waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::{
    Completion, Destination, Failure, Handoff, LockTerms, Locked, Origin, Refusal, RowTerms,
};
use jobwire_core::{
    HandlerError, HandlerResult, Hint, NewJob, NodeId, NodeOptions, Outcome, PgStore, Running,
    SqlStore, Store,
};
use jobwire_tests::wait::patience;
use jobwire_tests::{eventually, shared};
use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::{Postgres, Transaction};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::world::{Notes, migrated, patient, quick, waiting};
pub(super) use crate::world::{database as store, until_waiting};

pub(super) const SOON: Duration = Duration::from_secs(60);
/// Longer than any test, on any machine.
const LEASE: Duration = Duration::from_secs(1800);

/// Returns the options of a node that runs one leader cycle, at its start, and no other within a
/// test. It runs only jobs that it has hints for.
pub(super) fn unswept() -> NodeOptions {
    let mut options = quick();
    options.lease = LEASE;
    options.sweep_interval = Duration::from_secs(3600);
    options.suspect_after = Duration::from_secs(3600);
    options.hook.max_age = Duration::from_secs(60);
    options
}

/// Waits until a node has had its only leader cycle: it finds no job that is created from now on.
pub(super) use crate::world::until_led;

/// From now on each hint of a job that was hinted before writes a row.
pub(super) async fn count_hints_again(store: &PgStore) {
    sqlx::raw_sql(
        "CREATE TABLE jobwire.hinted_again (job_id uuid);
         CREATE FUNCTION jobwire.note_hint() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO jobwire.hinted_again VALUES (NEW.id);
             RETURN NULL;
         END $$;
         CREATE TRIGGER note_hint AFTER UPDATE ON jobwire.job
             FOR EACH ROW WHEN (NEW.hints > OLD.hints) EXECUTE FUNCTION jobwire.note_hint()",
    )
    .execute(store.pool())
    .await
    .unwrap();
}

pub(super) async fn hinted_again(store: &PgStore) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM jobwire.hinted_again")
        .fetch_one(store.pool())
        .await
        .unwrap()
}

/// Returns a handler that notes its start and waits for the gate.
pub(super) fn waits(
    notes: &Notes,
    gate: &Arc<Semaphore>,
) -> impl Fn(Running<()>) -> Pin<Box<dyn Future<Output = HandlerResult<Outcome>> + Send>>
+ Send
+ Sync
+ 'static {
    let (notes, gate) = (notes.clone(), gate.clone());
    move |_| {
        let (notes, gate) = (notes.clone(), gate.clone());
        Box::pin(async move {
            notes.add("in");
            gate.acquire().await.map_err(HandlerError::from)?.forget();
            Ok(Outcome::Done)
        })
    }
}

/// Returns a store on a database with this default isolation level.
pub(super) async fn store_isolated(by_default: &str) -> PgStore {
    let url = shared::postgres().await.create_database().await;
    let name = url.rsplit('/').next().unwrap();
    let set =
        format!("ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{by_default}'");
    let before = patient(&url).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(set))
        .execute(before.pool())
        .await
        .unwrap();
    before.close().await;
    migrated(&url).await
}

/// Commits a job and returns its hint, which is not published.
pub(super) async fn create(store: &PgStore, job: NewJob) -> Hint {
    let mut tx = store.begin().await.unwrap();
    let created = store.insert(&mut tx, vec![job], Origin::Hook).await;
    tx.commit().await.unwrap();
    created.unwrap().ready.remove(0).hint
}

fn terms(owner: NodeId) -> LockTerms {
    LockTerms {
        owner,
        lease: LEASE,
        types: vec!["work".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    }
}

pub(super) fn take(owner: NodeId) -> Handoff {
    Handoff::Take(terms(owner))
}

pub(super) fn work(instance: &str) -> NewJob {
    NewJob::of("work", &()).instance(instance)
}

pub(super) fn done(job: &LockedJob) -> Completion {
    Completion {
        held: job.held(),
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    }
}

/// Returns the failure of a job that is tried again after an hour.
pub(super) fn failed(job: &LockedJob) -> Failure {
    Failure {
        held: job.held(),
        to: Destination::Retry {
            delay: Duration::from_secs(3600),
            since: None,
            retries: 2,
            failures: 1,
        },
        message: None,
        stack: None,
        attempt: None,
    }
}

/// Tries a hint as a node does: a busy row is tried again.
pub(super) async fn lock(store: &PgStore, owner: NodeId, hint: &Hint) -> Locked {
    eventually("a row that is not busy", SOON, async || {
        let hints = std::slice::from_ref(hint);
        let locked = store.lock(&terms(owner), hints).await.unwrap();
        let busy = locked.refused.iter().any(|(_, why)| *why == Refusal::Busy);
        (!busy).then_some(locked)
    })
    .await
}

pub(super) async fn hold(store: &PgStore, owner: NodeId, hint: &Hint) -> LockedJob {
    let mut locked = lock(store, owner, hint).await;
    assert_eq!(locked.jobs.len(), 1, "{:?}", locked.refused);
    locked.jobs.remove(0)
}

/// Returns how many hints were refused for this reason.
pub(super) fn refused(scraped: &PrometheusHandle, reason: &str) -> u64 {
    counted(
        scraped,
        &format!("jobwire_hints_refused_total{{reason=\"{reason}\"}}"),
    )
}

/// Returns a counter by its name and labels, or zero if there is none.
pub(super) fn counted(scraped: &PrometheusHandle, counter: &str) -> u64 {
    let text = scraped.render();
    let counts = text.lines().filter_map(|line| line.strip_prefix(counter));
    let count = counts.filter_map(|rest| rest.strip_prefix(' ')).next();
    count.map_or(0, |count| count.parse().unwrap())
}

/// Waits until this many sessions wait, or the task has ended without waiting.
pub(super) async fn until_waiting_or_ended<T>(
    store: &PgStore,
    sessions: i64,
    task: &JoinHandle<T>,
) {
    eventually("a session to wait, or the task to end", SOON, async || {
        (task.is_finished() || waiting(store).await >= sessions).then_some(())
    })
    .await;
}

pub(super) async fn soon<T>(coming: impl Future<Output = T>) -> T {
    let within = tokio::time::timeout(patience(SOON), coming);
    within.await.expect("this takes too long")
}

/// Makes every transaction with this change (`DELETE ON table`) stop in the middle of its COMMIT
/// until the [gate](shut) is open: everything is read and written, and other transactions do not see it
/// yet. The trigger sleeps, since a node waits for no lock for long.
pub(super) async fn stop_at_commit(store: &PgStore, change: &str) {
    let sql = format!(
        "CREATE FUNCTION stop_at_commit() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN
                 WHILE NOT pg_try_advisory_xact_lock_shared(17) LOOP PERFORM pg_sleep(0.01); END LOOP;
                 RETURN NULL;
             END';
         CREATE CONSTRAINT TRIGGER stop_at_commit AFTER {change}
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stop_at_commit()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(store.pool())
        .await
        .unwrap();
}

/// Shuts the gate. The end of the returned transaction opens it.
pub(super) async fn shut(store: &PgStore) -> Transaction<'static, Postgres> {
    let mut gate = store.pool().begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(17)")
        .execute(&mut *gate)
        .await
        .unwrap();
    gate
}
