//! Tests of the checker: nodes with a seeded bug run against the real servers, and the checker must
//! find each bug. Where only the bug makes the difference, the same scenario without it must pass.
//!
//! Nothing depends on time: every step waits until the step before it is in the database.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{
    Client, CommitHook, JobId, NewJob, PgStore, SqlStore, Store, StoreError, Transport,
};
use jobwire_tests::chaos::ledger::{Ledger, NotingPublisher};
use jobwire_tests::chaos::mutant::{Bug, Mutant};
use jobwire_tests::chaos::{limits, reader, world};
use jobwire_tests::history::{Calendar, Invariant, Limits, Outcome, Report};
use jobwire_tests::{
    Direction, Flow, Program, Proxy, Running, Signal, eventually, shared, shared::Space,
};
use serde_json::json;

const WAIT: Duration = Duration::from_secs(60);

const LONG_LEASE: (&str, &str) = ("JOBWIRE_LEASE", "60s");

/// A database with a history, a broker's space, and a client that creates jobs.
struct Stage {
    url: String,
    space: Space,
    store: PgStore,
    ledger: Ledger,
    transport: Arc<dyn Transport>,
    jobs: Client<PgStore>,
}

impl Stage {
    async fn new() -> Stage {
        let url = shared::postgres().await.migrated_database().await;
        world::prepare(&url).await;
        let space = shared::rabbitmq().await.space().await;
        let mut options = AmqpOptions::default();
        options.prefix.clone_from(&space.prefix);
        let transport: Arc<dyn Transport> =
            Arc::new(AmqpTransport::connect(&space.url, options).await.unwrap());
        let ledger = Ledger::default();
        let store = PgStore::connect(&url).await.unwrap();
        let publisher = NotingPublisher::new(transport.publisher(), ledger.clone());
        let hook = CommitHook::start(Arc::new(publisher), HookOptions::default());
        Stage {
            jobs: store.client(hook),
            url,
            space,
            store,
            ledger,
            transport,
        }
    }

    /// Starts a node; returns when it is ready.
    async fn node(&self, bug: Option<Bug>, settings: &[(&str, &str)]) -> Running {
        let mut program = Program::at(world::chaos_node())
            .env("JOBWIRE_DATABASE_URL", &self.url)
            .env("JOBWIRE_BROKER_URL", &self.space.url)
            .env("JOBWIRE_AMQP_PREFIX", &self.space.prefix)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_LEASE", "3s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "1s")
            .env("JOBWIRE_SUSPECT_AFTER", "2s")
            .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
            .env("CHAOS_DATABASE_URL", &self.url);
        if let Some(bug) = bug {
            program = program.env("CHAOS_BUG", bug.name());
        }
        for (name, value) in settings {
            program = program.env(name, value);
        }
        let node = program.start();
        node.wait_for_line("is ready", WAIT).await;
        node
    }

    async fn create<S: SqlStore>(&self, jobs: &Client<S>, job: NewJob) -> JobId {
        let id = job.id();
        self.ledger.open(&[id]);
        jobs.create(job).await.unwrap();
        self.ledger.settle(&[id], Outcome::Committed);
        id
    }

    async fn noop(&self) -> JobId {
        self.create(&self.jobs, NewJob::of("chaos-noop", &json!({})))
            .await
    }

    /// Waits until the history has at least `count` rows that meet the condition.
    async fn until(&self, what: &str, condition: &'static str, count: i64) {
        let sql = format!("SELECT count(*) FROM chaos.history WHERE {condition}");
        eventually(what, WAIT, || async {
            let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.clone()))
                .fetch_one(self.store.pool())
                .await
                .ok()?;
            (found >= count).then_some(())
        })
        .await;
    }

    async fn open_gate(&self) {
        sqlx::query("INSERT INTO chaos.gate DEFAULT VALUES")
            .execute(self.store.pool())
            .await
            .unwrap();
    }

    async fn until_empty(&self) {
        eventually("all jobs to be done", WAIT, || async {
            let left: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job")
                .fetch_one(self.store.pool())
                .await
                .ok()?;
            (left == 0).then_some(())
        })
        .await;
    }

    async fn check(&self, rehints: Option<u64>) -> Report {
        let limits = Limits {
            found: true,
            rehints,
            order_slack: 500_000,
            ..Limits::default()
        };
        let checked = reader::check(&self.url, self.ledger.take(), limits).await;
        checked.unwrap().0
    }
}

#[track_caller]
fn assert_breaks(report: &Report, invariant: Invariant) {
    assert!(
        report.breaks(invariant),
        "{invariant:?} was broken, and the checker did not report it: {report}"
    );
}

/// A node completes its job after another node has taken the job over and runs it.
async fn a_late_completion(bug: Bug) -> Report {
    let stage = Stage::new().await;
    // Until the lease ends the second node has to be ready: the first one would take its job over itself.
    let late = stage.node(Some(bug), &[("JOBWIRE_LEASE", "15s")]).await;
    stage.noop().await;
    stage.until("the first run to end", "what = 'end'", 1).await;
    // The second node keeps the job until the gate opens, however busy the machine is.
    let gated = [("CHAOS_GATE", "yes"), LONG_LEASE];
    let _heir = stage.node(None, &gated).await;
    late.wait_for_line("completed late", WAIT).await;
    stage.open_gate().await;
    stage.until_empty().await;
    stage
        .until("the second run to end", "what = 'end'", 2)
        .await;
    stage.check(None).await
}

#[tokio::test]
async fn a_completion_without_its_fence_is_caught() {
    let report = a_late_completion(Bug::NoFence).await;
    assert_breaks(&report, Invariant::I4);
}

#[tokio::test]
async fn a_late_completion_with_its_fence_changes_nothing() {
    let report = a_late_completion(Bug::LateCompletion).await;
    assert!(report.holds(), "{report}");
    assert!(report.counts.takeovers >= 1, "{report}");
}

/// Waits until the broker has received the acknowledgement, which a node sends asynchronously.
async fn until_settled(space: &Space) {
    let Some(ctl) = shared::rabbitmq().await.ctl() else {
        return;
    };
    let vhost = space.url.rsplit('/').next().unwrap();
    let empty = format!("{}.lane.default\t0", space.prefix);
    eventually("the broker to settle the hint", WAIT, || async {
        let messages = ["list_queues", "-p", vhost, "name", "messages"];
        let queues = ctl.run(&messages).await;
        queues.lines().any(|queue| queue == empty).then_some(())
    })
    .await;
}

/// A node dies between receiving a hint and locking its job; no sweep follows.
async fn killed_before_the_lock(bug: Bug) -> Report {
    let unswept = [
        ("JOBWIRE_SWEEP_INTERVAL", "1h"),
        ("JOBWIRE_SUSPECT_AFTER", "1h"),
        ("JOBWIRE_CLAIM_AFTER", "off"),
        LONG_LEASE,
    ];
    let stage = Stage::new().await;
    let victim = stage.node(Some(bug), &unswept).await;
    // Its first leader cycle finds no waiting job, and so sends no marker.
    victim.wait_for_line("this node leads", WAIT).await;
    stage.noop().await;
    victim.wait_for_line("hangs before the lock", WAIT).await;
    if bug == Bug::AckBeforeLock {
        until_settled(&stage.space).await;
    }
    drop(victim);
    let _heir = stage.node(None, &unswept).await;
    // The second hint is behind the first one, if that still exists.
    let last = stage.noop().await;
    eventually("the second job to be done", WAIT, || async {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job WHERE id = $1")
            .bind(last.uuid())
            .fetch_one(stage.store.pool())
            .await
            .ok()?;
        (left == 0).then_some(())
    })
    .await;
    if bug == Bug::HangingLock {
        stage.until_empty().await;
    }
    stage.check(None).await
}

#[tokio::test]
async fn hints_settled_before_the_lock_are_caught() {
    let report = killed_before_the_lock(Bug::AckBeforeLock).await;
    assert_breaks(&report, Invariant::I1);
}

#[tokio::test]
async fn a_node_that_dies_before_the_lock_loses_nothing() {
    let report = killed_before_the_lock(Bug::HangingLock).await;
    assert!(report.holds(), "{report}");
}

#[tokio::test]
async fn hints_that_leave_before_the_commit_are_caught() {
    let stage = Stage::new().await;
    let publisher = NotingPublisher::new(stage.transport.publisher(), stage.ledger.clone());
    let hasty = Mutant::hasty(stage.store.clone(), Arc::new(publisher));
    let jobs = Client::without_hints(hasty);
    let _node = stage.node(None, &[]).await;
    let undone = NewJob::of("chaos-noop", &json!({}));
    let ids = [undone.id()];
    stage.ledger.open(&ids);
    let mut transaction = jobs.begin().await.unwrap();
    transaction.create(undone).await.unwrap();
    transaction.rollback().await.unwrap();
    stage.ledger.settle(&ids, Outcome::RolledBack);
    stage
        .create(&jobs, NewJob::of("chaos-noop", &json!({})))
        .await;
    stage.until_empty().await;
    let report = stage.check(None).await;
    assert_breaks(&report, Invariant::I2);
    let seen = |what: &str| {
        report
            .kept
            .iter()
            .any(|violation| violation.what.contains(what))
    };
    assert!(seen("rolled-back"), "{report}");
    // If the server keeps commit timestamps, the checker also compares the hint with the commit.
    let kept: bool =
        sqlx::query_scalar("SELECT current_setting('track_commit_timestamp')::boolean")
            .fetch_one(stage.store.pool())
            .await
            .unwrap();
    assert!(
        !kept || seen("before the job's transaction had committed"),
        "{report}"
    );
}

#[tokio::test]
async fn a_sweeper_without_a_guard_is_caught() {
    let stage = Stage::new().await;
    let node = stage
        .node(Some(Bug::UnguardedSweeper), &[("CHAOS_GATE", "yes")])
        .await;
    stage.noop().await;
    stage
        .until(
            "a valid lease to be reset",
            "what = 'job_lease update' AND owner IS NULL AND old_owner IS NOT NULL",
            1,
        )
        .await;
    node.signal(Signal::SIGKILL);
    stage.open_gate().await;
    let _heir = stage.node(None, &[]).await;
    stage.until_empty().await;
    let report = stage.check(None).await;
    assert_breaks(&report, Invariant::I4);
}

#[tokio::test]
async fn a_lock_that_does_not_look_at_the_instance_is_caught() {
    let stage = Stage::new().await;
    let mut nodes = Vec::new();
    // Two nodes, because a node knows which instances its own jobs hold; here no node locks twice.
    for _ in 0..2 {
        let settings = [("CHAOS_GATE", "yes"), LONG_LEASE];
        nodes.push(stage.node(Some(Bug::NoInstanceCheck), &settings).await);
    }
    for _ in 0..2 {
        let job = NewJob::of("chaos-exclusive", &json!({ "ms": 0 })).instance("one");
        stage.create(&stage.jobs, job).await;
    }
    stage.until("both jobs to run", "what = 'start'", 2).await;
    stage.open_gate().await;
    stage.until_empty().await;
    let report = stage.check(None).await;
    assert_breaks(&report, Invariant::I5);
}

/// Two jobs of a key of which one runs at once, on two nodes.
async fn two_jobs_of_a_key(bug: Option<Bug>) -> Report {
    let stage = Stage::new().await;
    // With one slot, each node runs one of the jobs.
    let settings = [
        ("CHAOS_GATE", "yes"),
        ("JOBWIRE_CONCURRENCY", "1"),
        LONG_LEASE,
    ];
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(stage.node(bug, &settings).await);
    }
    for _ in 0..2 {
        let job = NewJob::of("chaos-limited", &json!({ "ms": 500, "key": 0 }));
        stage.create(&stage.jobs, job).await;
    }
    if bug.is_some() {
        stage.until("both jobs to run", "what = 'start'", 2).await;
    } else {
        eventually("the second job to wait for a permit", WAIT, || async {
            let waiting = "SELECT count(*) FROM jobwire.waiting_job";
            let waiting: i64 = sqlx::query_scalar(waiting)
                .fetch_one(stage.store.pool())
                .await
                .ok()?;
            (waiting == 1).then_some(())
        })
        .await;
    }
    stage.open_gate().await;
    stage.until_empty().await;
    stage.until("both jobs to end", "what = 'end'", 2).await;
    let mut report = stage.check(None).await;
    let lease = Duration::from_secs(60);
    limits::check(&stage.url, &Calendar::default(), lease, &mut report)
        .await
        .unwrap();
    report
}

#[tokio::test]
async fn permits_for_every_job_that_asks_are_caught() {
    let report = two_jobs_of_a_key(Some(Bug::GenerousPermits)).await;
    assert_breaks(&report, Invariant::I15);
}

#[tokio::test]
async fn a_job_that_waits_for_a_permit_of_another_node_breaks_nothing() {
    let report = two_jobs_of_a_key(None).await;
    assert!(report.holds(), "{report}");
    let counts = &report.counts;
    assert_eq!((counts.limited_runs, counts.most_limited), (2, 1));
}

/// A backlog waits in the broker for several sweeps while the only slot is taken.
async fn a_healthy_backlog(bug: Option<Bug>) -> Report {
    const JOBS: usize = 300;
    let stage = Stage::new().await;
    let settings = [("CHAOS_GATE", "yes"), ("JOBWIRE_CONCURRENCY", "1")];
    let node = stage.node(bug, &settings).await;
    let jobs: Vec<NewJob> = (0..JOBS)
        .map(|_| NewJob::of("chaos-noop", &json!({})))
        .collect();
    let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    stage.ledger.open(&ids);
    let mut transaction = stage.jobs.begin().await.unwrap();
    transaction.create_many(jobs).await.unwrap();
    transaction.commit().await.unwrap();
    stage.ledger.settle(&ids, Outcome::Committed);
    stage
        .until("the only slot to be taken", "what = 'start'", 1)
        .await;
    // Renewals measure the time: six of them are several sweeps.
    let renewed = "what = 'job_lease update' AND fence = old_fence AND owner IS NOT NULL";
    stage.until("some sweeps to pass", renewed, 6).await;
    stage.open_gate().await;
    stage.until_empty().await;
    drop(node);
    stage.check(Some(JOBS as u64 / 100)).await
}

#[tokio::test]
async fn orphans_by_age_are_caught_by_the_bound_on_hints() {
    let report = a_healthy_backlog(Some(Bug::OrphansByAge)).await;
    assert_breaks(&report, Invariant::I11);
}

#[tokio::test]
async fn a_healthy_backlog_is_not_hinted_again() {
    let report = a_healthy_backlog(None).await;
    assert!(report.holds(), "{report}");
}

/// After a crash PostgreSQL may give the id of an undone transaction to a later one. The commit of
/// the later one does not prove a commit of the first.
#[tokio::test]
async fn a_transaction_id_that_a_crash_gave_away_proves_no_commit() {
    let stage = Stage::new().await;
    let address = url::Url::parse(&stage.url).unwrap();
    let (host, port) = (address.host_str().unwrap(), address.port().unwrap());
    let proxy = Proxy::start(&format!("{host}:{port}")).await;
    let store = PgStore::connect(&proxy.url(&stage.url)).await.unwrap();
    let reused = Mutant::new(
        Bug::ReusedTransaction,
        Arc::new(store.clone()),
        store.clone(),
    );
    let jobs = Client::without_hints(reused);
    let mut transaction = jobs.begin().await.unwrap();
    let job = NewJob::of("chaos-noop", &json!({}));
    let id = transaction.create(job).await.unwrap();
    // COMMIT is lost with its connection.
    proxy.set(Direction::ToServer, Flow::Stall);
    let committing = tokio::spawn(transaction.commit());
    proxy.cut();
    eventually("the connection to be cut", WAIT, || async {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .fetch_one(stage.store.pool())
        .await
        .ok()?;
        (open == 0).then_some(())
    })
    .await;
    proxy.set(Direction::ToServer, Flow::Pass);
    let answer = committing.await.unwrap();
    assert!(
        matches!(answer, Err(StoreError::CommitUnknown(_))),
        "{answer:?}"
    );
    assert!(stage.store.get(id).await.unwrap().is_none());
}
