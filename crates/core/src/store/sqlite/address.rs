//! The URL of the database, and the file that it names.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::store::Result;
use crate::store::error::StoreError;

const URL_FORM: &str = "write sqlite:jobs.db, sqlite:///var/lib/app/jobs.db or sqlite::memory:";

/// Returns whether the URL names a database in memory, which ends with its connection.
pub(super) fn is_in_memory(url: &str) -> bool {
    let name = url
        .trim_start_matches("sqlite://")
        .trim_start_matches("sqlite:");
    let (path, parameters) = name.split_once('?').unwrap_or((name, ""));
    path == ":memory:" || parameters.split('&').any(|p| p == "mode=memory")
}

pub(super) fn connect_options(url: &str, create: bool) -> Result<SqliteConnectOptions> {
    if !url.starts_with("sqlite:") {
        return Err(StoreError::Config(format!(
            "the database URL does not begin with `sqlite:`; {URL_FORM}"
        )));
    }
    let options: SqliteConnectOptions = url.parse().map_err(|e: sqlx::Error| {
        StoreError::Config(format!("the database URL can't be read: {e}; {URL_FORM}"))
    })?;
    let path = options.get_filename();
    if path == Path::new("") {
        return Err(StoreError::Config(format!(
            "the database URL names no file; {URL_FORM}"
        )));
    }
    if !is_in_memory(url) {
        if !create && !path.exists() {
            return Err(StoreError::Config(format!(
                "no such file: {}; correct the path of the database, or create the file with \
                 `SqliteOptions::create` (command `jobwire migrate up`)",
                path.display()
            )));
        }
        let directory = path.parent().filter(|d| *d != Path::new(""));
        if let Some(directory) = directory.filter(|d| !d.is_dir()) {
            return Err(StoreError::Config(format!(
                "the database file can't be created: {} is not a directory; create it, or give \
                 another path",
                directory.display()
            )));
        }
        if path.is_dir() {
            return Err(StoreError::Config(format!(
                "{} is a directory; give the path of a file in it",
                path.display()
            )));
        }
        make_private(path);
    }
    Ok(options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true))
}

/// Creates a missing file for this user alone, because payloads may be secrets. SQLite gives the
/// files beside it (`-wal`, `-shm`) the same permissions. If the creation fails, the first
/// statement reports the reason.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

/// Converts the error of the first statement, with a remedy if the path is the reason.
pub(super) fn unusable(url: &str, error: sqlx::Error) -> StoreError {
    let code = error
        .as_database_error()
        .and_then(|e| e.code()?.parse::<i32>().ok())
        .map(|code| code & 0xff);
    let error = StoreError::from(error);
    let remedy = match code {
        Some(8) => "the file is read-only; allow this process to write it and its directory",
        Some(14) => "the file can't be opened; check the path and the permissions of its directory",
        Some(26) => "the file is not a SQLite database; give another path",
        _ => return error,
    };
    StoreError::Config(format!("{url}: {remedy}; SQLite says: {}", error.bare()))
}
