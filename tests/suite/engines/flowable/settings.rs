//! Flowable 7 with other settings, each on an engine of its own.

use std::time::Duration;

use jobwire_engines::examine::{Finding, Level, examine};
use jobwire_engines::{Credentials, EngineOptions, EngineStore};
use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};
use sqlx::Row;
use sqlx::types::chrono::NaiveDateTime;

use crate::engines::rows::{JOB, LOCK, SOON, World};

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_conflict_in_flowable_without_a_lock_timeout_waits_until_it_is_cancelled() {
    let world =
        World::start(|database| EngineSettings::flowable7(database).lock_timeout(None)).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let before = rows.job(JOB, &instance).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = $1 AND wait_event_type = 'Lock'";
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = $1 AND state = 'idle in transaction'";
    let test = async {
        rows.until_started(&instance, 1).await;
        let raise = "UPDATE act_ru_job SET rev_ = rev_ + 1 WHERE id_ = $1";
        assert_eq!(rows.change(raise, &before.id).await, 1);
        engine.release(&instance).await;
        eventually("the engine to wait for itself", SOON, || async {
            let both = (
                rows.count(waiting, "engine").await,
                rows.count(idle, "engine").await,
            );
            (both == (1, 1)).then_some(())
        })
        .await;
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = $1
            AND wait_event_type = 'Lock'";
        assert_eq!(rows.count(cancel, "engine").await, 1);
    };
    let (answer, ()) = tokio::join!(engine.execute(&before.id), test);
    assert_eq!(answer.status, 500, "{}", answer.body);
    let after = rows.job(JOB, &instance).await;
    assert_eq!((after.retries, after.revision), (before.retries, 2));
    assert_eq!(engine.execute(&after.id).await.status, 204);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_active_executor_of_flowable_locks_its_own_jobs_for_an_hour() {
    let acquisition = "flowable.process.async.executor.async-job-acquisition-enabled";
    let world = World::start(|database| {
        EngineSettings::flowable7(database)
            .executor(JobExecutor::On)
            .property(acquisition, "false")
    })
    .await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    rows.until_started(&instance, 1).await;
    let locked = "SELECT count(*) FROM act_ru_job WHERE process_instance_id_ = $1
        AND lock_owner_ IS NOT NULL AND lock_exp_time_ > localtimestamp + interval '50 minutes'";
    assert_eq!(rows.count(locked, &instance).await, 1);
    engine.release(&instance).await;
    rows.until_ended(&instance).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable_writes_its_times_in_the_zone_of_its_machine() {
    let world =
        World::start(|database| EngineSettings::flowable7(database).zone("America/New_York")).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let ages = rows
        .all(
            "SELECT clock_timestamp() AT TIME ZONE 'America/New_York', create_time_, duedate_
             FROM act_ru_timer_job WHERE process_instance_id_ = $1",
            &instance,
        )
        .await;
    let [now, created, due] = [0, 1, 2].map(|column| ages[0].get::<NaiveDateTime, _>(column));
    assert!((now - created).num_minutes() == 0, "{now} and {created}");
    assert!(
        (55..=60).contains(&(due - now).num_minutes()),
        "{now} and {due}"
    );
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_killed_flowable_leaves_the_job_and_its_lock() {
    let mut world = World::start(EngineSettings::flowable7).await;
    let rows = world.connect().await;
    let instance = (world.engine)
        .start_instance("slow", &[("millis", "600000")])
        .await;
    let job = rows.job(JOB, &instance).await;
    rows.change(LOCK, &job.id).await;
    let lost = tokio::time::timeout(Duration::from_secs(600), async {
        tokio::select! {
            answer = world.engine.execute(&job.id) => panic!("{answer:?}"),
            () = rows.until_started(&instance, 1) => {}
        }
    });
    lost.await.unwrap();
    world.engine.kill();
    let left = rows.job(JOB, &instance).await;
    assert_eq!(
        (&left.id, left.revision, left.retries),
        (&job.id, 1, Some(3))
    );
    assert!(left.is_locked(), "{left:?}");
    world.engine.start_again().await;
    let faster = "UPDATE act_ru_variable SET long_ = 1, text_ = '1'
        WHERE proc_inst_id_ = $1 AND name_ = 'millis'";
    assert_eq!(rows.change(faster, &instance).await, 1);
    assert_eq!(world.engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(&instance).await);
    assert_eq!(rows.effects(&instance).await, ["work"; 2]);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_publication_without_the_key_makes_flowable_fail_and_the_doctor_names_it() {
    let world = World::start(EngineSettings::flowable7).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let (user, password) = EngineServer::USER;
    let options = EngineOptions::new(engine.url()).credentials(Credentials::basic(user, password));
    let store = EngineStore::flowable(&world.database, options).await;
    let store = store.unwrap();
    // A publication, and the status of an execute while it exists.
    for (publication, status) in [
        ("(retries_) WITH (publish = 'insert')", 204),
        ("WHERE (retries_ = 3) WITH (publish = 'insert')", 204),
        ("(id_) WITH (publish = 'insert, update')", 204),
        ("(retries_) WITH (publish = 'delete')", 500),
        ("WHERE (retries_ = 3) WITH (publish = 'delete')", 500),
    ] {
        let create = format!("CREATE PUBLICATION spy FOR TABLE act_ru_job {publication}");
        let create = sqlx::raw_sql(sqlx::AssertSqlSafe(create));
        create.execute(&rows.0).await.unwrap();
        // The doctor names those that make the engine fail.
        let findings = examine(&store).await.unwrap();
        let is_named = |of: &Finding| of.level == Level::Wrong && of.found.contains("`spy`");
        let named = findings.iter().any(is_named);
        assert_eq!(named, status == 500, "{publication}: {findings:?}");
        let instance = engine.start_instance("one", &[]).await;
        let job = rows.job(JOB, &instance).await;
        let answer = engine.execute(&job.id).await;
        assert_eq!(answer.status, status, "{publication}: {}", answer.body);
        let drop = sqlx::raw_sql("DROP PUBLICATION spy");
        drop.execute(&rows.0).await.unwrap();
        assert_eq!(rows.ended(&instance).await, status == 204);
    }
}
