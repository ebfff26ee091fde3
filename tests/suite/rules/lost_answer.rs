//! Rule 6: a node asks the database for the leases of a lost answer. No sweeps run here, and no
//! lease ends.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{Handoff, Operated, Origin, Store};
use jobwire_core::transport::Publisher;
use jobwire_core::{
    HandlerError, HandlerOptions, Lane, NewJob, Node, NodeId, NodeOptions, Outcome, PgStore,
    PgTransport, Running, SqlStore, Transport,
};
use jobwire_tests::{Direction, Flow, Proxy, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;
use sqlx::{Postgres, Transaction};
use tokio::sync::Semaphore;

use super::world::{
    SOON, counted, create, failed, hold, shut, stop_at_commit, unswept, until_led, until_waiting,
    waits, work,
};
use crate::world::{Notes, World, patient, proxy_before};

/// The completion of the first job has locked the next sibling for its node, and the answer to its
/// COMMIT is lost. The sibling still starts, under the same lock, and no strike is counted.
#[tokio::test]
async fn a_sibling_that_a_lost_answer_has_locked_is_adopted() {
    answer_is_lost(false).await;
}

/// An operator cancels the sibling before the node finds its lease. It does not start.
#[tokio::test]
async fn a_cancelled_sibling_that_a_lost_answer_has_locked_is_released() {
    answer_is_lost(true).await;
}

/// The number of leases with a node and without a strike.
const HELD: &str = "SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL AND strikes = 0";

fn looking() -> NodeOptions {
    let mut options = unswept();
    // The node looks for lost leases every twelfth of this.
    options.lease = Duration::from_secs(60);
    options
}

/// Lets the transaction that waits in its COMMIT for the gate commit, and holds its answer back.
/// `one` counts to one from then on.
async fn lose_the_answer(
    world: &World,
    proxy: &Proxy,
    gate: Transaction<'static, Postgres>,
    one: &'static str,
) {
    until_waiting(&world.store, 1).await;
    proxy.set(Direction::ToClient, Flow::Stall);
    tokio::task::yield_now().await;
    gate.commit().await.unwrap();
    eventually("the commit", SOON, async || {
        (world.count(one).await == 1).then_some(())
    })
    .await;
}

/// Resets the connections, so that the answer never arrives.
async fn pass_again(proxy: &Proxy) {
    proxy.cut();
    // The connections must be reset before the answer can pass: all tasks run on this thread.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    proxy.set_both(Flow::Pass);
}

async fn answer_is_lost(cancelled: bool) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let node = Node::builder(patient(&proxy.url(&world.url)).await, world.transport())
        .options(looking())
        .handler("work", waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    let sibling = || NewJob::of("work", &()).instance("order");
    let first = create(&world.store, sibling()).await;
    let second = create(&world.store, sibling()).await;
    let publisher = Transport::publisher(&world.transport);
    publisher
        .publish(&Lane::default(), vec![first])
        .await
        .unwrap();
    notes.until(1).await;

    stop_at_commit(&world.store, "DELETE ON jobwire.job_lease").await;
    let shut = shut(&world.store).await;
    gate.add_permits(1);
    lose_the_answer(&world, &proxy, shut, "SELECT count(*) FROM jobwire.job").await;
    assert_eq!(world.count(HELD).await, 1, "the sibling is locked");
    assert_eq!(notes.all().len(), 1, "the node does not know it");
    if cancelled {
        let (told, _) = world.store.cancel(second.id).await.unwrap();
        assert_eq!(told, Operated::Running);
    }
    pass_again(&proxy).await;

    if cancelled {
        world.until_empty().await;
        let released = r#"jobwire_leases_reconciled_total{how="released"}"#;
        assert_eq!(counted(&recorder.handle(), released), 1);
        assert_eq!(notes.all().len(), 1, "the cancelled job did not start");
        return node.stop().await;
    }
    notes.until_within(2, SOON).await;
    assert_eq!(world.count(HELD).await, 1, "no strike");
    let adopted = r#"jobwire_leases_reconciled_total{how="adopted"}"#;
    assert_eq!(counted(&recorder.handle(), adopted), 1);
    let fenced = r#"jobwire_fenced_total{operation="complete"}"#;
    assert_eq!(counted(&recorder.handle(), fenced), 0, "no lock was lost");
    gate.add_permits(1);
    world.until_empty().await;
    assert_eq!(notes.all().len(), 2);
    node.stop().await;
}

/// The statement that locks the job.
#[derive(Clone, Copy, PartialEq)]
enum Locks {
    /// After a hint.
    Hinted,
    /// After a wake, on a node without a broker.
    Claimed,
    /// At the due time, with the move of the timer.
    Due,
}

/// The answer to a statement that locks a job is lost. The job still starts, under the same lock.
async fn answer_to_a_lock_is_lost(locks: Locks) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(1)));
    let store = patient(&proxy.url(&world.url)).await;
    let transport: Arc<dyn Transport> = match locks {
        Locks::Claimed => Arc::new(PgTransport::new(&store)),
        Locks::Hinted | Locks::Due => world.transport(),
    };
    stop_at_commit(&world.store, "INSERT ON jobwire.job_lease").await;
    let shut = shut(&world.store).await;
    if locks == Locks::Due {
        let timer = NewJob::of("work", &()).delay(Duration::from_millis(300));
        let mut tx = world.store.begin().await.unwrap();
        let created = world.store.insert(&mut tx, vec![timer], Origin::Hook);
        created.await.unwrap();
        tx.commit().await.unwrap();
    }
    let node = Node::builder(store, transport)
        .options(looking())
        .handler("work", waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    let waker = PgTransport::new(&world.store);
    let publisher: Option<Arc<dyn Publisher>> = match locks {
        Locks::Claimed => Some(waker.publisher()),
        Locks::Hinted => Some(Transport::publisher(&world.transport)),
        Locks::Due => None,
    };
    if let Some(publisher) = publisher {
        let hint = create(&world.store, NewJob::of("work", &())).await;
        eventually("the hint or wake to leave", SOON, async || {
            let sent = publisher
                .publish(&Lane::default(), vec![hint.clone()])
                .await;
            sent.ok()
        })
        .await;
    }
    lose_the_answer(&world, &proxy, shut, HELD).await;
    assert!(notes.all().is_empty(), "the node does not know the lease");
    pass_again(&proxy).await;
    world.until_empty().await;
    assert_eq!(notes.all().len(), 1);
    let adopted = r#"jobwire_leases_reconciled_total{how="adopted"}"#;
    assert_eq!(counted(&recorder.handle(), adopted), 1);
    node.stop().await;
}

#[tokio::test]
async fn a_job_that_a_lost_answer_has_locked_is_adopted() {
    answer_to_a_lock_is_lost(Locks::Hinted).await;
}

#[tokio::test]
async fn a_job_that_a_lost_answer_has_claimed_is_adopted() {
    answer_to_a_lock_is_lost(Locks::Claimed).await;
}

#[tokio::test]
async fn a_timer_that_a_lost_answer_has_moved_and_locked_is_adopted() {
    answer_to_a_lock_is_lost(Locks::Due).await;
}

/// The answer to the lock of a job that an operator executes is lost. The lease does not stay until it ends.
#[tokio::test]
async fn a_job_whose_lock_by_hand_had_no_answer_is_given_back() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let (notes, permits) = (Notes::default(), Arc::new(Semaphore::new(1)));
    let hint = create(&world.store, NewJob::of("work", &())).await;
    let node = Node::builder(patient(&proxy.url(&world.url)).await, world.transport())
        .options(looking())
        .handler("work", waits(&notes, &permits));
    stop_at_commit(&world.store, "INSERT ON jobwire.job_lease").await;
    let gate = shut(&world.store).await;
    let executing = tokio::spawn(node.execute(hint.id, std::future::pending()));
    lose_the_answer(&world, &proxy, gate, HELD).await;
    pass_again(&proxy).await;
    executing.await.unwrap().unwrap_err();
    assert_eq!(world.count(HELD).await, 0, "the lock was given back");
    assert_eq!(world.count("SELECT count(*) FROM jobwire.job").await, 1);
    assert!(notes.all().is_empty(), "the job did not run");
}

/// A batch of short jobs ends while one of them still runs, which gets a lease. The answer to that
/// COMMIT is lost. The node can't know that the job is held, so it releases the lease, and the job
/// runs again.
#[tokio::test]
async fn a_lease_that_a_lost_answer_gave_a_job_of_a_row_batch_is_released() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let mut options = looking();
    options.row_lock_from = 1;
    let short = HandlerOptions::default().row_lock();
    let node = Node::builder(patient(&proxy.url(&world.url)).await, world.transport())
        .options(options)
        .handler_with("work", short, waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    stop_at_commit(&world.store, "INSERT ON jobwire.job_lease").await;
    let shut = shut(&world.store).await;
    let hint = create(&world.store, NewJob::of("work", &())).await;
    let publisher = Transport::publisher(&world.transport);
    publisher
        .publish(&Lane::default(), vec![hint])
        .await
        .unwrap();
    notes.until_within(1, SOON).await;
    lose_the_answer(&world, &proxy, shut, HELD).await;
    pass_again(&proxy).await;
    notes.until_within(2, SOON).await;
    let released = r#"jobwire_leases_reconciled_total{how="released"}"#;
    assert_eq!(counted(&recorder.handle(), released), 1);
    gate.add_permits(2);
    world.until_empty().await;
    assert_eq!(notes.all().len(), 2);
    node.stop().await;
}

/// The answer to the COMMIT of a handler's own transaction is lost. The job is done, once.
#[tokio::test]
async fn a_handlers_transaction_whose_answer_is_lost_is_not_run_again() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    sqlx::query("CREATE TABLE effect (n bigint)")
        .execute(world.store.pool())
        .await
        .unwrap();
    let notes = Notes::default();
    let noted = notes.clone();
    let inside = HandlerOptions::default().in_transaction();
    let node = Node::builder(patient(&proxy.url(&world.url)).await, world.transport())
        .options(looking())
        .handler_with("work", inside, move |job: Running<()>| {
            let notes = noted.clone();
            async move {
                notes.add("in");
                let mut tx = job.transaction::<PgStore>().await?;
                sqlx::query("INSERT INTO effect VALUES (1)")
                    .execute(&mut *tx)
                    .await?;
                Ok::<_, HandlerError>(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    stop_at_commit(&world.store, "DELETE ON jobwire.job_lease").await;
    let shut = shut(&world.store).await;
    let publisher = Transport::publisher(&world.transport);
    let publish = async || {
        let hint = create(&world.store, NewJob::of("work", &())).await;
        publisher
            .publish(&Lane::default(), vec![hint])
            .await
            .unwrap();
    };
    publish().await;
    lose_the_answer(&world, &proxy, shut, "SELECT count(*) FROM effect").await;
    pass_again(&proxy).await;
    world.until_empty().await;
    publish().await;
    world.until_empty().await;
    assert_eq!(world.count("SELECT count(*) FROM effect").await, 2);
    assert_eq!(notes.all().len(), 2, "each ran once");
    let dead = "SELECT count(*) FROM jobwire.dead_letter_job";
    assert_eq!(world.count(dead).await, 0);
    node.stop().await;
}

/// The connection of a node is cut in the middle of a failure, and the server does not learn it: the
/// transaction stays open there, and keeps its lease from its renewal. It ends long before the limit of a
/// handler's transaction.
#[tokio::test]
async fn a_cut_transaction_of_a_node_soon_lets_go_of_its_rows() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let cut = patient(&proxy.url(&world.url)).await;
    let owner = NodeId::generate();
    let held = hold(
        &world.store,
        owner,
        &create(&world.store, work("order")).await,
    )
    .await;
    stop_at_commit(&world.store, "DELETE ON jobwire.instance_lock").await;
    let stop = "CREATE TRIGGER stop AFTER INSERT ON jobwire.timer_job
        FOR EACH ROW EXECUTE FUNCTION stop_at_commit()";
    sqlx::query(stop).execute(world.store.pool()).await.unwrap();
    let gate = shut(&world.store).await;
    let failure = failed(&held);
    let failing = tokio::spawn(async move { cut.fail(owner, &[failure], &Handoff::Hint).await });
    until_waiting(&world.store, 1).await;
    proxy.set_both(Flow::Stall);
    gate.commit().await.unwrap();
    eventually("the lease to be free", SOON, async || {
        let lease = "SELECT FROM jobwire.job_lease FOR UPDATE NOWAIT";
        let free = sqlx::query(lease).execute(world.store.pool()).await;
        free.ok().filter(|free| free.rows_affected() == 1).map(drop)
    })
    .await;
    failing.abort();
}
