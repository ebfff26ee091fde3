//! Connecting: three sets of connections, each for its own statements.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::sync::Semaphore;

use super::connection_cache::ConnectionCache;
use super::connection_pool::{ConnectionPool, Suspicion};
use super::fences::Fences;
use super::lately::Lately;
use super::session::{Commits, Isolation, Plans};
use super::{PgOptions, PgStore, address, row_locks, session, tap};
use crate::job::calendar::Calendars;
use crate::store::Result;
use crate::store::error::StoreError;
use crate::store::poison::Refusals;
use crate::store::presence::{Address, Presence};

impl PgStore {
    /// Connects with default options.
    ///
    /// # Errors
    /// The same as those of [`connect_with`](Self::connect_with).
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, PgOptions::default()).await
    }

    /// Connects with these options.
    ///
    /// # Errors
    /// [`StoreError::Config`] if the URL can't be read, is not one of PostgreSQL, or leads to
    /// another machine without verified TLS ([`PgOptions::plaintext`]). [`StoreError::Connect`] if
    /// the server can't be reached, or refuses the connection.
    pub async fn connect_with(url: &str, options: PgOptions) -> Result<Self> {
        let connect = address::connect_options(url, options.plaintext)?;
        Self::connect_to(connect, options).await
    }

    /// Connects to the server of your pool, with the same address, user, database and TLS. The
    /// store opens its own connections, because they need other settings: timeouts of statements
    /// and idle transactions, kept plans, and a reserve for renewing leases. To create jobs in
    /// transactions of your pool use [`Client::hook`](crate::Client::hook).
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use jobwire_core::{NewJob, PgOptions, PgStore};
    ///
    /// let store = PgStore::connect_like(&pool, PgOptions::default().max_connections(4)).await?;
    /// # let hook = jobwire_core::CommitHook::disconnected();
    /// let client = store.client(hook);
    ///
    /// let mut tx = pool.begin().await?;
    /// let mut hook = client.hook();
    /// hook.create(&mut tx, NewJob::of("send-invoice", &17)).await?;
    /// hook.commit(tx).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`connect_with`](Self::connect_with). The rule for connections without
    /// verified TLS applies here, too.
    pub async fn connect_like(pool: &PgPool, options: PgOptions) -> Result<Self> {
        let connect = PgConnectOptions::clone(&pool.connect_options());
        address::check_security(&connect, options.plaintext)?;
        Self::connect_to(connect, options).await
    }

    async fn connect_to(connect: PgConnectOptions, options: PgOptions) -> Result<Self> {
        // Poolers refuse unknown start-up parameters, such as this one. Jobwire does not need it.
        let connect = connect.application_name("jobwire").extra_float_digits(None);
        let presence = Presence::of(match connect.get_socket() {
            Some(path) => Address::Socket(path.display().to_string()),
            None => Address::Tcp(connect.get_host().to_owned(), connect.get_port()),
        });
        let suspicion = Suspicion::default();
        let within = options.statement_timeout + Duration::from_secs(2);
        let silence = match options.idle_in_transaction_timeout {
            Duration::ZERO => row_locks::SILENCE,
            limit => limit.min(row_locks::SILENCE),
        };
        let (fences, isolation) = (Arc::<Fences>::default(), Arc::<Mutex<Isolation>>::default());
        let pool = |size, plans, commits, silence| {
            let session: Arc<str> =
                session::settings(options.statement_timeout, silence, plans, commits).into();
            let (fences, told) = (fences.clone(), isolation.clone());
            let pool = PgPoolOptions::new()
                .after_connect(move |connection, _| {
                    let (session, fences, told) = (session.clone(), fences.clone(), told.clone());
                    Box::pin(async move {
                        let (server, isolation) = session::begin(connection, &session).await?;
                        *told.lock().unwrap_or_else(PoisonError::into_inner) = isolation;
                        fences.connected(connection, server).await
                    })
                })
                .max_connections(size)
                .acquire_timeout(options.acquire_timeout)
                // A ping before every statement would double the round trips. A broken connection
                // fails at its next statement, which is tried again.
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None);
            ConnectionPool {
                inner: suspicion.watch(pool).connect_lazy_with(connect.clone()),
                suspicion: suspicion.clone(),
                within,
                silence: None,
            }
        };
        // Two connections lock and two complete. All but one may hold rows, each time for a tenth
        // of a second: with one fewer, a drain with row locks was a tenth slower.
        let cached = (options.max_connections / 2).clamp(1, 4);
        let rest = options.max_connections.max(cached + 2) - cached;
        let cache_commits = if options.durable_locks {
            Commits::AsConfigured
        } else {
            Commits::Soon
        };
        let store = Self {
            // One connection is enough and stays open. The second one is for when the first gets no
            // answer.
            renewals: pool(
                2,
                Plans::Fresh,
                Commits::AsConfigured,
                options.idle_in_transaction_timeout,
            ),
            cache: ConnectionCache::new(
                pool(cached, Plans::Kept, cache_commits, silence),
                cache_commits,
            ),
            pool: ConnectionPool {
                silence: NonZeroU32::new(u32::try_from(silence.as_millis()).unwrap_or(u32::MAX)),
                ..pool(
                    rest,
                    Plans::Fresh,
                    Commits::AsConfigured,
                    options.idle_in_transaction_timeout,
                )
            },
            suspended: Lately::default(),
            rows_stay_locked: Lately::default(),
            rows_refused: Lately::default(),
            permits: Arc::new(Semaphore::new(rest as usize - 1)),
            row_permits: (cached > 1).then(|| Arc::new(Semaphore::new(cached as usize - 1))),
            fences,
            isolation,
            refusals: Refusals::default(),
            events: Arc::default(),
            presence,
            calendars: Calendars::default(),
            address: Arc::new(tap::address(&connect)),
        };
        // Report a wrong address or password, or an error of the server, at once. The pool would
        // retry until its timeout and lose the reason.
        let first = async {
            let mut first = PgConnection::connect_with(&connect).await?;
            let (_, isolation) = session::begin(&mut first, "").await?;
            first.close().await?;
            Ok::<_, sqlx::Error>(isolation)
        };
        let isolation = tokio::time::timeout(options.acquire_timeout, first)
            .await
            .unwrap_or_else(|_| Err(no_answer_within(options.acquire_timeout)))
            .map_err(|source| StoreError::Connect {
                address: store.presence.address().to_string(),
                source,
            })?;
        *store.told_isolation() = isolation;
        Ok(store)
    }

    pub(super) fn told_isolation(&self) -> MutexGuard<'_, Isolation> {
        self.isolation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the connections for locks and completions. They stay open, even if the server runs out
    /// of connections later.
    pub(super) async fn open_hot(&self) -> Result<()> {
        let locks = self.cache.acquire().await?;
        if self.cache.pool().inner.options().get_max_connections() > 1 {
            self.cache.acquire().await?.keep();
        }
        locks.keep();
        Ok(())
    }
}

/// Returns the error of a connection that got no answer in time.
fn no_answer_within(limit: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("no answer within {limit:?}"),
    ))
}
