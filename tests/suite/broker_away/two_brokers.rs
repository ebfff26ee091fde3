//! Lanes over two brokers; one of the brokers goes away.

use jobwire_tests::{Proxy, shared};

use super::fleet::{CLAIMED, Fleet};

#[tokio::test]
async fn of_two_brokers_only_the_lanes_of_the_missing_one_are_claimed() {
    let first = shared::rabbitmq().await.space().await;
    let second = shared::rabbitmq().await.space().await;
    let address = url::Url::parse(&second.url).unwrap();
    let address = format!(
        "{}:{}",
        address.host_str().unwrap(),
        address.port().unwrap_or(5672)
    );
    let proxy = Proxy::start(&address).await;
    let fleet = Fleet::new(&first.url, &first.url).await;
    let node = fleet
        .node(&[
            ("JOBWIRE_LANES", "default,bulk"),
            ("JOBWIRE_SECOND_BROKER_URL", &proxy.url(&second.url)),
            ("JOBWIRE_SECOND_BROKER_LANES", "bulk"),
            // Above any delay of a busy machine: the other broker works.
            ("JOBWIRE_CLAIM_AFTER", "5s"),
        ])
        .await;
    proxy.refuse().await;
    proxy.cut();
    node.claims_of(&["bulk"]).await;
    // The producer does not use the second broker: its hints go to a broker that no node receives
    // from.
    fleet.create_in("bulk", 10, 3).await;
    fleet.create(10, 3).await;
    fleet.all_have_run().await;
    assert!(node.metric(CLAIMED).await > 0.0);
    fleet.hints_work(&[&node]).await;

    proxy.accept().await;
    node.claims_of(&[]).await;
    node.is_ready().await;
}
