//! A fleet that rebalances every two seconds while its broker is restarted again and again.
//!
//! Short by default; `JOBWIRE_TEST_MINUTES=10` makes it ten minutes, with a restart in each.

use std::time::Duration;

use jobwire_tests::Kafka;
use tokio::time::Instant;

use super::fleet::Fleet;

const REBALANCE: Duration = Duration::from_secs(2);

fn minutes() -> Option<u32> {
    let text = std::env::var("JOBWIRE_TEST_MINUTES").ok()?;
    Some(
        text.parse()
            .expect("JOBWIRE_TEST_MINUTES is a whole number"),
    )
}

#[tokio::test]
async fn rebalances_and_restarts_of_the_broker_lose_no_job_and_double_none() {
    let (length, restart_every) = match minutes() {
        Some(minutes) => (Duration::from_secs(60) * minutes, Duration::from_secs(60)),
        None => (Duration::from_secs(20), Duration::from_secs(10)),
    };
    let mut kafka = Kafka::start().await;
    let fleet = Fleet::on(&kafka.url()).await;
    let began = Instant::now();
    let restarting = async {
        let mut restarts = 0;
        loop {
            tokio::time::sleep(restart_every).await;
            if began.elapsed() + restart_every / 2 > length {
                return restarts;
            }
            kafka.stop().await;
            kafka.start_again().await;
            restarts += 1;
        }
    };
    let working = async {
        let stays = fleet.node().await;
        let mut leaves = fleet.node().await;
        let mut rebalances = 0;
        while began.elapsed() < length {
            let since = Instant::now();
            let joins = fleet.node().await;
            leaves.stop().await;
            leaves = joins;
            rebalances += 1;
            while since.elapsed() < REBALANCE {
                fleet.create(20, 3).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        (stays, leaves, rebalances)
    };
    let ((stays, leaves, rebalances), restarts) = tokio::join!(working, restarting);
    fleet.until_healthy().await;
    fleet.all_have_run().await;
    let jobs = fleet.created();
    println!("{rebalances} changes of the fleet, {restarts} restarts of the broker, {jobs} jobs");
    leaves.stop().await;
    stays.stop().await;
}
