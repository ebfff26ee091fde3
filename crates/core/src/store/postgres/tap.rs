//! The commit tap of PostgreSQL, on the publication `jobwire_tap`.
//!
//! The publication has inserts only, and rows that plain SQL has written: rows without a hint, and
//! timers that the library did not create. So the tap and the commit hook never both hint a job
//! (protocol rule 20), and no statement of a node is streamed. A publication of inserts has no
//! effect on updates and deletions.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_tap::{
    Address, Changes, Event, Finding, Pem, PgPublication, PublishedTable, Rows, Tap, TapOptions,
    TlsMode,
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Row};
use uuid::Uuid;

use super::connection_cache::ConnectionCache;
use super::sql::ready_columns;
use super::{PgStore, aside, decode};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::Database;
use crate::store::tap::{CommitTap, Committed, Marked, TapNews, TapOffer};

const JOBS: &str = "job";
const TIMERS: &str = "timer_job";

/// Returns the publication of the tap.
#[must_use]
pub fn publication() -> PgPublication {
    let jobs = PublishedTable::new("jobwire", JOBS)
        .columns(["id"])
        .rows("hints = 0");
    let timers = PublishedTable::new("jobwire", TIMERS)
        .columns(["due_at"])
        .rows("hints = 0 AND origin = 'sql'");
    PgPublication::new("jobwire_tap", Changes::Inserts)
        .table(jobs)
        .table(timers)
}

/// Returns the address of these options, for a connection that sqlx does not make.
pub fn address(options: &PgConnectOptions) -> Address {
    let user = options.get_username();
    let database = options.get_database().unwrap_or(user);
    let host = match options.get_socket() {
        Some(directory) => directory.display().to_string(),
        None => options.get_host().to_owned(),
    };
    let mut address = Address::new(host, options.get_port(), user, database);
    // sqlx shows the password and the files only in a URL. Names that a URL cannot hold stay out
    // of it.
    let url = options
        .clone()
        .username("jobwire")
        .host("localhost")
        .to_url_lossy();
    address.password = url.password().map(|password| {
        let bytes = percent_decode(password);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    address.tls.mode = match options.get_ssl_mode() {
        // The same as in sqlx.
        PgSslMode::Disable | PgSslMode::Allow => TlsMode::Disable,
        PgSslMode::Prefer => TlsMode::Prefer,
        PgSslMode::Require => TlsMode::Require,
        PgSslMode::VerifyCa => TlsMode::VerifyCa,
        PgSslMode::VerifyFull => TlsMode::VerifyFull,
    };
    for (name, value) in url.query_pairs() {
        // sqlx writes `file: ` before the path of a file.
        let text = value.strip_prefix("file: ").unwrap_or(&value);
        let pem = || Some(Pem::from(text.to_owned()));
        match &*name {
            "sslrootcert" => address.tls.root = pem(),
            "sslcert" => address.tls.certificate = pem(),
            "sslkey" => address.tls.key = pem(),
            _ => {}
        }
    }
    address
}

fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (b'%', Some(escaped)) = (byte, escaped) {
            decoded.push(escaped);
            rest = &after[2..];
        } else {
            decoded.push(byte);
            rest = after;
        }
    }
    decoded
}

impl PgStore {
    /// Creates the publication that the commit tap needs, or repairs it. Needs the right CREATE on
    /// the database, and the tables must belong to the user.
    ///
    /// # Errors
    /// The server's error, with the statement that a user with the rights can run.
    pub async fn create_tap(&self) -> Result<(), StoreError> {
        publication().create(&self.address).await.map_err(|error| {
            let statement = publication().create_statement();
            StoreError::Config(format!(
                "the publication of the commit tap cannot be created: {error}; let the owner of \
                 the tables run: {statement}"
            ))
        })
    }

    /// Removes the publication of the commit tap, if it exists.
    ///
    /// # Errors
    /// The server's error.
    pub async fn drop_tap(&self) -> Result<(), StoreError> {
        publication().drop(&self.address).await.map_err(|error| {
            StoreError::Config(format!(
                "the publication of the commit tap cannot be removed: {error}"
            ))
        })
    }

    /// Returns the problems of a commit tap on this server. Changes nothing.
    ///
    /// # Errors
    /// Fails if the connection fails, or the server refuses a statement.
    pub async fn examine_tap(&self) -> Result<Vec<Finding>, StoreError> {
        let found = jobwire_tap::preflight(&self.address, &publication()).await;
        found.map_err(|error| StoreError::Config(error.to_string()))
    }

    /// Returns whether the publication of the commit tap exists.
    ///
    /// # Errors
    /// The database's error.
    pub async fn has_tap(&self) -> Result<bool, StoreError> {
        self.run("examine", || async {
            let exists = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = 'jobwire_tap')",
            );
            Ok(exists.fetch_one(&self.pool.inner).await?)
        })
        .await
    }

    /// Opens the commit tap, if it is set up and the server allows it.
    pub(super) async fn open_tap(&self) -> Result<TapOffer, StoreError> {
        if !self.has_tap().await? {
            return Ok(TapOffer::NotSetUp(
                "the publication `jobwire_tap` does not exist; create it with `jobwire tap create`"
                    .to_owned(),
            ));
        }
        let missing = self.examine_tap().await?;
        let missing: Vec<String> = missing
            .into_iter()
            .filter(|finding| finding.blocks)
            .map(|finding| format!("{}: {}", finding.found, finding.remedy))
            .collect();
        if !missing.is_empty() {
            return Ok(TapOffer::Unusable(missing.join("; ")));
        }
        let tap = Tap::open(self.address.as_ref().clone(), TapOptions::default());
        match tap {
            Ok(tap) => Ok(TapOffer::Open(Box::new(PgTap(tap)))),
            Err(error) => Ok(TapOffer::Unusable(error.to_string())),
        }
    }
}

struct PgTap(Tap);

#[async_trait]
impl CommitTap for PgTap {
    async fn next(&mut self) -> TapNews {
        loop {
            if let Some(news) = news(self.0.next().await) {
                return news;
            }
        }
    }

    fn try_next(&mut self) -> Option<TapNews> {
        loop {
            if let Some(news) = news(self.0.try_next()?) {
                return Some(news);
            }
        }
    }
}

fn news(event: Event) -> Option<TapNews> {
    match event {
        Event::Standing => Some(TapNews::Standing),
        Event::Gap(error) => Some(TapNews::Gap {
            why: error.to_string(),
            lasts: error.is_lasting(),
        }),
        Event::Rows(rows) => committed(&rows).map(TapNews::Committed),
        _ => None,
    }
}

fn committed(rows: &Rows) -> Option<Committed> {
    let mut committed = Committed {
        jobs: Vec::new(),
        timers: 0,
        due: None,
        at: rows.committed_at.into(),
        now: rows.sent_at.into(),
    };
    match (&*rows.table.schema, &*rows.table.name) {
        ("jobwire", JOBS) => {
            let ids = rows.texts("id").filter_map(|id| Uuid::parse_str(id).ok());
            committed.jobs = ids.map(JobId).collect();
        }
        ("jobwire", TIMERS) => {
            committed.timers = rows.rows.len();
            committed.due = rows.texts("due_at").filter_map(date).min();
        }
        _ => return None,
    }
    Some(committed)
}

/// Reads a date as the server writes it. Dates after the year 9999 are far away.
fn date(text: &str) -> Option<DateTime<Utc>> {
    let date = DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f%#z");
    date.ok().map(|date| date.to_utc())
}

/// Marks jobs that had no hint. Returns them, and the jobs that have a hint already. The mark need
/// not survive a crash of the server: the leader would hint these jobs once more.
const MARK: &str = concat!(
    "
WITH free AS (
    SELECT j.id FROM jobwire.job j
    WHERE j.id = ANY($1) AND j.hints = 0
      AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
    ORDER BY j.id
    FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = 1 FROM free WHERE j.id = free.id
    RETURNING ",
    ready_columns!("j"),
    ", j.seq
)
SELECT ",
    ready_columns!("marked"),
    ", (SELECT array_agg(j.id) FROM jobwire.job j WHERE j.id = ANY($1) AND j.hints > 0)
FROM (SELECT) AS one LEFT JOIN marked ON true
ORDER BY marked.seq"
);

/// Marks these jobs, if they are visible and were never hinted. Waits for no row. The statement
/// finds each row by its key, so its plan is kept: planning takes longer than the statement for one
/// job.
pub(super) async fn mark(cache: &ConnectionCache, jobs: &[JobId]) -> Result<Marked, StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    let query = sqlx::query(MARK).bind(ids);
    let mut connection = cache.acquire().await?;
    let rows = aside::rows(&mut connection, query).await?;
    connection.keep();
    let mut marked = Marked::default();
    for row in &rows {
        let hinted: Option<Vec<Uuid>> = row.try_get(6)?;
        if marked.hinted.is_empty() {
            marked.hinted = hinted.into_iter().flatten().map(JobId).collect();
        }
        if row.try_get::<Option<Uuid>, _>(0)?.is_some() {
            marked.ready.push(decode::ready(row)?);
        }
    }
    Ok(marked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        address(&url.parse().unwrap())
    }

    #[test]
    fn the_tap_connects_as_the_store_does() {
        let address = read(
            "postgres://me%40corp:p%2Fw%25d@db:6543/jobs?sslmode=verify-full&sslrootcert=/etc/ca.pem",
        );
        assert_eq!((&*address.host, address.port), ("db", 6543));
        assert_eq!((&*address.user, &*address.database), ("me@corp", "jobs"));
        assert_eq!(address.password.as_deref(), Some("p/w%d"));
        assert_eq!(address.tls.mode, TlsMode::VerifyFull);
        assert!(matches!(&address.tls.root, Some(Pem::File(file)) if file.ends_with("ca.pem")));
        let socket = read("postgres://me@%2Frun%2Fpostgresql/jobs");
        assert_eq!(socket.host, "/run/postgresql");
    }

    #[test]
    fn names_that_a_url_cannot_hold_do_no_harm() {
        let options = PgConnectOptions::new_without_pgpass()
            .host("db")
            .username("a/b:99999?c#d[")
            .password("x y/z");
        let address = address(&options);
        assert_eq!(address.user, "a/b:99999?c#d[");
        assert_eq!(address.password.as_deref(), Some("x y/z"));
    }

    #[test]
    fn dates_are_read_as_the_server_writes_them() {
        let read = |text| date(text).map(|date| date.timestamp_micros());
        assert_eq!(
            read("2026-11-25 18:17:53.396+00"),
            Some(1_795_630_673_396_000)
        );
        assert_eq!(read("2026-11-25 18:17:53+00"), Some(1_795_630_673_000_000));
        for far in [
            "12026-11-25 18:17:53+00",
            "0044-03-15 12:00:00+00 BC",
            "infinity",
            "",
        ] {
            let _ = read(far);
        }
    }
}
