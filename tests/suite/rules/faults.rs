//! Rule 29: the database's faults are not the job's. The job runs again under the same lock, no
//! sibling passes it, and no attempt is spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::Control;
use jobwire_core::{
    Client, CommitHook, HandlerError, HandlerOptions, Handlers, InProcessTransport, JobQuery,
    JobState, NewJob, Node, NodeOptions, Outcome, PgOptions, PgStore, RetryPolicy, Running, Store,
    Transport,
};
use jobwire_tests::{Postgres, Stop, eventually, shared};
use tokio::sync::Semaphore;

use super::world::{SOON, unswept};
use crate::world::{Notes, patient, proxy_before};

/// The point at which the connection of a handler's transaction breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaks {
    /// Before its last statement, whose error the handler returns.
    Statement,
    /// The handler panics about that error.
    Panic,
    /// After its last statement: the completion fails.
    Completion,
}

/// Notes that the job runs, and writes in its transaction.
pub(super) async fn run(
    job: &Running<i64>,
    notes: &Notes,
    killer: &PgStore,
    breaks: Option<Breaks>,
) -> Result<Outcome, HandlerError> {
    let mut tx = job.transaction::<PgStore>().await?;
    notes.add(format!("{} with {}", job.payload, job.job.retries));
    let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *tx)
        .await?;
    let kill = async || {
        let gone = sqlx::query_scalar("SELECT pg_terminate_backend($1, 60000)").bind(process);
        let gone: bool = gone.fetch_one(killer.pool()).await.unwrap();
        assert!(gone);
    };
    let before = [Breaks::Statement, Breaks::Panic];
    if breaks.is_some_and(|breaks| before.contains(&breaks)) {
        kill().await;
    }
    let written = sqlx::query("INSERT INTO effect VALUES ($1)")
        .bind(job.payload)
        .execute(&mut *tx)
        .await;
    if breaks == Some(Breaks::Panic) {
        written.unwrap();
    } else {
        written?;
    }
    if breaks == Some(Breaks::Completion) {
        kill().await;
    }
    Ok(Outcome::Done)
}

pub(super) struct Fixture {
    pub(super) store: PgStore,
    jobs: Client<PgStore>,
    transport: InProcessTransport,
}

impl Fixture {
    pub(super) async fn on(url: &str) -> Self {
        Self::of(patient(url).await).await
    }

    pub(super) async fn of(store: PgStore) -> Self {
        store.migrate().await.unwrap();
        sqlx::query("CREATE TABLE effect (n bigint)")
            .execute(store.pool())
            .await
            .unwrap();
        let transport = InProcessTransport::new();
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        let jobs = store.client(hook);
        Self {
            store,
            jobs,
            transport,
        }
    }

    async fn start(&self, handlers: Handlers) -> Node {
        self.start_with(unswept(), handlers).await
    }

    pub(super) async fn start_with(&self, options: NodeOptions, handlers: Handlers) -> Node {
        let transport: Arc<dyn Transport> = Arc::new(self.transport.clone());
        let node = Node::builder(self.store.clone(), transport).options(options);
        node.handlers(handlers).start().await.unwrap()
    }

    pub(super) async fn create_one(&self, job: NewJob) {
        let mut tx = self.jobs.begin().await.unwrap();
        tx.create(job).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(super) async fn create(&self, count: i64) {
        let mut tx = self.jobs.begin().await.unwrap();
        for n in 1..=count {
            let job = NewJob::of("effect", &n).instance("case").max_attempts(5);
            tx.create(job).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    pub(super) async fn until_left(&self, left: i64) {
        let filter = JobQuery::default();
        eventually("jobs to end", SOON, async || {
            (self.store.count(&filter).await.ok()? == left).then_some(())
        })
        .await;
    }
}

pub(super) fn in_transaction() -> HandlerOptions {
    // Siblings pass a job that waits for a retry.
    let long = RetryPolicy::Fixed(Duration::from_secs(3600));
    HandlerOptions::default().in_transaction().retry(long)
}

#[tokio::test]
async fn a_broken_connection_of_its_transaction_changes_no_order_and_spends_no_attempt() {
    for breaks in [Breaks::Statement, Breaks::Panic, Breaks::Completion] {
        let world = Fixture::on(&shared::postgres().await.create_database().await).await;
        let (notes, runs) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
        let mut handlers = Handlers::default();
        let (noted, killer) = (notes.clone(), world.store.clone());
        handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
            let (notes, killer) = (noted.clone(), killer.clone());
            // The first job fails in its first two runs.
            let breaks = (runs.fetch_add(1, Ordering::SeqCst) < 2).then_some(breaks);
            async move { run(&job, &notes, &killer, breaks).await }
        });
        let node = world.start(handlers).await;
        world.create(3).await;
        world.until_left(0).await;
        let expected = ["1 with 5", "1 with 5", "1 with 5", "2 with 5", "3 with 5"];
        assert_eq!(notes.all(), expected);
        let effects = sqlx::query_scalar("SELECT count(*) FROM effect");
        let effects: i64 = effects.fetch_one(world.store.pool()).await.unwrap();
        assert_eq!(effects, 3);
        node.stop().await;
    }
}

/// A table is missing, or a trigger raises an error: the job's own values are not the reason.
#[tokio::test]
async fn a_completion_that_is_refused_for_no_fault_of_the_job_spends_no_attempt() {
    let spoil_and_mend = [
        (
            "ALTER TABLE jobwire.job_lease RENAME TO moved",
            "ALTER TABLE jobwire.moved RENAME TO job_lease",
        ),
        (
            "CREATE TRIGGER refuse BEFORE DELETE ON jobwire.job
             FOR EACH ROW EXECUTE FUNCTION refuse()",
            "DROP TRIGGER refuse ON jobwire.job",
        ),
    ];
    for (spoil, mend) in spoil_and_mend {
        let world = Fixture::on(&shared::postgres().await.create_database().await).await;
        let sql = async |store: &PgStore, sql: &'static str| {
            sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
        };
        let function = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not today'; END $$";
        sql(&world.store, function).await;
        let (notes, runs) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
        let mut handlers = Handlers::default();
        let (noted, store) = (notes.clone(), world.store.clone());
        handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
            let (notes, store) = (noted.clone(), store.clone());
            let earlier = runs.fetch_add(1, Ordering::SeqCst);
            async move {
                if (1..=2).contains(&earlier) {
                    sql(&store, mend).await;
                }
                let done = run(&job, &notes, &store, None).await;
                if earlier < 2 {
                    sql(&store, spoil).await;
                }
                done
            }
        });
        let node = world.start(handlers).await;
        world.create(3).await;
        world.until_left(0).await;
        let expected = ["1 with 5", "1 with 5", "1 with 5", "2 with 5", "3 with 5"];
        assert_eq!(notes.all(), expected, "after {spoil}");
        node.stop().await;
    }
}

/// A job may be the cause: a fault that hits it three times while the database serves others is its
/// own failure.
#[tokio::test]
async fn a_job_that_breaks_its_connection_each_time_spends_an_attempt() {
    let world = Fixture::on(&shared::postgres().await.create_database().await).await;
    let notes = Notes::default();
    let mut handlers = Handlers::default();
    let (noted, killer) = (notes.clone(), world.store.clone());
    handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
        let (notes, killer) = (noted.clone(), killer.clone());
        let breaks = (job.payload == 1).then_some(Breaks::Statement);
        async move { run(&job, &notes, &killer, breaks).await }
    });
    let node = world.start(handlers).await;
    world.create(2).await;
    world.until_left(1).await;
    let expected = ["1 with 5", "1 with 5", "1 with 5", "2 with 5"];
    assert_eq!(notes.all(), expected);
    let waiting = world.store.find(&JobQuery::default()).await.unwrap();
    let waiting = waiting.first().unwrap();
    assert_eq!((waiting.state, waiting.retries), (JobState::Timer, 4));
    node.stop().await;
}

/// A statement of the job crashes its process of the server, which then ends all connections. So no other
/// statement is answered at that moment, and the job cannot be told from one that an outage strikes, until
/// it has been struck often. A crash also ends the transaction of a longer job beside it, which waits through
/// other crashes.
#[tokio::test]
async fn a_job_that_crashes_the_server_each_time_spends_an_attempt_and_costs_others_none() {
    const LONG: i64 = 3;
    let server = Postgres::start().await;
    let world = Fixture::on(&server.create_database().await).await;
    let (notes, long_ends) = (Notes::default(), Notes::default());
    let mut handlers = Handlers::default();
    let noted = (notes.clone(), long_ends.clone());
    handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
        let (notes, long_ends) = noted.clone();
        async move {
            let mut tx = job.transaction::<PgStore>().await?;
            if job.payload != LONG {
                notes.add(format!("{} with {}", job.payload, job.job.retries));
            }
            let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
                .fetch_one(&mut *tx)
                .await?;
            if job.payload == 1 {
                let kill = std::process::Command::new("kill")
                    .args(["-KILL", &process.to_string()])
                    .status();
                assert!(kill.unwrap().success());
                sqlx::query("SELECT 1").execute(&mut *tx).await?;
            }
            if job.payload == LONG {
                let long = sqlx::query("SELECT pg_sleep(8)").execute(&mut *tx).await;
                long_ends.add(long.is_ok().to_string());
                long?;
            }
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    let node = world.start(handlers).await;
    world.create_one(NewJob::of("effect", &LONG)).await;
    world.create(2).await;
    world.until_left(1).await;
    let waiting = world.store.find(&JobQuery::default()).await.unwrap();
    let waiting = waiting.first().unwrap();
    assert_eq!((waiting.state, waiting.retries), (JobState::Timer, 4));
    let ends = long_ends.all();
    assert!(
        ends.len() > 1 && ends.iter().filter(|end| *end == "true").count() == 1,
        "{ends:?}"
    );
    let message = waiting.exception_message.as_deref().unwrap_or_default();
    assert!(message.contains("repeatedly failed"), "{message}");
    let all = notes.all();
    assert!(all.len() <= 11, "{all:?}");
    assert_eq!(all.last().map(String::as_str), Some("2 with 5"));
    node.stop().await;
}

/// A firewall forgets the connection while the handler works. Its next statement has no answer until
/// the timeout of its type, and neither has the rollback.
#[tokio::test]
async fn a_timeout_on_a_silent_connection_changes_no_order_and_spends_no_attempt() {
    let database = shared::postgres().await.create_database().await;
    let proxy = Arc::new(proxy_before(&database).await);
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(2);
    let through = proxy.url(&database);
    let store = PgStore::connect_with(&through, options).await.unwrap();
    let world = Fixture::of(store).await;
    let notes = Notes::default();
    let mut handlers = Handlers::default();
    let noted = notes.clone();
    // Long enough that no attempt on a live connection takes it, on any machine.
    let limited = in_transaction().timeout(Duration::from_secs(8));
    handlers.add_with("effect", limited, move |job: Running<i64>| {
        let (notes, proxy) = (noted.clone(), proxy.clone());
        async move {
            let mut tx = job.transaction::<PgStore>().await?;
            if notes.all().is_empty() {
                proxy.forget();
            }
            notes.add(format!("{} with {}", job.payload, job.job.retries));
            sqlx::query("SELECT 1").execute(&mut *tx).await?;
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    let node = world.start(handlers).await;
    world.create(2).await;
    world.until_left(0).await;
    let mut runs = notes.all();
    runs.dedup();
    assert_eq!(runs, ["1 with 5", "2 with 5"]);
    node.stop().await;
}

/// Each renewal of the lease conflicts with a snapshot from before it, so repetitions never end.
#[tokio::test]
async fn a_strict_transaction_that_outlives_a_renewal_spends_an_attempt() {
    const LEASE: Duration = Duration::from_secs(6);
    let world = Fixture::on(&shared::postgres().await.create_database().await).await;
    let notes = Notes::default();
    let mut handlers = Handlers::default();
    let (noted, beside) = (notes.clone(), world.store.clone());
    handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
        let (notes, beside) = (noted.clone(), beside.clone());
        async move {
            let mut tx = job.transaction::<PgStore>().await?;
            notes.add(format!("{} with {}", job.payload, job.job.retries));
            sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                .execute(&mut *tx)
                .await?;
            if job.payload == 1 {
                let ends = async || -> DateTime<Utc> {
                    let ends = "SELECT expires_at FROM jobwire.job_lease WHERE job_id = $1";
                    let ends = sqlx::query_scalar(ends).bind(job.job.id.uuid());
                    ends.fetch_one(beside.pool()).await.unwrap()
                };
                let at_first = ends().await;
                eventually("a renewal", SOON, async || {
                    (ends().await > at_first).then_some(())
                })
                .await;
            }
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    let mut options = unswept();
    options.lease = LEASE;
    let node = world.start_with(options, handlers).await;
    world.create(2).await;
    world.until_left(1).await;
    let expected = ["1 with 5", "1 with 5", "1 with 5", "2 with 5"];
    assert_eq!(notes.all(), expected);
    let waiting = world.store.find(&JobQuery::default()).await.unwrap();
    let waiting = waiting.first().unwrap();
    assert_eq!((waiting.state, waiting.retries), (JobState::Timer, 4));
    let message = waiting.exception_message.as_deref().unwrap_or_default();
    assert!(
        message.contains("shorter than a third of the lease"),
        "{message}"
    );
    node.stop().await;
}

/// The server is away for a while, and the job's first statement after that finds a dead
/// connection.
#[tokio::test]
async fn a_restart_of_the_server_changes_no_order_and_spends_no_attempt() {
    let mut server = Postgres::start().await;
    let world = Fixture::on(&server.create_database().await).await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let mut handlers = Handlers::default();
    let (noted, opens, store) = (notes.clone(), gate.clone(), world.store.clone());
    handlers.add_with("effect", in_transaction(), move |job: Running<i64>| {
        let (notes, gate, store) = (noted.clone(), opens.clone(), store.clone());
        async move {
            if job.payload == 1 && notes.all().is_empty() {
                notes.add("1 in");
                gate.acquire().await?.forget();
            }
            run(&job, &notes, &store, None).await
        }
    });
    let node = world.start(handlers).await;
    world.create(3).await;
    notes.until(1).await;
    for _ in 0..2 {
        server.stop(Stop::Immediate).await;
        // The job's transaction is gone, and none can be opened.
        gate.add_permits(1);
        server.start_again().await;
    }
    world.until_left(0).await;
    let all = notes.all();
    let done: Vec<_> = all.iter().filter(|note| note.contains("with")).collect();
    let mut order: Vec<_> = done.iter().map(|note| note.as_str()).collect();
    order.dedup();
    assert_eq!(order, ["1 with 5", "2 with 5", "3 with 5"], "{all:?}");
    let effects = sqlx::query_scalar("SELECT count(*) FROM effect");
    let effects: i64 = effects.fetch_one(world.store.pool()).await.unwrap();
    assert_eq!(effects, 3);
    node.stop().await;
}

/// A job is asked to stop when its lease could not be renewed for long, and by any message that says
/// that it was cancelled. Its handler then returns an error, as handlers do at a shutdown. Any client of the
/// broker can send such messages.
#[tokio::test]
async fn the_error_of_a_job_that_was_asked_to_stop_changes_no_order_and_spends_no_attempt() {
    const STOPPED: usize = 5;
    let world = Fixture::on(&shared::postgres().await.create_database().await).await;
    let (notes, runs) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
    let mut handlers = Handlers::default();
    let noted = notes.clone();
    // Siblings pass a job that waits for a retry.
    let long = HandlerOptions::default().retry(RetryPolicy::Fixed(Duration::from_secs(3600)));
    handlers.add_with("effect", long, move |job: Running<i64>| {
        let (notes, run) = (noted.clone(), runs.fetch_add(1, Ordering::SeqCst));
        async move {
            notes.add(format!("{} with {}", job.payload, job.job.retries));
            if run < STOPPED {
                job.stop.cancelled().await;
                return Err(HandlerError::retry("asked to stop"));
            }
            Ok(Outcome::Done)
        }
    });
    let node = world.start(handlers).await;
    world.create(2).await;
    for run in 1..=STOPPED {
        eventually("the job to run", SOON, async || {
            (notes.all().len() == run).then_some(())
        })
        .await;
        let jobs = world.store.find(&JobQuery::default()).await.unwrap();
        let first = jobs.iter().map(|job| job.id).min().unwrap();
        let publisher = world.transport.publisher();
        publisher.tell(Control::Cancel { job: first });
    }
    world.until_left(0).await;
    let mut runs = notes.all();
    assert_eq!(runs.len(), STOPPED + 2, "{runs:?}");
    runs.dedup();
    assert_eq!(runs, ["1 with 5", "2 with 5"]);
    node.stop().await;
}
