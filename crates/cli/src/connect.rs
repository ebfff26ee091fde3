//! Connects to the database and the broker that the settings name.
//!
//! A SQLite file is created and migrated automatically, since it belongs to this program alone.
//! PostgreSQL is migrated only by `jobwire migrate up`, since other programs may depend on it;
//! until then the error names that command.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{
    DefinitionKey, Ended, EndedScope, SCHEMA_VERSION, SchemaStatus, SqlStore,
};
use jobwire_core::transport::routed::RoutedTransport;
use jobwire_core::transport::{Control, TransportError};
use jobwire_core::{
    Batch, Calendars, Client, CommitHook, InProcessTransport, JobId, Lane, NewJob, PgStore,
    PgTransport, SqliteStore, Store, StoreError, Transport,
};

use crate::calendars;
use crate::error::{self, Error};
use crate::settings::{SecretUrl, Settings};

/// The database that holds the jobs.
#[derive(Clone, Debug)]
pub enum Database {
    /// PostgreSQL.
    Postgres(PgStore),
    /// SQLite.
    Sqlite(SqliteStore),
}

/// Returns the business calendars of the settings.
///
/// # Errors
/// Fails if their file has mistakes.
pub(crate) fn calendars(settings: &Settings) -> Result<Calendars, Error> {
    let Some(file) = &settings.calendars else {
        return Ok(Calendars::default());
    };
    calendars::read(file).map_err(|error| error.of_setting(settings, "calendars"))
}

impl Database {
    /// Connects without checking the schema, for `migrate` and `doctor`. With `create`, a missing
    /// SQLite file is created.
    ///
    /// # Errors
    /// Fails if the database can't be reached, or the file does not exist, or the file of the
    /// business calendars has mistakes.
    pub async fn connect(settings: &Settings, create: bool) -> Result<Self, Error> {
        let url = &settings.database_url;
        let calendars = calendars(settings)?;
        let connected = if url.scheme() == "sqlite" {
            let mut options = settings.sqlite_options();
            options.create = create;
            SqliteStore::connect_with(url.expose(), options)
                .await
                .map(|store| Self::Sqlite(store.with_calendars(calendars)))
        } else {
            PgStore::connect_with(url.expose(), settings.pg_options())
                .await
                .map(|store| Self::Postgres(store.with_calendars(calendars)))
        };
        connected.map_err(|source| unusable(url, source))
    }

    /// Connects to the database and checks its schema. SQLite is migrated if necessary.
    ///
    /// # Errors
    /// Fails if the database can't be reached, has no job tables, or has those of a newer program.
    pub async fn open(settings: &Settings) -> Result<Self, Error> {
        refuse_default_file(settings)?;
        let database = Self::connect(settings, true).await?;
        database.fit_for_use(settings).await
    }

    /// Does the same as [`Database::open`], for commands that read or change existing jobs. Does
    /// not create a missing SQLite file, since its path is probably wrong.
    ///
    /// # Errors
    /// Fails like [`Database::open`], and if the file does not exist.
    pub async fn open_existing(settings: &Settings) -> Result<Self, Error> {
        refuse_default_file(settings)?;
        let database = Self::connect(settings, false).await?;
        database.fit_for_use(settings).await
    }

    async fn fit_for_use(self, settings: &Settings) -> Result<Self, Error> {
        self.prepare()
            .await
            .map_err(|source| unusable(&settings.database_url, source))?;
        Ok(self)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        let status = self.status().await?;
        if let (Self::Sqlite(store), SchemaStatus::Outdated { .. }) = (self, &status) {
            store.migrate().await?;
            return self.status().await?.ready();
        }
        status.ready()
    }

    /// Returns whether the tables fit this program.
    ///
    /// # Errors
    /// The database's error.
    pub async fn status(&self) -> Result<SchemaStatus, StoreError> {
        self.store().check().await
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Sqlite(store) => Arc::new(store.clone()),
        }
    }

    /// Updates the tables to this program's version.
    ///
    /// # Errors
    /// The database's error, or an error if the tables are those of a newer program.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.refuse_newer().await?;
        match self {
            Self::Postgres(store) => store.migrate().await,
            Self::Sqlite(store) => store.migrate().await,
        }
    }

    /// Takes the tables back to a version; 0 removes everything.
    ///
    /// # Errors
    /// The database's error, or an error if the tables are those of a newer program, which can take
    /// them back.
    pub async fn migrate_down(&self, version: i32) -> Result<(), StoreError> {
        self.refuse_newer().await?;
        match self {
            Self::Postgres(store) => store.migrate_down(version.into()).await,
            Self::Sqlite(store) => store.migrate_down(version.into()).await,
        }
    }

    async fn refuse_newer(&self) -> Result<(), StoreError> {
        match self.status().await? {
            status @ SchemaStatus::TooNew { .. } => status.ready(),
            SchemaStatus::Ready { version, .. } if version > SCHEMA_VERSION => {
                Err(StoreError::Schema(format!(
                    "the database has schema version {version}, this program knows \
                     {SCHEMA_VERSION}; use the newer program for migrations"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns a creator of jobs on this database, which publishes hints through `hook`. Without a
    /// hook, the sweeper of a running node publishes them.
    #[must_use]
    pub fn creator(&self, hook: Option<CommitHook>) -> Creator {
        match (self, hook) {
            (Self::Postgres(store), Some(hook)) => Creator::Postgres(store.client(hook)),
            (Self::Postgres(store), None) => {
                Creator::Postgres(Client::without_hints(store.clone()))
            }
            (Self::Sqlite(store), Some(hook)) => Creator::Sqlite(store.client(hook)),
            (Self::Sqlite(store), None) => Creator::Sqlite(Client::without_hints(store.clone())),
        }
    }

    /// Returns the numbers of idle and used connections of this process.
    #[must_use]
    pub fn connections(&self) -> (u32, u32) {
        let (size, idle) = match self {
            Self::Postgres(store) => store.connections(),
            Self::Sqlite(store) => (store.pool().size(), store.pool().num_idle()),
        };
        let idle = u32::try_from(idle).unwrap_or(u32::MAX);
        (idle, size.saturating_sub(idle))
    }
}

/// Creates jobs on either database.
#[derive(Clone)]
pub enum Creator {
    /// PostgreSQL.
    Postgres(Client<PgStore>),
    /// SQLite.
    Sqlite(Client<SqliteStore>),
}

impl Creator {
    /// Creates these jobs in one transaction. Returns their ids; for a unique job whose key another
    /// one has, the id of that one.
    ///
    /// # Errors
    /// The database's error; then no job was created. After [`StoreError::CommitUnknown`] either
    /// all or none were created.
    pub async fn create_all(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, StoreError> {
        match self {
            Self::Postgres(creator) => creator.create_many(jobs).await,
            Self::Sqlite(creator) => creator.create_many(jobs).await,
        }
    }
}

/// Maximum number of jobs that one call creates.
const PART: usize = 1_000;

async fn create_batch<S: SqlStore>(
    client: &Client<S>,
    batch: Batch,
    mut jobs: Vec<NewJob>,
) -> Result<Vec<JobId>, StoreError> {
    let mut tx = client.begin().await?;
    let batch = tx.create_batch(batch).await?;
    let mut ids = Vec::with_capacity(jobs.len());
    while !jobs.is_empty() {
        let rest = jobs.split_off(jobs.len().min(PART));
        let part = std::mem::replace(&mut jobs, rest).into_iter();
        let part = part.map(|job| job.batch(batch)).collect();
        ids.extend(tx.create_many(part).await?);
    }
    tx.commit().await?;
    Ok(ids)
}

/// Refuses a broker beside the default database. Hints name jobs of one database: with the file of
/// this machine, a node would take the hints of other nodes and find none of their jobs.
fn refuse_default_file(settings: &Settings) -> Result<(), Error> {
    if !has_broker(settings) || settings.is_given("database_url") {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--broker is given and --database (JOBWIRE_DATABASE_URL) is not. All nodes of a broker use one database: give \
         it, or --database {} if this is the only node",
        settings.database_url
    )))
}

impl Creator {
    /// Creates a batch and these jobs as its members, in one transaction. Returns the ids of the jobs; for
    /// a unique job whose key another one has, the id of that one, which is no member.
    ///
    /// # Errors
    /// The database's error; then nothing was created. After [`StoreError::CommitUnknown`] either all or
    /// nothing was.
    pub async fn create_batch(
        &self,
        batch: Batch,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<JobId>, StoreError> {
        match self {
            Self::Postgres(client) => create_batch(client, batch, jobs).await,
            Self::Sqlite(client) => create_batch(client, batch, jobs).await,
        }
    }

    /// Deletes the jobs of a scope, and asks those that run to stop.
    ///
    /// # Errors
    /// The database's error; then no job was deleted.
    pub async fn end(&self, scope: &EndedScope) -> Result<Ended, StoreError> {
        match self {
            Self::Postgres(client) => client.end(scope).await,
            Self::Sqlite(client) => client.end(scope).await,
        }
    }

    /// Replaces the start timers of a process definition, in one transaction.
    ///
    /// # Errors
    /// The database's error; then nothing was changed. After [`StoreError::CommitUnknown`] either all
    /// or none were replaced.
    pub async fn replace_start_timers(
        &self,
        process_definition: String,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        match self {
            Self::Postgres(creator) => {
                let mut tx = creator.begin().await?;
                let ended = tx.replace_start_timers(process_definition, timers).await?;
                tx.commit().await?;
                Ok(ended)
            }
            Self::Sqlite(creator) => {
                let mut tx = creator.begin().await?;
                let ended = tx.replace_start_timers(process_definition, timers).await?;
                tx.commit().await?;
                Ok(ended)
            }
        }
    }

    /// Replaces the start timers of all versions of a process definition, in one transaction.
    ///
    /// # Errors
    /// The database's error, or that of a timer of another definition or tenant; then nothing was changed.
    /// After [`StoreError::CommitUnknown`] either all or none were replaced.
    pub async fn replace_start_timers_of_key(
        &self,
        key: &DefinitionKey,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        match self {
            Self::Postgres(creator) => {
                let mut tx = creator.begin().await?;
                let ended = tx.replace_start_timers_of_key(key, timers).await?;
                tx.commit().await?;
                Ok(ended)
            }
            Self::Sqlite(creator) => {
                let mut tx = creator.begin().await?;
                let ended = tx.replace_start_timers_of_key(key, timers).await?;
                tx.commit().await?;
                Ok(ended)
            }
        }
    }

    /// Creates these jobs and rolls back, to find out whether the database takes them.
    ///
    /// # Errors
    /// The database's error.
    pub async fn try_all(&self, jobs: &[NewJob]) -> Result<(), StoreError> {
        match self {
            Self::Postgres(creator) => {
                let mut tx = creator.begin().await?;
                tx.create_many(jobs.to_vec()).await?;
                tx.rollback().await
            }
            Self::Sqlite(creator) => {
                let mut tx = creator.begin().await?;
                tx.create_many(jobs.to_vec()).await?;
                tx.rollback().await
            }
        }
    }
}

fn unusable(url: &SecretUrl, source: StoreError) -> Error {
    Error::Database {
        setting: error::JOBWIRE,
        url: url.to_string(),
        source,
    }
}

/// Returns whether PostgreSQL wakes the nodes instead of a broker.
#[must_use]
pub fn has_wakes(settings: &Settings) -> bool {
    settings.has_wakes()
}

/// Returns whether hints or wakes reach other processes: over a broker, or over PostgreSQL.
#[must_use]
pub fn has_broker(settings: &Settings) -> bool {
    !matches!(settings.broker_url.scheme(), "in-process" | "none") || has_wakes(settings)
}

/// Returns the transport of wakes.
///
/// # Errors
/// The mistake in the database's URL.
pub fn wakes(settings: &Settings) -> Result<PgTransport, Error> {
    let url = &settings.database_url;
    PgTransport::of_url(url.expose(), &settings.pg_options())
        .map_err(|source| unusable(url, source))
}

/// Returns the transport that the settings name. A broker that is away is not an error: the
/// transport tries again.
///
/// # Errors
/// Fails if the broker refuses the connection or its URL is invalid.
pub async fn transport(settings: &Settings) -> Result<Arc<dyn Transport>, Error> {
    if !has_broker(settings) {
        return Ok(Arc::new(InProcessTransport::new()));
    }
    if has_wakes(settings) {
        return Ok(Arc::new(wakes(settings)?));
    }
    brokers(settings).await
}

async fn brokers(settings: &Settings) -> Result<Arc<dyn Transport>, Error> {
    let main = broker(settings, &settings.broker_url).await?;
    let (second, former) = (&settings.second_broker_url, &settings.former_broker_url);
    if second.expose().is_empty() && former.expose().is_empty() {
        return Ok(main);
    }
    let mut routed = RoutedTransport::builder(main);
    if !second.expose().is_empty() {
        let lanes = settings
            .second_broker_lanes
            .iter()
            .cloned()
            .map(Lane::unchecked);
        routed = routed.lanes(lanes, broker(settings, second).await?);
    }
    if !former.expose().is_empty() {
        routed = routed.former(broker(settings, former).await?);
    }
    Ok(Arc::new(routed.build()))
}

#[cfg_attr(
    not(any(feature = "amqp", feature = "kafka")),
    allow(unused_variables, unreachable_code, reason = "without a transport")
)]
async fn broker(settings: &Settings, url: &SecretUrl) -> Result<Arc<dyn Transport>, Error> {
    let settings = settings.for_broker(url);
    let connected: Result<Arc<dyn Transport>, TransportError> = match url.scheme() {
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => {
            jobwire_amqp::AmqpTransport::connect(url.expose(), settings.amqp_options())
                .await
                .map(|transport| Arc::new(transport) as Arc<dyn Transport>)
        }
        #[cfg(feature = "kafka")]
        "kafka" => jobwire_kafka::KafkaTransport::connect(url.expose(), settings.kafka_options())
            .await
            .map(|transport| Arc::new(transport) as Arc<dyn Transport>),
        other => {
            return Err(Error::Failed(format!(
                "this program was built without a transport for `{other}:`"
            )));
        }
    };
    connected.map_err(|source| Error::Broker {
        url: url.to_string(),
        source,
    })
}

/// Publishes the hints of a short-lived command that runs beside the nodes. It is empty without a
/// broker, since no other process would receive the hints.
pub struct Outlet {
    open: Option<(Arc<dyn Transport>, CommitHook)>,
}

impl Outlet {
    /// Connects to the broker, if there is one.
    ///
    /// # Errors
    /// The same as those of [`transport`].
    pub async fn open(settings: &Settings) -> Result<Self, Error> {
        if !has_broker(settings) {
            return Ok(Self::none());
        }
        let transport = transport(settings).await?;
        let hook = CommitHook::start(transport.publisher(), settings.hook_options());
        Ok(Self {
            open: Some((transport, hook)),
        })
    }

    /// Returns an outlet that publishes nothing.
    #[must_use]
    pub fn none() -> Self {
        Self { open: None }
    }

    /// Returns the hook, if there is a broker.
    #[must_use]
    pub fn hook(&self) -> Option<CommitHook> {
        self.open.as_ref().map(|(_, hook)| hook.clone())
    }

    /// Tells the node that runs a job that it was cancelled. Best effort, without a confirm.
    pub fn tell_cancelled(&self, job: JobId) {
        if let Some((transport, _)) = &self.open {
            transport.publisher().tell(Control::Cancel { job });
        }
    }

    /// Waits until all hints are published, at most for the given time. Returns the number of
    /// unpublished hints, which the sweeper publishes.
    pub async fn close(self, within: Duration) -> usize {
        let Some((transport, hook)) = self.open else {
            return 0;
        };
        hook.close(within).await;
        let left = hook.buffered();
        transport.close(Duration::from_secs(2)).await;
        left
    }

    /// Closes it after ten seconds at most, and warns if hints were left.
    pub async fn close_and_tell(self) {
        let left = self.close(Duration::from_secs(10)).await;
        if left > 0 {
            tracing::warn!(
                left,
                "hints could not be published; the sweeper of a running node will publish them"
            );
        }
    }
}
