//! What can go wrong in a command: one clear line each, with what to do, and an exit code.

use jobwire_core::node::StartError;
use jobwire_core::transport::TransportError;
use jobwire_core::{InvalidJob, StoreError};

use crate::settings::Mistakes;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings that can't work.
    #[error(transparent)]
    Settings(#[from] Mistakes),
    /// Arguments that can't work.
    #[error("{0}")]
    Usage(String),
    /// The database can't be used.
    #[error("database {url}: {source}{}", remedy(.source))]
    Database {
        /// Which, without its password.
        url: String,
        /// What it said.
        source: StoreError,
    },
    /// The broker can't be used.
    #[error("broker {url}: {source}")]
    Broker {
        /// Which, without its password.
        url: String,
        /// What it said, with the remedy.
        source: TransportError,
    },
    /// A node did not start.
    #[error("the node did not start: {0}")]
    Start(#[from] StartError),
    /// A statement failed.
    #[error("{}{}", .0, remedy(.0))]
    Store(#[from] StoreError),
    /// The HTTP address can't be used.
    #[error(
        "can't listen on {address}: {source}; give another address with --http, or `--http off`"
    )]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file, a stream, or another resource of the machine.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Input that can't be accepted; says where.
    #[error("{0}")]
    Input(String),
    /// Anything else that has a name and a remedy.
    #[error("{0}")]
    Failed(String),
    /// Everything has been said already.
    #[error("failed")]
    Reported,
    /// Whoever read our output has gone.
    #[error("the output was closed")]
    OutputClosed,
}

impl Error {
    /// Something that failed while this was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The exit code: 1 failed, 2 called wrongly.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_) | Self::Usage(_) => 2,
            _ => 1,
        }
    }

    /// Has everything been said, or is there nobody to hear it?
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

/// What to do about a database's answer, where its own words don't say.
fn remedy(error: &StoreError) -> &'static str {
    let StoreError::Database(error) = error else {
        return "";
    };
    match error {
        sqlx::Error::Io(_) => {
            "; is the server running, and are host and port right? Set --database (JOBWIRE_DATABASE_URL)"
        }
        sqlx::Error::Tls(_) => "; check the server's certificate, or `sslmode` in the URL",
        sqlx::Error::PoolTimedOut => {
            "; the server did not answer in time, or every connection is in use (`database_connections`)"
        }
        sqlx::Error::Database(said) => match said.code().as_deref() {
            Some("28P01" | "28000") => {
                "; correct user and password in --database (JOBWIRE_DATABASE_URL), or the server's pg_hba.conf"
            }
            Some("3D000") => "; create the database (createdb), or name another one in --database",
            Some("42501") => {
                "; grant this right to the user of the URL; `jobwire doctor` lists what is missing"
            }
            Some("53300") => {
                "; raise max_connections on the server, or lower `database_connections`"
            }
            Some("42P01" | "3F000") => "; run `jobwire migrate up`",
            _ if said.message().contains("unsupported startup parameter") => {
                "; a PgBouncer refuses it: let Jobwire connect directly, or add `options` to its ignore_startup_parameters"
            }
            _ => "",
        },
        _ => "",
    }
}
