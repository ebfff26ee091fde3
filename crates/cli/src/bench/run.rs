//! One run of a workload: its own database, the nodes that it starts, their reports, and the cost.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::JobQuery;
use tokio::time::Instant;

use super::clients::{Clients, Commits, Hints};
use super::groups::Groups;
use super::observer::Observer;
use super::plan::Plan;
use super::processors;
use super::refusal::refuse_lonely;
use super::report::{Report, rate};
use super::resources::{Cost, Mark, Spent};
use super::rows::{RowVersions, Rows};
use super::seen::Seen;
use super::starts::Starts;
use super::{Make, check};
use crate::connect::{Database, has_broker, has_wakes};
use crate::error::Error;
use crate::nodes::Processes;
use crate::output;
use crate::settings::Settings;

/// Jobs in a transaction that fills the database.
const FILLING: u32 = 1_000;
/// The time without a completion after which a run fails.
const DONE: Duration = Duration::from_secs(60);
/// The interval of the checks whether the machine is idle. An idle machine is busy for at most a
/// tenth of the interval.
const LOOK: Duration = Duration::from_millis(500);

/// See the [module](self).
pub(super) struct Run<'a> {
    pub(super) settings: &'a Settings,
    pub(super) starts: Starts,
    pub(super) observer: Observer,
    /// Remarks for the report.
    pub(super) notes: Vec<String>,
    database: Database,
    groups: Groups,
    nodes: Option<Processes>,
    rows: Option<Rows>,
}

/// A run that has ended and passed its checks.
pub(super) struct Finished<'a> {
    pub(super) seen: Seen,
    pub(super) notes: Vec<String>,
    settings: &'a Settings,
    nodes: usize,
    rows: Option<RowVersions>,
}

impl<'a> Run<'a> {
    /// Prepares a database without jobs for a run of at most `most` jobs.
    pub(super) async fn open(settings: &'a Settings, nodes: u16, most: u32) -> Result<Self, Error> {
        refuse_lonely(settings, nodes)?;
        let preparing = Database::connect(settings, true).await?;
        preparing.migrate().await?;
        let waiting = preparing.store().count(&JobQuery::default()).await?;
        let known = preparing.store().nodes().await?;
        preparing.store().close().await;
        let living = known.iter().filter(|node| node.lives()).count();
        if living > 0 {
            return Err(Error::Usage(format!(
                "{} of this database would take the jobs; stop them, or give a database of its own with \
                 --database (a node that was killed counts as living for 150 s)",
                output::count(living as u64, "living node")
            )));
        }
        if waiting > 0 {
            return Err(Error::Usage(format!(
                "the database has {waiting} jobs, which would run; give an empty database with \
                 --database"
            )));
        }
        let (groups, notes) = Groups::of(settings);
        let mut run = Self {
            settings,
            starts: Starts::listen(most).await?,
            observer: Observer::open(settings).await?,
            notes,
            database: Database::connect(settings, true).await?,
            groups,
            nodes: None,
            rows: None,
        };
        run.observer.vacuum().await?;
        run.rows = run.observer.rows().await?;
        Ok(run)
    }

    /// Creates jobs and their hints in the broker before a node runs.
    pub(super) async fn fill(
        &mut self,
        jobs: u32,
        hints: Hints,
        make: &Make,
        commits: &Arc<Commits>,
    ) -> Result<(), Error> {
        let clients = Clients::open(self.settings, 1, hints).await?;
        // One client, so that jobs are created in the order of their numbers.
        let plan = Arc::new(Plan::of(0..jobs, FILLING));
        clients.create(1, &plan, make, commits).await?;
        clients.close().await?;
        self.rows = self.observer.rows().await?;
        Ok(())
    }

    /// Vacuums the tables and waits until the machine is nearly idle. After the creation of jobs,
    /// database and broker still have work, such as writes to disk. An old backlog causes no such
    /// work.
    pub(super) async fn rest(&mut self, at_most: Duration) -> Result<(), Error> {
        self.observer.vacuum().await?;
        let until = Instant::now() + at_most;
        let mut before = processors::machine();
        while Instant::now() + LOOK <= until {
            tokio::time::sleep(LOOK).await;
            let now = processors::machine();
            let busy = now
                .zip(before)
                .map(|(now, before)| now.saturating_sub(before));
            if busy.is_none_or(|micros| u128::from(micros) <= LOOK.as_micros() / 10) {
                return Ok(());
            }
            before = now;
        }
        let note = format!("the machine was still busy {at_most:.0?} after the jobs were created");
        self.notes.push(note);
        Ok(())
    }

    /// Starts `count` nodes and waits until they are ready.
    pub(super) async fn start_nodes(&mut self, count: u16) -> Result<(), Error> {
        let address = self.starts.address();
        let arguments = ["bench", "node", "--report", &address];
        self.nodes = Some(Processes::start(self.settings, count, &arguments).await?);
        Ok(())
    }

    /// Starts `count` nodes that wait until [`go`](Self::go). Without a broker, the node creates
    /// the hints itself, because in-process hints exist only in its process.
    pub(super) async fn hold_nodes(&mut self, count: u16, hints: Hints) -> Result<(), Error> {
        let address = self.starts.address();
        let mut arguments = vec!["bench", "node", "--report", &address, "--held"];
        if hints == Hints::Sent && !has_broker(self.settings) {
            arguments.push("--adopt");
        }
        self.nodes = Some(Processes::hold(self.settings, count, &arguments).await?);
        Ok(())
    }

    /// Lets the held nodes start.
    pub(super) fn go(&mut self) {
        if let Some(nodes) = &mut self.nodes {
            nodes.go();
        }
    }

    fn ids(&self) -> Vec<u32> {
        self.nodes.as_ref().map(Processes::ids).unwrap_or_default()
    }

    /// Reads the counters.
    pub(super) async fn mark(&mut self) -> Mark {
        let ids = self.ids();
        Mark::take(&mut self.observer, self.groups, &ids).await
    }

    /// Returns the differences since a mark.
    pub(super) async fn spent(&mut self, since: &Mark) -> Spent {
        let now = self.mark().await;
        since.until(&now, &self.ids())
    }

    /// Waits until `jobs` jobs have started and no job is left.
    pub(super) async fn until_done(&mut self, jobs: u32) -> Result<(), Error> {
        self.starts.until(jobs).await?;
        let mut last = (i64::MAX, Instant::now());
        loop {
            let left = self.database.store().count(&JobQuery::default()).await?;
            self.observer.also_asked(1);
            if left == 0 {
                return Ok(());
            }
            if left < last.0 {
                last = (left, Instant::now());
            } else if last.1.elapsed() > DONE {
                return Err(Error::Failed(format!(
                    "{left} jobs have started, and none was completed within {DONE:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the nodes and checks that each of `jobs` jobs started exactly once.
    pub(super) async fn finish(mut self, jobs: u32) -> Result<Finished<'a>, Error> {
        let mut count = 0;
        if let Some(nodes) = self.nodes.take() {
            count = nodes.count();
            nodes.stop(self.settings.shutdown_timeout).await?;
        }
        let seen = self.starts.close().await;
        check::each_once(&seen, jobs)?;
        self.database.store().close().await;
        let after = self.observer.rows().await?;
        let rows = self.rows.zip(after);
        if rows.is_some_and(|(before, after)| !before.alone || !after.alone) {
            self.notes.push(
                "row versions may be wrong: other sessions are connected to this database"
                    .to_owned(),
            );
        }
        if self.settings.database_url.scheme() != "sqlite"
            && self.observer.statements().await.is_none()
        {
            self.notes.push(
                "statements are not measured: add pg_stat_statements to shared_preload_libraries, \
                 and run CREATE EXTENSION pg_stat_statements in this database"
                    .to_owned(),
            );
        }
        Ok(Finished {
            seen,
            settings: self.settings,
            nodes: count,
            rows: rows.and_then(|(before, after)| before.until(&after, jobs)),
            notes: self.notes,
        })
    }
}

impl Finished<'_> {
    /// Returns the part of the report that all workloads share.
    pub(super) fn report(self, workload: String, jobs: u32, seconds: f64, cost: Cost) -> Report {
        Report {
            workload,
            database: self.settings.database_url.to_string(),
            broker: self.settings.broker_url.to_string(),
            nodes: self.nodes,
            jobs,
            seconds,
            jobs_per_second: rate(jobs, seconds),
            swept: (has_broker(self.settings) && !has_wakes(self.settings))
                .then_some(self.seen.swept),
            cost,
            rows: self.rows,
            notes: self.notes,
            ..Report::default()
        }
    }
}
