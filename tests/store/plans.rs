//! Statements whose plans must not depend on the statistics of the queue tables, which are old
//! whenever a burst follows a quiet time.

use std::time::Duration;

use jobwire_core::job::scope::Services;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{CycleOutcome, LeaderCycle};
use jobwire_core::{NodeId, PgOptions, PgStore, Store};
use jobwire_harness::shared;

const JOBS: usize = 2_000;
const LEASES: usize = 1_500;

#[tokio::test]
async fn a_leader_ends_many_leases_where_the_tables_have_just_been_empty() {
    ends_many_leases(AttemptsKept::new()).await;
}

#[tokio::test]
async fn a_leader_records_many_attempts_where_the_tables_have_just_been_empty() {
    ends_many_leases([("work".to_owned(), Duration::from_secs(3_600))].into()).await;
}

/// A vacuum has seen one row in many pages, so the statistics say one row, and a scan of the whole
/// index looks as cheap as a look-up. A cycle that joined leases and jobs had not ended after 100 s.
async fn ends_many_leases(attempts_kept: AttemptsKept) {
    let url = shared::postgres().await.migrated_database().await;
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(30);
    let store = PgStore::connect_with(&url, options).await.unwrap();
    let jobs = |many: usize| {
        format!(
            "INSERT INTO jobwire.job (id, type, correlation_id, hints)
             SELECT gen_random_uuid(), 'work', gen_random_uuid(), 1 FROM generate_series(1, {many})"
        )
    };
    let leases = |many: usize, ends: &str| {
        format!(
            "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
             SELECT id, gen_random_uuid(), nextval('jobwire.fence_seq'), now(), now() + interval '{ends}'
             FROM jobwire.job LIMIT {many}"
        )
    };
    for sql in [
        "ALTER TABLE jobwire.job SET (autovacuum_enabled = false)".to_owned(),
        "ALTER TABLE jobwire.job_lease SET (autovacuum_enabled = false)".to_owned(),
        jobs(6_000),
        leases(6_000, "1 hour"),
        "DELETE FROM jobwire.job WHERE ctid < (SELECT max(ctid) FROM jobwire.job)".to_owned(),
        "DELETE FROM jobwire.job_lease WHERE ctid < (SELECT max(ctid) FROM jobwire.job_lease)"
            .to_owned(),
        "VACUUM ANALYZE jobwire.job".to_owned(),
        "VACUUM ANALYZE jobwire.job_lease".to_owned(),
        "DELETE FROM jobwire.job".to_owned(),
        "DELETE FROM jobwire.job_lease".to_owned(),
        jobs(JOBS),
        leases(LEASES, "-5 seconds"),
    ] {
        let done = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(store.pool());
        done.await.unwrap();
    }
    let rows: Vec<f32> = sqlx::query_scalar(
        "SELECT reltuples FROM pg_class WHERE oid IN ('jobwire.job'::regclass, 'jobwire.job_lease'::regclass)",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    assert_eq!(rows, [1.0, 1.0], "the statistics say one row");
    let cycle = LeaderCycle {
        node: NodeId::generate(),
        lease: Duration::from_secs(60),
        transport: "in-process",
        reset_at_most: 5_000,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: Services::default(),
        again_after: Duration::from_secs(60),
        hint_at_most: 5_000,
        attempts_kept,
    };
    match store.run_leader_cycle(&cycle).await.unwrap() {
        CycleOutcome::Leads(report) => assert_eq!(report.rescued.len(), LEASES),
        CycleOutcome::Follows { .. } => panic!("no other node leads"),
    }
    let recorded: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.attempt")
        .fetch_one(store.pool())
        .await
        .unwrap();
    let expected = if cycle.attempts_kept.is_empty() {
        0
    } else {
        LEASES as i64
    };
    assert_eq!(recorded, expected);
}
