//! Three brokers, one of which dies.

use jobwire_tests::KafkaCluster;

use super::world::*;

#[tokio::test]
async fn jobs_flow_on_when_the_leader_of_their_partitions_dies() {
    let mut cluster = KafkaCluster::start(3).await;
    let world = World::on(&cluster.url()).await;
    let (one, two) = (world.node().await, world.node().await);
    world.create(10, 2).await;
    world.all_have_run().await;
    let leader = cluster.leader(&world.topic(), 0).await;
    cluster.kill(leader);
    world.create(20, 2).await;
    world.all_have_run().await;
    world.until_healthy().await;
    cluster.start_again(leader).await;
    world.create(10, 2).await;
    world.all_have_run().await;
    one.stop().await;
    two.stop().await;
}
