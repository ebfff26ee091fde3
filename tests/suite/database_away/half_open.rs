//! The connection to the database falls silent: no error, no end of the stream, no answer.

use std::time::Duration;

use jobwire_core::NewJob;
use jobwire_tests::{Flow, Proxy, Signal, eventually, shared};
use serde_json::json;
use url::Url;

use super::{SOON, endpoint, event, until_problem, until_ready};
use crate::fleet::Fleet;

/// The statement timeout is two seconds; the client's limit is two seconds more.
const SETTINGS: [(&str, &str); 2] = [
    ("JOBWIRE_STATEMENT_TIMEOUT", "2s"),
    ("JOBWIRE_DATABASE_CONNECTIONS", "3"),
];

async fn behind_a_proxy() -> (Fleet, Proxy) {
    let database = shared::postgres().await.migrated_database().await;
    let address = Url::parse(&database).unwrap();
    let server = (address.host_str().unwrap(), address.port().unwrap());
    let proxy = Proxy::start(&format!("{}:{}", server.0, server.1)).await;
    let space = shared::rabbitmq().await.space().await;
    (Fleet::new(database, space).await, proxy)
}

/// The node detects the silence, takes no more jobs, loses its job to another node, and continues
/// when the connection is back.
#[tokio::test]
async fn a_node_on_a_silent_line_loses_its_jobs_and_heals_when_it_speaks_again() {
    let (fleet, proxy) = behind_a_proxy().await;
    let through = proxy.url(&fleet.database);
    let cut_off = fleet.node_on(&through, &fleet.space.url, &SETTINGS).await;
    let health = endpoint(&cut_off).await;
    // Long enough that it still runs when the connection falls silent, on any machine; short enough
    // to end elsewhere.
    let long = NewJob::of("sleep", &json!({ "ms": 30_000 }));
    fleet.jobs.create(long).await.unwrap();
    eventually("the node to hold the job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    proxy.set_both(Flow::Stall);
    // The health also reports it, but only until the lease that cannot be renewed has ended.
    cut_off
        .wait_for_line("leases could not be renewed", SOON)
        .await;
    until_problem(&health, "leader").await;
    let other = fleet.node(&[]).await;
    // The other node must run these jobs, although the first node receives their hints, too.
    for position in 1..=10 {
        fleet.jobs.create(event("one", position)).await.unwrap();
    }
    fleet.until_empty(SOON).await;
    other.signal(Signal::SIGTERM);
    other.wait_for_line("node stopped", SOON).await;
    proxy.set_both(Flow::Pass);
    until_ready(&health).await;
    fleet.jobs.create(event("one", 11)).await.unwrap();
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 11);
    assert_eq!(fleet.cases().doubled().await, 0);
}

/// A node that holds no lease is cut off from the database only. It keeps no hints: another node
/// runs their jobs without a sweep.
#[tokio::test]
async fn a_node_that_can_not_lock_gives_its_hints_to_others() {
    let (fleet, proxy) = behind_a_proxy().await;
    let through = proxy.url(&fleet.database);
    let cut_off = fleet.node_on(&through, &fleet.space.url, &SETTINGS).await;
    let health = endpoint(&cut_off).await;
    until_ready(&health).await;
    proxy.set_both(Flow::Stall);
    for position in 1..=10 {
        fleet.jobs.create(event("one", position)).await.unwrap();
    }
    cut_off
        .wait_for_line("no job could be locked for", SOON)
        .await;
    // The sweeper finds nothing within this test.
    let other = fleet.node(&[("JOBWIRE_SUSPECT_AFTER", "600s")]).await;
    fleet.until_empty(SOON).await;
    other.signal(Signal::SIGTERM);
    other.wait_for_line("node stopped", SOON).await;
    proxy.set_both(Flow::Pass);
    fleet.jobs.create(event("one", 11)).await.unwrap();
    fleet.until_empty(SOON).await;
    until_ready(&health).await;
    assert_eq!(fleet.cases().events().await, 11);
    assert_eq!(fleet.cases().doubled().await, 0);
}

/// A node that is stopped while the database is silent can't release its job, and still ends.
/// The job runs elsewhere when its lease has ended, and no attempt is spent.
#[tokio::test]
async fn a_node_that_stops_on_a_silent_line_ends_and_its_job_runs_elsewhere() {
    let (fleet, proxy) = behind_a_proxy().await;
    let through = proxy.url(&fleet.database);
    let settings = [SETTINGS[0], SETTINGS[1], ("JOBWIRE_SHUTDOWN_TIMEOUT", "1s")];
    let cut_off = fleet.node_on(&through, &fleet.space.url, &settings).await;
    // A job without attempts that are left would be a dead letter.
    let only_one = NewJob::of("sleep", &json!({ "ms": 20_000 })).max_attempts(1);
    fleet.jobs.create(only_one).await.unwrap();
    eventually("the node to hold the job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    proxy.set_both(Flow::Stall);
    cut_off.signal(Signal::SIGTERM);
    cut_off
        .wait_for_line("node stopped", Duration::from_secs(120))
        .await;
    let _other = fleet.node(&[]).await;
    fleet.until_empty(SOON).await;
}

/// A firewall drops every open connection silently; new ones get through. The node is never
/// notified, and no silent connection may occupy a place in its pool.
#[tokio::test]
async fn a_node_whose_connections_were_forgotten_opens_new_ones() {
    let (fleet, proxy) = behind_a_proxy().await;
    let through = proxy.url(&fleet.database);
    let node = fleet.node_on(&through, &fleet.space.url, &SETTINGS).await;
    let health = endpoint(&node).await;
    for round in 1..=2_i64 {
        // The connections of the pool are inside transactions: the inserts wait.
        let mut gate = fleet.jobs.begin().await.unwrap();
        sqlx::query("LOCK TABLE jobwire.event_log IN SHARE MODE")
            .execute(&mut *gate)
            .await
            .unwrap();
        for case in 0..3 {
            let job = event(&format!("case-{round}-{case}"), round);
            fleet.jobs.create(job).await.unwrap();
        }
        eventually("an insert to wait", SOON, async || {
            (fleet.waiting_for_a_lock().await >= 1).then_some(())
        })
        .await;
        proxy.forget();
        gate.commit().await.unwrap();
        fleet.until_empty(SOON).await;
        assert_eq!(fleet.cases().events().await, round * 3);
    }
    assert_eq!(fleet.cases().doubled().await, 0);
    until_ready(&health).await;
}

/// The connection for renewals is idle for long while jobs are short, and the firewall forgets it.
/// A long job keeps its lease all the same.
#[tokio::test]
async fn a_lease_is_renewed_although_the_connection_for_it_was_forgotten() {
    let (fleet, proxy) = behind_a_proxy().await;
    let through = proxy.url(&fleet.database);
    // A third of this lease is long enough for slow machines.
    let settings = [
        ("JOBWIRE_LEASE", "60s"),
        ("JOBWIRE_STATEMENT_TIMEOUT", "2s"),
    ];
    let node = fleet.node_on(&through, &fleet.space.url, &settings).await;
    let long = NewJob::of("sleep", &json!({ "ms": 3_600_000 }));
    let id = fleet.jobs.create(long).await.unwrap();
    eventually("the node to hold the job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    proxy.forget();
    let renewed = "SELECT count(*) FROM jobwire.job_lease
        WHERE job_id = $1 AND expires_at > locked_at + interval '65 seconds'";
    eventually("the lease to be renewed", SOON, async || {
        let renewed: i64 = sqlx::query_scalar(renewed)
            .bind(id.uuid())
            .fetch_one(fleet.store.pool())
            .await
            .unwrap();
        (renewed == 1).then_some(())
    })
    .await;
    let said = node.lines().all();
    let lost = |line: &&String| line.contains("lease was lost") || line.contains("lease ended");
    let lost: Vec<_> = said.iter().filter(lost).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
