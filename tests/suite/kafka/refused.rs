//! Errors that need an operator: each names the problem and the remedy.

use jobwire_core::transport::{Subscription, Transport, TransportError};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_kafka::KafkaOptions;

use super::fleet::*;

/// Asserts that a refusal contains all these parts.
#[track_caller]
pub(super) fn says(refused: &TransportError, parts: &[&str]) {
    assert!(
        matches!(
            refused,
            TransportError::Refused { .. } | TransportError::Setting(_)
        ),
        "{refused:?}"
    );
    let text = refused.to_string();
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

fn undeclared() -> KafkaOptions {
    patient().declare(false)
}

/// Protocol rule 36.
#[tokio::test]
async fn a_topic_that_is_missing_and_must_not_be_made_is_named() {
    let fleet = Fleet::new().await;
    let transport = connect_with(&fleet.url, undeclared()).await;
    fleet.until_healthy().await;
    let lane = Lane::default();
    let parts = [fleet.topic(), "kafka_declare".to_owned()];
    let parts = [parts[0].as_str(), parts[1].as_str()];
    let hints = || vec![Hint::new(JobId::generate())];
    let refused = refusal("the publish to be refused", async || {
        transport.publisher().publish(&lane, hints()).await
    });
    says(&refused.await, &parts);
    let subscription = || Subscription {
        lanes: vec![lane.clone()],
        prefetch: 8,
    };
    let refused = refusal("the subscription to be refused", async || {
        transport.subscribe(subscription()).await
    });
    says(&refused.await, &parts);
    assert!(
        !fleet.admin().topics().await.contains(&fleet.topic()),
        "the topic was created"
    );

    // A receiver that was there before the topic was deleted reports it, and continues when it is
    // back.
    fleet.admin().create_topic(&fleet.topic(), 3).await;
    let mut receiver = jobwire_tests::eventually("the topic to be found", HEALED, || async {
        transport.subscribe(subscription()).await.ok()
    })
    .await;
    publish(&transport, &lane, hints()).await;
    let taken = take(&mut receiver, 1).await;
    receiver.settle(&tickets(&taken)).await;
    fleet.admin().delete_topic(&fleet.topic()).await;
    let problem = soon("the refusal", async {
        loop {
            if let Err(problem) = receiver.receive(8).await
                && !problem.is_transient()
            {
                return problem;
            }
        }
    });
    says(&problem.await, &parts);
    fleet.admin().create_topic(&fleet.topic(), 3).await;
    let hint = Hint::new(JobId::generate());
    jobwire_tests::eventually("a hint to be taken", HEALED, || async {
        let publisher = transport.publisher();
        publisher.publish(&lane, vec![hint.clone()]).await.ok()
    })
    .await;
    soon("the hint", async {
        loop {
            if let Ok(deliveries) = receiver.receive(8).await {
                return deliveries;
            }
        }
    })
    .await;
}

/// Another program created the topic with its own settings: the node logs that and uses the topic.
#[tokio::test]
async fn a_topic_of_somebody_else_is_used_as_it_is() {
    let fleet = Fleet::new().await;
    fleet.admin().create_topic(&fleet.topic(), 3).await;
    let node = fleet
        .program()
        .env("JOBWIRE_KAFKA_DECLARE", "false")
        .start();
    node.wait_for_line("number of partitions of a topic differs", HEALED)
        .await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    assert_eq!(fleet.admin().partitions(&fleet.topic()).await, 3);
}
