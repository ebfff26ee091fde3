//! Rule 25: an outage of the database outlasts the leases. No living node could renew one, so the leader ends
//! none for one renewal period after it.

use std::time::{Duration, Instant};

use jobwire_core::NewJob;
use jobwire_tests::{Postgres, Proxy, Signal, Stop, eventually, shared};
use serde_json::json;
use url::Url;

use super::SOON;
use crate::fleet::Fleet;

const LEASE: Duration = Duration::from_secs(20);
/// The renewal period, less the moment until the server answers.
const KEPT: Duration = Duration::from_secs(9);

/// The way in which the database is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    Restart,
    Network,
}

/// The holder of a job is the last one that the database hears again. Nothing is known of it until then.
async fn outlasts(outage: Outage) {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    let fleet = Fleet::new(database.clone(), shared::rabbitmq().await.space().await).await;
    let address = Url::parse(&database).unwrap();
    let address = format!(
        "{}:{}",
        address.host_str().unwrap(),
        address.port().unwrap()
    );
    let proxy = Proxy::start(&address).await;
    let through = proxy.url(&database);
    let node = async |settings: &[(&str, &str)]| {
        let mut all = vec![("JOBWIRE_LEASE", "20s")];
        all.extend(settings);
        fleet.node_on(&through, &fleet.space.url, &all).await
    };
    let leads = async || -> Option<bool> {
        let leads =
            "SELECT EXISTS (SELECT FROM jobwire.leader WHERE expires_at > clock_timestamp())";
        let leads = sqlx::query_scalar(leads).fetch_one(fleet.store.pool());
        leads.await.ok()
    };
    let leader = node(&[("JOBWIRE_LANES", "other")]).await;
    eventually("a node to lead", SOON, || async {
        leads().await?.then_some(())
    })
    .await;
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
    eventually("a node to lead again", SOON, || async {
        leads().await?.then_some(())
    })
    .await;
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
    assert!(
        cycles > 0,
        "the leader came back later than a renewal period"
    );

    // The holder is dead after all: the guard ends.
    holder.signal(Signal::SIGKILL);
    eventually("the lease to be ended", SOON, || async {
        let (owner, _, strikes) = lock().await?;
        (owner.is_none() && strikes == 1).then_some(())
    })
    .await;
    drop(leader);
}

#[tokio::test]
async fn after_a_restart_that_outlasts_the_lease_no_lease_is_ended_for_a_renewal_period() {
    outlasts(Outage::Restart).await;
}

#[tokio::test]
async fn after_a_cut_that_outlasts_the_lease_no_lease_is_ended_for_a_renewal_period() {
    outlasts(Outage::Network).await;
}
