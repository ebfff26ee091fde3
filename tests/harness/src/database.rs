//! Databases on a server that is already running.

use sqlx::{Connection, Executor, PgConnection};
use url::Url;
use uuid::Uuid;

/// Creates an empty, uniquely named database and returns its URL, with the user,
/// password and parameters of `superuser_url`.
///
/// Databases are not dropped: on a private server they vanish with it; on a server of yours they
/// stay as `jobwire_test_…`, so that you can inspect them after a test.
///
/// # Panics
/// If the server cannot be reached or refuses.
pub async fn create(superuser_url: &str) -> String {
    // template0 has no connections; a connection would make CREATE DATABASE fail.
    create_from(superuser_url, "template0 ENCODING 'UTF8'").await
}

/// Creates a copy of a database, to which nobody is connected.
///
/// # Panics
/// If the server cannot be reached or refuses.
pub async fn copy(superuser_url: &str, url: &str) -> String {
    let url = Url::parse(url).unwrap_or_else(|error| panic!("not a database URL: {error}"));
    create_from(superuser_url, url.path().trim_start_matches('/')).await
}

async fn create_from(superuser_url: &str, template: &str) -> String {
    let name = format!("jobwire_test_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect(superuser_url)
        .await
        .unwrap_or_else(|error| panic!("cannot connect to the tests' PostgreSQL: {error}"));
    let statement = format!("CREATE DATABASE {name} TEMPLATE {template}");
    connection
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(statement)))
        .await
        .unwrap_or_else(|error| panic!("cannot create the database {name}: {error}"));
    let _ = connection.close().await;
    with_name(superuser_url, &name)
}

/// Returns `url` with another database.
pub fn with_name(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).unwrap_or_else(|error| panic!("not a database URL: {error}"));
    url.set_path(database);
    url.into()
}
