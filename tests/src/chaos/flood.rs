//! Floods: more jobs at once than the nodes can run in many seconds, and the takeover of a dead
//! node's jobs among them.

use super::ledger::Ledger;
use super::workload::Kind;
use super::world::World;
use crate::wait::within;
use jobwire_core::{Client, JobId, NewJob, Store};
use serde_json::json;
use std::time::Duration;

/// Jobs for each slot of the fleet.
const DEPTH: usize = 12;
/// The maximum number of jobs in a flood. More would test something else.
const MOST: usize = 2_000;

/// Creates a backlog of jobs that take up to `leases` leases each. They have no hint; the sweeper
/// finds them, like those of a foreign writer.
pub async fn flood(world: &World, ledger: &Ledger, leases: f64) {
    let count = (DEPTH * world.slots()).min(MOST);
    let longest = world.lease().mul_f64(leases).as_secs_f64() * 1_000.0;
    let jobs = (0..count).map(|number| {
        let share = (number % 10) as f64 / 9.0;
        NewJob::of(
            Kind::Long.job_type(),
            &json!({ "ms": (longest * share).round() }),
        )
    });
    let jobs: Vec<NewJob> = jobs.collect();
    let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    ledger.open(&ids);
    let store = world.store(None).await;
    let created = async {
        let mut transaction = Client::without_hints(store.clone()).begin().await?;
        transaction.create_many(jobs).await?;
        transaction.commit().await
    };
    ledger.ended(&ids, &created.await);
    store.close().await;
}

/// Kills one node while a backlog waits and nothing else is broken. These takeovers are always
/// judged by their time.
pub async fn kill_a_busy_node(world: &World, ledger: &Ledger) {
    world.quiet().await;
    flood(world, ledger, 0.3).await;
    let store = world.store(None).await;
    let busy = within(Duration::from_secs(30), || async {
        let leases =
            "SELECT count(*) FROM jobwire.job_lease l JOIN jobwire.job j ON j.id = l.job_id
            WHERE l.owner IS NOT NULL AND j.type = $1";
        let leases = sqlx::query_scalar(leases).bind(Kind::Long.job_type());
        let leases: i64 = leases.fetch_one(store.pool()).await.ok()?;
        // More than the other nodes can hold. Nodes of many slots take all jobs, so the limit is
        // half of the flood.
        let enough = (world.slots() * 3 / 4).min(MOST / 2);
        usize::try_from(leases)
            .ok()
            .filter(|leases| *leases >= enough)
    });
    if busy.await.is_none() {
        world.surprise("the nodes did not take the backlog".to_owned());
    }
    store.close().await;
    // Nodes of many slots leave no jobs to the others.
    let mut node = world.busiest_node().await.lock().await;
    world.say("KillNode, and nothing else");
    node.kill();
    tokio::time::sleep(2 * world.lease()).await;
    world.start_node(&mut node, None).await;
}
