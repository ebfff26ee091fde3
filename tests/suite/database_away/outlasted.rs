//! Rule 25: an outage of the database outlasts the leases. No living node could renew one, so the leader ends
//! none for one renewal period after it.

use std::time::{Duration, Instant};

use jobwire_core::NewJob;
use jobwire_tests::{Postgres, Signal, Stop, eventually, shared};
use serde_json::json;

use super::SOON;
use crate::fleet::Fleet;
use crate::world::{proxy_before, until_led};

const LEASE: Duration = Duration::from_secs(20);
/// The renewal period, less the moment until the server answers.
const KEPT: Duration = Duration::from_secs(9);
/// On a slow machine a leader may be back only after that.
const TRIES: usize = 3;

/// The way in which the database is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    Restart,
    Network,
}

async fn outlasts(outage: Outage) {
    for _ in 0..TRIES {
        if no_lease_is_ended_early(outage).await {
            return;
        }
    }
    panic!("no leader came back within a renewal period");
}

/// The holder of a job is the last one that the database hears again. Nothing is known of it until then.
/// Returns whether there was a leader that could have ended its lease.
async fn no_lease_is_ended_early(outage: Outage) -> bool {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    let fleet = Fleet::new(database.clone(), shared::rabbitmq().await.space().await).await;
    let proxy = proxy_before(&database).await;
    let through = proxy.url(&database);
    let node = async |settings: &[(&str, &str)]| {
        let mut all = vec![("JOBWIRE_LEASE", "20s")];
        all.extend(settings);
        fleet.node_on(&through, &fleet.space.url, &all).await
    };
    let leader = node(&[("JOBWIRE_LANES", "other")]).await;
    until_led(&fleet.store).await;
    let holder = node(&[]).await;
    let job = NewJob::of("sleep", &json!({ "ms": 3_600_000 }));
    fleet.jobs.create(job).await.unwrap();
    let lock = async || -> Option<(Option<uuid::Uuid>, i64, i32)> {
        let lease = "SELECT owner, fence, strikes FROM jobwire.job_lease";
        let lease = sqlx::query_as(lease).fetch_optional(fleet.store.pool());
        lease.await.ok().flatten()
    };
    let held = eventually("the job to run", SOON, &lock).await;

    let began = Instant::now();
    match outage {
        Outage::Restart => server.stop(Stop::Immediate).await,
        Outage::Network => {
            proxy.refuse().await;
            proxy.cut();
        }
    }
    // Nobody could renew a lease for longer than it lasts. The leader's own lease is shorter.
    eventually("the lease to end", SOON, || async {
        (began.elapsed() > LEASE + Duration::from_secs(2)).then_some(())
    })
    .await;
    holder.signal(Signal::SIGSTOP);
    let back = Instant::now();
    match outage {
        Outage::Restart => server.start_again().await,
        Outage::Network => proxy.accept().await,
    }
    until_led(&fleet.store).await;
    // Cycles that could end the lease follow.
    let mut cycles = 0;
    while back.elapsed() < KEPT {
        let now = lock().await;
        if back.elapsed() < KEPT && now.is_some() {
            assert_eq!(now, Some(held), "after {:?}", back.elapsed());
            cycles += 1;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // The holder is dead after all: the guard ends.
    holder.signal(Signal::SIGKILL);
    eventually("the lease to be ended", SOON, || async {
        let (owner, _, strikes) = lock().await?;
        (owner.is_none() && strikes == 1).then_some(())
    })
    .await;
    drop(leader);
    cycles > 0
}

#[tokio::test]
async fn after_a_restart_that_outlasts_the_lease_no_lease_is_ended_for_a_renewal_period() {
    outlasts(Outage::Restart).await;
}

#[tokio::test]
async fn after_a_cut_that_outlasts_the_lease_no_lease_is_ended_for_a_renewal_period() {
    outlasts(Outage::Network).await;
}
