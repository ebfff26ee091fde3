//! Facts about the server, for `jobwire doctor`.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::Row;

use super::{PgStore, session};
use crate::store::error::StoreError;
use crate::store::statements::Database;

/// The result of [`PgStore::examine`].
#[derive(Clone, Debug)]
pub struct Examination {
    /// `server_version_num`, for example 150004.
    pub version: i32,
    /// The current user.
    pub user: String,
    /// Whether the server is a standby, which accepts no writes.
    pub in_recovery: bool,
    /// The database's clock minus this machine's, in seconds, corrected by half of the round trip.
    pub clock_ahead: f64,
    /// The duration of the query.
    pub round_trip: Duration,
    /// `max_connections`, without the connections reserved for superusers.
    pub connections_allowed: i64,
    /// The number of open connections, over all databases.
    pub connections_open: i64,
    /// `synchronous_commit`.
    pub synchronous_commit: String,
    /// `wal_level`.
    pub wal_level: String,
    /// `default_transaction_isolation` of the user in this database.
    pub isolation: String,
    /// The version of TLS on the server's end of the connection; `None` if it is not encrypted.
    pub encryption: Option<String>,
    /// The port that the server itself listens on. A pooler in between has another one.
    pub server_port: Option<i32>,
    /// The encoding of the database, for example `UTF8`.
    pub encoding: String,
    /// `standard_conforming_strings` of the user in this database.
    pub plain_backslashes: bool,
    /// Triggers, rules and foreign keys of others on Jobwire's tables.
    pub foreign_objects: Vec<String>,
    /// Whether the schema `jobwire` exists.
    pub schema_exists: bool,
    /// Whether the user may create a schema in this database.
    pub may_create_schema: bool,
    /// The rights that the user lacks: the object, and the right.
    pub missing_rights: Vec<(String, String)>,
}

const SERVER: &str = "
SELECT current_setting('server_version_num')::integer, current_user::text, pg_is_in_recovery(), clock_timestamp(),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('synchronous_commit'), current_setting('wal_level'),
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'), inet_server_port(),
    EXISTS (SELECT FROM pg_namespace WHERE nspname = 'jobwire'),
    has_database_privilege(current_database(), 'CREATE'),
    (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl), current_setting('server_encoding'),
    current_setting('standard_conforming_strings')::boolean";

/// Selects what stands between the statements and their rows without being Jobwire's own. The functions of
/// Jobwire's triggers are in its schema.
const FOREIGN: &str = "
WITH ours AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'jobwire' AND c.relkind IN ('r', 'p')
)
SELECT format('trigger %s of %s', t.tgname, t.tgrelid::regclass)
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid IN (SELECT oid FROM ours) AND NOT t.tgisinternal AND n.nspname <> 'jobwire'
UNION ALL
SELECT format('rule %s of %s', r.rulename, r.ev_class::regclass)
FROM pg_rewrite r WHERE r.ev_class IN (SELECT oid FROM ours)
UNION ALL
SELECT format('foreign key %s of %s', f.conname, f.conrelid::regclass)
FROM pg_constraint f
WHERE f.contype = 'f' AND f.confrelid IN (SELECT oid FROM ours) AND f.conrelid NOT IN (SELECT oid FROM ours)
ORDER BY 1 LIMIT 100";

/// Selects by oid: a name can't be looked up in a schema without the right USAGE. The CASE is
/// needed because the planner may check the right to a sequence before the kind of the object.
const RIGHTS: &str = "
SELECT 'schema jobwire', 'USAGE' FROM pg_namespace n
WHERE n.nspname = 'jobwire' AND NOT has_schema_privilege(n.oid, 'USAGE')
UNION ALL
SELECT format('table jobwire.%s', c.relname), p.privilege
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
WHERE n.nspname = 'jobwire' AND c.relkind IN ('r', 'p')
  AND c.relname = ANY(ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job', 'job_exception', 'job_lease',
                            'instance_lock', 'suspension', 'leader', 'node', 'periodic_job', 'job_progress'])
  AND NOT has_table_privilege(c.oid, p.privilege)
UNION ALL
SELECT format('table jobwire.%s', c.relname), p.privilege
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN (VALUES ('schema_version', 'SELECT'), ('lane_rule', 'SELECT'), ('priority_rule', 'SELECT'), ('strict_order', 'SELECT'),
             ('event_log', 'SELECT'), ('event_log', 'INSERT')) p (name, privilege)
  ON p.name = c.relname
WHERE n.nspname = 'jobwire' AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p.privilege)
UNION ALL
SELECT format('sequence jobwire.%s', c.relname), 'USAGE'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'jobwire' AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
UNION ALL
SELECT 'sequence jobwire.fence_seq', 'UPDATE'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'jobwire' AND c.relname = 'fence_seq'
  AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'UPDATE') END
ORDER BY 1, 2";

impl PgStore {
    /// Queries the server's properties and the user's rights. Changes nothing and needs no tables.
    ///
    /// # Errors
    /// Fails if the database returns an error.
    pub async fn examine(&self) -> Result<Examination, StoreError> {
        self.run("examine", || async {
            session::ensure_whole(&self.pool, &self.renewals).await?;
            let mut connection = self.pool.inner.acquire().await?;
            // The first execution prepares the statement; the second one measures the round trip.
            sqlx::query(SERVER).fetch_one(&mut *connection).await?;
            let (sent, started) = (Utc::now(), Instant::now());
            let row = sqlx::query(SERVER).fetch_one(&mut *connection).await?;
            let round_trip = started.elapsed();
            let theirs: DateTime<Utc> = row.try_get(3)?;
            let ours = sent + round_trip / 2;
            let rights = sqlx::query(RIGHTS).fetch_all(&mut *connection).await?;
            let foreign = sqlx::query_scalar(FOREIGN);
            let foreign_objects = foreign.fetch_all(&mut *connection).await?;
            #[allow(
                clippy::cast_precision_loss,
                reason = "a difference of clocks needs no 53 bits"
            )]
            let clock_ahead = (theirs - ours).num_microseconds().unwrap_or(i64::MAX) as f64 / 1e6;
            Ok(Examination {
                version: row.try_get(0)?,
                user: row.try_get(1)?,
                in_recovery: row.try_get(2)?,
                clock_ahead,
                round_trip,
                connections_allowed: row.try_get(4)?,
                connections_open: row.try_get(5)?,
                synchronous_commit: row.try_get(6)?,
                wal_level: row.try_get(7)?,
                isolation: row.try_get(8)?,
                encryption: row.try_get(12)?,
                server_port: row.try_get(9)?,
                encoding: row.try_get(13)?,
                plain_backslashes: row.try_get(14)?,
                foreign_objects,
                schema_exists: row.try_get(10)?,
                may_create_schema: row.try_get(11)?,
                missing_rights: rights
                    .iter()
                    .map(|r| Ok((r.try_get(0)?, r.try_get(1)?)))
                    .collect::<Result<_, sqlx::Error>>()?,
            })
        })
        .await
    }
}
