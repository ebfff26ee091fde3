//! The hook of each engine: it publishes the hints of what the engine has committed, and nothing
//! else. No node of Jobwire runs here; the test receives the lane.

use std::collections::VecDeque;
use std::time::Duration;

use jobwire_core::hint::Body;
use jobwire_core::transport::{Receiver, Subscription};
use jobwire_core::{Hint, Lane};
use jobwire_engines::id::engine_id;
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{EngineProgram, EngineServer, EngineSettings, eventually};

use crate::engines::rows::{JOB, Rows, SOON, World, state};
use crate::transport_conformance::subject::receive;
use crate::world::connect;

/// The hints that arrive on a lane.
struct Hints {
    receiver: Box<dyn Receiver>,
    waiting: VecDeque<Hint>,
}

impl Hints {
    /// Returns the engine's job id and the process instance of the next hint.
    async fn next(&mut self) -> (String, Option<String>) {
        while self.waiting.is_empty() {
            for delivery in receive(&mut self.receiver, 32).await {
                self.receiver.settle(&[delivery.ticket]).await;
                let Body::Hints(hints) = delivery.body else {
                    panic!("{:?} is no hint", delivery.body);
                };
                self.waiting.extend(hints);
            }
        }
        let hint = self.waiting.pop_front().unwrap();
        assert!(hint.committed_at.is_some(), "{hint:?}");
        (engine_id(hint.id).unwrap(), hint.instance)
    }
}

/// The engine writes a timer or a dead letter as a new job when an operator retries it.
async fn what_an_operator_retries_is_hinted(engine: &EngineServer, rows: &Rows, hints: &mut Hints) {
    let instance = engine.start_instance("failing", &[("failures", "3")]).await;
    let job = rows.job(JOB, &instance).await.id;
    let expected = (job.clone(), Some(instance.clone()));
    assert_eq!(hints.next().await, expected);
    for ended in ["timer", "timer", "dead letter"] {
        assert_eq!(state(&engine.execute_by_endpoint(&job).await), ended);
        let answer = engine.retry_by_endpoint(&job, 3).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(hints.next().await, expected);
    }
}

async fn what_was_committed_is_hinted(settings: fn(&str) -> EngineSettings, space: Space) {
    let transport = connect(&space, 3).await;
    let world = World::start(|database| settings(database).hints(&space)).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let program = engine.program();
    let lane = match (program.is_camunda(), program.is_activiti()) {
        (true, _) => "camunda",
        (_, true) => "activiti",
        _ => "flowable",
    };
    let subscription = Subscription {
        lanes: vec![Lane::unchecked(lane)],
        prefetch: 32,
    };
    let mut hints = Hints {
        receiver: transport.subscribe(subscription).await.unwrap(),
        waiting: VecDeque::new(),
    };
    // The start rolls back, with the job that it has created.
    assert_eq!(engine.start_in_vain("broken").await.status, 500);
    let instance = engine.start_instance("chain", &[]).await;
    let first = rows.job(JOB, &instance).await;
    assert_eq!(
        hints.next().await,
        (first.id.clone(), Some(instance.clone()))
    );
    // A job that the engine executes creates the next one.
    let answer = match engine.program() {
        EngineProgram::Camunda7 => engine.execute(&first.id).await,
        _ => engine.execute_by_endpoint(&first.id).await,
    };
    assert!(matches!(answer.status, 200 | 204), "{}", answer.body);
    let second = rows.job(JOB, &instance).await;
    assert_eq!(hints.next().await, (second.id, Some(instance.clone())));
    let mut published = 2;
    if engine.program() != EngineProgram::Camunda7 {
        // The activation makes a job ready again. Camunda changes it in place.
        engine.suspend(&instance).await;
        engine.activate(&instance).await;
        let again = rows.job(JOB, &instance).await;
        assert_eq!(hints.next().await, (again.id, Some(instance)));
        published += 1;
    }
    // A timer has no hint before it is due; the leader is told of one that is due soon.
    engine.start_instance("timer", &[("wait", "PT3H")]).await;
    engine.start_instance("timer", &[("wait", "PT90S")]).await;
    eventually("the leader to be told of the timer", SOON, || async {
        (engine.hint_counts().await.timers == 1).then_some(())
    })
    .await;
    let counts = engine.hint_counts().await;
    assert_eq!((counts.published, counts.waiting), (published, 0));
    assert!(
        counts.dropped.values().all(|count| *count == 0),
        "{counts:?}"
    );
    if engine.program() != EngineProgram::Camunda7 {
        what_an_operator_retries_is_hinted(engine, &rows, &mut hints).await;
    }
    transport.close(Duration::from_secs(5)).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_flowable7_committed_is_hinted_over_kafka() {
    let space = shared::kafka().await.space();
    what_was_committed_is_hinted(EngineSettings::flowable7, space).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_flowable8_committed_is_hinted_over_rabbitmq() {
    let space = shared::rabbitmq().await.space().await;
    what_was_committed_is_hinted(EngineSettings::flowable8, space).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_activiti7_committed_is_hinted_over_rabbitmq() {
    let space = shared::rabbitmq().await.space().await;
    what_was_committed_is_hinted(EngineSettings::activiti7, space).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_activiti7_committed_is_hinted_over_kafka() {
    let space = shared::kafka().await.space();
    what_was_committed_is_hinted(EngineSettings::activiti7, space).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_camunda7_committed_is_hinted_over_rabbitmq() {
    let space = shared::rabbitmq().await.space().await;
    what_was_committed_is_hinted(EngineSettings::camunda7, space).await;
}
