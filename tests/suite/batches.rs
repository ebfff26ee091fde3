//! Batches and bulk operations on running nodes. Budget: 15 s.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobwire_core::store::{Change, Operated};
use jobwire_core::{
    Batch, BatchEnd, BatchId, BatchState, BulkOperation, Client, HandlerError, HandlerOptions,
    InProcessTransport, JobId, JobQuery, NewJob, Node, NodeOptions, Outcome, Progress, Running,
    SqliteStore, Store,
};
use jobwire_harness::world::{SOON, World, quick};
use jobwire_tests::{Scratch, eventually, shared};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::fleet::Fleet;

async fn until_ended(store: &dyn Store, batch: BatchId) {
    eventually("the batch to end", SOON, async || {
        let view = store.batch(batch).await.ok()??;
        (view.state == BatchState::Ended).then_some(())
    })
    .await;
}

/// The leader does not look for ended batches in time, so the node that finishes the last member
/// ends the batch.
fn without_leader() -> NodeOptions {
    NodeOptions::default().sweep_interval(Duration::from_secs(3_600))
}

#[tokio::test]
async fn a_batch_ends_with_its_last_job_and_its_failures_are_counted() {
    let world = World::new().await;
    let ended: Arc<Mutex<Vec<BatchEnd>>> = Arc::default();
    let noted = ended.clone();
    let node = world
        .node()
        .options(without_leader())
        .handler("row", |job: Running<u64>| async move {
            if job.payload.is_multiple_of(10) {
                return Err(HandlerError::unrecoverable("no such row"));
            }
            Ok(Outcome::Done)
        })
        .handler("report", move |job: Running<()>| {
            let noted = noted.clone();
            async move {
                noted.lock().unwrap().extend(job.job.batch_end());
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let batch = Batch::named("import")
        .jobs((0..100).map(|row| NewJob::of("row", &row).max_attempts(1)))
        .then(NewJob::of("report", &()))
        .or_dead_letters();
    let id = world.jobs.create_batch(batch).await.unwrap();
    let end = eventually("the report", SOON, async || {
        ended.lock().unwrap().first().cloned()
    })
    .await;
    assert_eq!((end.batch, &*end.name), (id, "import"));
    assert_eq!((end.members, end.dead_letters), (100, 10));
    let kept = world.jobs.batch(id).await.unwrap().unwrap();
    assert_eq!((kept.ended, kept.dead_letters), (100, 10));
    world.until_left(10).await;
    assert_eq!(ended.lock().unwrap().len(), 1);
    node.stop().await;
}

/// One member is deleted by another program, and one is completed by a node that tells nobody.
#[tokio::test]
async fn the_leader_ends_a_batch_whose_members_left_unnoticed() {
    let world = World::new().await;
    let reports = Arc::new(AtomicU64::new(0));
    let counted = reports.clone();
    let node = world
        .node()
        .handler("report", move |_: Running<()>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    let jobs = (0..2).map(|_| NewJob::of("unserved", &()));
    let batch = Batch::named("b").jobs(jobs).then(NewJob::of("report", &()));
    let batch = world.jobs.create_batch(batch).await.unwrap();
    let open = world.jobs.batch(batch).await.unwrap().unwrap();
    assert_eq!((open.members, open.ended), (2, 0));
    sqlx::query("DELETE FROM jobwire.job WHERE type = 'unserved'")
        .execute(world.store.pool())
        .await
        .unwrap();
    until_ended(&world.store, batch).await;
    world.until_empty().await;
    assert_eq!(reports.load(Ordering::SeqCst), 1);
    node.stop().await;
}

/// Batches whose job at the end can't be created, and batches that stay open. The leader's first look
/// ends the batch whose member is gone.
#[tokio::test]
async fn batches_that_stay_open_or_have_no_valid_job_delay_no_other() {
    let world = World::new().await;
    let jobs = [NewJob::of("unserved", &())];
    let batch = Batch::named("b").jobs(jobs).then(NewJob::of("report", &()));
    let batch = world.jobs.create_batch(batch).await.unwrap();
    for change in [
        "DELETE FROM jobwire.job",
        "SELECT jobwire.create_job(type => 'unserved', due_at => '9999-01-01')",
        "INSERT INTO jobwire.batch (id, name, callback_id)
         SELECT lpad(to_hex(g), 32, '0')::uuid, 'open', gen_random_uuid() FROM generate_series(1, 30000) g",
        "INSERT INTO jobwire.batch_member (batch_id, job_id)
         SELECT b.id, t.id FROM jobwire.batch b, jobwire.timer_job t WHERE b.name = 'open'",
        r#"INSERT INTO jobwire.batch (id, name, callback_id, callback)
         SELECT lpad(to_hex(g + 100000), 32, '0')::uuid, 'bad', gen_random_uuid(), '{"type":"noop","retries":"x"}'
         FROM generate_series(1, 500) g"#,
    ] {
        sqlx::query(change)
            .execute(world.store.pool())
            .await
            .unwrap();
    }
    let report = |_: Running<()>| async { Ok(Outcome::Done) };
    let node = world.node().handler("report", report);
    let node = node.start().await.unwrap();
    let began = Instant::now();
    until_ended(&world.store, batch).await;
    // Thirty thousand open batches in pages of 100 took half a minute.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let left = async || {
        let left = "SELECT count(*) FROM jobwire.batch WHERE name = 'bad' AND ended_at IS NULL";
        let left = sqlx::query_scalar::<_, i64>(left);
        left.fetch_one(world.store.pool()).await.unwrap()
    };
    assert_eq!(left().await, 500);
    // Their rows are corrected. A new leader tries at once.
    node.stop().await;
    let correct = r#"UPDATE jobwire.batch SET callback = '{"type":"report"}' WHERE name = 'bad'"#;
    sqlx::query(correct)
        .execute(world.store.pool())
        .await
        .unwrap();
    let node = world.node().handler("report", report);
    let node = node.start().await.unwrap();
    eventually("all to end", SOON, async || {
        (left().await == 0).then_some(())
    })
    .await;
    node.stop().await;
}

/// More dead letters than one transaction of the end reads.
#[tokio::test]
async fn the_leader_ends_a_batch_of_many_dead_letters() {
    const MEMBERS: usize = 10_300;
    let world = World::new().await;
    let jobs = (0..MEMBERS).map(|_| NewJob::of("unserved", &()));
    let batch = Batch::named("b").jobs(jobs).or_dead_letters();
    let batch = batch.then(NewJob::of("unserved", &()));
    let batch = world.jobs.create_batch(batch).await.unwrap();
    sqlx::query(
        "WITH gone AS (DELETE FROM jobwire.job RETURNING *) INSERT INTO jobwire.dead_letter_job SELECT * FROM gone",
    )
    .execute(world.store.pool())
    .await
    .unwrap();
    let node = world.node().start().await.unwrap();
    until_ended(&world.store, batch).await;
    let kept = world.jobs.batch(batch).await.unwrap().unwrap();
    let all = MEMBERS as u64;
    assert_eq!((kept.members, kept.dead_letters), (all, all));
    node.stop().await;
}

/// Small batches, so that the last two members of many are finished by two nodes at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_finish_the_last_members_create_one_job() {
    const BATCHES: usize = 150;
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let _first = fleet.node(&[]).await;
    let _second = fleet.node(&[]).await;
    let event = |instance: String, position: u64| {
        NewJob::of("event", &json!({ "position": position }))
            .instance(instance)
            .concurrent()
            .element("step")
    };
    let mut tx = fleet.jobs.begin().await.unwrap();
    let mut batches = Vec::new();
    for n in 0..BATCHES {
        let case = format!("case-{n}");
        let batch = Batch::named("two")
            .jobs((1..=2).map(|position| event(case.clone(), position)))
            .then(event(case, 3));
        batches.push(tx.create_batch(batch).await.unwrap());
    }
    tx.commit().await.unwrap();
    for batch in batches {
        until_ended(&fleet.store, batch).await;
    }
    fleet.until_empty(SOON).await;
    let (events, distinct): (i64, i64) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT (process_instance, position)) FROM jobwire.event_log",
    )
    .fetch_one(fleet.store.pool())
    .await
    .unwrap();
    let all = i64::try_from(BATCHES * 3).unwrap();
    assert_eq!((events, distinct), (all, all));
}

/// The payload of a seed: where its slice begins.
#[derive(Serialize, Deserialize)]
struct Seed {
    from: u64,
    batch: BatchId,
}

const ITEMS: u64 = 10_000;
const SLICE: u64 = 500;

/// Adds a slice. The next seed is the job at the end of the slice, and a member of the whole batch.
async fn seed(job: Running<Seed>) -> Result<Outcome, HandlerError> {
    let mut tx = job.transaction::<SqliteStore>().await?;
    let Seed { from, batch } = job.payload;
    let until = (from + SLICE).min(ITEMS);
    let items = (from..until).map(|item| NewJob::of("item", &item));
    let mut slice = Batch::named("slice").jobs(items);
    if until < ITEMS {
        let next = Seed { from: until, batch };
        slice = slice.then(NewJob::of("seed", &next).batch(batch));
    } else {
        slice = slice.then(NewJob::of("last", &()).batch(batch));
    }
    tx.create_batch(slice).await?;
    Ok(Outcome::Done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_items_are_seeded_slice_by_slice_and_few_rows_exist_at_once() {
    let home = Scratch::new();
    let store = SqliteStore::connect(&format!("sqlite:{}", home.join("jobs.db").display()))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let seen: Arc<Mutex<HashMap<u64, u32>>> = Arc::default();
    let items = seen.clone();
    let reports = Arc::new(AtomicU64::new(0));
    let reported = reports.clone();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(without_leader())
        .handler_with("seed", HandlerOptions::default().in_transaction(), seed)
        .handler("item", move |job: Running<u64>| {
            *items.lock().unwrap().entry(job.payload).or_default() += 1;
            async { Ok(Outcome::Done) }
        })
        .handler("last", |_: Running<()>| async { Ok(Outcome::Done) })
        .handler("report", move |job: Running<()>| {
            reported.fetch_add(
                job.job.batch_end().map_or(0, |end| end.members),
                Ordering::SeqCst,
            );
            async { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    let client = store.client(node.hook());
    let import = Batch::named("import").then(NewJob::of("report", &()));
    let first = Seed {
        from: 0,
        batch: import.id(),
    };
    let import = client
        .create_batch(import.job(NewJob::of("seed", &first)))
        .await
        .unwrap();
    let most = Arc::new(AtomicU64::new(0));
    eventually("the report", SOON, async || {
        let rows = client.count(&JobQuery::default()).await.ok()?;
        most.fetch_max(rows.unsigned_abs(), Ordering::SeqCst);
        (reports.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    assert!(
        most.load(Ordering::SeqCst) <= SLICE + 2,
        "{most:?} rows at once"
    );
    // The first seed, those at the ends of slices, and the last job.
    assert_eq!(reports.load(Ordering::SeqCst), 1 + ITEMS / SLICE);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len() as u64, ITEMS);
    assert!(seen.values().all(|times| *times == 1));
    let view = client.batch(import).await.unwrap().unwrap();
    assert_eq!(view.state, BatchState::Ended);
    node.stop().await;
}

/// Creates dead letters of a type.
async fn dead_letters(client: &Client<jobwire_core::PgStore>, count: u64) -> Vec<JobId> {
    let jobs = (0..count).map(|n| NewJob::of("item", &n)).collect();
    let ids = client.create_many(jobs).await.unwrap();
    let bury = Change::MakeDeadLetter("no luck".to_owned());
    for ids in ids.chunks(1_000) {
        client.change(ids, &bury).await.unwrap();
    }
    ids
}

/// A lock of the test holds the second of three pages.
#[tokio::test]
async fn a_bulk_operation_is_a_job_with_progress_that_can_be_cancelled() {
    let world = World::new().await;
    let mut ids = dead_letters(&world.jobs, 1_200).await;
    ids.sort_unstable();
    let hold = format!(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN PERFORM pg_advisory_xact_lock(17); RETURN old; END $$;
         CREATE TRIGGER hold BEFORE DELETE ON jobwire.dead_letter_job FOR EACH ROW
         WHEN (old.id = '{}') EXECUTE FUNCTION hold()",
        ids[700]
    );
    let pool = world.store.pool();
    sqlx::raw_sql(AssertSqlSafe(hold))
        .execute(pool)
        .await
        .unwrap();
    let mut holder = pool.acquire().await.unwrap().detach();
    sqlx::raw_sql("SELECT pg_advisory_lock(17)")
        .execute(&mut holder)
        .await
        .unwrap();
    // Progress is written once a second.
    let options = quick().lease(Duration::from_secs(12));
    let node = world.node().options(options).start().await.unwrap();
    let items = JobQuery::default().job_type("item");
    let delete = BulkOperation::delete(items.clone()).job().unwrap();
    let id = world.jobs.create(delete).await.unwrap();
    let first_page = Progress::of(500, 1_200).text("500 done, 0 skipped, 0 refused");
    eventually("the progress of the first page", SOON, async || {
        let found = world.jobs.get(id).await.unwrap()?;
        (found.view.progress?.progress == first_page).then_some(())
    })
    .await;
    assert_eq!(world.jobs.cancel(id).await.unwrap(), Operated::Running);
    eventually("the end of the operation", SOON, async || {
        world.jobs.get(id).await.unwrap().is_none().then_some(())
    })
    .await;
    sqlx::Connection::close(holder).await.unwrap();
    node.stop().await;
    let left = world.jobs.list(&items.limit(2_000)).await.unwrap();
    let left: HashSet<JobId> = left.into_iter().map(|job| job.id).collect();
    assert!(ids[..500].iter().all(|id| !left.contains(id)));
    assert!(ids[1_000..].iter().all(|id| left.contains(id)));
}
