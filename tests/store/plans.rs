//! Statements whose plans must not depend on the statistics of the queue tables, which are old
//! whenever a burst follows a quiet time.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::scope::Services;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::permits::{KeyRequest, PermitKey, PermitRequest};
use jobwire_core::store::{CycleOutcome, LeaderCycle, LockTerms, RowTerms};
use jobwire_core::{CommitHook, Hint, NewJob, NodeId, PgOptions, PgStore, Store};
use jobwire_harness::world::pass;
use jobwire_harness::{eventually, shared};
use sqlx::{Connection, PgConnection};

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

/// Each of the jobs looks its suspensions up by their keys. With a scan of all suspensions for each job, a
/// lock of 28 exclusive jobs took half a second beside 20,000 suspended instances.
#[tokio::test]
async fn a_lock_reads_no_suspensions_of_other_jobs() {
    let url = shared::postgres().await.migrated_database().await;
    let store = PgStore::connect(&url).await.unwrap();
    let suspend = "INSERT INTO jobwire.suspension (scope, value)
        SELECT 'process_instance', 'other ' || n FROM generate_series(1, 20000) n";
    sqlx::query(suspend).execute(store.pool()).await.unwrap();
    let jobs = (0..40).map(|n: usize| {
        let job = NewJob::of("work", &n);
        if n.is_multiple_of(2) {
            job
        } else {
            job.instance(format!("own {n}"))
        }
    });
    let jobs: Vec<NewJob> = jobs.collect();
    let hints: Vec<Hint> = jobs.iter().map(|job| Hint::new(job.id())).collect();
    let client = store.client(CommitHook::disconnected());
    client.create_many(jobs).await.unwrap();
    let terms = LockTerms {
        owner: NodeId::generate(),
        lease: Duration::from_secs(60),
        types: vec!["work".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    assert_eq!(store.lock(&terms, &hints).await.unwrap().jobs.len(), 40);
    let read = eventually("the statistics", Duration::from_secs(60), async || {
        let (scans, read): (i64, i64) = sqlx::query_as(
            "SELECT i.idx_scan, i.idx_tup_read + t.seq_tup_read FROM pg_stat_user_indexes i
             JOIN pg_stat_user_tables t USING (relid) WHERE i.relname = 'suspension'",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        // Each exclusive job has looked up its instance, at least.
        (scans >= 20).then_some(read)
    })
    .await;
    assert!(read < 10_000, "{read} suspensions were read");
}

/// The plans that wake waiting jobs are kept. They are made while a key has one waiting job, and used when
/// 20,000 wait for another one.
#[tokio::test]
async fn waking_reads_the_first_jobs_of_its_key_only() {
    let url = shared::postgres().await.migrated_database().await;
    let mut options = PgOptions::default();
    options.max_connections = 2;
    let store = PgStore::connect_with(&url, options).await.unwrap();
    let filler = PgStore::connect(&url).await.unwrap();
    let waiting = async |key: &str, jobs: usize| {
        let fill = format!(
            "WITH job AS (
                 INSERT INTO jobwire.job (id, type, correlation_id, hints)
                 SELECT gen_random_uuid(), 'work', gen_random_uuid(), 1 FROM generate_series(1, {jobs}) RETURNING id, seq
             )
             INSERT INTO jobwire.waiting_job (job_id, limit_name, key, type, seq)
             SELECT id, 'work', '{key}', 'work', seq FROM job"
        );
        let fill = sqlx::query(sqlx::AssertSqlSafe(fill)).execute(filler.pool());
        fill.await.unwrap();
    };
    let wakes = async |key: &str| {
        let request = KeyRequest {
            key: PermitKey {
                limit: "work".to_owned(),
                key: key.to_owned(),
            },
            size: 1,
            keep: 0,
            spare: 0,
            cool_down: Duration::ZERO,
            cooling: Vec::new(),
            asking: Vec::new(),
        };
        let request =
            PermitRequest::new(NodeId::generate(), Duration::from_secs(60), vec![request]);
        let answer = store.exchange_permits(&request).await.unwrap();
        assert_eq!(answer.ready.len(), 1, "{key}");
    };
    for table in ["job", "waiting_job"] {
        let off = format!("ALTER TABLE jobwire.{table} SET (autovacuum_enabled = false)");
        let off = sqlx::query(sqlx::AssertSqlSafe(off)).execute(filler.pool());
        off.await.unwrap();
    }
    // On each connection of the pool.
    for small in 0..8 {
        let key = format!("small {small}");
        waiting(&key, 1).await;
        wakes(&key).await;
    }
    waiting("large", 20_000).await;
    // A session has told its statistics when it has ended.
    filler.close().await;
    wakes("large").await;
    store.close().await;
    let read = rows_read(&url).await;
    assert!(read < 5_000, "{read} rows were read");
}

/// Returns the number of rows that the sessions of this database have read from the tables of jobs, after their
/// end: a session may tell its statistics late.
async fn rows_read(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    for _ in 0..6_000 {
        let others = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        let others: i64 = others.fetch_one(&mut connection).await.unwrap();
        if others == 0 {
            break;
        }
        pass(Duration::from_millis(10)).await;
    }
    let read = sqlx::query_scalar(
        "SELECT coalesce(sum(t.seq_tup_read + t.idx_tup_fetch), 0)::bigint FROM pg_stat_user_tables t
         WHERE t.relname IN ('job', 'waiting_job', 'job_lease')",
    );
    read.fetch_one(&mut connection).await.unwrap()
}
