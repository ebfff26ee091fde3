//! The database, transport and nodes of a demonstration. They are set up at the start and always
//! cleared at the end.

use std::time::Duration;

use jobwire_core::store::SchemaStatus;
use jobwire_core::{CommitHook, Handlers, JobQuery, JobState};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connect::{self, Database, Outlet};
use crate::error::Error;
use crate::handlers::configured;
use crate::nodes::{NodeHere, Processes};
use crate::settings::{SecretUrl, Settings};

use super::args::DemoArgs;
use super::ledger::{self, Clock};

/// See the [module](self).
pub(super) struct Stage {
    pub(super) settings: Settings,
    pub(super) database: Database,
    pub(super) clock: Clock,
    /// The correlation id of all jobs of this run.
    pub(super) run: Uuid,
    /// Cancelled when no more jobs may be created.
    pub(super) stop: CancellationToken,
    replays: bool,
    crew: Crew,
    scratch: Option<TempDir>,
}

/// The nodes that run the jobs.
enum Crew {
    /// No nodes.
    None,
    /// A node in this process.
    Here(NodeHere),
    /// Nodes in their own processes.
    Processes(Processes, Outlet),
}

/// The states of jobs that have not ended.
const UNFINISHED: [JobState; 3] = [JobState::Executable, JobState::Timer, JobState::Suspended];

impl Stage {
    /// Connects, migrates an empty database, and refuses a database whose jobs or rows would
    /// falsify the account.
    pub(super) async fn set(settings: Settings, args: &DemoArgs) -> Result<Self, Error> {
        if args.nodes > 1 && !connect::has_broker(&settings) {
            return Err(Error::Usage(format!(
                "--nodes {}: several nodes need a broker that all of them use; give --broker \
                 amqps://…, kafka://…, or none with --database postgres://… (or no --nodes)",
                args.nodes
            )));
        }
        let mut settings = settings.with_names_of("demo");
        let scratch = if settings.is_given("database_url") {
            None
        } else {
            let directory = tempfile::Builder::new().prefix("jobwire-demo-").tempdir();
            let directory = directory.map_err(Error::io(
                "can't create a directory for the demo's database",
            ))?;
            let file = directory.path().join("jobwire-demo.db");
            settings.database_url = SecretUrl::new(format!("sqlite:{}", file.display()));
            Some(directory)
        };
        if args.nodes > 1 && settings.database_url.scheme() == "sqlite" {
            return Err(Error::Usage(
                "--nodes: SQLite serves one node; give --database postgres://…".to_owned(),
            ));
        }
        let database = Database::connect(&settings, true).await?;
        if let SchemaStatus::Outdated { found: 0, .. } = database.status().await? {
            database.migrate().await?;
        }
        database.status().await?.ready()?;
        if !args.keep {
            refuse_foreign(&database).await?;
        }
        let clock = Clock::of(&database).await?;
        Ok(Self {
            settings,
            database,
            clock,
            run: Uuid::new_v4(),
            stop: CancellationToken::new(),
            replays: args.input.is_some(),
            crew: Crew::None,
            scratch,
        })
    }

    /// Starts a node in this process with additional handlers. Returns the hook that publishes new
    /// hints.
    pub(super) async fn start_here(
        &mut self,
        add: impl FnOnce(&mut Handlers),
    ) -> Result<CommitHook, Error> {
        let mut handlers = configured(&self.settings)?;
        add(&mut handlers);
        let node = NodeHere::start(&self.settings, &self.database, handlers).await?;
        let hook = node.hook();
        self.crew = Crew::Here(node);
        Ok(hook)
    }

    /// Starts nodes as processes. Returns the hook that publishes new hints.
    pub(super) async fn start_processes(
        &mut self,
        count: u16,
    ) -> Result<Option<CommitHook>, Error> {
        let outlet = Outlet::open(&self.settings).await?;
        let hook = outlet.hook();
        let processes = Processes::start(&self.settings, count, &["run"]).await?;
        self.crew = Crew::Processes(processes, outlet);
        Ok(hook)
    }

    /// Returns the node processes that ended although they were not asked to stop.
    pub(super) fn lost_nodes(&mut self) -> Result<Vec<String>, Error> {
        match &mut self.crew {
            Crew::Processes(processes, _) => processes.lost(),
            Crew::None | Crew::Here(_) => Ok(Vec::new()),
        }
    }

    /// Returns the name of the database for the account.
    pub(super) fn database_name(&self) -> String {
        match &self.scratch {
            Some(_) => "SQLite, a temporary file (removed)".to_owned(),
            None => self.settings.database_url.to_string(),
        }
    }

    /// Returns whether nodes of other processes can be reached.
    pub(super) fn has_broker(&self) -> bool {
        connect::has_broker(&self.settings)
    }

    /// Returns the number of nodes that were started.
    pub(super) fn nodes(&self) -> usize {
        match &self.crew {
            Crew::None => 0,
            Crew::Here(_) => 1,
            Crew::Processes(processes, _) => processes.count(),
        }
    }

    /// Returns the number of this run's jobs that have not ended.
    pub(super) async fn unfinished(&self) -> Result<i64, Error> {
        Ok(self.count(UNFINISHED.to_vec()).await?)
    }

    /// Returns the number of this run's dead letters.
    pub(super) async fn dead_letters(&self) -> Result<i64, Error> {
        Ok(self.count(vec![JobState::DeadLetter]).await?)
    }

    async fn count(&self, states: Vec<JobState>) -> Result<i64, jobwire_core::StoreError> {
        let filter = JobQuery::default().states(states).correlation_id(self.run);
        self.database.store().count(&filter).await
    }

    /// Ends the run early: creates no more jobs and lets running jobs end. Returns the end of a
    /// sentence about the remaining jobs.
    pub(super) async fn abandon(mut self) -> Result<String, Error> {
        self.stop.cancel();
        self.dismiss().await?;
        let left = match (&self.scratch, self.unfinished().await) {
            (Some(_), _) => "; its temporary database is removed".to_owned(),
            (None, Ok(0)) => "; none of its jobs is left in the database".to_owned(),
            (None, Ok(left)) if self.replays => {
                format!(
                    "; {left} of its jobs are left in the database, and `jobwire run` finishes them"
                )
            }
            (None, Ok(left)) => format!("; {left} of its jobs are left in the database"),
            (None, Err(error)) => {
                format!("; the number of its remaining jobs could not be read: {error}")
            }
        };
        self.clear().await?;
        Ok(left)
    }

    async fn dismiss(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.crew, Crew::None) {
            Crew::None => Ok(()),
            Crew::Here(node) => {
                node.stop().await;
                Ok(())
            }
            Crew::Processes(processes, outlet) => {
                let stopped = processes.stop(self.settings.shutdown_timeout).await;
                outlet.close(Duration::from_secs(5)).await;
                stopped
            }
        }
    }

    /// Stops the nodes, closes the database and removes temporary files.
    pub(super) async fn clear(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let dismissed = self.dismiss().await;
        self.database.store().close().await;
        if let Some(scratch) = self.scratch.take() {
            scratch
                .close()
                .map_err(Error::io("can't remove the demo's database"))?;
        }
        dismissed
    }
}

/// Refuses a database with other jobs, which would run and be counted with those of the run.
async fn refuse_foreign(database: &Database) -> Result<(), Error> {
    let filter = JobQuery::default().states(UNFINISHED);
    let unfinished = database.store().count(&filter).await?;
    let rows = ledger::count(database).await?;
    if unfinished == 0 && rows == 0 {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the database has {unfinished} unfinished jobs and {rows} rows of earlier replays; give \
         the demo its own with --database, or pass --keep to run beside them"
    )))
}
