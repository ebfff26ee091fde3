//! Nodes that join, leave, freeze and pause: partitions move, and no job runs twice or out of
//! order.

use std::time::Duration;

use jobwire_core::transport::Receiver;
use jobwire_core::{Hint, JobId, Lane, NewJob};
use jobwire_tests::{Kafka, KafkaSettings, Running, Signal, eventually};

use super::fleet::*;

/// One node joins and another leaves every two seconds while jobs flow.
#[tokio::test]
async fn a_rebalance_every_two_seconds_runs_no_job_twice_and_keeps_every_case_in_order() {
    let fleet = Fleet::new().await;
    let stays = fleet.node().await;
    let mut leaves = fleet.node().await;
    for _ in 0..6 {
        fleet.create(20, 3).await;
        let joins = fleet.node().await;
        let since = tokio::time::Instant::now();
        leaves.stop().await;
        leaves = joins;
        fleet.create(20, 3).await;
        tokio::time::sleep_until(since + Duration::from_secs(2)).await;
    }
    fleet.all_have_run().await;
    leaves.stop().await;
    stays.stop().await;
}

/// A node freezes beyond its session timeout and its lease: the others go on, and it works again
/// when it wakes.
#[tokio::test]
async fn a_node_that_was_frozen_beyond_its_session_finds_its_way_back() {
    let fleet = Fleet::new().await;
    let (frozen, other) = (fleet.program().start(), fleet.program().start());
    frozen.wait_for_line("is ready", HEALED).await;
    other.wait_for_line("is ready", HEALED).await;
    fleet.create(20, 3).await;
    frozen.signal(Signal::SIGSTOP);
    fleet.create(20, 3).await;
    fleet.all_have_run().await;
    frozen.signal(Signal::SIGCONT);
    drop(other);
    // Only the node that was frozen is left.
    fleet.create(20, 3).await;
    fleet.all_have_run().await;
}

/// Protocol rule 18: hints that wait behind a node without a free slot go to a node that has one.
#[tokio::test]
async fn a_saturated_node_lets_its_partitions_go_to_an_idle_one() {
    let fleet = Fleet::new().await;
    let one_partition = options().partitions(1);
    let transport = connect_with(&fleet.url, one_partition).await;
    let saturated = fleet.node_with(1, transport).await;
    fleet.jobs.create(NewJob::of("hold", &())).await.unwrap();
    eventually("the slot to be taken", HEALED, || async {
        let leased = fleet.number("SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL");
        (leased.await == 1).then_some(())
    })
    .await;
    fleet.create(20, 2).await;
    let idle = fleet.node().await;
    fleet.have_run(40).await;
    fleet.gate.add_permits(1);
    // When its slot is free, the node joins again; from now on it works alone.
    idle.stop().await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    saturated.stop().await;
}

/// The proxy forgets the connection on which a join waits for its answer, and neither end notices.
#[tokio::test]
async fn a_join_that_is_never_answered_is_given_up_and_made_again() {
    // The broker delays its answer to the first join of a group by this time.
    let mut settings = KafkaSettings::new().set("group.initial.rebalance.delay.ms", "10000");
    let proxy = settings.proxy().await;
    let broker = Kafka::start_with(settings).await;
    let fleet = Fleet::on(&broker.url()).await;
    publish(
        &fleet.transport,
        &Lane::default(),
        vec![Hint::new(JobId::generate())],
    )
    .await;
    let joins = connect(&proxy.url(&fleet.url)).await;
    let mut receiver = subscribe(&joins, 10).await;
    let admin = fleet.admin();
    eventually("a join to wait for its answer", HEALED, || async {
        admin.is_joining(&fleet.group()).await.then_some(())
    })
    .await;
    proxy.forget();
    assert_eq!(ids(&take(&mut receiver, 1).await).len(), 1);
}

/// The same with the transport alone: it leaves its group, joins again, and continues at the
/// group's position.
#[tokio::test]
async fn a_paused_receiver_leaves_its_group_and_comes_back() {
    let fleet = Fleet::new().await;
    let lane = Lane::default();
    let one = connect_with(&fleet.url, patient()).await;
    let two = connect_with(&fleet.url, patient()).await;
    let publish = async |count: usize| {
        let hints: Vec<Hint> = (0..count).map(|_| Hint::new(JobId::generate())).collect();
        publish(&one, &lane, hints).await;
    };
    let receive = async |receiver: &mut Box<dyn Receiver>, count: usize| {
        let mut received = Vec::new();
        while received.len() < count {
            let deliveries = crate::transport_conformance::subject::receive(receiver, 64).await;
            receiver.settle(&tickets(&deliveries)).await;
            received.extend(ids(&deliveries));
        }
    };
    let mut first = subscribe(&one, 64).await;
    publish(50).await;
    receive(&mut first, 50).await;
    let mut second = subscribe(&two, 64).await;
    for _ in 0..2 {
        first.pause().await;
        publish(50).await;
        receive(&mut second, 50).await;
        first.resume().await;
        second.pause().await;
        publish(50).await;
        receive(&mut first, 50).await;
        second.resume().await;
    }
    // Requeued and fetched again without a rebalance, many times.
    second.pause().await;
    publish(200).await;
    for _ in 0..20 {
        let deliveries = crate::transport_conformance::subject::receive(&mut first, 8).await;
        first.requeue(&tickets(&deliveries)).await;
    }
    receive(&mut first, 200).await;
}

/// The broker admits no member for a while; jobs run without hints.
#[tokio::test]
async fn a_node_whose_group_is_still_forming_runs_jobs_all_the_same() {
    // Much longer than the jobs take.
    let delay = KafkaSettings::new().set("group.initial.rebalance.delay.ms", "600000");
    let broker = Kafka::start_with(delay).await;
    let fleet = Fleet::on(&broker.url()).await;
    // A join waits three session timeouts for its answer and then starts again.
    let transport = options().session_timeout(Duration::from_secs(200));
    let node = fleet
        .node_with(8, connect_with(&fleet.url, transport).await)
        .await;
    let started = tokio::time::Instant::now();
    fleet.create(20, 3).await;
    fleet.all_have_run().await;
    println!("60 jobs had run after {:?}", started.elapsed());
    // No hint came: the group forms for minutes. The jobs may have run before the node joined it.
    eventually("the group to be forming", HEALED, async || {
        fleet.admin().is_joining(&fleet.group()).await.then_some(())
    })
    .await;
    node.stop().await;
}

/// Prints how long the join takes, since that depends on the machine.
#[tokio::test]
async fn a_node_that_joins_a_running_group_gets_hints() {
    let fleet = Fleet::new().await;
    let lane = Lane::default();
    let running = connect_with(&fleet.url, patient()).await;
    let mut first = subscribe(&running, 64).await;
    publish(&running, &lane, vec![Hint::new(JobId::generate())]).await;
    take(&mut first, 1).await;
    let joins = connect_with(&fleet.url, patient()).await;
    let started = tokio::time::Instant::now();
    let mut second = subscribe(&joins, 64).await;
    let hinted = async {
        loop {
            let hints = (0..8).map(|_| Hint::new(JobId::generate())).collect();
            publish(&running, &lane, hints).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = hinted => {}
        _ = take(&mut second, 1) => println!("the first hint came after {:?}", started.elapsed()),
    }
}

/// With more nodes than partitions, a node without a partition logs that.
#[tokio::test]
async fn a_node_without_a_partition_says_so() {
    let fleet = Fleet::new().await;
    fleet.admin().create_topic(&fleet.topic(), 1).await;
    let first = fleet.program().start();
    first.wait_for_line("is ready", HEALED).await;
    fleet.create(5, 1).await;
    fleet.all_have_run().await;
    let second = fleet.program().start();
    second.wait_for_line("is ready", HEALED).await;
    let told = "fewer partitions than there are nodes";
    // The check is made twice, half a minute apart.
    eventually("one of the nodes to log it", HEALED * 5, || async {
        let said = |node: &Running| node.lines().all().iter().any(|line| line.contains(told));
        (said(&first) || said(&second)).then_some(())
    })
    .await;
}

/// Static members with the same name evict each other, and the error names the remedy.
#[tokio::test]
async fn two_nodes_of_one_name_are_told() {
    let fleet = Fleet::new().await;
    let named = || options().instance_id(Some("worker-1".to_owned()));
    let first = connect_with(&fleet.url, named()).await;
    let mut thrown_out = subscribe(&first, 8).await;
    fleet.create(1, 1).await;
    take(&mut thrown_out, 1).await;
    let second = connect_with(&fleet.url, named()).await;
    let _second = subscribe(&second, 8).await;
    let told = async {
        loop {
            if let Err(problem) = thrown_out.receive(8).await
                && problem.to_string().contains("kafka_instance_id")
            {
                return;
            }
        }
    };
    soon("the error on the first node", told).await;
}
