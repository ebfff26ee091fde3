//! Three brokers, one of which dies.

use jobwire_tests::KafkaCluster;

use super::fleet::*;

#[tokio::test]
async fn jobs_flow_on_when_the_leader_of_their_partitions_dies() {
    let mut cluster = KafkaCluster::start(3).await;
    let fleet = Fleet::on(&cluster.url()).await;
    let (one, two) = (fleet.node().await, fleet.node().await);
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    let leader = cluster.leader(&fleet.topic(), 0).await;
    cluster.kill(leader);
    fleet.create(20, 2).await;
    fleet.all_have_run().await;
    fleet.until_healthy().await;
    cluster.start_again(leader).await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    one.stop().await;
    two.stop().await;
}
