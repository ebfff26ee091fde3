//! Nodes that serve different types and are redeployed all the time, and slow creators.
//!
//! Every few seconds one node shuts down and starts again with other handlers, as in a rolling
//! deployment. Every second start of a node omits some kinds, different ones for each node, so that
//! each kind has a node. [`Kind::Rare`] is served by the first node only.
//!
//! Slow creators keep transactions open for up to a minute, and create their jobs in savepoints.

use super::ledger::Ledger;
use super::workload::{Kind, Maker};
use super::world::World;
use crate::wait::within;
use jobwire_core::{Client, JobId, JobTransaction, NewJob, PgStore, StoreError};
use rand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two deployments.
const EVERY: Duration = Duration::from_secs(5);
/// The longest time that a slow creator keeps a transaction open.
const LONGEST: Duration = Duration::from_secs(60);

/// Returns the kinds that node `number` of `nodes` serves at its start number `start`.
pub(super) fn served(number: usize, nodes: usize, start: u64) -> impl Iterator<Item = Kind> {
    let lacks = move |at: usize| start.is_multiple_of(2) && at % nodes == number - 1;
    let kinds = Kind::ALL.into_iter().enumerate();
    let served = kinds.filter(move |(at, kind)| {
        if *kind == Kind::Rare {
            number == 1
        } else {
            !lacks(*at)
        }
    });
    served.map(|(_, kind)| kind)
}

/// Waits for `time`. Returns true if the run ends before.
async fn ends_within(time: Duration, stop: &AtomicBool) -> bool {
    let stopped = || std::future::ready(stop.load(Ordering::Relaxed).then_some(()));
    within(time, stopped).await.is_some()
}

/// Deploys one node after the other until the run ends. Skips a node that has another fault.
pub async fn deploy(world: Arc<World>, stop: Arc<AtomicBool>) {
    for node in world.nodes.iter().cycle() {
        if ends_within(EVERY, &stop).await {
            return;
        }
        let Ok(mut node) = node.try_lock() else {
            continue;
        };
        let since = world.clock.now();
        world.terminate(&mut node).await;
        world.start_node(&mut node, None).await;
        world.hurt_since(node.number(), since);
    }
}

/// A creator that keeps its transactions open for long.
pub(super) struct SlowCreator {
    pub(super) jobs: Client<PgStore>,
    pub(super) ledger: Ledger,
    pub(super) maker: Maker,
    pub(super) stop: Arc<AtomicBool>,
}

impl SlowCreator {
    pub(super) async fn work(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let count = self.maker.random().random_range(1..=12);
            let time = self.maker.random().random_range(0.1..1.0);
            let jobs: Vec<NewJob> = (0..count).map(|_| self.maker.make()).collect();
            let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
            self.ledger.open(&ids);
            let created = self.create(jobs, LONGEST.mul_f64(time)).await;
            self.ledger.ended(&ids, &created);
            if created.is_err() {
                // The database is away.
                ends_within(Duration::from_secs(1), &self.stop).await;
            }
        }
    }

    /// Creates half of the jobs at once and the others at the end, all of them in savepoints.
    async fn create(&self, mut jobs: Vec<NewJob>, time: Duration) -> Result<(), StoreError> {
        let later = jobs.split_off(jobs.len() / 2);
        let mut transaction = self.jobs.begin().await?;
        create_in_savepoint(&mut transaction, jobs).await?;
        ends_within(time, &self.stop).await;
        create_in_savepoint(&mut transaction, later).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Creates the jobs in a savepoint, after a savepoint that is rolled back.
async fn create_in_savepoint(
    transaction: &mut JobTransaction<PgStore>,
    jobs: Vec<NewJob>,
) -> Result<(), StoreError> {
    let undone =
        "SAVEPOINT step; ROLLBACK TO SAVEPOINT step; RELEASE SAVEPOINT step; SAVEPOINT step";
    sqlx::raw_sql(undone).execute(&mut **transaction).await?;
    transaction.create_many(jobs).await?;
    let release = sqlx::raw_sql("RELEASE SAVEPOINT step");
    release.execute(&mut **transaction).await?;
    Ok(())
}
