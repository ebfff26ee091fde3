//! The errors of commands: one line each, with the remedy and an exit code.

use jobwire_core::node::StartError;
use jobwire_core::transport::TransportError;
use jobwire_core::{InvalidJob, StoreError};

use crate::settings::{Mistake, Mistakes, Settings};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid settings.
    #[error(transparent)]
    Settings(#[from] Mistakes),
    /// Invalid arguments.
    #[error("{0}")]
    Usage(String),
    /// The database can't be used.
    #[error("{}{}", of_database(.url, .source), remedy(.source, .setting))]
    Database {
        /// The option and the variable that name it.
        setting: &'static str,
        /// Its URL, without the password.
        url: String,
        /// The error of the database.
        source: StoreError,
    },
    /// The broker can't be used.
    #[error("{source} (broker {url})")]
    Broker {
        /// Its URL, without the password.
        url: String,
        /// The error of the broker, with the remedy.
        source: TransportError,
    },
    /// A node did not start.
    #[error("the node did not start: {0}")]
    Start(#[from] StartError),
    /// A statement failed.
    #[error("{}{}", .0, remedy(.0, JOBWIRE))]
    Store(#[from] StoreError),
    /// The HTTP address can't be used.
    #[error(
        "can't listen on {address}: {source}; give another address with --http, or `--http off`"
    )]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file that an argument names can't be read.
    #[error(
        "can't read {name}: {}; give the path of a readable file, or - for standard input",
        of_system(.source)
    )]
    File {
        /// Its name.
        name: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file, a stream or another resource of the machine can't be used.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Invalid input; the text names the place.
    #[error("{0}")]
    Input(String),
    /// Any other error; the text includes the remedy.
    #[error("{0}")]
    Failed(String),
    /// An error that has been reported already.
    #[error("failed")]
    Reported,
    /// The reader of the output closed it.
    #[error("the output was closed")]
    OutputClosed,
}

impl Error {
    /// Returns a function that wraps an I/O error of the action `what`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Returns the error of a file that the setting `key` names.
    #[must_use]
    pub(crate) fn of_setting(self, settings: &Settings, key: &'static str) -> Self {
        let Self::File { name, source } = self else {
            return self;
        };
        let (flag, variable) = (key.replace('_', "-"), key.to_ascii_uppercase());
        Self::Settings(Mistakes(vec![Mistake {
            setting: key.to_owned(),
            value: Some(name),
            origin: settings.origin(key),
            problem: format!(
                "the file can't be read: {}; correct the path (--{flag}, JOBWIRE_{variable}), or \
                 leave the setting out",
                of_system(&source)
            ),
        }]))
    }

    /// Returns the exit code: 1 for a failure, 2 for invalid arguments or settings.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_) | Self::Usage(_) | Self::File { .. } => 2,
            _ => 1,
        }
    }

    /// Returns whether nothing is printed: the error has been reported, or the output is closed.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Reported | Self::OutputClosed)
    }
}

impl From<InvalidJob> for Error {
    fn from(error: InvalidJob) -> Self {
        Self::Input(error.to_string())
    }
}

/// Returns a message of the library for users of the program: of an option and its setting, as in
/// `` `hook.max_age` (setting `hint_max_age`) ``, only the setting is left, and of a method and its
/// command, as in `` `PgStore::migrate` (command `jobwire migrate up`) ``, only the command.
pub(crate) fn with_settings_alone(text: &str) -> String {
    const BETWEEN: [&str; 2] = ["` (setting `", "` (command `"];
    let mut left = text;
    let mut said = String::new();
    while let Some((before, after)) = BETWEEN
        .iter()
        .filter_map(|between| left.split_once(between))
        .min_by_key(|(before, _)| before.len())
    {
        let Some((setting, rest)) = after.split_once("`)") else {
            break;
        };
        let mut kept = word_before(before);
        // Several options may have one setting.
        while let Some(other) = kept.strip_suffix("` or ") {
            kept = word_before(other);
        }
        said.push_str(kept.strip_suffix("option ").unwrap_or(kept));
        said.extend(["`", setting, "`"]);
        left = rest;
    }
    said.push_str(left);
    said
}

/// Returns the text before its last word, whose closing backtick is already off.
fn word_before(text: &str) -> &str {
    text.rsplit_once('`').map_or(text, |(before, _)| before)
}

/// Returns the text of an error of the system, without its number.
fn of_system(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

/// Returns the error of a command that changes jobs in parts. `done` says which were changed before.
/// If the answer of the last part was lost, that part may have taken effect.
pub(crate) fn interrupted(error: StoreError, done: &str) -> Error {
    let rest = if error.changed_nothing() {
        "run this again for the rest"
    } else {
        "whether the last part of them took effect is unknown, since its answer was lost; look \
         (`jobwire jobs list`), then run this again for the rest"
    };
    Error::Failed(format!("{}; {done}; {rest}", Error::Store(error)))
}

/// Returns the error of the database at this URL. Errors of the connection name the address
/// themselves.
fn of_database(url: &str, error: &StoreError) -> String {
    match error {
        StoreError::Connect { .. } | StoreError::Config(_) | StoreError::Schema(_) => {
            error.to_string()
        }
        error => format!("{error} (database {url})"),
    }
}

/// The option and the variable that name Jobwire's database.
pub(crate) const JOBWIRE: &str = "--database (JOBWIRE_DATABASE_URL)";
/// The option and the variable that name the database of an engine.
pub(crate) const ENGINE: &str = "--engine-database (JOBWIRE_ENGINE_DATABASE_URL)";

/// Returns the remedy for a database error whose text has none. `setting` names the database.
fn remedy(error: &StoreError, setting: &str) -> String {
    let (StoreError::Database(error) | StoreError::Connect { source: error, .. }) = error else {
        return String::new();
    };
    let remedy = match error {
        sqlx::Error::Io(_) => {
            return format!(
                "; check that the server runs and that host and port are right, or set {setting}"
            );
        }
        sqlx::Error::Tls(_) => "; check the server's certificate, or `sslmode` in the URL",
        sqlx::Error::Database(said) => match said.code().as_deref() {
            Some("28P01" | "28000") => {
                return format!(
                    "; correct user and password in {setting}, or the server's pg_hba.conf"
                );
            }
            Some("3D000") => {
                return format!("; create the database (createdb), or set another one: {setting}");
            }
            Some("42501") => {
                "; grant this right to the user of the URL; `jobwire doctor` lists the missing \
                 rights"
            }
            Some("53300") => {
                "; raise max_connections on the server, or lower `database_connections`"
            }
            Some("42P01" | "3F000") => "; run `jobwire migrate up`",
            _ if said.message().contains("unsupported startup parameter") => {
                "; PgBouncer refuses it: let Jobwire connect directly, or add `options` to \
                 PgBouncer's ignore_startup_parameters"
            }
            _ => "",
        },
        _ => "",
    };
    remedy.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_names_its_settings_and_no_options_of_the_library() {
        for (library, program) in [
            (
                "must not be shorter than `hook.max_age` (setting `hint_max_age`): raise it",
                "must not be shorter than `hint_max_age`: raise it",
            ),
            (
                "raise `PgOptions::a` or `SqliteOptions::b` (setting `c`), or set `d` (setting `e`) to `f`",
                "raise `c`, or set `e` to `f`",
            ),
            (
                "option `security.ca` (setting `broker_tls_ca`): is wrong",
                "`broker_tls_ca`: is wrong",
            ),
            ("` (setting `x", "` (setting `x"),
            (
                "call `A::b` (command `jobwire migrate up`), or set `d` (setting `e`)",
                "call `jobwire migrate up`, or set `e`",
            ),
            (
                "the broker's URL (setting `broker_url`)",
                "the broker's URL (setting `broker_url`)",
            ),
        ] {
            assert_eq!(with_settings_alone(library), program);
        }
    }
}
