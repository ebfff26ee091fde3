//! Rule 6: jobs of a type with a limit on each node hold neither slots nor leases while they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jobwire_core::transport::{Publisher, Transport};
use jobwire_core::{
    Client, CommitHook, HandlerError, HandlerOptions, Hint, HookOptions, InProcessTransport,
    JobQuery, Lane, NewJob, Node, NodeOptions, Outcome, PgStore, Running, Store,
};
use jobwire_tests::{eventually, shared};
use tokio::sync::Semaphore;

use super::world::{SOON, count_hints_again, hinted_again, store, unswept, until_led};
use crate::world::{Notes, connect, pass, quick};

/// More than a node receives at once.
const FLOOD: usize = 200;

/// How many jobs of a type run, and the most that ever did.
#[derive(Clone, Default)]
struct AtOnce(Arc<[AtomicUsize; 2]>);

impl AtOnce {
    fn begin(&self) {
        let [now, most] = &*self.0;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.0[0].fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.0[1].load(Ordering::SeqCst)
    }
}

/// A node of eight slots, on which one job of the type `narrow` runs at once.
struct Narrow {
    node: Node,
    notes: Notes,
    at_once: AtOnce,
}

impl Narrow {
    /// Starts the node. Its narrow jobs end while the gate is open.
    async fn start(
        store: &PgStore,
        transport: Arc<dyn Transport>,
        options: HandlerOptions,
        gate: &Arc<Semaphore>,
    ) -> Self {
        Self::start_with(store, transport, options_of_node(), options, gate).await
    }

    async fn start_with(
        store: &PgStore,
        transport: Arc<dyn Transport>,
        options_of_node: NodeOptions,
        options: HandlerOptions,
        gate: &Arc<Semaphore>,
    ) -> Self {
        let (notes, at_once) = (Notes::default(), AtOnce::default());
        let (seen, noted) = (notes.clone(), notes.clone());
        let (counted, gate) = (at_once.clone(), gate.clone());
        let node = Node::builder(store.clone(), transport)
            .options(options_of_node)
            .handler_with("narrow", options.concurrency(1), move |_: Running<()>| {
                let (seen, counted, gate) = (seen.clone(), counted.clone(), gate.clone());
                async move {
                    counted.begin();
                    seen.add("narrow");
                    let open = gate.acquire().await;
                    counted.end();
                    open.map_err(HandlerError::from)?.forget();
                    Ok(Outcome::Done)
                }
            })
            .handler("note", move |_: Running<()>| {
                noted.add("note");
                async { Ok(Outcome::Done) }
            });
        Self {
            node: node.start().await.unwrap(),
            notes,
            at_once,
        }
    }

    /// Waits until this many jobs of the type have started.
    async fn until(&self, job_type: &str, count: usize) {
        eventually(&format!("{count} of {job_type}"), SOON, async || {
            let all = self.notes.all();
            (all.iter().filter(|note| *note == job_type).count() >= count).then_some(())
        })
        .await;
    }
}

fn options_of_node() -> NodeOptions {
    let mut options = unswept();
    (options.concurrency, options.row_lock_from) = (8, 1);
    options
}

/// A client whose hints no sweep replaces.
fn client(store: &PgStore, transport: &dyn Transport) -> Client<PgStore> {
    let mut options = HookOptions::default();
    options.max_age = SOON;
    store.client(CommitHook::start(transport.publisher(), options))
}

async fn flood(jobs: &Client<PgStore>, job: impl Fn(usize) -> NewJob) {
    let flood = (0..FLOOD).map(job).collect();
    jobs.create_many(flood).await.unwrap();
}

async fn until_empty(store: &PgStore) {
    eventually("all jobs to be done", SOON, async || {
        (store.count(&JobQuery::default()).await.ok()? == 0).then_some(())
    })
    .await;
}

/// Returns the number of locks that were granted so far.
async fn locks(store: &PgStore) -> i64 {
    sqlx::query_scalar("SELECT last_value FROM jobwire.fence_seq")
        .fetch_one(store.pool())
        .await
        .unwrap()
}

/// Waits until no job is locked for longer than the pause after which hints are published again.
async fn until_nothing_is_locked(store: &PgStore) {
    eventually("four seconds without a lock", SOON, async || {
        let before = locks(store).await;
        pass(Duration::from_secs(4)).await;
        (locks(store).await == before).then_some(())
    })
    .await;
    let leases: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job_lease")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(leases, 1, "only the job that runs is locked");
}

async fn a_flood_leaves_the_node_to_other_types(job: impl Fn(usize) -> NewJob) {
    let (store, gate) = (store().await, Arc::new(Semaphore::new(0)));
    let transport = InProcessTransport::new();
    let jobs = client(&store, &transport);
    let options = HandlerOptions::default();
    let node = Narrow::start(&store, Arc::new(transport), options, &gate).await;
    until_led(&store).await;
    flood(&jobs, job).await;
    jobs.create(NewJob::of("note", &())).await.unwrap();
    node.until("note", 1).await;
    node.until("narrow", 1).await;
    until_nothing_is_locked(&store).await;
    assert_eq!(node.notes.all().len(), 2);
    gate.add_permits(FLOOD);
    until_empty(&store).await;
    node.node.stop().await;
    assert_eq!(node.notes.all().len(), FLOOD + 1);
    assert_eq!(node.at_once.most(), 1);
}

#[tokio::test]
async fn a_flood_of_a_type_with_a_limit_leaves_the_node_to_other_types() {
    a_flood_leaves_the_node_to_other_types(|_| NewJob::of("narrow", &())).await;
}

/// The markers of the sweeper pass the hints that wait for a slot.
#[tokio::test]
async fn what_waits_for_a_slot_of_its_type_is_not_hinted_again() {
    let (store, gate) = (store().await, Arc::new(Semaphore::new(0)));
    let transport = InProcessTransport::new();
    let jobs = client(&store, &transport);
    let node = Narrow::start_with(
        &store,
        Arc::new(transport),
        quick().concurrency(8),
        HandlerOptions::default(),
        &gate,
    )
    .await;
    flood(&jobs, |_| NewJob::of("narrow", &())).await;
    jobs.create(NewJob::of("note", &())).await.unwrap();
    node.until("note", 1).await;
    count_hints_again(&store).await;
    // Each of these hints is lost, and the sweeper finds the job.
    let unhinted = Client::without_hints(store.clone());
    for found in 2..=4 {
        let mut tx = unhinted.begin().await.unwrap();
        let job = tx.create(NewJob::of("note", &())).await.unwrap();
        sqlx::query("UPDATE jobwire.job SET hints = 1 WHERE id = $1")
            .bind(job.uuid())
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        node.until("note", found).await;
    }
    // The update above counts like a hint.
    assert_eq!(hinted_again(&store).await, 2 * 3);
    gate.add_permits(FLOOD);
    until_empty(&store).await;
    node.node.stop().await;
    assert_eq!(node.at_once.most(), 1);
}

/// The hint of an exclusive job does not name its type, so the type is known only after the lock.
#[tokio::test]
async fn exclusive_jobs_over_the_limit_of_their_type_are_given_back_once() {
    a_flood_leaves_the_node_to_other_types(|n| {
        let job = NewJob::of("narrow", &());
        job.instance(format!("order-{n}")).exclusive()
    })
    .await;
}

/// The end of an exclusive job locks the next one of its instance, whatever its type.
#[tokio::test]
async fn the_next_job_of_an_instance_waits_for_a_slot_of_its_type_without_a_lock() {
    let (store, gate) = (store().await, Arc::new(Semaphore::new(0)));
    let transport = InProcessTransport::new();
    let jobs = client(&store, &transport);
    let options = HandlerOptions::default();
    let node = Narrow::start(&store, Arc::new(transport), options, &gate).await;
    until_led(&store).await;
    jobs.create(NewJob::of("narrow", &())).await.unwrap();
    node.until("narrow", 1).await;
    let of_instance = |job_type| NewJob::of(job_type, &()).instance("order-1").exclusive();
    for _ in 0..3 {
        let pair = vec![of_instance("note"), of_instance("narrow")];
        jobs.create_many(pair).await.unwrap();
    }
    node.until("note", 1).await;
    until_nothing_is_locked(&store).await;
    assert_eq!(node.notes.all(), ["narrow", "note"]);
    gate.add_permits(4);
    until_empty(&store).await;
    node.node.stop().await;
    assert_eq!(node.at_once.most(), 1);
    assert_eq!(
        node.notes.all(),
        [
            "narrow", "note", "narrow", "note", "narrow", "note", "narrow"
        ]
    );
}

#[tokio::test]
async fn jobs_held_by_row_locks_are_given_back_over_the_limit_of_their_type() {
    let (store, gate) = (store().await, Arc::new(Semaphore::new(0)));
    let transport = InProcessTransport::new();
    let jobs = client(&store, &transport);
    let options = HandlerOptions::default().row_lock();
    let of_node = Arc::new(transport.clone());
    let node = Narrow::start(&store, of_node, options, &gate).await;
    until_led(&store).await;
    // Hints of another program may name no type.
    let mut ids = Vec::new();
    let unhinted = Client::without_hints(store.clone());
    for _ in 0..FLOOD {
        ids.push(unhinted.create(NewJob::of("narrow", &())).await.unwrap());
    }
    for ids in ids.chunks(20) {
        let hints = ids.iter().copied().map(Hint::new).collect();
        transport.publish(&Lane::default(), hints).await.unwrap();
    }
    jobs.create(NewJob::of("note", &())).await.unwrap();
    node.until("note", 1).await;
    node.until("narrow", 1).await;
    until_nothing_is_locked(&store).await;
    gate.add_permits(FLOOD);
    until_empty(&store).await;
    node.node.stop().await;
    assert_eq!(node.at_once.most(), 1);
}

/// Only the broker brings the jobs to the second node: no sweep and no claim does.
#[tokio::test]
async fn what_waits_for_a_slot_of_its_type_goes_to_an_idle_node() {
    let (store, space) = (store().await, shared::rabbitmq().await.space().await);
    let gate = Arc::new(Semaphore::new(0));
    let producer = connect(&space, 1).await;
    let jobs = client(&store, &*producer);
    let options = HandlerOptions::default();
    let transport = connect(&space, 1).await;
    let first = Narrow::start(&store, transport, options.clone(), &gate).await;
    until_led(&store).await;
    flood(&jobs, |_| NewJob::of("narrow", &())).await;
    jobs.create(NewJob::of("note", &())).await.unwrap();
    first.until("note", 1).await;
    first.until("narrow", 1).await;
    let transport = connect(&space, 1).await;
    let second = Narrow::start(&store, transport, options, &gate).await;
    second.until("narrow", 1).await;
    assert_eq!(first.notes.all().len(), 2);
    // What the first node still holds is left to the second one when it stops.
    gate.add_permits(FLOOD);
    first.node.stop().await;
    until_empty(&store).await;
    second.node.stop().await;
    let ran = first.notes.all().len() + second.notes.all().len();
    assert_eq!(ran, FLOOD + 1);
    assert_eq!((first.at_once.most(), second.at_once.most()), (1, 1));
    producer.close(SOON).await;
}
