//! Kafka stops and freezes. The test has its own broker.

use jobwire_tests::Kafka;

use super::fleet::{CLAIMED, Fleet, swept, total};

#[tokio::test]
async fn a_kafka_that_stops_or_freezes_is_lived_without_and_comes_back_without_a_burst() {
    let mut broker = Kafka::start().await;
    let fleet = Fleet::new(&broker.url(), &broker.url()).await;
    let (one, two) = (fleet.node(&[]).await, fleet.node(&[]).await);
    let both = [&one, &two];
    fleet.create(10, 3).await;
    fleet.all_have_run().await;

    fleet.create(40, 3).await;
    broker.stop().await;
    fleet.create(40, 3).await;
    one.claims().await;
    two.claims().await;
    fleet.create(20, 3).await;
    fleet.all_have_run().await;
    assert!(total(&both, CLAIMED).await > 0.0);
    let swept_before = swept(&both).await;

    broker.start_again().await;
    one.is_back().await;
    two.is_back().await;
    fleet.all_have_run().await;
    assert_eq!(swept(&both).await, swept_before, "nothing is hinted again");
    fleet.hints_work(&both).await;

    // Every connection stays open, and no broker answers.
    broker.freeze();
    fleet.create(20, 3).await;
    one.claims().await;
    two.claims().await;
    fleet.all_have_run().await;
    broker.thaw();
    one.claims_of(&[]).await;
    two.claims_of(&[]).await;
    fleet.hints_work(&both).await;
}
