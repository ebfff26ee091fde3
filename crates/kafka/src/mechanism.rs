//! The SASL mechanisms.

use std::fmt;
use std::str::FromStr;

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// Sends the password itself. Needs TLS, except to brokers on this machine.
    Plain,
    /// Sends a proof of the password.
    ScramSha256,
    /// Sends a proof of the password. Default for a URL with a user.
    ScramSha512,
    /// Sends a token from a [`TokenSource`](crate::TokenSource).
    OauthBearer,
}

impl Mechanism {
    /// Returns the name in the protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
        }
    }
}

impl FromStr for Mechanism {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [
            Self::Plain,
            Self::ScramSha256,
            Self::ScramSha512,
            Self::OauthBearer,
        ]
        .into_iter()
        .find(|mechanism| mechanism.as_str().eq_ignore_ascii_case(text))
        .ok_or(())
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
