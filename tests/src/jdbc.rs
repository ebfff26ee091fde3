//! Databases as Java names them.

use url::Url;

/// A URL without the user and the password, and these.
pub(crate) struct Jdbc {
    pub(crate) url: String,
    pub(crate) user: String,
    pub(crate) password: String,
    /// It is PostgreSQL, and not MariaDB.
    pub(crate) is_postgres: bool,
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
        let is_postgres = url.scheme() != "mariadb";
        let (name, usual) = match is_postgres {
            true => ("postgresql", 5432),
            false => ("mariadb", 3306),
        };
        let port = url.port().unwrap_or(usual);
        Jdbc {
            url: format!("jdbc:{name}://{host}:{port}{}", url.path()),
            user: url.username().to_owned(),
            password: url.password().unwrap_or_default().to_owned(),
            is_postgres,
        }
    }
}
