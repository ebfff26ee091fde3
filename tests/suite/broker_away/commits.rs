//! Publishing never blocks or fails a commit.

use std::time::Duration;

use jobwire_core::NewJob;
use jobwire_tests::{Flow, Proxy, shared};

use super::fleet::{Fleet, SOON};

/// The broker accepts connections and sends nothing until all transactions have committed: a commit
/// that waited for it would never return.
#[tokio::test]
async fn a_thousand_commits_wait_for_no_broker() {
    let space = shared::rabbitmq().await.space().await;
    let address = url::Url::parse(&space.url).unwrap();
    let address = format!(
        "{}:{}",
        address.host_str().unwrap(),
        address.port().unwrap_or(5672)
    );
    let proxy = Proxy::start(&address).await;
    let fleet = Fleet::new(&proxy.url(&space.url), &space.url).await;
    // One hint is published first, so that the connection works.
    fleet.jobs.create(NewJob::of("noop", &())).await.unwrap();
    proxy.set_both(Flow::Stall);
    let commits = async {
        for n in 0..1_000 {
            fleet.jobs.create(NewJob::of("noop", &n)).await.unwrap();
        }
    };
    let all = jobwire_tests::wait::patience(Duration::from_secs(120));
    tokio::time::timeout(all, commits)
        .await
        .expect("commits return while the broker is silent");
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job")
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
    assert_eq!(kept, 1_001);
    proxy.set_both(Flow::Pass);
    let _node = fleet.node(&[]).await;
    jobwire_tests::eventually("all jobs to be done", SOON, || async {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job")
            .fetch_one(fleet.store.pool())
            .await
            .ok()?;
        (left == 0).then_some(())
    })
    .await;
}
