//! Rule 25: the clock of the database's server jumps while nodes run.

use std::time::Duration;

use jobwire_core::{NewJob, Store};
use jobwire_tests::{Postgres, Signal, eventually, shared};
use serde_json::json;

use super::SOON;
use crate::fleet::Fleet;
use crate::world::until_led;

/// What happens to the leader when the clock jumps.
#[derive(PartialEq)]
enum Leader {
    Lives,
    Dies,
    /// It dies earlier, and the other node has received nothing from it.
    IsUnheard,
}

/// The clock jumps far beyond the lease of a running job, and perhaps the leader dies at that moment.
/// The job's node renews the lease in time, so the job stays with it.
async fn jumps(leader: Leader) {
    let server = Postgres::start_with_clock().await;
    let database = server.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    // The node asks which node leads before it renews.
    let lease = match leader {
        Leader::IsUnheard => "20s",
        Leader::Lives | Leader::Dies => "5s",
    };
    let settings = [("JOBWIRE_LEASE", lease), ("JOBWIRE_SWEEP_INTERVAL", "3s")];
    let of_leader = [&settings[..], &[("JOBWIRE_LANES", "other")]].concat();
    let of_holder = [&settings[..], &[("JOBWIRE_ATTEMPT_TYPES", "sleep")]].concat();
    let first = fleet.node(&of_leader).await;
    until_led(&fleet.store).await;
    if leader == Leader::IsUnheard {
        first.signal(Signal::SIGKILL);
    }
    let holder = fleet.node(&of_holder).await;
    let job = NewJob::of("sleep", &json!({ "ms": 20_000 })).instance("one");
    let id = job.id();
    fleet.jobs.create(job).await.unwrap();
    let lock = async || -> Option<(Option<uuid::Uuid>, i64, i32)> {
        sqlx::query_as("SELECT owner, fence, strikes FROM jobwire.job_lease")
            .fetch_optional(fleet.store.pool())
            .await
            .unwrap()
    };
    let held = eventually("the job to run", SOON, &lock).await;

    server.clock().jump(Duration::from_secs(60));
    if leader == Leader::Dies {
        first.signal(Signal::SIGKILL);
    }
    eventually("the job to be done", SOON, || async {
        match lock().await {
            Some(now) => {
                assert_eq!(now, held, "the lock of a living node was changed");
                None
            }
            None => Some(()),
        }
    })
    .await;
    fleet.until_empty(SOON).await;
    let attempts = fleet.store.attempts(id, 10).await.unwrap();
    let ends: Vec<_> = attempts.iter().map(|attempt| &*attempt.outcome).collect();
    assert_eq!(ends, ["done"]);
    drop(holder);
}

#[tokio::test]
async fn a_jump_of_the_clock_takes_no_job_from_a_living_node() {
    jumps(Leader::Lives).await;
}

#[tokio::test]
async fn a_leader_that_follows_one_that_died_in_a_jump_takes_no_job_from_a_living_node() {
    jumps(Leader::Dies).await;
}

#[tokio::test]
async fn a_node_that_never_heard_the_leader_before_a_jump_takes_no_job_from_a_living_node() {
    jumps(Leader::IsUnheard).await;
}
