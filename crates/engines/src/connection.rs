//! The connections to the engine's database.
//!
//! Jobwire's statements never wait long for a row that the engine has locked. They skip locked
//! rows, and `lock_timeout` limits the remaining waits, such as those of a foreign key.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::store::postgres::connection_pool::{ConnectionPool, Suspicion};
use jobwire_core::store::postgres::{address, tap_address};
use jobwire_core::store::presence::{Address, Presence};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};

use crate::options::EngineOptions;
use crate::tap::TapAddress;

/// The name of Jobwire's connections, which distinguishes them from the engine's.
pub(crate) const APPLICATION: &str = "jobwire";
/// The time that a statement waits for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a transaction of Jobwire may be silent, for example on a frozen node.
const SILENCE: Duration = Duration::from_secs(30);

/// The connections, by purpose. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections {
    /// Connections for locks and outcomes, which find every row by a key. Their plans are kept.
    pub(crate) keyed: ConnectionPool,
    /// Connections for renewals, which never queue behind jobs.
    pub(crate) renewals: ConnectionPool,
    /// Connections for all other statements.
    pub(crate) rest: ConnectionPool,
    pub(crate) presence: Presence,
    /// The address for the tap's connection, which is not part of a pool.
    pub(crate) address: TapAddress,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Connects once, to report a wrong address at once. The pools open further connections.
    pub(crate) async fn connect(url: &str, options: &EngineOptions) -> Result<Self, StoreError> {
        let connect = address::connect_options(url, options.plaintext)?;
        let connect = connect
            .application_name(APPLICATION)
            .extra_float_digits(None);
        let presence = Presence::of(match connect.get_socket() {
            Some(path) => Address::Socket(path.display().to_string()),
            None => Address::Tcp(connect.get_host().to_owned(), connect.get_port()),
        });
        let first = async {
            let mut first = PgConnection::connect_with(&connect).await?;
            let session = session(options, Plans::Fresh)?;
            first
                .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(session)))
                .await?;
            first.close().await?;
            Ok::<_, StoreError>(())
        };
        tokio::time::timeout(ACQUIRE_TIMEOUT, first)
            .await
            .map_err(|_| StoreError::Timeout(ACQUIRE_TIMEOUT))??;
        let suspicion = Suspicion::default();
        let pool = |size, plans| pool(&connect, options, &suspicion, size, plans);
        let keyed = (options.max_connections / 2).clamp(2, 4);
        Ok(Self {
            keyed: pool(keyed, Plans::Kept)?,
            renewals: pool(2, Plans::Fresh)?,
            rest: pool(
                options.max_connections.saturating_sub(keyed).max(2),
                Plans::Fresh,
            )?,
            presence,
            address: Arc::new(tap_address(&connect)),
        })
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
        for pool in [&self.renewals, &self.keyed, &self.rest] {
            let _ = tokio::time::timeout(pool.within, pool.inner.close()).await;
        }
    }
}

fn pool(
    connect: &PgConnectOptions,
    options: &EngineOptions,
    suspicion: &Suspicion,
    size: u32,
    plans: Plans,
) -> Result<ConnectionPool, StoreError> {
    let session: Arc<str> = session(options, plans)?.into();
    let pool = PgPoolOptions::new()
        .after_connect(move |connection, _| {
            let session = session.clone();
            Box::pin(async move {
                connection
                    .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(session.to_string())))
                    .await?;
                Ok(())
            })
        })
        .max_connections(size)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .max_lifetime(None)
        .idle_timeout(None);
    Ok(ConnectionPool {
        inner: suspicion.watch(pool).connect_lazy_with(connect.clone()),
        suspicion: suspicion.clone(),
        within: options.statement_timeout + Duration::from_secs(2),
        silence: None,
    })
}

/// The life of a plan.
#[derive(Clone, Copy)]
enum Plans {
    /// A new plan for each execution.
    Fresh,
    /// One plan for all executions, for statements that find every row by a key.
    Kept,
}

/// Returns the statements that set up a connection.
fn session(options: &EngineOptions, plans: Plans) -> Result<String, StoreError> {
    let plans = match plans {
        Plans::Fresh => "SET plan_cache_mode = force_custom_plan",
        Plans::Kept => "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off",
    };
    let schema = match &options.schema {
        Some(schema) => format!("SET search_path = {}; ", quoted(schema)?),
        None => String::new(),
    };
    Ok(format!(
        "{schema}SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
         {plans}; SET jit = off; SET default_transaction_isolation = 'read committed'",
        options.statement_timeout.as_millis(),
        LOCK_TIMEOUT.as_millis(),
        SILENCE.as_millis(),
    ))
}

/// Quotes the name of a schema for SQL.
fn quoted(schema: &str) -> Result<String, StoreError> {
    if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
        return Err(StoreError::Config(format!(
            "the engine's schema `{}` is not a name of PostgreSQL: use 1 to 63 bytes",
            schema.escape_debug()
        )));
    }
    Ok(format!("\"{}\"", schema.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_cannot_leave_its_quotes() {
        assert_eq!(quoted("a\"; DROP").ok().as_deref(), Some("\"a\"\"; DROP\""));
        assert!(quoted("").is_err() && quoted(&"x".repeat(64)).is_err());
    }
}
