//! Rule 29: the ends of a job that waits for a database that is away. Its time ends, its node stops, or
//! its lease is no longer trusted. It then goes back without an attempt, and no sibling passes it. An
//! outcome is committed when the database is back, however long that takes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::{
    Fence, HandlerError, HandlerOptions, Handlers, NewJob, Node, NodeOptions, Outcome, PgStore,
    Running,
};
use jobwire_tests::{Postgres, Stop};
use tokio::sync::Semaphore;

use super::faults::{Fixture, in_transaction, run};
use super::world::unswept;
use crate::world::Notes;

/// A server that goes away while two jobs run. One of them waits for the server; the other one tells when it
/// is asked to stop.
struct Outage {
    server: Postgres,
    world: Fixture,
    notes: Notes,
    /// The fences under which the waiting job and its sibling ran, in order.
    fences: Arc<Mutex<Vec<Fence>>>,
    /// Lets the handler of the waiting job continue.
    gate: Arc<Semaphore>,
    /// Has a permit when the other job has been asked to stop.
    asked: Arc<Semaphore>,
}

impl Outage {
    async fn prepare() -> Self {
        let server = Postgres::start().await;
        let world = Fixture::on(&server.create_database().await).await;
        Self::of(server, world)
    }

    fn of(server: Postgres, world: Fixture) -> Self {
        Self {
            server,
            world,
            notes: Notes::default(),
            fences: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            asked: Arc::new(Semaphore::new(0)),
        }
    }

    /// Starts a node. The first job begins a transaction, waits at the gate, and continues. Later calls do
    /// not wait.
    async fn start_node(&self, options: NodeOptions, effect: HandlerOptions) -> Node {
        let mut handlers = Handlers::default();
        let (notes, fences) = (self.notes.clone(), self.fences.clone());
        let (gate, store) = (self.gate.clone(), self.world.store.clone());
        handlers.add_with("effect", effect, move |job: Running<i64>| {
            let (notes, gate, store) = (notes.clone(), gate.clone(), store.clone());
            let is_first = {
                let mut fences = fences.lock().unwrap();
                fences.push(job.fence);
                fences.len() == 1
            };
            async move {
                if is_first {
                    let mut tx = job.transaction::<PgStore>().await?;
                    sqlx::query("SELECT 1").execute(&mut *tx).await?;
                    drop(tx);
                    notes.add("in");
                    gate.acquire().await?.forget();
                }
                run(&job, &notes, &store, None).await
            }
        });
        let asked = self.asked.clone();
        handlers.add("asked", move |job: Running<i64>| {
            let asked = asked.clone();
            async move {
                if asked.available_permits() == 0 {
                    job.stop.cancelled().await;
                    asked.add_permits(1);
                    return Err(HandlerError::retry("asked to stop"));
                }
                Ok(Outcome::Done)
            }
        });
        self.world.start_with(options, handlers).await
    }

    /// Stops the server while the first of two siblings is in its handler, and lets the handler continue.
    async fn begin(&mut self) {
        self.world.create(2).await;
        self.notes.until(1).await;
        self.server.stop(Stop::Immediate).await;
        self.gate.add_permits(1);
    }

    /// The same, beside a job that tells when it is asked to stop.
    async fn begin_beside(&mut self) {
        let beside = NewJob::of("asked", &0).max_attempts(5);
        self.world.create_one(beside).await;
        self.begin().await;
    }

    async fn until_asked(&self) {
        let asked = self.asked.acquire().await.unwrap();
        drop(asked);
    }

    /// Waits until all jobs are done. The first one was locked anew, before its sibling, without an attempt.
    async fn end(&self) {
        self.world.until_left(0).await;
        let mut notes = self.notes.all();
        // The server may be there in the first run's last moments.
        notes.dedup();
        assert_eq!(notes, ["in", "1 with 5", "2 with 5"]);
        let fences = self.fences.lock().unwrap().clone();
        assert_ne!(fences[0], fences[1], "the same lock");
    }
}

/// Its own time ends.
#[tokio::test]
async fn a_job_whose_time_ends_while_the_server_is_away_goes_back_without_an_attempt() {
    let mut outage = Outage::prepare().await;
    // Long enough that it does not end while the server answers, on any machine.
    let timeout = Duration::from_secs(5);
    let node = outage
        .start_node(unswept(), in_transaction().timeout(timeout))
        .await;
    outage.begin().await;
    tokio::time::sleep(timeout + Duration::from_secs(2)).await;
    outage.server.start_again().await;
    outage.end().await;
    node.stop().await;
}

/// Its node stops, and the time for its jobs ends while the server is away. The node gives the job back
/// before it ends.
#[tokio::test]
async fn a_job_that_waits_for_the_server_when_its_node_stops_goes_back_without_an_attempt() {
    let mut outage = Outage::prepare().await;
    let mut options = unswept();
    options.shutdown_timeout = Duration::from_millis(500);
    // The node cannot give up the lead while the server is away, and the next node waits for its end.
    options.sweep_interval = Duration::from_secs(1);
    let node = outage.start_node(options.clone(), in_transaction()).await;
    outage.begin_beside().await;
    let stopping = tokio::spawn(node.stop());
    outage.until_asked().await;
    outage.server.start_again().await;
    stopping.await.unwrap();
    let held = sqlx::query_scalar("SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL");
    let held: i64 = held.fetch_one(outage.world.store.pool()).await.unwrap();
    assert_eq!(held, 0, "jobs of a node that has stopped");
    let heir = outage.start_node(options, in_transaction()).await;
    outage.end().await;
    heir.stop().await;
}

/// Its lease cannot be renewed, so the node trusts it no longer.
#[tokio::test]
async fn a_job_whose_lease_ends_while_the_server_is_away_goes_back_without_an_attempt() {
    let mut outage = Outage::prepare().await;
    let mut options = unswept();
    options.lease = Duration::from_secs(8);
    options.sweep_interval = Duration::from_secs(1);
    let node = outage.start_node(options, in_transaction()).await;
    outage.begin_beside().await;
    outage.until_asked().await;
    outage.server.start_again().await;
    outage.end().await;
    node.stop().await;
}

/// The completion of the first job gets through after an outage that is longer than the lease. The last try
/// locks the sibling, which runs under that lock.
#[tokio::test]
async fn a_job_that_a_completion_locks_after_a_long_outage_runs_under_that_lock() {
    // Twice as long as a try waits for a connection.
    const LEASE: Duration = Duration::from_secs(20);
    let server = Postgres::start().await;
    let store = PgStore::connect(&server.create_database().await).await;
    let world = Fixture::of(store.unwrap()).await;
    let mut outage = Outage::of(server, world);
    let note_fences = "CREATE TABLE lock (fence bigint, job uuid);
        CREATE FUNCTION note_lock() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO lock VALUES (NEW.fence, NEW.job_id); RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT OR UPDATE OF fence ON jobwire.job_lease
            FOR EACH ROW EXECUTE FUNCTION note_lock()";
    let pool = outage.world.store.pool().clone();
    sqlx::raw_sql(note_fences).execute(&pool).await.unwrap();
    let mut handlers = Handlers::default();
    let (notes, gate) = (outage.notes.clone(), outage.gate.clone());
    handlers.add("effect", move |job: Running<i64>| {
        let (notes, gate) = (notes.clone(), gate.clone());
        async move {
            notes.add(job.payload.to_string());
            if job.payload == 1 {
                gate.acquire().await?.forget();
            }
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    let mut options = unswept();
    (options.lease, options.row_lock_from) = (LEASE, usize::MAX);
    let node = outage.world.start_with(options, handlers).await;
    outage.begin().await;
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    outage.server.start_again().await;
    outage.world.until_left(0).await;
    assert_eq!(outage.notes.all(), ["1", "2"]);
    let locks: Vec<i64> =
        sqlx::query_scalar("SELECT count(DISTINCT fence) FROM lock GROUP BY job ORDER BY job")
            .fetch_all(&pool)
            .await
            .unwrap();
    assert_eq!(locks, [1, 1], "the number of locks of each job");
    node.stop().await;
}
