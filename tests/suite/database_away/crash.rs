//! A server crashes right after jobs were locked.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::job::LockToken;
use jobwire_core::store::{Completion, Handoff, LockTerms, RowTerms};
use jobwire_core::{CommitHook, NewJob, NodeId, PgOptions, PgStore, Store};
use jobwire_tests::{Postgres, Stop};
use serde_json::json;

async fn store(url: &str, durable_locks: bool) -> PgStore {
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(120);
    options.acquire_timeout = Duration::from_secs(120);
    options.durable_locks = durable_locks;
    PgStore::connect_with(url, options).await.unwrap()
}

pub(super) fn terms(owner: NodeId) -> LockTerms {
    LockTerms {
        owner,
        lease: Duration::from_secs(3600),
        types: vec!["noop".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    }
}

/// Creates a job and locks it.
async fn lock_one(store: &PgStore, owner: NodeId) -> LockToken {
    let jobs = store.client(CommitHook::disconnected());
    let id = jobs.create(NewJob::of("noop", &json!({}))).await.unwrap();
    let locked = store.lock(&terms(owner), &[Hint::new(id)]).await.unwrap();
    locked.jobs.first().unwrap().held()
}

async fn complete(store: &PgStore, owner: NodeId, held: &LockToken) -> usize {
    let done = Completion {
        held: held.clone(),
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    };
    let settled = store.complete(owner, &[done], &Handoff::Hint).await;
    settled.unwrap().applied.len()
}

/// If locks need not be durable, a crash may forget them. Then the token of a forgotten lock
/// changes nothing, and the job can be locked again; a completed job stays completed.
#[tokio::test]
async fn a_crash_forgets_no_completion_and_only_locks_that_need_not_be_durable() {
    // The server's WAL writer would soon write everything to disk; the long delay prevents that as
    // far as possible.
    let mut server = Postgres::start_with(&["wal_writer_delay=10s"]).await;
    let url = server.create_database().await;
    store(&url, true).await.migrate().await.unwrap();
    let owner = NodeId::generate();
    let mut forgotten = 0;
    for _ in 0..10 {
        let (durable, soon) = (store(&url, true).await, store(&url, false).await);
        let done = lock_one(&soon, owner).await;
        assert_eq!(complete(&soon, owner, &done).await, 1);
        let kept = lock_one(&durable, owner).await;
        // The creation of the job is durable, the lock after it is not.
        let held = lock_one(&soon, owner).await;
        server.stop(Stop::Immediate).await;
        server.start_again().await;

        let store = store(&url, false).await;
        assert!(store.get(done.id).await.unwrap().is_none(), "completed");
        assert_eq!(complete(&store, owner, &kept).await, 1, "a durable lock");
        let (job, ..) = store.get(held.id).await.unwrap().unwrap();
        if job.fence.is_some() {
            // The writer was faster, so the lock counts.
            assert_eq!(complete(&store, owner, &held).await, 1);
            continue;
        }
        forgotten += 1;
        assert_eq!(complete(&store, owner, &held).await, 0, "a forgotten lock");
        let hint = [Hint::new(held.id)];
        let again = store.lock(&terms(owner), &hint).await.unwrap();
        let again = again.jobs.first().unwrap().held();
        assert_eq!(complete(&store, owner, &again).await, 1);
        break;
    }
    assert!(forgotten > 0, "every lock was durable at once");
}

/// A completion waits for the disk even if locks do not. No later statement of this test would
/// write it to disk.
#[tokio::test]
async fn a_completion_waits_for_the_disk_where_locks_do_not() {
    let mut server = Postgres::start_with(&["wal_writer_delay=10s"]).await;
    let url = server.create_database().await;
    store(&url, true).await.migrate().await.unwrap();
    let owner = NodeId::generate();
    // A plain completion, one of an exclusive job in a transaction, and one of a row lock.
    for kind in ["plain", "exclusive", "row"] {
        let soon = store(&url, false).await;
        let job = NewJob::of("noop", &json!({}));
        let job = if kind == "exclusive" {
            job.instance("i")
        } else {
            job
        };
        let mut terms = terms(owner);
        if kind == "row" {
            terms.rows.types = terms.types.clone();
            terms.rows.from = 1;
        }
        let instance = (kind == "exclusive").then(|| "i".to_owned());
        let jobs = soon.client(CommitHook::disconnected());
        let id = jobs.create(job).await.unwrap();
        let hint = Hint {
            instance,
            ..Hint::new(id)
        };
        let locked = soon.lock(&terms, &[hint]).await.unwrap();
        match locked.rows {
            Some(rows) => {
                let held = rows.jobs[0].held();
                rows.hold.commit(&[held], &[]).await.unwrap();
            }
            None => {
                let held = locked.jobs.first().unwrap().held();
                assert_eq!(complete(&soon, owner, &held).await, 1);
            }
        }
        server.stop(Stop::Immediate).await;
        server.start_again().await;
        let left = store(&url, true).await.get(id).await.unwrap();
        assert!(left.is_none(), "the completion was forgotten: {kind}");
    }
}
