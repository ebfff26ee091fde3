//! Rule 37, in a whole node: a row's fault stays with the row, and a fault of the database sets
//! nothing aside.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{HandlerError, HandlerResult, NewJob, Outcome, PgStore, Running, Store};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;
use sqlx::AssertSqlSafe;
use tokio::sync::Semaphore;

use super::world::waits;
use crate::world::{Notes, SOON, World, patient};

async fn sql(world: &World, statements: &str) {
    let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    statements.execute(world.store.pool()).await.unwrap();
}

/// Makes the database refuse to delete jobs whose element is `bad`, as if another table referred to
/// them. It also refuses them as dead letters, and does so until the end of the test: a move to the
/// dead letters may be under way when [`delete_bad_jobs_again`] ends the first refusal.
async fn refuse_to_delete_bad_jobs(world: &World) {
    sql(
        world,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'still referenced' USING ERRCODE = 'foreign_key_violation';
         END $$;
         CREATE TRIGGER refuse BEFORE DELETE ON jobwire.job
             FOR EACH ROW WHEN (OLD.element = 'bad') EXECUTE FUNCTION refuse();
         CREATE TRIGGER refuse BEFORE INSERT ON jobwire.dead_letter_job
             FOR EACH ROW WHEN (NEW.element = 'bad') EXECUTE FUNCTION refuse()",
    )
    .await;
}

async fn delete_bad_jobs_again(world: &World) {
    sql(world, "DROP TRIGGER refuse ON jobwire.job").await;
}

/// Waits until this many jobs are held.
async fn until_held(world: &World, jobs: i64) {
    eventually("all of them to run", SOON, async || {
        let held = "SELECT count(*) FROM jobwire.job_lease";
        (world.count(held).await == jobs).then_some(())
    })
    .await;
}

/// Returns a handler that notes its job's element.
fn notes_element(
    notes: &Notes,
) -> impl Fn(Running<()>) -> Pin<Box<dyn Future<Output = HandlerResult<Outcome>> + Send>>
+ Send
+ Sync
+ 'static {
    let notes = notes.clone();
    move |running| {
        let notes = notes.clone();
        Box::pin(async move {
            notes.add(running.job.element.as_deref().unwrap_or_default());
            Ok(Outcome::Done)
        })
    }
}

/// A row that no program can read becomes a dead letter; the jobs that were locked with it run.
#[tokio::test]
async fn an_unreadable_job_becomes_a_dead_letter_and_its_neighbours_run() {
    let world = World::new().await;
    let notes = Notes::default();
    let mut tx = world.jobs.begin().await.unwrap();
    let mut jobs: Vec<_> = (0..20)
        .map(|_| NewJob::of("note", &()).element("good"))
        .collect();
    let bad = NewJob::of("note", &()).element("bad");
    let id = bad.id();
    jobs.insert(7, bad);
    tx.create_many(jobs).await.unwrap();
    tx.commit().await.unwrap();
    sql(
        &world,
        "ALTER TABLE jobwire.job DROP CONSTRAINT job_kind_check;
         ALTER TABLE jobwire.dead_letter_job DROP CONSTRAINT job_kind_check;
         UPDATE jobwire.job SET kind = 'riddle' WHERE element = 'bad'",
    )
    .await;
    let node = world
        .node()
        .handler("note", notes_element(&notes))
        .start()
        .await
        .unwrap();
    eventually("one dead letter and no other job", SOON, || async {
        let left = "SELECT count(*) FROM jobwire.job";
        let letters = "SELECT count(*) FROM jobwire.dead_letter_job";
        (world.count(left).await == 0 && world.count(letters).await == 1).then_some(())
    })
    .await;
    assert_eq!(notes.all(), vec!["good"; 20]);
    let message: String =
        sqlx::query_scalar("SELECT exception_message FROM jobwire.dead_letter_job WHERE id = $1")
            .bind(id.uuid())
            .fetch_one(world.store.pool())
            .await
            .unwrap();
    assert!(message.contains("riddle"), "{message}");
    node.stop().await;
}

/// The database refuses an outcome and also the move to the dead letters. The job stays held and
/// does not run again, health and a metric name it, the node stays ready, and other jobs complete.
/// When the reason is gone, so is the job.
#[tokio::test]
async fn an_outcome_that_is_refused_is_told_and_stops_no_other() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    refuse_to_delete_bad_jobs(&world).await;
    let node = world
        .node()
        .handler("note", notes_element(&notes))
        .start()
        .await
        .unwrap();
    let create = async |element: &str| {
        let job = NewJob::of("note", &()).element(element);
        world.jobs.create(job).await.unwrap()
    };
    let bad = create("bad").await;
    eventually("the batch to be reported as stuck", SOON, || async {
        let told = node.health();
        (told.stuck.iter().any(|stuck| stuck.job == Some(bad))).then_some(())
    })
    .await;
    for _ in 0..20 {
        create("good").await;
    }
    world.until_left(1).await;
    let told = node.health();
    assert!(told.ready, "{told:?}");
    assert_eq!(told.stuck[0].operation, "complete");
    assert!(
        told.stuck[0].reason.contains("still referenced"),
        "{told:?}"
    );
    let text = scraped.render();
    assert!(
        text.contains("jobwire_stuck_batches{operation=\"complete\"} 1"),
        "{text}"
    );
    delete_bad_jobs_again(&world).await;
    world.until_empty().await;
    eventually("no batch to be stuck", SOON, || async {
        node.health().stuck.is_empty().then_some(())
    })
    .await;
    let ran = notes.all();
    assert_eq!(ran.iter().filter(|element| *element == "bad").count(), 1);
    node.stop().await;
}

/// More outcomes are refused than one batch holds; exclusive jobs and failing jobs still get
/// through.
#[tokio::test]
async fn many_outcomes_that_are_refused_stop_no_other() {
    const BAD: usize = 300;
    let world = World::new().await;
    refuse_to_delete_bad_jobs(&world).await;
    let node = world
        .node()
        .handler("note", |_: Running<()>| async { Ok(Outcome::Done) })
        .handler("doomed", |_: Running<()>| async {
            Err::<(), _>(HandlerError::unrecoverable("doomed"))
        })
        .start()
        .await
        .unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let bad = (0..BAD).map(|_| NewJob::of("note", &()).element("bad"));
    tx.create_many(bad.collect()).await.unwrap();
    tx.commit().await.unwrap();
    eventually("all of them to be refused", SOON, || async {
        let stuck = node.health().stuck;
        stuck.iter().any(|stuck| stuck.jobs == BAD).then_some(())
    })
    .await;
    let mut tx = world.jobs.begin().await.unwrap();
    let good = (0..20).flat_map(|_| {
        [
            NewJob::of("note", &()).instance("one"),
            NewJob::of("doomed", &()),
        ]
    });
    tx.create_many(good.collect()).await.unwrap();
    tx.commit().await.unwrap();
    world.until_left(BAD as i64 + 20).await;
    let letters = "SELECT count(*) FROM jobwire.dead_letter_job WHERE type = 'doomed'";
    assert_eq!(world.count(letters).await, 20);
    delete_bad_jobs_again(&world).await;
    node.stop().await;
}

/// A transaction that hangs has locked the rows of many jobs that end at one moment. The other jobs
/// do not wait for it.
#[tokio::test]
async fn outcomes_beside_many_locked_rows_are_committed() {
    const LOCKED: usize = 100;
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let mut options = crate::world::quick();
    options.concurrency = 256;
    let node = world
        .node()
        .options(options)
        .handler("waits", waits(&Notes::default(), &gate))
        .start()
        .await
        .unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let waits = |element: &str| NewJob::of("waits", &()).element(element);
    let jobs = (0..2 * LOCKED).map(|n| waits(if n % 2 == 0 { "bad" } else { "good" }));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    until_held(&world, 2 * LOCKED as i64).await;
    let mut hanging = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE element = 'bad' FOR UPDATE")
        .execute(&mut *hanging)
        .await
        .unwrap();
    gate.add_permits(2 * LOCKED);
    world.until_left(LOCKED as i64).await;
    let stuck = node.health().stuck;
    let told = stuck.iter().all(|stuck| stuck.jobs <= LOCKED);
    assert!(told, "jobs whose rows are free were refused: {stuck:?}");
    hanging.rollback().await.unwrap();
    world.until_empty().await;
    node.stop().await;
}

/// A node that stops releases the jobs whose outcomes are refused. Otherwise their leases would end
/// like those of a dead node, and after some deploys the jobs would be quarantined.
#[tokio::test]
async fn a_stop_gives_back_the_jobs_whose_outcomes_are_refused() {
    let world = World::new().await;
    refuse_to_delete_bad_jobs(&world).await;
    let node = world
        .node()
        .handler("note", |_: Running<()>| async { Ok(Outcome::Done) })
        .start()
        .await
        .unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let bad = (0..20).map(|_| NewJob::of("note", &()).element("bad"));
    tx.create_many(bad.collect()).await.unwrap();
    tx.commit().await.unwrap();
    eventually("all of them to be refused", SOON, || async {
        let stuck = node.health().stuck;
        stuck.iter().any(|stuck| stuck.jobs == 20).then_some(())
    })
    .await;
    node.stop().await;
    let held = "SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL";
    assert_eq!(world.count(held).await, 0);
}

/// When too many outcomes of one type are refused, the node locks no more jobs of that type. Jobs
/// of other types run.
#[tokio::test]
async fn a_type_whose_outcomes_are_all_refused_stops_no_other_type() {
    const BAD: usize = 4_000;
    let world = World::new().await;
    let notes = Notes::default();
    refuse_to_delete_bad_jobs(&world).await;
    let node = world
        .node()
        .handler("note", |_: Running<()>| async { Ok(Outcome::Done) })
        .handler("other", notes_element(&notes))
        .start()
        .await
        .unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let bad = (0..BAD).map(|_| NewJob::of("note", &()).element("bad"));
    tx.create_many(bad.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let held = "SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL";
    eventually("the type to be closed", SOON, || async {
        let stuck = node.health().stuck;
        let closed = stuck.iter().any(|stuck| stuck.jobs >= 1_000);
        (closed && world.count(held).await >= 1_000).then_some(())
    })
    .await;
    let mut tx = world.jobs.begin().await.unwrap();
    let good = (0..200).map(|_| NewJob::of("other", &()).element("good"));
    tx.create_many(good.collect()).await.unwrap();
    tx.commit().await.unwrap();
    world.until_left(BAD as i64).await;
    assert_eq!(notes.all().len(), 200);
    assert!(
        world.count(held).await < BAD as i64,
        "the node locked all jobs of a closed type"
    );
    delete_bad_jobs_again(&world).await;
    // The type opens again, and the sweeper hints the waiting jobs.
    world.until_empty().await;
    node.stop().await;
}

/// A missing right is the database's fault, for any row that needs it: nothing is set aside until
/// it is granted.
#[tokio::test]
async fn a_missing_right_sets_nothing_aside_and_heals() {
    let world = World::new().await;
    let user = format!("node_{}", uuid::Uuid::new_v4().simple());
    sql(
        &world,
        &format!(
            "CREATE ROLE {user} LOGIN PASSWORD 'secret';
             GRANT USAGE ON SCHEMA jobwire TO {user};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA jobwire TO {user};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA jobwire TO {user};
             REVOKE INSERT ON jobwire.dead_letter_job FROM {user}"
        ),
    )
    .await;
    let mut url = url::Url::parse(&world.url).unwrap();
    url.set_username(&user).unwrap();
    url.set_password(Some("secret")).unwrap();
    let store: PgStore = patient(url.as_str()).await;
    // One timer has an instance that fits no index page: error class 54.
    let mut tx = world.jobs.begin().await.unwrap();
    let timers = (0..21).map(|_| NewJob::of("note", &()).delay(Duration::from_secs(3600)));
    tx.create_many(timers.collect()).await.unwrap();
    tx.commit().await.unwrap();
    sql(
        &world,
        "ALTER TABLE jobwire.timer_job DROP CONSTRAINT texts_are_at_most_1024_bytes;
         ALTER TABLE jobwire.job DROP CONSTRAINT texts_are_at_most_1024_bytes;
         DROP INDEX jobwire.timer_job_instance;
         UPDATE jobwire.timer_job SET due_at = clock_timestamp() - interval '1 second';
         UPDATE jobwire.timer_job SET exclusive = true,
             process_instance = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n)
         WHERE id = (SELECT min(id::text)::uuid FROM jobwire.timer_job)",
    )
    .await;
    let moved = store.move_due_timers(100).await.unwrap();
    assert_eq!(moved.ready.len(), 20);
    let (timers, letters) = (
        "SELECT count(*) FROM jobwire.timer_job",
        "SELECT count(*) FROM jobwire.dead_letter_job",
    );
    assert_eq!(
        (world.count(timers).await, world.count(letters).await),
        (1, 0)
    );
    let stuck = store.stuck();
    assert_eq!((stuck[0].operation, stuck[0].jobs), ("move_due_timers", 1));
    assert!(stuck[0].reason.contains("permission denied"), "{stuck:?}");
    sql(
        &world,
        &format!("GRANT INSERT ON jobwire.dead_letter_job TO {user}"),
    )
    .await;
    eventually("the row to be tried again", SOON, || async {
        store.move_due_timers(100).await.unwrap();
        let (timers, letters) = (world.count(timers).await, world.count(letters).await);
        ((timers, letters) == (0, 1)).then_some(())
    })
    .await;
    assert!(store.stuck().is_empty());
    store.close().await;
}

/// The database refuses the lease of a job. Its hint is settled, and the jobs beside it run.
#[tokio::test]
async fn a_job_that_the_database_refuses_to_lock_stops_no_other() {
    let world = World::new().await;
    let notes = Notes::default();
    sql(
        &world,
        "CREATE FUNCTION refuse_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF EXISTS (SELECT FROM jobwire.job WHERE id = NEW.job_id AND element = 'bad') THEN
                 RAISE EXCEPTION 'no lease for you' USING ERRCODE = 'check_violation';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse_lease BEFORE INSERT ON jobwire.job_lease
             FOR EACH ROW EXECUTE FUNCTION refuse_lease()",
    )
    .await;
    let node = start_beside_bad_jobs(&world, &notes).await;
    world.until_left(3).await;
    assert_eq!(notes.all(), vec!["good"; 40]);
    assert!(node.health().ready, "{:?}", node.health());
    sql(&world, "DROP TRIGGER refuse_lease ON jobwire.job_lease").await;
    world.until_empty().await;
    node.stop().await;
}

/// Starts a node and creates jobs that cannot be locked, each among good ones.
async fn start_beside_bad_jobs(world: &World, notes: &Notes) -> jobwire_core::Node {
    let node = world.node().handler("note", notes_element(notes));
    let node = node.start().await.unwrap();
    for _ in 0..2 {
        let mut tx = world.jobs.begin().await.unwrap();
        let good = || NewJob::of("note", &()).element("good");
        let mut jobs: Vec<_> = (0..20).map(|_| good()).collect();
        jobs.insert(7, NewJob::of("note", &()).element("bad"));
        tx.create_many(jobs).await.unwrap();
        tx.commit().await.unwrap();
    }
    let alone = NewJob::of("note", &()).element("bad").instance("a");
    world.jobs.create(alone).await.unwrap();
    node
}

/// Another transaction has inserted the lease of a job, and hangs.
#[tokio::test]
async fn a_lease_that_a_hanging_transaction_writes_holds_up_no_other_job() {
    let world = World::new().await;
    let notes = Notes::default();
    let bad = NewJob::of("note", &()).element("bad");
    let mut hanging = world.store.pool().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
         VALUES ($1, gen_random_uuid(), 1, now(), now() + interval '1 hour')",
    )
    .bind(bad.id().uuid())
    .execute(&mut *hanging)
    .await
    .unwrap();
    let node = world.node().handler("note", notes_element(&notes));
    let node = node.start().await.unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let good = || NewJob::of("note", &()).element("good");
    let jobs = std::iter::once(bad).chain((0..20).map(|_| good()));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    world.until_left(1).await;
    assert_eq!(notes.all(), vec!["good"; 20]);
    hanging.rollback().await.unwrap();
    world.until_empty().await;
    node.stop().await;
}

/// A transaction that hangs has locked the rows of running jobs: their outcomes wait, and those of
/// other jobs do not.
#[tokio::test]
async fn outcomes_of_jobs_whose_rows_are_locked_hold_up_no_other() {
    let world = World::new().await;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let node = world
        .node()
        .handler("note", notes_element(&notes))
        .handler("waits", waits(&Notes::default(), &gate))
        .start()
        .await
        .unwrap();
    for instance in [None, None, Some("a"), Some("b")] {
        let job = NewJob::of("waits", &());
        let job = match instance {
            Some(instance) => job.instance(instance),
            None => job,
        };
        world.jobs.create(job).await.unwrap();
    }
    until_held(&world, 4).await;
    let mut hanging = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job FOR UPDATE")
        .execute(&mut *hanging)
        .await
        .unwrap();
    gate.add_permits(4);
    for n in 0..20 {
        let job = NewJob::of("note", &()).element("good");
        let job = if n % 2 == 0 { job } else { job.instance("c") };
        world.jobs.create(job).await.unwrap();
    }
    world.until_left(4).await;
    assert_eq!(notes.all(), vec!["good"; 20]);
    hanging.rollback().await.unwrap();
    world.until_empty().await;
    node.stop().await;
}
