//! Errors of a store. Each names the problem, the object and the remedy.

use std::time::Duration;

use crate::job::new_job::InvalidJob;
use crate::job::periodic::InvalidPeriodicJob;
use crate::job::query::InvalidQuery;
use crate::job::{BatchId, JobId};
use crate::lane::rule::BadRule;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database returned an error or could not be reached.
    #[error("{}", reported(.0))]
    Database(#[source] sqlx::Error),
    /// The database can't be reached, or refuses the first connection.
    #[error("cannot connect to the database at {address}: {}", said(.source))]
    Connect {
        /// The host and port, or the path of the socket.
        address: String,
        /// The error of the connection.
        source: sqlx::Error,
    },
    /// The one writing connection of SQLite stayed in use. Nothing was changed.
    #[error(
        "the writing connection of SQLite was not free within {0:?}: a transaction is open, in \
         this process or in another one that writes to the file; end it before this call, or \
         create the job inside it (`tx.create` instead of `client.create`)"
    )]
    WriterBusy(Duration),
    /// The database did not answer in time. Whether the statement took effect is unknown.
    #[error(
        "the database did not answer within {0:?}; if this repeats, look at its load, or raise \
         `PgOptions::statement_timeout` or `SqliteOptions::deadline` (setting `statement_timeout`)"
    )]
    Timeout(Duration),
    /// The answer to COMMIT was lost, and the fate of the transaction could not be determined.
    #[error(
        "the answer to COMMIT was lost, so it is unknown whether the transaction committed; look \
         for its jobs before you repeat it: {}", said(.0)
    )]
    CommitUnknown(#[source] sqlx::Error),
    /// A statement of this transaction had failed, so the database rolled all of it back at its
    /// COMMIT.
    #[error(
        "an earlier statement of this transaction failed, so nothing was committed; handle that \
         statement's error, or run it in a savepoint (`tx.begin()`), then start a new transaction"
    )]
    TransactionFailed,
    /// The transaction is isolated more strictly than READ COMMITTED, so it does not see which jobs
    /// run or have moved. Nothing was changed.
    #[error(
        "this transaction is isolated more strictly than READ COMMITTED, so it does not see which jobs \
         run or have moved by now; make `SET TRANSACTION ISOLATION LEVEL READ COMMITTED` its first statement"
    )]
    TooIsolated,
    /// A job is not valid as given.
    #[error("job {id}: {source}")]
    InvalidJob {
        /// The id that the job would have had.
        id: JobId,
        /// The field and the remedy.
        source: InvalidJob,
    },
    /// Rules for lanes that can't work.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidRules(Vec<BadRule>),
    /// A change of jobs has a value that can't be. Nothing was changed.
    #[error("{0}")]
    InvalidChange(String),
    /// A query for jobs that can't be asked.
    #[error(transparent)]
    InvalidQuery(#[from] InvalidQuery),
    /// The declaration or the row of a periodic job is invalid.
    #[error(transparent)]
    InvalidPeriodicJob(InvalidPeriodicJob),
    /// A job was to be added to a batch that is not open. Nothing was created.
    #[error(
        "batch {0} has ended, was cancelled, or does not exist; create the job without it, or in a \
         new batch"
    )]
    BatchEnded(BatchId),
    /// A dead letter can't be revived, because another job has its unique key. Nothing was changed.
    #[error(
        "job {holder} has the unique key of job {job} now; complete or delete it, then try again"
    )]
    KeyTaken {
        /// The job that has the key.
        holder: JobId,
        /// The dead letter.
        job: JobId,
    },
    /// This node's lock on the job is gone. Nothing was changed.
    #[error("the lock on job {0} was lost; another node may run it")]
    LostLock(JobId),
    /// Another transaction locks the row of this job. Nothing was changed.
    #[error("another transaction locks the row of job {0}; end it, or try again")]
    RowLocked(JobId),
    /// The schema is missing, older than this program needs, or too new for it.
    #[error("{0}")]
    Schema(String),
    /// A migration failed.
    #[error("migration: {}", said_of_migration(.0))]
    Migration(#[source] Box<sqlx::migrate::MigrateError>),
    /// A row can't be read as a job.
    #[error("the row of a job can't be read: {0}; check whether another program wrote it")]
    BadRow(String),
    /// A program through which the database is reached did not answer, or could not ask it.
    #[error("{what}")]
    Remote {
        /// The finding.
        what: String,
        /// Whether the question was sent, so that it may have taken effect.
        sent: bool,
    },
    /// The database URL or an option is wrong.
    #[error("{0}")]
    Config(String),
}

/// SQLite's code of a statement that a trigger refused.
pub(super) const REFUSED_BY_TRIGGER: &str = "1811";

/// Returns the text of the database's error, or of the connection's.
fn reported(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) => format!("the connection to the database failed: {error}"),
        sqlx::Error::PoolTimedOut => said(error),
        error => format!("the database reports: {}", said(error)),
    }
}

/// Returns the database's message, or the state of the connection, without the words of the client
/// library around it.
fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(said) => match said.code() {
            Some(code) => format!("{} (code {code})", said.message()),
            None => said.message().to_owned(),
        },
        sqlx::Error::Io(error) => format!("the connection failed: {error}"),
        sqlx::Error::PoolTimedOut => {
            "no connection to the database became free in time: it is unreachable, or all \
             connections are in use; check the server, or raise `PgOptions::max_connections` \
             (setting `database_connections`)"
                .to_owned()
        }
        error => error.to_string(),
    }
}

/// Returns whether the database reports that two transactions conflicted: a serialization failure, a
/// deadlock, or, of SQLite, `SQLITE_BUSY` and `SQLITE_LOCKED` with their extended codes.
pub(crate) fn has_conflict(error: &dyn sqlx::error::DatabaseError) -> bool {
    let Some(code) = error.code() else {
        return false;
    };
    if is_of_sqlite(error) {
        return code
            .parse::<i32>()
            .is_ok_and(|code| matches!(code & 0xff, 5 | 6));
    }
    matches!(code.as_ref(), "40001" | "40P01")
}

#[cfg(feature = "sqlite")]
fn is_of_sqlite(error: &dyn sqlx::error::DatabaseError) -> bool {
    error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
}

#[cfg(not(feature = "sqlite"))]
fn is_of_sqlite(_: &dyn sqlx::error::DatabaseError) -> bool {
    false
}

fn is_about_rights(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|said| said.code());
    code.is_some_and(|code| code == "42501")
}

fn said_of_migration(error: &sqlx::migrate::MigrateError) -> String {
    use sqlx::migrate::MigrateError;
    match error {
        MigrateError::Execute(error) if is_about_rights(error) => format!(
            "{}; run `jobwire migrate up` once with a role that may create the schema",
            said(error)
        ),
        MigrateError::Execute(error) => said(error),
        MigrateError::ExecuteMigration(error, version) => {
            format!("version {version}: {}", said(error))
        }
        error => error.to_string(),
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl StoreError {
    /// Returns the error of the client library.
    fn of_client(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Database(error) | Self::Connect { source: error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns the message without the prefix that names the database, for texts that name the
    /// database themselves.
    pub(crate) fn bare(&self) -> String {
        match self {
            Self::Database(error) => said(error),
            other => other.to_string(),
        }
    }

    #[doc(hidden)]
    #[must_use]
    pub fn sqlstate(&self) -> Option<String> {
        if matches!(self, Self::KeyTaken { .. }) {
            return Some(REFUSED_BY_TRIGGER.to_owned());
        }
        match self.of_client()? {
            sqlx::Error::Database(e) => e.code().map(|c| c.into_owned()),
            _ => None,
        }
    }

    /// Returns whether the server reports that it shuts down, is down, or lost the connection:
    /// SQLSTATE class 08, and 57P0x for a shutdown, a crash and a start. Such an error may come
    /// after a commit.
    ///
    /// A server that reports 57P0x ends the connection. If the error has left the connection as it was,
    /// a trigger has raised it. Class 08 counts in any case: a pooler may report it so.
    pub(crate) fn server_is_away(&self) -> bool {
        self.sqlstate().is_some_and(|state| {
            state.starts_with("08") || state.starts_with("57P0") && !self.left_the_connection()
        })
    }

    /// Returns whether PostgreSQL ended only the statement, and not the connection.
    #[cfg(feature = "postgres")]
    fn left_the_connection(&self) -> bool {
        use sqlx::postgres::{PgDatabaseError, PgSeverity};

        let said = self.of_client().and_then(sqlx::Error::as_database_error);
        let said = said.and_then(|said| said.try_downcast_ref::<PgDatabaseError>());
        said.is_some_and(|said| said.severity() == PgSeverity::Error)
    }

    #[cfg(not(feature = "postgres"))]
    fn left_the_connection(&self) -> bool {
        false
    }

    /// Returns whether two transactions conflicted (deadlock, serialization failure, SQLite busy).
    /// The same call may succeed now.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        let said = self.of_client().and_then(sqlx::Error::as_database_error);
        said.is_some_and(has_conflict) || self.is_lock_timeout()
    }

    /// Returns whether the server answered, and did not report a shutdown, a standby or a lost
    /// connection. A row may be the reason for the error.
    pub(crate) fn is_answer(&self) -> bool {
        let is_away = self.server_is_away() || self.is_read_only();
        self.sqlstate().is_some() && !is_away
    }

    /// Returns whether the error is temporary and no row is its reason: the server is away, gave no answer
    /// in time, or lacks the resources for any statement. Others would fail like this one. False for a
    /// statement that the server cancelled after its time: a row may be the reason.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_transient() && !self.is_answer() || self.lacks_resources() || self.was_silent()
    }

    /// Returns whether the server ended the transaction since this node was silent in it for too long: the
    /// process stood still (SQLSTATE 25P03 and 25P04).
    fn was_silent(&self) -> bool {
        matches!(self.sqlstate().as_deref(), Some("25P03" | "25P04"))
    }

    /// Returns whether a statement on other rows would fail like this one: the error is
    /// [`unanswered`](Self::is_unanswered), and not by its SQLSTATE alone.
    pub(crate) fn fails_others(&self) -> bool {
        self.is_unanswered() && !self.may_be_raised()
    }

    /// Returns whether the error is [`unanswered`](Self::is_unanswered) by its SQLSTATE alone, and has left
    /// the connection as it was. A trigger of the application may raise any SQLSTATE, so one row may be the
    /// reason after all.
    pub(crate) fn may_be_raised(&self) -> bool {
        self.is_unanswered() && self.left_the_connection()
    }

    /// Returns whether the database as a whole can't run statements now, although it answers: the disk is
    /// full or connections are used up (SQLSTATE class 53, without what one statement may cause), or
    /// another connection has locked the file (`SQLITE_BUSY`, `SQLITE_LOCKED`, `SQLITE_FULL`).
    fn lacks_resources(&self) -> bool {
        match self.sqlstate().as_deref() {
            // 53200 is a lack of memory, and 53400 a limit of the configuration, as that of temporary files:
            // one large statement may reach either.
            Some(state) if state.len() == 5 => {
                state.starts_with("53") && state != "53200" && state != "53400"
            }
            Some(code) => code
                .parse::<i32>()
                .is_ok_and(|code| matches!(code & 0xff, 5 | 6 | 13)),
            None => false,
        }
    }

    /// Returns whether a row stayed locked for longer than the statement waits.
    #[doc(hidden)]
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        self.sqlstate().as_deref() == Some("55P03")
    }

    /// Returns whether the error is probably temporary: the database restarts, the network is cut,
    /// a statement was slow.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        if self.is_conflict() || self.server_is_away() || self.was_silent() {
            return true;
        }
        if matches!(
            self,
            Self::Timeout(_) | Self::WriterBusy(_) | Self::RowLocked(_) | Self::Remote { .. }
        ) {
            return true;
        }
        match self.of_client() {
            Some(
                sqlx::Error::Io(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::WorkerCrashed
                | sqlx::Error::Protocol(_),
            ) => true,
            // Class 53: resources; 57014: timeout; 25006: read-only.
            Some(sqlx::Error::Database(db)) => db
                .code()
                .is_some_and(|c| c.starts_with("53") || c == "57014" || c == "25006"),
            _ => false,
        }
    }

    /// Returns whether a statement took too long: the database cancelled it, or did not answer in
    /// time. A statement on fewer rows may succeed.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self, Self::Timeout(_)) || self.sqlstate().as_deref() == Some("57014")
    }

    /// Returns whether the server shuts down or can't be reached. False for a slow statement and a
    /// full pool.
    #[doc(hidden)]
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self.of_client() {
            Some(sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed) => true,
            _ => self.server_is_away(),
        }
    }

    /// Returns the error of the row of a periodic job.
    pub(crate) fn periodic(name: &str) -> impl FnOnce(InvalidJob) -> Self {
        move |invalid| {
            Self::InvalidPeriodicJob(InvalidPeriodicJob {
                name: name.to_owned(),
                invalid,
            })
        }
    }

    /// Returns whether the contents of a row are the reason: a value that does not fit, a
    /// constraint, a limit (SQLSTATE classes 22, 23 and 54; SQLite's "constraint failed", "too big"
    /// and "mismatch"), a next occurrence that is not valid, or a column that can't be read. The
    /// same statement may succeed for other rows. Missing rights, a missing table, a read-only
    /// server and errors of the connection do not count.
    #[must_use]
    pub fn is_row_fault(&self) -> bool {
        match self {
            Self::BadRow(_)
            | Self::InvalidJob { .. }
            | Self::Database(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => true,
            _ => match self.sqlstate().as_deref() {
                // SQLSTATE has five characters; SQLite's codes have at most four digits.
                Some(state) if state.len() == 5 => ["22", "23", "54"]
                    .iter()
                    .any(|class| state.starts_with(class)),
                // SQLITE_TOOBIG, SQLITE_CONSTRAINT and SQLITE_MISMATCH with their extended codes.
                Some(code) => code
                    .parse::<i32>()
                    .is_ok_and(|code| matches!(code & 0xff, 18..=20)),
                None => false,
            },
        }
    }

    /// Returns whether the server is a standby or was made read-only, so that nothing can be
    /// written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.sqlstate().as_deref() == Some("25006")
    }

    /// Returns whether the database is certainly unchanged. Otherwise the statement may have taken
    /// effect, or may still do so.
    #[must_use]
    pub fn changed_nothing(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(_)) => !self.server_is_away(),
            Self::Remote { sent, .. } => !sent,
            Self::Database(sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)
            | Self::Connect { .. }
            | Self::WriterBusy(_)
            | Self::InvalidJob { .. }
            | Self::KeyTaken { .. }
            | Self::InvalidRules(_)
            | Self::InvalidChange(_)
            | Self::InvalidQuery(_)
            | Self::InvalidPeriodicJob(_)
            | Self::BatchEnded(_)
            | Self::LostLock(_)
            | Self::RowLocked(_)
            | Self::TransactionFailed
            | Self::Schema(_)
            | Self::Config(_) => true,
            _ => false,
        }
    }

    /// Returns whether this node no longer holds the lock on the job.
    #[must_use]
    pub fn is_lost_lock(&self) -> bool {
        matches!(self, Self::LostLock(_))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str);

    impl sqlx::error::DatabaseError for Said {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    /// Returns the error of a database that answered with this code.
    pub(crate) fn said(code: &'static str) -> StoreError {
        StoreError::Database(sqlx::Error::Database(Box::new(Said(code))))
    }

    #[test]
    fn what_a_row_holds_is_told_from_what_ails_the_database() {
        // Out of range, unique, check, index row too large; SQLite: constraint, its kinds, too big,
        // mismatch.
        for code in [
            "22003", "22021", "23505", "23514", "54000", "19", "2067", "275", "18", "20",
        ] {
            assert!(said(code).is_row_fault(), "{code}");
        }
        // Rights, missing table, read-only, shutdown, disk full, deadlock; SQLite: error, busy,
        // locked, read-only, full.
        for code in [
            "42501", "42P01", "25006", "57P01", "53100", "40P01", "1", "5", "262", "8", "13",
        ] {
            assert!(!said(code).is_row_fault(), "{code}");
        }
        assert!(!StoreError::Timeout(Duration::from_secs(1)).is_row_fault());
        assert!(StoreError::BadRow(String::new()).is_row_fault());
    }

    /// What ails every statement begins no wait of one batch or schedule.
    #[test]
    fn a_database_without_resources_is_no_answer_about_a_row() {
        // Out of disk and connections, shutdown, read-only; SQLite: busy, locked and full, with extended
        // codes.
        for code in [
            "53000", "53100", "53300", "57P01", "25006", "25P03", "5", "517", "6", "262", "13",
        ] {
            assert!(said(code).is_unanswered(), "{code}");
        }
        // A statement's time, memory and temporary files, a locked row, a conflict, a constraint; SQLite:
        // error, constraint.
        for code in [
            "57014", "53200", "53400", "55P03", "40P01", "40001", "23505", "22003", "1", "19",
            "2067",
        ] {
            assert!(!said(code).is_unanswered(), "{code}");
        }
        assert!(StoreError::Timeout(Duration::from_secs(1)).is_unanswered());
        assert!(!StoreError::BadRow(String::new()).is_unanswered());
    }

    #[test]
    fn a_server_that_goes_away_may_have_committed() {
        for code in ["08006", "08P01", "57P01", "57P03"] {
            let error = said(code);
            assert!(error.server_is_away() && error.is_absence(), "{code}");
            assert!(error.is_transient() && !error.changed_nothing(), "{code}");
        }
        // Out of connections, a cancelled statement, read-only: the server is there.
        for code in ["53300", "57014", "25006"] {
            let error = said(code);
            assert!(!error.server_is_away() && !error.is_absence(), "{code}");
            assert!(error.is_transient() && error.changed_nothing(), "{code}");
        }
        // SQLite's codes are no SQLSTATE.
        assert!(!said("8").server_is_away());
        assert!(!StoreError::Timeout(Duration::from_secs(1)).server_is_away());
    }
}
