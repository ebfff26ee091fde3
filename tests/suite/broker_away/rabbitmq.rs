//! RabbitMQ stops, blocks, falls silent, loses queues and connections. Each test has its own
//! broker.

use std::time::Duration;

use jobwire_core::{JobQuery, NewJob, Store};
use jobwire_tests::{Flow, Proxy, RabbitMq, RabbitMqCtl, eventually};

use super::fleet::{CLAIMED, Fleet, Node, SOON, swept, total};

async fn fleet(broker: &RabbitMq) -> Fleet {
    Fleet::new(&broker.url(), &broker.url()).await
}

#[tokio::test]
async fn a_broker_that_is_stopped_is_lived_without_and_comes_back_without_a_burst() {
    let mut broker = RabbitMq::start().await;
    let fleet = fleet(&broker).await;
    let (one, two) = (fleet.node(&[]).await, fleet.node(&[]).await);
    let both = [&one, &two];
    fleet.create(10, 3).await;
    fleet.all_have_run().await;

    // Under load: some hints are in the broker, some on their way, some not yet sent.
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
    one.is_ready().await;
    two.is_ready().await;
}

/// Raises an alarm with the first command and ends it with the second.
async fn an_alarm(set: &[&str], clear: &[&str]) {
    let broker = RabbitMq::start().await;
    let fleet = fleet(&broker).await;
    let (one, two) = (fleet.node(&[]).await, fleet.node(&[]).await);
    let both = [&one, &two];
    fleet.create(5, 2).await;
    fleet.all_have_run().await;

    broker.ctl().run(set).await;
    one.claims().await;
    two.claims().await;
    // Consumers are connected and idle; publishers are blocked, the creator's included.
    one.shows("jobwire_broker_blocked", 1.0).await;
    one.shows(r#"jobwire_broker_up{direction="receive"}"#, 1.0)
        .await;
    let claimed_before = total(&both, CLAIMED).await;
    fleet.create(20, 3).await;
    fleet.all_have_run().await;
    assert!(total(&both, CLAIMED).await > claimed_before);

    broker.ctl().run(clear).await;
    one.is_back().await;
    two.is_back().await;
    fleet.hints_work(&both).await;
}

#[tokio::test]
async fn a_memory_alarm_makes_nodes_claim_until_it_is_over() {
    an_alarm(
        &["set_vm_memory_high_watermark", "0"],
        &["set_vm_memory_high_watermark", "absolute", "1GB"],
    )
    .await;
}

#[tokio::test]
async fn a_disk_alarm_makes_nodes_claim_until_it_is_over() {
    an_alarm(
        &["set_disk_free_limit", "1000000GB"],
        &["set_disk_free_limit", "50MB"],
    )
    .await;
}

/// A firewall drops the connections silently: they stay open and carry nothing.
#[tokio::test]
async fn half_open_connections_are_noticed_and_jobs_are_claimed() {
    let broker = RabbitMq::start().await;
    let proxy = Proxy::start(&broker.address()).await;
    let by_proxy = format!("{}?heartbeat=2", proxy.url(&broker.url()));
    let fleet = Fleet::new(&broker.url(), &by_proxy).await;
    let node = fleet.node(&[]).await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;

    proxy.set_both(Flow::Stall);
    // The producer still publishes: these hints wait in the broker or on the silent connection.
    fleet.create(20, 3).await;
    node.claims().await;
    fleet.all_have_run().await;
    assert!(node.metric(CLAIMED).await > 0.0);

    proxy.set_both(Flow::Pass);
    node.is_back().await;
    fleet.all_have_run().await;
    fleet.hints_work(&[&node]).await;
}

/// The database refuses the leases of some jobs, in one lane even that of the first job, and an
/// open transaction has written the lease of another job: nodes claim the jobs beside them.
#[tokio::test]
async fn a_job_that_can_not_be_locked_keeps_no_other_from_being_claimed() {
    let broker = RabbitMq::start().await;
    let proxy = Proxy::start(&broker.address()).await;
    let by_proxy = format!("{}?heartbeat=2", proxy.url(&broker.url()));
    let fleet = Fleet::new(&broker.url(), &by_proxy).await;
    let node = fleet.node(&[("JOBWIRE_LANES", "default,later")]).await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
    proxy.set_both(Flow::Stall);
    node.claims_of(&["default", "later"]).await;

    let refuse = "CREATE FUNCTION refuse_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF EXISTS (SELECT FROM jobwire.job WHERE id = NEW.job_id AND element = 'bad') THEN
                 RAISE EXCEPTION 'no lease for you' USING ERRCODE = 'check_violation';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse_lease BEFORE INSERT ON jobwire.job_lease
             FOR EACH ROW EXECUTE FUNCTION refuse_lease()";
    let pool = fleet.store.pool();
    sqlx::raw_sql(refuse).execute(pool).await.unwrap();
    let bad = |job: NewJob| job.element("bad");
    let noop = || NewJob::of("noop", &());
    let rescued = bad(noop());
    let hanging = noop();
    // A job of a dead node, which no node can lock either.
    let lost = "ALTER TABLE jobwire.job_lease DISABLE TRIGGER refuse_lease;
         INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at, strikes)
         SELECT id, NULL, 1, now(), now(), 1 FROM jobwire.job WHERE element = 'bad';
         ALTER TABLE jobwire.job_lease ENABLE TRIGGER refuse_lease";
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(vec![rescued]).await.unwrap();
    tx.commit().await.unwrap();
    sqlx::raw_sql(lost).execute(pool).await.unwrap();
    let mut other = pool.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
         VALUES ($1, gen_random_uuid(), 1, now(), now() + interval '1 hour')",
    )
    .bind(hanging.id().uuid())
    .execute(&mut *other)
    .await
    .unwrap();
    let good = (0..40).map(|n| match n % 4 {
        0 => noop().lane("later"),
        1 => noop().instance(format!("case-{n}")),
        _ => noop(),
    });
    let mut jobs = vec![hanging, bad(noop()), bad(noop().instance("bad"))];
    jobs.extend(good);
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(jobs).await.unwrap();
    tx.commit().await.unwrap();
    let left = async |count: i64| {
        eventually("the other jobs to be done", SOON, async || {
            let left = fleet.store.count(&JobQuery::default()).await.ok()?;
            (left == count).then_some(())
        })
        .await;
    };
    left(4).await;

    other.rollback().await.unwrap();
    let heal = "DROP TRIGGER refuse_lease ON jobwire.job_lease";
    sqlx::raw_sql(heal).execute(pool).await.unwrap();
    left(0).await;
}

/// Whether or not a fault lasts long enough for nodes to claim, the jobs run.
#[tokio::test]
async fn lost_queues_channels_and_connections_need_no_restart() {
    let mut broker = RabbitMq::start().await;
    let fleet = fleet(&broker).await;
    let (one, two) = (fleet.node(&[]).await, fleet.node(&[]).await);
    let queue = fleet.queue("default");
    let deleted = ["delete_queue", queue.as_str()];
    let purged = ["purge_queue", queue.as_str()];
    let closed = ["close_all_connections", "for a test"];
    for fault in [&deleted, &closed, &purged, &deleted] {
        fleet.create(20, 2).await;
        inflict(broker.ctl(), fault).await;
        fleet.create(20, 2).await;
        fleet.all_have_run().await;
    }
    broker.kill();
    broker.start_again().await;
    fleet.create(20, 2).await;
    fleet.all_have_run().await;
    for node in [&one, &two] {
        settled(node).await;
    }
    fleet.hints_work(&[&one, &two]).await;
}

/// A leader that is cut off from the broker would find orphans and could not publish them. Claiming
/// is off here.
#[tokio::test]
async fn a_leader_that_can_not_publish_makes_room_for_one_that_can() {
    const OFF: (&str, &str) = ("JOBWIRE_CLAIM_AFTER", "off");
    let broker = RabbitMq::start().await;
    let fleet = fleet(&broker).await;
    let proxy = Proxy::start(&broker.address()).await;
    let through = proxy.url(&broker.url());
    let first = fleet.node(&[OFF, ("JOBWIRE_BROKER_URL", &through)]).await;
    first.shows("jobwire_leader", 1.0).await;
    let second = fleet.node(&[OFF]).await;
    // The first node resigns only after it has received a beat of the other one, which sends two
    // a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.refuse().await;
    proxy.cut();
    second.shows("jobwire_leader", 1.0).await;
    first.shows("jobwire_leader", 0.0).await;
    fleet.create_unhinted(5, 2).await;
    fleet.all_have_run().await;
    proxy.accept().await;
    first.is_ready().await;
}

/// A queue that was deleted a moment ago must exist again before it can be deleted once more.
async fn inflict(ctl: &RabbitMqCtl, fault: &[&str]) {
    if fault[0].ends_with("_queue") {
        eventually("the queue to be declared", SOON, || async {
            let listed = ctl.run(&["list_queues", "name"]).await;
            listed.lines().any(|name| name == fault[1]).then_some(())
        })
        .await;
    }
    ctl.run(fault).await;
}

async fn settled(node: &Node) {
    node.claims_of(&[]).await;
    node.is_ready().await;
}

/// With `claim_after = off`, jobs wait for the broker and run when it is back.
#[tokio::test]
async fn a_node_that_may_not_claim_waits_for_the_broker() {
    let mut broker = RabbitMq::start().await;
    let fleet = fleet(&broker).await;
    let node = fleet.node(&[("JOBWIRE_CLAIM_AFTER", "off")]).await;
    broker.stop().await;
    node.running
        .wait_for_line("no connection to the broker", SOON)
        .await;
    fleet.create(5, 2).await;
    // Longer than other nodes take to begin claiming; there is no signal to wait for.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.health().await["claiming"], serde_json::json!([]));
    broker.start_again().await;
    fleet.all_have_run().await;
    assert_eq!(node.metric(CLAIMED).await, 0.0);
}
