//! Errors of the tap, with their remedies.

use std::sync::Arc;
use std::time::Duration;

use pgwire_replication::PgWireError;

/// The reason why a connection failed or ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The connection failed or broke.
    #[error("the connection to the database failed: {0}")]
    Connection(Arc<std::io::Error>),
    /// The connection could not be encrypted, or the server's certificate is not trusted.
    #[error("the connection to the database is not secure: {0}")]
    Tls(String),
    /// The server refused the login.
    #[error("the server refuses the login: {0}")]
    Login(String),
    /// The server answered with an error.
    #[error("the server answers: {message} (SQLSTATE {code})")]
    Server {
        /// The SQLSTATE.
        code: String,
        /// The text of the server.
        message: String,
    },
    /// The server sent a message that the protocol does not allow, or that this program cannot
    /// read.
    #[error("the server sent what the replication protocol does not allow: {0}")]
    Protocol(String),
    /// A message was larger than [`TapOptions::max_message`](crate::TapOptions::max_message).
    #[error(
        "a row takes {bytes} bytes in the stream, and {limit} are allowed; publish fewer columns, \
         or raise `max_message`"
    )]
    TooLarge {
        /// The size of the message.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The server sent nothing for this time, not even a keepalive.
    #[error("the server sent nothing for {0:?}, not even a keepalive")]
    Silent(Duration),
    /// The receiver took no event for this time. The connection was closed, so that the server
    /// keeps no WAL for the receiver.
    #[error("no event was taken for {0:?}; the connection was closed, so that no WAL is kept")]
    Stalled(Duration),
    /// The PostgreSQL publication does not exist.
    #[error("the publication `{0}` does not exist in this database")]
    NoPublication(String),
    /// The task of the tap panicked. It is started again.
    #[error("the task of the tap died; it is started again")]
    Died,
    /// An option is not usable.
    #[error("{0}")]
    Setting(String),
}

impl TapError {
    /// Returns the SQLSTATE of an error of the server.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Returns whether the same attempt will fail again until an operator changes a setting or a
    /// right.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Login(_) | Self::Setting(_) | Self::NoPublication(_) => true,
            // A missing right, a missing object, or a setting of the server such as wal_level.
            Self::Server { code, .. } => {
                ["28", "42", "0A", "3D"]
                    .iter()
                    .any(|class| code.starts_with(class))
                    || code == "55000"
            }
            _ => false,
        }
    }
}

impl From<std::io::Error> for TapError {
    fn from(error: std::io::Error) -> Self {
        Self::Connection(Arc::new(error))
    }
}

impl From<PgWireError> for TapError {
    fn from(error: PgWireError) -> Self {
        match error {
            PgWireError::Io(error) => Self::Connection(error),
            PgWireError::Auth(text) => Self::Login(text),
            PgWireError::MessageTooLarge {
                payload_bytes: bytes,
                limit_bytes: limit,
            } => Self::TooLarge { bytes, limit },
            PgWireError::Protocol(text) => Self::Protocol(text),
            other => Self::Protocol(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str) -> TapError {
        TapError::Server {
            code: code.to_owned(),
            message: "no".to_owned(),
        }
    }

    #[test]
    fn what_only_an_operator_can_repair_is_lasting() {
        for code in ["28P01", "42501", "42704", "55000", "3D000"] {
            assert!(server(code).is_lasting(), "{code}");
        }
        for code in ["57P01", "53400", "53300", "57014"] {
            assert!(!server(code).is_lasting(), "{code}");
        }
        assert!(!TapError::Silent(Duration::from_secs(1)).is_lasting());
    }
}
