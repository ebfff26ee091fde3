//! One PostgreSQL for all tests of a process.
//!
//! The server starts when the first test asks for it. Each test has its own database. A test that
//! stops or kills a server starts its own with [`crate::Postgres::start`].

use crate::{Postgres, database};
use jobwire_core::PgStore;
use tokio::sync::OnceCell;
use url::Url;

/// The variable with a superuser's URL of a PostgreSQL server that already runs.
pub const POSTGRES_URL: &str = "JOBWIRE_TEST_POSTGRES_URL";

/// The PostgreSQL server that tests share.
#[derive(Debug)]
pub struct SharedPostgres {
    url: String,
    /// The URL of a database with Jobwire's tables, and no job.
    migrated: OnceCell<String>,
    _server: Option<Postgres>,
}

impl SharedPostgres {
    /// Returns the superuser's URL of the server's own database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Creates an empty database and returns its URL.
    pub async fn create_database(&self) -> String {
        database::create(&self.url).await
    }

    /// Creates a database with Jobwire's tables and returns its URL. It is a copy of one that was
    /// migrated once, which takes less time than the migrations.
    pub async fn migrated_database(&self) -> String {
        let migrate = async || {
            let url = self.create_database().await;
            let store = PgStore::connect(&url).await.unwrap();
            store.migrate().await.unwrap();
            store.pool().close().await;
            url
        };
        let migrated = self.migrated.get_or_init(migrate).await;
        database::copy(&self.url, migrated).await
    }
}

/// Returns the shared PostgreSQL. The first call starts it, unless the environment names one.
pub async fn postgres() -> &'static SharedPostgres {
    static SHARED: OnceCell<SharedPostgres> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = url_in(POSTGRES_URL) {
                return SharedPostgres {
                    url,
                    migrated: OnceCell::new(),
                    _server: None,
                };
            }
            let server = Postgres::start().await;
            SharedPostgres {
                url: server.url("postgres"),
                migrated: OnceCell::new(),
                _server: Some(server),
            }
        })
        .await
}

/// Returns the URL in a variable of the environment; an empty variable counts as unset.
///
/// # Panics
/// If the variable holds no URL.
#[must_use]
pub fn url_in(name: &str) -> Option<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    if let Err(error) = Url::parse(&value) {
        panic!("{name} is not a URL: {error}");
    }
    Some(value)
}
