//! The answers of a handler: its outcomes and its errors.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::store::error::has_conflict;

/// The outcome of an attempt that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is finished.
    Done,
    /// The job runs again after this time; no attempt is spent.
    Snooze(Duration),
    /// The job runs again at this date, by the clock of the database; no attempt is spent. A date in the
    /// past means at once.
    SnoozeUntil(DateTime<Utc>),
}

/// A type that a handler may return instead of an [`Outcome`].
pub trait IntoOutcome {
    /// Returns the outcome of the attempt.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// The job is finished.
impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

/// The effect of a failed attempt on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The job runs again after the given time, or by the retry policy; one attempt is spent.
    Retry(Option<Duration>),
    /// The job runs again at this date, by the clock of the database; one attempt is spent. A date in the
    /// past means at once.
    RetryAt(DateTime<Utc>),
    /// The job becomes a dead letter.
    Unrecoverable,
    /// Another transaction changed the same data. The job runs again soon; no attempt is spent.
    Conflict,
    /// The job is deleted like after [`Client::cancel`](crate::Client::cancel): it is not done, and no
    /// occurrence follows.
    Cancel,
}

/// An attempt that did not do its job: the verdict, a message, and the chain of causes.
#[derive(Debug)]
pub struct HandlerError {
    /// The effect on the job.
    pub verdict: Verdict,
    /// The message, for people.
    pub message: String,
    /// The chain of causes, one per line.
    pub stack: Option<String>,
}

impl HandlerError {
    fn new(verdict: Verdict, message: impl Into<String>) -> Self {
        Self {
            verdict,
            message: message.into(),
            stack: None,
        }
    }

    /// Creates an error after which the job runs again by the retry policy.
    pub fn retry(message: impl Into<String>) -> Self {
        Self::new(Verdict::Retry(None), message)
    }

    /// Creates an error after which the job runs again after this time.
    pub fn retry_in(wait: Duration, message: impl Into<String>) -> Self {
        Self::new(Verdict::Retry(Some(wait)), message)
    }

    /// Creates an error after which the job runs again at this date, by the clock of the database. A
    /// date in the past means at once.
    pub fn retry_at(at: DateTime<Utc>, message: impl Into<String>) -> Self {
        Self::new(Verdict::RetryAt(at), message)
    }

    /// Creates an error after which the job becomes a dead letter.
    pub fn unrecoverable(message: impl Into<String>) -> Self {
        Self::new(Verdict::Unrecoverable, message)
    }

    /// Creates an error after which the job is deleted, because there is nothing left to do. The reason
    /// is logged, and is the message of the attempt if the type records attempts.
    pub fn cancel(reason: impl Into<String>) -> Self {
        Self::new(Verdict::Cancel, reason)
    }

    /// Creates the error for a payload that does not decode. It will not decode the next time
    /// either: an operator or a new release must repair it. Of an encrypted payload it tells only the
    /// place of the mistake, because the message is stored as plaintext.
    pub(crate) fn bad_payload(job_type: &str, sealed: bool, error: &serde_json::Error) -> Self {
        let problem = if sealed {
            place_of(error)
        } else {
            error.to_string()
        };
        Self::unrecoverable(format!(
            "field `payload` does not match the payload type of a `{job_type}` job: {problem}"
        ))
    }

    /// Creates an error for a change of the same data by another transaction. No attempt is spent.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(Verdict::Conflict, message)
    }
}

/// Returns the place of a mistake in JSON, without the data.
pub(crate) fn place_of(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        serde_json::error::Category::Data => "another value is expected",
        _ => "it is no JSON",
    };
    format!("{kind} at line {} column {}", error.line(), error.column())
}

/// Any error, including a text or an error of `anyhow`, means a retry by the retry policy. A
/// serialization failure or deadlock of the database, or a busy or locked file of SQLite, in the error
/// or among its sources, is a conflict.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        let mut causes = vec![error.to_string()];
        let mut conflict = is_conflict(&*error);
        let mut cause = error.source();
        while let Some(next) = cause {
            conflict |= is_conflict(next);
            causes.push(next.to_string());
            cause = next.source();
        }
        Self {
            verdict: if conflict {
                Verdict::Conflict
            } else {
                Verdict::Retry(None)
            },
            message: causes.first().cloned().unwrap_or_default(),
            stack: Some(causes.join("\ncaused by: ")),
        }
    }
}

fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    let whole = error
        .downcast_ref::<sqlx::Error>()
        .and_then(|error| error.as_database_error());
    // A wrapper, such as an error of `anyhow`, exposes only the source of `sqlx::Error`.
    let source = || {
        let inner = error.downcast_ref::<Box<dyn sqlx::error::DatabaseError>>();
        inner.map(|inner| &**inner)
    };
    whole.or_else(source).is_some_and(has_conflict)
}

/// The answer of a handler: `()` by default, an [`Outcome`], or a type that
/// [becomes one](IntoOutcome).
pub type HandlerResult<O = ()> = Result<O, HandlerError>;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error;
    use std::fmt;

    #[cfg(feature = "sqlite")]
    use sqlx::ConnectOptions;
    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    #[derive(Debug)]
    struct Said(&'static str);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("could not serialize access")
        }
    }

    impl Error for Said {}

    impl DatabaseError for Said {
        fn message(&self) -> &str {
            "could not serialize access"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    /// Shows its source's text and the source below it, as an error of `anyhow` does.
    #[derive(Debug)]
    struct Wrapper(sqlx::Error);

    impl fmt::Display for Wrapper {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    impl Error for Wrapper {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.source()
        }
    }

    fn said(code: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Said(code)))
    }

    /// Returns two connections to one file of SQLite, which do not wait for each other.
    #[cfg(feature = "sqlite")]
    async fn connections(folder: &tempfile::TempDir) -> [sqlx::SqliteConnection; 2] {
        let file = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.path().join("jobs"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(Duration::ZERO);
        let mut connections = Vec::new();
        for _ in 0..2 {
            connections.push(file.connect().await.unwrap());
        }
        connections.try_into().unwrap()
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_busy_file_of_sqlite_is_a_conflict() {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut other] = connections(&folder).await;
        let run = sqlx::raw_sql("CREATE TABLE t (i INTEGER); BEGIN; SELECT i FROM t");
        run.execute(&mut one).await.unwrap();
        let run = sqlx::raw_sql("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
        run.execute(&mut other).await.unwrap();
        let verdict = |error: sqlx::Error, code: &str| {
            assert_eq!(error.as_database_error().unwrap().code().unwrap(), code);
            HandlerError::from(Wrapper(error)).verdict
        };
        let write = || sqlx::raw_sql("INSERT INTO t VALUES (2)");
        let busy = write().execute(&mut one).await.unwrap_err();
        assert_eq!(verdict(busy, "5"), Verdict::Conflict);
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        let old_snapshot = write().execute(&mut one).await.unwrap_err();
        assert_eq!(verdict(old_snapshot, "517"), Verdict::Conflict);
        let no_table = sqlx::raw_sql("SELECT 1 FROM u").execute(&mut other).await;
        assert_eq!(verdict(no_table.unwrap_err(), "1"), Verdict::Retry(None));
    }

    #[test]
    fn a_serialization_failure_is_a_conflict_also_inside_another_error() {
        let verdict = |error: HandlerError| error.verdict;
        assert_eq!(verdict(said("40001").into()), Verdict::Conflict);
        assert_eq!(verdict(Wrapper(said("40P01")).into()), Verdict::Conflict);
        assert_eq!(verdict(Wrapper(said("23505")).into()), Verdict::Retry(None));
        // Codes of SQLite, told by another database.
        for code in ["5", "6", "517", "261"] {
            assert_eq!(verdict(said(code).into()), Verdict::Retry(None), "{code}");
        }
        assert_eq!(verdict("no luck".into()), Verdict::Retry(None));
    }
}
