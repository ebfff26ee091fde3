//! The address of a database, with the login and the security of the connection.

use std::fmt;
use std::path::PathBuf;

/// The address of a database.
///
/// ```
/// use jobwire_tap::{Address, TlsMode};
///
/// let mut address = Address::new("db.example.com", 5432, "tap", "shop");
/// address.password = Some("secret".to_owned());
/// address.tls.mode = TlsMode::VerifyFull;
/// assert!(!format!("{address:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// A host name, an IP address, or the directory of a Unix socket, which starts with `/`.
    pub host: String,
    /// The port. It is also part of the name of a Unix socket.
    pub port: u16,
    /// The user, with the right to replicate.
    pub user: String,
    /// The password, if the server asks for one.
    pub password: Option<String>,
    /// The database.
    pub database: String,
    /// The security of the connection. Not used on a Unix socket.
    pub tls: Tls,
}

impl Address {
    /// Returns the address of a database without a password, over TLS without verification if the
    /// server offers it. That suits this machine only; see [`TlsMode`].
    #[must_use]
    pub fn new(
        host: impl Into<String>,
        port: u16,
        user: impl Into<String>,
        database: impl Into<String>,
    ) -> Self {
        Self {
            host: host.into(),
            port,
            user: user.into(),
            password: None,
            database: database.into(),
            tls: Tls::default(),
        }
    }

    /// Returns the path of the Unix socket, if the host is its directory.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        let directory = self.host.starts_with('/').then_some(&self.host)?;
        Some(PathBuf::from(directory).join(format!(".s.PGSQL.{}", self.port)))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("tls", &self.tls.mode)
            .finish_non_exhaustive()
    }
}

/// Whether the connection is encrypted and the server verified. The modes have the meanings of
/// `sslmode` in PostgreSQL's own clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// No encryption.
    Disable,
    /// Encryption if the server offers it; nothing is verified.
    #[default]
    Prefer,
    /// Encryption; nothing is verified.
    Require,
    /// Encryption; a trusted authority signed the certificate.
    VerifyCa,
    /// Encryption; a trusted authority signed the certificate, and it names the host or IP address.
    VerifyFull,
}

/// The security of the connection.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// The mode of encryption and verification.
    pub mode: TlsMode,
    /// Authorities that are trusted beside those of this machine.
    pub root: Option<Pem>,
    /// The certificate of this program, with its chain.
    pub certificate: Option<Pem>,
    /// The private key of `certificate`.
    pub key: Option<Pem>,
}

/// Certificates or a key in PEM. A file is read again for each connection.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The path of a file.
    File(PathBuf),
    /// The text itself.
    Text(String),
}

impl From<String> for Pem {
    /// Takes text with a PEM section as certificates or a key, and other text as a path.
    fn from(text: String) -> Self {
        if text.trim_start().starts_with("-----BEGIN") {
            Self::Text(text)
        } else {
            Self::File(text.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_the_place_of_a_socket() {
        let address = Address::new("/run/postgresql", 5433, "tap", "shop");
        let path = address.socket().map(|path| path.display().to_string());
        assert_eq!(path.as_deref(), Some("/run/postgresql/.s.PGSQL.5433"));
        assert_eq!(Address::new("db", 5432, "tap", "shop").socket(), None);
    }

    #[test]
    fn a_certificate_may_be_given_as_text() {
        let text = "-----BEGIN CERTIFICATE-----\n".to_owned();
        assert!(matches!(Pem::from(text), Pem::Text(_)));
        assert!(matches!(Pem::from("ca.pem".to_owned()), Pem::File(_)));
    }
}
