//! Jobs of every kind whose effects can be counted afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jobwire_core::{Client, CommitHook, JobId, NewJob};
use jobwire_tests::wait::patience;
use jobwire_tests::{Running, eventually};
use serde_json::json;

use super::service::Service;
use super::{LEASE, SOON};
use crate::fleet::Fleet;

/// The number of events; each writes one row in the transaction that completes it.
const EVENTS: i64 = 9;

pub(super) struct Workload {
    service: Service,
    /// Calls that succeed.
    paid: Vec<JobId>,
    failing: JobId,
    events: i64,
}

fn call(service: &Service, path: &str) -> NewJob {
    NewJob::of("http", &json!({ "url": service.url(path) }))
}

/// Returns the executable jobs that are not completed.
async fn waiting(fleet: &Fleet) -> Option<Vec<uuid::Uuid>> {
    let waiting = sqlx::query_scalar("SELECT id FROM jobwire.job");
    waiting.fetch_all(fleet.store.pool()).await.ok()
}

fn event(case: &str, position: i64) -> NewJob {
    let event = NewJob::of("event", &json!({ "position": position }));
    event.instance(case).element("step")
}

impl Workload {
    /// Creates jobs of every kind.
    pub(super) async fn create(fleet: &Fleet) -> Self {
        let mut work = Self::outside(fleet).await;
        work.events = EVENTS;
        // Two ordered cases with hints, and a timer.
        let mut tx = fleet.jobs.begin().await.unwrap();
        for position in 1..=3 {
            let steps = ["one", "other"].map(|case| event(case, position));
            tx.create_many(steps.into()).await.unwrap();
        }
        let timer = event("timer", 1).delay(Duration::from_millis(500));
        tx.create(timer).await.unwrap();
        tx.commit().await.unwrap();
        // A job whose hint is lost, and a job without a hint.
        let lost = Client::new(fleet.store.clone(), CommitHook::disconnected());
        lost.create(event("lost", 1)).await.unwrap();
        let silent = Client::without_hints(fleet.store.clone());
        silent.create(event("silent", 1)).await.unwrap();
        // A job whose creation is rolled back.
        let mut tx = fleet.jobs.begin().await.unwrap();
        tx.create(event("never", 1)).await.unwrap();
        tx.rollback().await.unwrap();
        work
    }

    /// Creates only calls: one that succeeds, and one that fails twice and becomes a dead letter.
    pub(super) async fn outside(fleet: &Fleet) -> Self {
        let service = Service::start().await;
        let paid = fleet.jobs.create(call(&service, "/paid")).await.unwrap();
        let failing = call(&service, "/failing");
        let failing = failing.max_attempts(2).retry_policy_text("PT0.2S");
        let failing = fleet.jobs.create(failing).await.unwrap();
        Self {
            service,
            paid: vec![paid],
            failing,
            events: 0,
        }
    }

    /// Creates another successful call whenever all of them are completed, until the victim is
    /// dead.
    pub(super) async fn pay_until_dead(&mut self, fleet: &Fleet, victim: &mut Running) {
        let end = Instant::now() + patience(SOON);
        while Instant::now() < end {
            let dead = eventually("the calls to be completed, or a death", SOON, || {
                let dead = victim.ended().is_some();
                async move { (dead || waiting(fleet).await?.is_empty()).then_some(dead) }
            });
            if dead.await {
                return;
            }
            let paid = call(&self.service, "/paid");
            self.paid.push(fleet.jobs.create(paid).await.unwrap());
        }
    }

    /// Returns the successful calls that are completed: their rows are gone.
    pub(super) async fn completed(&self, fleet: &Fleet) -> BTreeSet<JobId> {
        let waiting = waiting(fleet).await.unwrap();
        let paid = self.paid.iter().filter(|id| !waiting.contains(&id.uuid()));
        paid.copied().collect()
    }

    /// Returns how many times each successful call was made.
    pub(super) fn paid_calls(&self) -> BTreeMap<JobId, usize> {
        let calls = self.service.calls("/paid");
        let made = |id: &JobId| {
            calls
                .iter()
                .filter(|call| call.key == id.to_string())
                .count()
        };
        self.paid.iter().map(|id| (*id, made(id))).collect()
    }

    /// Starts a node that may call the service.
    pub(super) fn start_node(&self, fleet: &Fleet, more: &[(&str, &str)]) -> Running {
        let mut settings = vec![
            ("JOBWIRE_LEASE", LEASE),
            // A node that claims, because the broker is slow, passes none of the points of a sweep.
            ("JOBWIRE_CLAIM_AFTER", "off"),
            ("JOBWIRE_HTTP_ALLOW_HOSTS", self.service.address.as_str()),
        ];
        settings.extend_from_slice(more);
        fleet.start_on(&fleet.database, &fleet.space.url, &settings)
    }

    /// Waits until only the dead letter is left.
    pub(super) async fn until_done(&self, fleet: &Fleet) {
        let left =
            "SELECT (SELECT count(*) FROM jobwire.job) + (SELECT count(*) FROM jobwire.timer_job)
                        + (SELECT count(*) FROM jobwire.suspended_job)";
        eventually("every job to be done or dead", SOON, async || {
            let left: i64 = sqlx::query_scalar(left)
                .fetch_one(fleet.store.pool())
                .await
                .ok()?;
            (left == 0).then_some(())
        })
        .await;
    }

    pub(super) async fn assert_held(&self, fleet: &Fleet, point: &str) {
        // The dead letters show why an event is missing.
        let dead: Vec<(String, Option<String>)> =
            sqlx::query_as("SELECT type, exception_message FROM jobwire.dead_letter_job")
                .fetch_all(fleet.store.pool())
                .await
                .unwrap();
        assert_eq!(
            fleet.cases().events().await,
            self.events,
            "{point}: each event once; dead letters: {dead:?}"
        );
        assert_eq!(fleet.cases().doubled().await, 0, "{point}: no event twice");
        assert_eq!(fleet.cases().disorder().await, 0, "{point}: cases in order");
        let never: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM jobwire.event_log WHERE process_instance = 'never'",
        )
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
        assert_eq!(never, 0, "{point}: a rolled-back job never runs");
        // Outside: at least once, and always under the same key.
        let paid = self.service.calls("/paid");
        let keys: BTreeSet<String> = paid.into_iter().map(|call| call.key).collect();
        let expected = self.paid.iter().map(JobId::to_string).collect();
        assert_eq!(keys, expected, "{point}");
        let dead: Vec<(uuid::Uuid, i32, i32)> =
            sqlx::query_as("SELECT id, retries, failures FROM jobwire.dead_letter_job")
                .fetch_all(fleet.store.pool())
                .await
                .unwrap();
        assert_eq!(
            dead,
            [(self.failing.uuid(), 0, 2)],
            "{point}: one dead letter, of two failures"
        );
        let failed = self.service.calls("/failing").len();
        assert!(failed >= 2, "{point}: {failed} calls for two failures");
        let held = "SELECT (SELECT count(*) FROM jobwire.job_lease) + (SELECT count(*) FROM jobwire.instance_lock)";
        eventually("no lease and no instance row", SOON, async || {
            let held: i64 = sqlx::query_scalar(held)
                .fetch_one(fleet.store.pool())
                .await
                .ok()?;
            (held == 0).then_some(())
        })
        .await;
    }
}
