//! Rule 35: short jobs are held by row locks, in a transaction that stays open while they run.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::node::Executed;
use jobwire_core::store::{HeldRows, LockTerms, Locked, Origin, Refusal, Release, RowTerms};
use jobwire_core::{
    HandlerError, HandlerOptions, Hint, JobId, Lane, NewJob, Node, NodeId, NodeOptions, Outcome,
    PgOptions, PgStore, Running, SqlStore, Store, Transport,
};
use jobwire_tests::{eventually, shared};
use tokio::sync::Semaphore;

use super::world::{SOON, store, unswept, waits};
use crate::world::{Notes, World};

const LEASE: Duration = Duration::from_secs(1800);

fn terms(owner: NodeId, by_row: bool) -> LockTerms {
    let types: Arc<[String]> = vec!["short".to_owned()].into();
    LockTerms {
        owner,
        lease: LEASE,
        types: types.clone(),
        scope: Arc::default(),
        rows: RowTerms {
            types: if by_row { types } else { Arc::default() },
            from: 1,
        },
    }
}

async fn create(store: &PgStore, count: usize) -> Vec<Hint> {
    let mut tx = store.begin().await.unwrap();
    let jobs = (0..count).map(|_| NewJob::of("short", &())).collect();
    let created = store.insert(&mut tx, jobs, Origin::Hook).await.unwrap();
    tx.commit().await.unwrap();
    created.ready.into_iter().map(|ready| ready.hint).collect()
}

fn rows(locked: Locked) -> HeldRows {
    assert!(locked.jobs.is_empty(), "none is held by a lease");
    locked.rows.expect("rows are held")
}

fn ids(rows: &HeldRows) -> Vec<JobId> {
    rows.jobs.iter().map(|locked| locked.job.id).collect()
}

fn tokens(rows: &HeldRows) -> Vec<LockToken> {
    rows.jobs.iter().map(LockedJob::held).collect()
}

fn busy(locked: &Locked) -> usize {
    let busy = |(_, why): &&(JobId, Refusal)| *why == Refusal::Busy;
    locked.refused.iter().filter(busy).count()
}

#[tokio::test]
async fn nobody_else_gets_a_row_that_is_held_and_what_is_done_is_gone() {
    let store = store().await;
    let hints = create(&store, 5).await;
    let (one, other) = (NodeId::generate(), NodeId::generate());
    let held = rows(store.lock(&terms(one, true), &hints).await.unwrap());
    let tokens = tokens(&held);
    assert_eq!(tokens.len(), 5);
    for by_row in [true, false] {
        let refused = store.lock(&terms(other, by_row), &hints).await.unwrap();
        assert!(refused.jobs.is_empty() && refused.rows.is_none());
        assert_eq!(busy(&refused), 5, "{:?}", refused.refused);
    }
    held.hold.commit(&tokens, &[]).await.unwrap();
    let gone = store.lock(&terms(other, true), &hints).await.unwrap();
    assert!(gone.refused.iter().all(|(_, why)| *why == Refusal::Gone));
    assert_eq!(gone.refused.len(), 5);
}

#[tokio::test]
async fn what_is_not_done_at_the_commit_is_held_by_a_lease_from_then_on() {
    let store = store().await;
    let hints = create(&store, 3).await;
    let (one, other) = (NodeId::generate(), NodeId::generate());
    let held = rows(store.lock(&terms(one, true), &hints).await.unwrap());
    let slow = held.jobs[2].held();
    let done = [held.jobs[0].held(), held.jobs[1].held()];
    held.hold
        .commit(&done, std::slice::from_ref(&slow))
        .await
        .unwrap();
    let refused = store.lock(&terms(other, true), &hints).await.unwrap();
    assert!(refused.jobs.is_empty() && refused.rows.is_none());
    let why = |id: JobId| refused.refused.iter().find(|r| r.0 == id).map(|r| r.1);
    assert_eq!(why(slow.id), Some(Refusal::Locked));
    assert_eq!(why(done[0].id), Some(Refusal::Gone));
    let renewed = store
        .renew(one, LEASE, std::slice::from_ref(&slow))
        .await
        .unwrap();
    assert_eq!(renewed.renewed, [slow.id]);
}

/// The first refusal ends its transaction. For a while after it, a refused batch keeps its rows by leases.
#[tokio::test]
async fn batches_after_a_refused_one_keep_their_rows() {
    let store = store().await;
    let hints = create(&store, 6).await;
    let refer = format!(
        "CREATE TABLE referrer (job uuid REFERENCES jobwire.job (id));
         INSERT INTO referrer VALUES ('{}'), ('{}')",
        hints[1].id, hints[4].id
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(refer))
        .execute(store.pool())
        .await
        .unwrap();
    let owner = NodeId::generate();
    let hold = async |hints: &[Hint]| rows(store.lock(&terms(owner, true), hints).await.unwrap());
    let first = hold(&hints[..3]).await;
    let its_jobs = tokens(&first);
    let refused = first.hold.commit(&its_jobs, &[]).await.unwrap_err();
    assert!(refused.to_string().contains("referrer"), "{refused}");
    assert!(refused.changed_nothing());

    let second = hold(&hints[3..]).await;
    let its_jobs = tokens(&second);
    let committed = second.hold.commit(&its_jobs, &[]).await.unwrap();
    let refusal = committed.refusal.expect("the refusal").to_string();
    assert!(refusal.contains("referrer"), "{refusal}");
    let renewed = store.renew(owner, LEASE, &its_jobs).await.unwrap();
    assert_eq!(renewed.renewed.len(), 3, "leases hold the jobs");
    drop(hold(&hints[..3]).await);
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 6);
}

#[tokio::test]
async fn a_hold_that_is_dropped_changes_nothing() {
    let store = store().await;
    let hints = create(&store, 3).await;
    let owner = NodeId::generate();
    drop(rows(store.lock(&terms(owner, true), &hints).await.unwrap()));
    let again = eventually("the rows to be free again", SOON, async || {
        let locked = store.lock(&terms(owner, true), &hints).await.unwrap();
        // The rows were freed while the statement read them: a single free one is held by a lease.
        let leased = locked.jobs.iter().map(LockedJob::held);
        let leased: Vec<Release> = leased.map(Release::without_attempt).collect();
        store.release(owner, &leased).await.unwrap();
        locked.rows.filter(|rows| rows.jobs.len() == 3)
    });
    assert_eq!(again.await.jobs.len(), 3);
}

/// The server ends a transaction that is silent for too long, and all its rows are free.
#[tokio::test]
async fn a_hold_that_falls_silent_is_lost() {
    let World { url, store, .. } = World::new().await;
    let mut options = PgOptions::default();
    options.idle_in_transaction_timeout = Duration::from_secs(2);
    let frozen = PgStore::connect_with(&url, options).await.unwrap();
    let hints = create(&store, 3).await;
    let (one, other) = (NodeId::generate(), NodeId::generate());
    let held = rows(frozen.lock(&terms(one, true), &hints).await.unwrap());
    assert_eq!(held.at_most, Duration::from_secs(2));
    let locked = eventually("the rows to be free", SOON, async || {
        let locked = store.lock(&terms(other, false), &hints).await.unwrap();
        (locked.jobs.len() == 3).then_some(locked)
    })
    .await;
    assert_eq!(locked.jobs.len(), 3);
    let tokens = tokens(&held);
    let lost = held.hold.commit(&tokens, &[]).await;
    assert!(lost.is_err(), "a lost hold completes nothing");
    let leases = "SELECT count(*) FROM jobwire.job j JOIN jobwire.job_lease l ON l.job_id = j.id";
    let left: i64 = sqlx::query_scalar(leases)
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(left, 3, "the other node holds all jobs");
}

/// Jobs that failed, were hinted again, repeat, are exclusive, are of another type or have a lease
/// are held by leases, which count strikes.
#[tokio::test]
async fn only_fresh_and_plain_jobs_are_held_by_their_rows() {
    let store = store().await;
    let owner = NodeId::generate();
    let hints = create(&store, 4).await;
    for (hint, change) in hints.iter().zip([
        "UPDATE jobwire.job SET hints = 2 WHERE id = $1",
        "UPDATE jobwire.job SET failures = 1 WHERE id = $1",
        "UPDATE jobwire.job SET repeat = 'R3/PT1M' WHERE id = $1",
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at, strikes)
         VALUES ($1, NULL, 1, clock_timestamp(), clock_timestamp(), 1)",
    ]) {
        sqlx::query(change)
            .bind(hint.id.uuid())
            .execute(store.pool())
            .await
            .unwrap();
    }
    let locked = store.lock(&terms(owner, true), &hints).await.unwrap();
    assert!(locked.rows.is_none());
    assert_eq!(locked.jobs.len(), 4, "{:?}", locked.refused);
}

/// The statement does not miss a lease that is written while it looks: no job runs beside its
/// holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_and_a_lease_are_never_held_at_once() {
    let store = store().await;
    let (by_row, by_lease) = (NodeId::generate(), NodeId::generate());
    let mut met = 0;
    for _ in 0..150 {
        let hints = create(&store, 40).await;
        let (row_terms, lease_terms) = (terms(by_row, true), terms(by_lease, false));
        // In reverse order, so that they meet in the middle.
        let backwards: Vec<Hint> = hints.iter().rev().cloned().collect();
        let (rows, leases) = tokio::join!(store.lock(&row_terms, &hints), async {
            let mut all = Vec::new();
            for some in backwards.chunks(8) {
                all.extend(store.lock(&lease_terms, some).await.unwrap().jobs);
            }
            all
        });
        let rows = rows.unwrap().rows;
        let held: Vec<JobId> = rows.as_ref().map(ids).unwrap_or_default();
        let leased: Vec<JobId> = leases.iter().map(|locked| locked.job.id).collect();
        assert!(
            held.iter().all(|id| !leased.contains(id)),
            "held twice: {held:?} {leased:?}"
        );
        met += usize::from(!held.is_empty() && !leased.is_empty());
        drop(rows);
    }
    assert!(met > 0, "they never met, so the test shows nothing");
}

fn short() -> HandlerOptions {
    HandlerOptions::default().row_lock()
}

fn by_row() -> NodeOptions {
    let mut options = unswept();
    options.row_lock_from = 1;
    options
}

async fn create_hinted(world: &World, count: usize, job_type: &str) {
    let mut tx = world.jobs.begin().await.unwrap();
    let jobs = (0..count).map(|_| NewJob::of(job_type, &()));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
}

/// While the jobs run, nothing is written; at the end they are gone.
#[tokio::test]
async fn a_node_holds_short_jobs_by_their_rows() {
    let world = World::new().await;
    let notes = Notes::default();
    let (seen, store) = (notes.clone(), world.store.clone());
    let node = world
        .node()
        .options(by_row())
        .handler_with("short", short(), move |job: Running<()>| {
            let (seen, store) = (seen.clone(), store.clone());
            async move {
                let free: Vec<(uuid::Uuid,)> = sqlx::query_as(
                    "SELECT id FROM jobwire.job WHERE id = $1 FOR UPDATE SKIP LOCKED",
                )
                .bind(job.job.id.uuid())
                .fetch_all(store.pool())
                .await
                .map_err(HandlerError::from)?;
                let leases: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job_lease")
                    .fetch_one(store.pool())
                    .await
                    .map_err(HandlerError::from)?;
                seen.add(format!("{} free, {leases} leases", free.len()));
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    // A machine that stalls for a tenth of a second causes a lease, which is right too.
    eventually("a job without a lease", SOON, async || {
        create_hinted(&world, 1, "short").await;
        world.until_empty().await;
        let held = "0 free, 0 leases".to_owned();
        notes.all().contains(&held).then_some(())
    })
    .await;
    // The row of a job with a lease is free; without a lease it never is.
    let unprotected = "1 free, 0 leases".to_owned();
    assert!(!notes.all().contains(&unprotected));
    node.stop().await;
}

/// A job that takes longer than declared gets a lease, keeps no connection, and completes like any
/// other job.
#[tokio::test]
async fn a_job_that_is_not_so_short_gets_a_lease_and_completes() {
    let world = World::new().await;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let (seen, entrance) = (notes.clone(), gate.clone());
    let mut options = by_row();
    options.row_lock_from = 2;
    let node = world
        .node()
        .options(options)
        .handler_with("short", short(), move |job: Running<()>| {
            let (seen, entrance) = (seen.clone(), entrance.clone());
            async move {
                let slow = job.job.seq % 2 == 0;
                if slow {
                    entrance
                        .acquire()
                        .await
                        .map_err(HandlerError::from)?
                        .forget();
                }
                seen.add(if slow { "slow" } else { "fast" });
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    create_hinted(&world, 10, "short").await;
    eventually(
        "leases of the slow jobs, and the end of the fast ones",
        SOON,
        async || {
            let leased = "SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL";
            let all = "SELECT count(*) FROM jobwire.job";
            (world.count(leased).await == 5 && world.count(all).await == 5).then_some(())
        },
    )
    .await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    // A commit is visible a moment before its session reports that it is idle.
    eventually("no transaction to be open", SOON, async || {
        (world.count(open).await == 0).then_some(())
    })
    .await;
    gate.add_permits(5);
    world.until_empty().await;
    assert_eq!(notes.all().len(), 10);
    assert_eq!(
        world.count("SELECT count(*) FROM jobwire.job_lease").await,
        0
    );
    node.stop().await;
}

/// A failure is written like any other, and costs one attempt.
#[tokio::test]
async fn a_failure_under_a_row_lock_costs_one_attempt() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let retry = jobwire_core::RetryPolicy::parse("R3/PT0.2S").unwrap();
    let node = world
        .node()
        .options({
            let mut options = by_row();
            options.sweep_interval = Duration::from_secs(1);
            options
        })
        .handler_with("short", short().retry(retry), move |job: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add(format!("{} {}", job.job.retries, job.job.failures));
                if job.job.failures == 0 {
                    return Err(HandlerError::retry("the first attempt fails"));
                }
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    create_hinted(&world, 1, "short").await;
    world.until_empty().await;
    assert_eq!(notes.all(), ["3 0", "2 1"]);
    assert_eq!(
        world
            .count("SELECT count(*) FROM jobwire.job_exception")
            .await,
        0
    );
    node.stop().await;
}

/// The connection of a batch is cut while its jobs run. They run again, and each is completed once.
#[tokio::test]
async fn jobs_of_a_lost_transaction_run_again() {
    let world = World::new().await;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let node = world
        .node()
        .options(by_row())
        .handler_with("short", short(), waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    // Repeated until the cut comes in time: a batch gets leases after a tenth of a second.
    let created = std::cell::Cell::new(0);
    let cut = eventually(
        "a transaction to be cut while it holds rows",
        SOON,
        async || {
            create_hinted(&world, 4, "short").await;
            created.set(created.get() + 4);
            notes.until_within(created.get(), SOON).await;
            let killed = world
                .count(
                    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND state = 'idle in transaction'
                   AND query LIKE '%job_lease WHERE job_id = ANY%'",
                )
                .await;
            (killed > 0).then_some(created.get())
        },
    )
    .await;
    // The jobs run again without a sweep: the node hints them itself.
    notes.until_within(cut + 1, SOON).await;
    gate.add_permits(10_000);
    world.until_empty().await;
    assert!(notes.all().len() > cut);
    node.stop().await;
}

/// A row that the database does not let go costs its neighbours a second run at most: all get leases then, and
/// are completed in smaller batches.
#[tokio::test]
async fn a_row_that_can_not_be_deleted_lets_its_neighbours_end() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .options(by_row())
        .handler_with("short", short(), move |job: Running<()>| {
            seen.add(job.job.id.to_string());
            async move { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    let mut tx = world.jobs.begin().await.unwrap();
    let jobs: Vec<_> = (0..20).map(|_| NewJob::of("short", &())).collect();
    let bad = jobs[7].id();
    let created = tx.create_many(jobs).await.unwrap();
    let refer = format!(
        "CREATE TABLE referrer (job uuid REFERENCES jobwire.job (id));
         INSERT INTO referrer VALUES ('{bad}')"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(refer))
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    eventually("the neighbours to be gone", SOON, async || {
        (world.count("SELECT count(*) FROM jobwire.job").await == 1).then_some(())
    })
    .await;
    let ran = notes.all();
    for id in created.iter().filter(|id| **id != bad) {
        let runs = ran.iter().filter(|ran| **ran == id.to_string()).count();
        assert!((1..=2).contains(&runs), "{id} in {ran:?}");
    }
    let health = eventually("the refused job to be named", SOON, async || {
        let health = serde_json::to_string(&node.health()).unwrap();
        health.contains(&bad.to_string()).then_some(health)
    })
    .await;
    assert!(health.contains("referrer"), "{health}");
    sqlx::raw_sql("DROP TABLE referrer")
        .execute(world.store.pool())
        .await
        .unwrap();
    world.until_empty().await;
    node.stop().await;
}

/// The same hints come to two nodes, and twice to each. Every job starts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubled_hints_to_two_nodes_start_each_job_once() {
    let world = World::new().await;
    let notes = Notes::default();
    let space = shared::rabbitmq().await.space().await;
    let connect = async || {
        let options = AmqpOptions::default().prefix(space.prefix.clone());
        AmqpTransport::connect(&space.url, options).await.unwrap()
    };
    let transports: [Arc<dyn Transport>; 2] =
        [Arc::new(connect().await), Arc::new(connect().await)];
    let mut nodes = Vec::new();
    for transport in &transports {
        let seen = notes.clone();
        let node = Node::builder(world.store.clone(), transport.clone())
            .options(by_row())
            .handler_with("short", short(), move |job: Running<()>| {
                seen.add(job.job.id.to_string());
                async move { Ok(Outcome::Done) }
            });
        nodes.push(node.start().await.unwrap());
    }
    super::world::until_led(&world.store).await;
    for _ in 0..20 {
        let hints = create(&world.store, 100).await;
        let again = || hints.iter().rev().chain(&hints).cloned().collect();
        for transport in &transports {
            let publisher = transport.publisher();
            publisher.publish(&Lane::default(), again()).await.unwrap();
        }
    }
    world.until_empty().await;
    let mut ran = notes.all();
    ran.sort_unstable();
    assert_eq!(ran.len(), 2_000);
    ran.dedup();
    assert_eq!(ran.len(), 2_000);
    for node in nodes {
        node.stop().await;
    }
}

/// A job that an operator executes by hand is held by a lease, even if its handler allows row
/// locks.
#[tokio::test]
async fn a_short_job_that_is_executed_by_hand_runs() {
    let world = World::new().await;
    let hint = create(&world.store, 1).await.remove(0);
    let executed = world
        .node()
        .options(by_row())
        .handler_with("short", short(), |_: Running<()>| async {
            Ok(Outcome::Done)
        })
        .execute(hint.id, std::future::pending())
        .await
        .unwrap();
    assert!(matches!(executed, Executed::Done), "{executed:?}");
    world.until_empty().await;
}
