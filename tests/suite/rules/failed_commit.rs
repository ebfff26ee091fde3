//! A transaction that commits nothing returns an error and publishes no hint (rule 29).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use jobwire_core::hint::Marker;
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{CommitHook, Hint, JobQuery, Lane, NewJob, SqliteStore, Store, StoreError};
use jobwire_tests::eventually;

use super::world::SOON;
use crate::world::World;

/// Counts hints.
#[derive(Clone, Default)]
struct Published(Arc<AtomicUsize>);

impl Published {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn hook(&self) -> CommitHook {
        CommitHook::start(Arc::new(self.clone()), HookOptions::default())
    }
}

#[async_trait]
impl Publisher for Published {
    async fn publish(&self, _lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.0.fetch_add(hints.len(), Ordering::SeqCst);
        Ok(())
    }

    async fn publish_marker(&self, _lane: &Lane, _marker: Marker) -> Result<(), TransportError> {
        Ok(())
    }

    fn tell(&self, _control: Control) -> bool {
        true
    }

    fn health(&self) -> TransportHealth {
        TransportHealth {
            publishing: true,
            ..TransportHealth::default()
        }
    }
}

/// The COMMIT of a transaction in which a statement has failed rolls back; it must not look like a
/// commit.
#[tokio::test]
async fn a_commit_after_a_failed_statement_is_an_error_and_hints_nothing() {
    let world = World::new().await;
    let published = Published::default();
    let jobs = world.store.client(published.hook());
    for how in ["transaction", "hook", "create", "savepoint"] {
        let mut tx = jobs.begin().await.unwrap();
        let mut own = world.store.pool().begin().await.unwrap();
        let mut hook = jobs.hook();
        let job = NewJob::of("note", how);
        let error = match how {
            "hook" => {
                hook.create(&mut own, job).await.unwrap();
                let failed = sqlx::query("SELECT 1 / 0").execute(&mut *own).await;
                assert!(failed.is_err());
                hook.commit(own).await.unwrap_err()
            }
            "transaction" => {
                tx.create(job).await.unwrap();
                let failed = sqlx::query("SELECT 1 / 0").execute(&mut *tx).await;
                assert!(failed.is_err());
                tx.commit().await.unwrap_err()
            }
            // The statement of the library itself has failed.
            "create" => {
                tx.create(job.clone()).await.unwrap();
                assert!(tx.create(job).await.is_err(), "two jobs have one id");
                tx.create(NewJob::of("note", how)).await.unwrap_err();
                tx.commit().await.unwrap_err()
            }
            // A failure in a savepoint that is rolled back costs nothing else.
            _ => {
                tx.create(job).await.unwrap();
                let mut part = sqlx::Connection::begin(&mut *tx).await.unwrap();
                let failed = sqlx::query("SELECT 1 / 0").execute(&mut *part).await;
                assert!(failed.is_err());
                part.rollback().await.unwrap();
                tx.commit().await.unwrap();
                continue;
            }
        };
        assert!(
            matches!(error, StoreError::TransactionFailed),
            "{how}: {error}"
        );
    }
    // The connections are as usable as before.
    for _ in 0..20 {
        jobs.create(NewJob::of("note", "later")).await.unwrap();
    }
    world.until_left(21).await;
    eventually("the hints of the committed jobs", SOON, async || {
        (published.count() >= 21).then_some(())
    })
    .await;
    assert_eq!(published.count(), 21);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    eventually("no transaction to stay open", SOON, async || {
        (world.count(open).await == 0).then_some(())
    })
    .await;
}

/// On SQLite a failed statement undoes only itself, unless it ends the transaction. The one writing
/// connection stays usable then.
#[tokio::test]
async fn on_sqlite_a_commit_of_a_transaction_that_has_ended_is_an_error_and_hints_nothing() {
    let published = Published::default();
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql("CREATE TABLE one (n INTEGER PRIMARY KEY); INSERT INTO one VALUES (1)")
        .execute(store.pool())
        .await
        .unwrap();
    let jobs = store.client(published.hook());
    for (statement, commits) in [
        ("INSERT OR ROLLBACK INTO one VALUES (1)", false),
        ("INSERT INTO one VALUES (1)", true),
    ] {
        let mut tx = jobs.begin().await.unwrap();
        tx.create(NewJob::of("note", "with it")).await.unwrap();
        assert!(sqlx::query(statement).execute(&mut *tx).await.is_err());
        assert_eq!(tx.commit().await.is_ok(), commits, "{statement}");
    }
    eventually("the hint of the committed job", SOON, async || {
        (published.count() >= 1).then_some(())
    })
    .await;
    assert_eq!(published.count(), 1);
    assert_eq!(store.count(&JobQuery::default()).await.unwrap(), 1);
}
