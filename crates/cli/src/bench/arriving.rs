//! The common part of the workloads that create jobs while nodes run.
//!
//! Before the measurement, some transactions create jobs while no node runs, to measure the cost of
//! such a transaction alone. Then the nodes start, and more jobs run as a warm-up, which opens
//! connections and prepares plans.

use std::sync::Arc;

use super::clients::{Clients, Commits, Hints};
use super::percentiles::Percentiles;
use super::plan::Plan;
use super::refusal::refuse_embedded;
use super::report::{Report, seconds};
use super::resources::{Cost, Mark};
use super::run::{Finished, Run};
use super::{MOST_JOBS, Make, job, make};
use crate::error::Error;
use crate::settings::Settings;

/// Number of creating transactions that are measured alone. The cheapest counts, since a new
/// connection runs additional statements.
const ALONE: u32 = 3;

/// See the [module](self).
pub(super) struct Arriving<'a> {
    pub(super) run: Run<'a>,
    pub(super) clients: Clients,
    pub(super) commits: Arc<Commits>,
    /// The first job after the warm-up.
    pub(super) first: u32,
    make: Make,
    count: u16,
    batch: u32,
    /// Statements of one creating transaction, if they are counted.
    statements: Option<u64>,
}

/// A run whose jobs have arrived and whose checks passed.
pub(super) struct Arrived<'a> {
    finished: Finished<'a>,
    commits: Arc<Commits>,
    /// The first measured job, and the number of them.
    from: u32,
    jobs: u32,
    cost: Cost,
}

impl<'a> Arriving<'a> {
    /// Starts `nodes` nodes and `count` clients, which create `batch` jobs in a transaction.
    pub(super) async fn open(
        settings: &'a Settings,
        nodes: u16,
        count: u16,
        batch: u32,
        hints: Hints,
    ) -> Result<Self, Error> {
        refuse_embedded(settings)?;
        let run = Run::open(settings, nodes, MOST_JOBS).await?;
        let mut this = Self {
            run,
            clients: Clients::open(settings, count, hints).await?,
            commits: Commits::kept(),
            first: 0,
            make: make(job),
            count,
            batch,
            statements: None,
        };
        for _ in 0..ALONE {
            let before = this.run.observer.statements().await;
            this.go_before(1).await?;
            let after = this.run.observer.statements().await;
            let cost = before.zip(after);
            let cost = cost.and_then(|(from, to)| u64::try_from(to.all - from.all).ok());
            this.statements = this.statements.into_iter().chain(cost).min();
        }
        this.run.start_nodes(nodes).await?;
        this.go_before(count).await?;
        this.run.until_done(this.first).await?;
        Ok(this)
    }

    /// Runs one transaction on each of `count` clients, before the measurement.
    async fn go_before(&mut self, count: u16) -> Result<(), Error> {
        let end = self.first + u32::from(count) * self.batch;
        let plan = Arc::new(Plan::of(self.first..end, self.batch));
        self.clients
            .create(count, &plan, &self.make, &self.commits)
            .await?;
        self.first = end;
        Ok(())
    }

    /// Creates the jobs of the plan. Returns the number after the last job.
    pub(super) async fn create(&self, plan: Plan) -> Result<u32, Error> {
        let plan = Arc::new(plan);
        self.clients
            .create(self.count, &plan, &self.make, &self.commits)
            .await?;
        Ok(plan.reached())
    }

    /// Waits until `all` jobs are done. Jobs from number `from` on are measured, since the mark
    /// `before`.
    pub(super) async fn finish(
        mut self,
        before: &Mark,
        from: u32,
        all: u32,
    ) -> Result<Arrived<'a>, Error> {
        self.run.until_done(all).await?;
        let jobs = all.saturating_sub(from);
        let transactions = u64::from(jobs.div_ceil(self.batch));
        let creating = self.statements.map(|one| one * transactions);
        let cost = self.run.spent(before).await.per_job(jobs, creating);
        self.clients.close().await?;
        Ok(Arrived {
            finished: self.run.finish(all).await?,
            commits: self.commits,
            from,
            jobs,
            cost,
        })
    }
}

impl Arrived<'_> {
    /// Returns the times from the planned arrival of each job to its start.
    pub(super) fn since(&self, arrival: impl Fn(u32) -> i64) -> Option<Percentiles> {
        let waited = |n, _| arrival(n);
        self.commits.waited(&self.finished.seen, self.from, waited)
    }

    /// Returns the report for the time from `began` to the last start.
    pub(super) fn report(self, workload: String, began: i64) -> Report {
        let seen = &self.finished.seen;
        let last = seen.last_start(self.from).unwrap_or(began);
        let commit_to_start = self.commits.to_start(seen, self.from);
        let seconds = seconds(began, last);
        Report {
            commit_to_start,
            ..self
                .finished
                .report(workload, self.jobs, seconds, self.cost)
        }
    }
}
