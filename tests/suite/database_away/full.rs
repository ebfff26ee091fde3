//! No connection is free: in the node's pool, or on the server.

use jobwire_core::NewJob;
use jobwire_tests::{Postgres, eventually, shared};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::{SOON, event};
use crate::fleet::Fleet;

/// Records each lease of three seconds that renewals have extended beyond seven seconds. The record
/// outlives the lease.
async fn note_renewals(fleet: &Fleet) {
    for sql in [
        "CREATE TABLE public.renewed (job_id uuid)",
        "CREATE FUNCTION public.note_renewal() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO public.renewed VALUES (NEW.job_id); RETURN NULL; END $$",
        "CREATE TRIGGER note_renewal AFTER UPDATE ON jobwire.job_lease FOR EACH ROW
         WHEN (NEW.owner IS NOT NULL AND NEW.expires_at > NEW.locked_at + interval '7 seconds')
         EXECUTE FUNCTION public.note_renewal()",
    ] {
        sqlx::query(sql).execute(fleet.store.pool()).await.unwrap();
    }
}

async fn leases_renewed(fleet: &Fleet) -> i64 {
    sqlx::query_scalar("SELECT count(DISTINCT job_id) FROM public.renewed")
        .fetch_one(fleet.store.pool())
        .await
        .unwrap()
}

/// Handlers that work in their transactions hold every connection of the pool for longer than their
/// leases: renewals have a separate connection, and no handler waits forever.
#[tokio::test]
async fn handlers_that_hold_the_whole_pool_keep_their_leases() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    note_renewals(&fleet).await;
    let settings = [
        // One locks and completes, one serves one handler at a time, and the third is for short
        // statements.
        ("JOBWIRE_DATABASE_CONNECTIONS", "3"),
        ("JOBWIRE_CONCURRENCY", "8"),
        ("JOBWIRE_STATEMENT_TIMEOUT", "10m"),
    ];
    let node = fleet.node(&settings).await;
    let mut gate = fleet.jobs.begin().await.unwrap();
    sqlx::query("LOCK TABLE jobwire.event_log IN SHARE MODE")
        .execute(&mut *gate)
        .await
        .unwrap();
    for case in 0..12 {
        let job = event(&format!("case-{case}"), 1);
        fleet.jobs.create(job).await.unwrap();
    }
    eventually("a handler to wait on its connection", SOON, async || {
        (fleet.waiting_for_a_lock().await >= 1).then_some(())
    })
    .await;
    eventually("the held leases to be renewed", SOON, async || {
        (leases_renewed(&fleet).await >= 2).then_some(())
    })
    .await;
    gate.commit().await.unwrap();
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 12);
    assert_eq!(fleet.cases().doubled().await, 0);
    drop(node);
}

/// The server accepts no more connections: leases are renewed over the connection that was opened
/// at the start, commits continue, and all jobs are done once there is room again.
#[tokio::test]
async fn a_server_without_a_free_connection_loses_nothing() {
    let postgres = Postgres::start_with(&["max_connections=40"]).await;
    let database = postgres.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let fleet = Fleet::new(database.clone(), space).await;
    note_renewals(&fleet).await;
    let node = fleet.node(&[("JOBWIRE_DATABASE_CONNECTIONS", "6")]).await;
    // All connections of the producer are opened first: a pool that needs one more waits for it
    // even if others come back.
    let mut open = Vec::new();
    for _ in 0..fleet.store.pool().options().get_max_connections() {
        open.push(fleet.store.pool().acquire().await.unwrap());
    }
    drop(open);
    // Until the server refuses.
    let mut hoard = Vec::new();
    while let Ok(connection) = PgConnection::connect(&database).await {
        hoard.push(connection);
    }
    let long = NewJob::of("sleep", &json!({ "ms": 15_000 }));
    fleet.jobs.create(long).await.unwrap();
    for case in 0..20 {
        let job = event(&format!("case-{case}"), 1);
        fleet.jobs.create(job).await.unwrap();
    }
    eventually("the long job's lease to be renewed", SOON, async || {
        (leases_renewed(&fleet).await >= 1).then_some(())
    })
    .await;
    drop(hoard);
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 20);
    assert_eq!(fleet.cases().doubled().await, 0);
    drop(node);
}
