//! Databases as Java names them.

use url::Url;

/// A URL without the user and the password, and these.
pub(crate) struct Jdbc {
    pub(crate) url: String,
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Jdbc {
    /// Reads the URL of a database of the tests.
    ///
    /// # Panics
    /// If it is not a URL.
    pub(crate) fn of(database: &str) -> Jdbc {
        let url =
            Url::parse(database).unwrap_or_else(|error| panic!("the database's URL: {error}"));
        let host = url.host_str().unwrap_or("localhost");
        let port = url.port().unwrap_or(5432);
        Jdbc {
            url: format!("jdbc:postgresql://{host}:{port}{}", url.path()),
            user: url.username().to_owned(),
            password: url.password().unwrap_or_default().to_owned(),
        }
    }
}
