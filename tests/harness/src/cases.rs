//! Cases of ordered events: jobs of the type `event`, exclusive in their case, that each write a
//! row of `jobwire.event_log`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::eventually;
use jobwire_core::{Client, JobQuery, NewJob, PgStore, Store};
use serde_json::json;
use uuid::Uuid;

/// The cases of one database.
#[derive(Clone, Debug)]
pub struct Cases {
    store: PgStore,
    created: Arc<AtomicI64>,
}

impl Cases {
    /// Returns the cases of this database, none at first.
    #[must_use]
    pub fn of(store: &PgStore) -> Self {
        Self {
            store: store.clone(),
            created: Arc::default(),
        }
    }

    /// Creates `cases` cases of `each` ordered events, in one transaction, which must commit in any
    /// state of the broker.
    pub async fn create(&self, jobs: &Client<PgStore>, lane: &str, cases: i64, each: i64) {
        let batch = Uuid::new_v4();
        let events = (0..cases * each).map(|n| {
            NewJob::of("event", &json!({ "position": n / cases + 1 }))
                .instance(format!("{batch}-{}", n % cases))
                .lane(lane)
                .element("step")
                // A slow database costs attempts, and a failed attempt lets the rest of its case
                // pass.
                .max_attempts(1_000)
        });
        let mut tx = jobs.begin().await.unwrap();
        tx.create_many(events.collect()).await.unwrap();
        // Much longer than a commit takes, and no broker is back before it has passed.
        let committed = tokio::time::timeout(Duration::from_secs(60), tx.commit()).await;
        committed.expect("a commit needs no broker").unwrap();
        self.created.fetch_add(cases * each, Ordering::Relaxed);
    }

    /// Returns how many events were created so far.
    #[must_use]
    pub fn created(&self) -> i64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Waits until at least this many events have run.
    pub async fn have_run(&self, events: i64, within: Duration) {
        eventually(&format!("{events} jobs to have run"), within, || async {
            (self.events().await >= events).then_some(())
        })
        .await;
    }

    /// Waits until no job is left, and asserts that each event has run once, those of a case one at
    /// a time and in order.
    pub async fn all_have_run(&self, within: Duration) {
        let filter = JobQuery::default();
        eventually("all jobs to be done", within, || async {
            (self.store.count(&filter).await.ok()? == 0).then_some(())
        })
        .await;
        let ran = (self.events().await, self.doubled().await);
        assert_eq!(ran, (self.created(), 0), "each event once");
        assert_eq!(
            self.disorder().await,
            0,
            "each case one at a time and in order"
        );
    }

    /// Returns the number of rows that events have written.
    pub async fn events(&self) -> i64 {
        self.number("SELECT count(*) FROM jobwire.event_log").await
    }

    /// Returns the number of rows beyond the first one of each event.
    pub async fn doubled(&self) -> i64 {
        self.number("SELECT count(*) - count(DISTINCT job_id) FROM jobwire.event_log")
            .await
    }

    /// Returns the number of events that ran out of order in their case, or at the same time as
    /// another.
    pub async fn disorder(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM (
                 SELECT position, lag(position) OVER w AS before, started_at, lag(ended_at) OVER w AS ended_before
                 FROM jobwire.event_log WINDOW w AS (PARTITION BY process_instance ORDER BY ended_at, position)) e
             WHERE before > position OR ended_before > started_at",
        )
        .await
    }

    /// Returns the number that a query selects.
    pub async fn number(&self, sql: &'static str) -> i64 {
        let number = sqlx::query_scalar(sql).fetch_one(self.store.pool());
        number.await.unwrap()
    }
}
