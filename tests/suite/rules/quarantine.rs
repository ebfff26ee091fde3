//! Rule 26: only the job that kills its nodes is quarantined.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::node::Executed;
use jobwire_core::{JobQuery, JobState, NewJob, NodeOptions, Outcome, Running, Store};
use jobwire_tests::{Program, cargo, eventually, shared};
use serde_json::json;

use super::world::create;
use crate::fleet::Fleet;
use crate::world::World;

/// One job kills its node, among others that do not. The test starts nodes again, as an
/// orchestrator does, until the job is in quarantine: after two deaths in company and one alone.
#[tokio::test]
async fn a_job_that_takes_its_nodes_down_is_quarantined_and_no_other() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let mut jobs = vec![NewJob::of("poison", &json!({}))];
    let poison = jobs[0].id();
    jobs.extend((0..24).map(|n| {
        let job = NewJob::of("innocent", &json!({}));
        if n % 3 == 0 { job.instance("one") } else { job }
    }));
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(jobs).await.unwrap();
    tx.commit().await.unwrap();

    let executable = || async {
        let filter = JobQuery::default().states([JobState::Executable]);
        fleet.store.count(&filter).await.unwrap()
    };
    let mut deaths = 0;
    while executable().await > 0 {
        let mut node = Program::at(&cargo::build("poisoned_node"))
            .env("NODE_DATABASE", &fleet.database)
            .env("NODE_BROKER", &fleet.space.url)
            .env("NODE_PREFIX", &fleet.space.prefix)
            .start();
        let soon = Duration::from_secs(60);
        tokio::select! {
            biased;
            _ = node.exit(soon) => deaths += 1,
            () = eventually("no job to be executable", soon, || async {
                (executable().await == 0).then_some(())
            }) => {}
        }
        assert!(deaths < 30, "the job is not quarantined");
    }
    println!("{deaths} nodes died");
    assert!(deaths >= 3, "{deaths} deaths are too few");
    let left = fleet.store.find(&JobQuery::default()).await.unwrap();
    let left: Vec<_> = left.iter().map(|job| (job.id, job.state)).collect();
    assert_eq!(
        left,
        [(poison, JobState::DeadLetter)],
        "all other jobs are done"
    );
    let (view, _, _) = fleet.store.get(poison).await.unwrap().unwrap();
    let message = view.exception_message.unwrap();
    assert!(message.contains("quarantined"), "{message}");
    // Each death is an attempt, the last one included.
    let attempts = fleet.store.attempts(poison, 100).await.unwrap();
    let died = attempts.iter().filter(|of| of.outcome == "node-died");
    let nodes: BTreeSet<_> = died.map(|of| of.node).collect();
    assert!((3..=deaths).contains(&nodes.len()), "{attempts:?}");
}

/// A process that executes one job takes no other, so the job is alone there.
#[tokio::test]
async fn a_suspect_that_is_executed_by_hand_runs() {
    let world = World::new().await;
    let hint = create(&world.store, NewJob::of("suspect", &())).await;
    sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at, strikes)
         VALUES ($1, NULL, 1, clock_timestamp(), clock_timestamp(), 2)",
    )
    .bind(hint.id.uuid())
    .execute(world.store.pool())
    .await
    .unwrap();
    let executed = world
        .node()
        .options(NodeOptions::default())
        .handler("suspect", |_: Running<()>| async { Ok(Outcome::Done) })
        .execute(hint.id, std::future::pending())
        .await
        .unwrap();
    assert!(matches!(executed, Executed::Done), "{executed:?}");
    world.until_empty().await;
}
