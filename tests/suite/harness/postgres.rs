use jobwire_tests::{Postgres, Stop, shared};
use sqlx::{Connection, PgConnection};
use std::time::Duration;

const A_MINUTE: Duration = Duration::from_secs(60);

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url)
        .await
        .expect("the database can be reached")
}

async fn setting(connection: &mut PgConnection, name: &str) -> String {
    let query = sqlx::query_scalar("SELECT current_setting($1)").bind(name);
    query
        .fetch_one(connection)
        .await
        .expect("the setting exists")
}

#[tokio::test]
async fn each_test_has_a_database_of_its_own() {
    let server = shared::postgres().await;
    let (one, other) = (
        server.create_database().await,
        server.create_database().await,
    );
    let mut one = connect(&one).await;
    let mut other = connect(&other).await;
    sqlx::raw_sql("CREATE TABLE mine ()")
        .execute(&mut one)
        .await
        .expect("a table");
    let seen: bool = sqlx::query_scalar("SELECT to_regclass('mine') IS NOT NULL")
        .fetch_one(&mut other)
        .await
        .expect("an answer");
    assert!(!seen);
}

#[tokio::test]
async fn a_private_postgres_is_set_up_as_production_is() {
    let server = Postgres::start().await;
    let mut connection = connect(&server.create_database().await).await;
    assert_eq!(setting(&mut connection, "fsync").await, "on");
    assert_eq!(setting(&mut connection, "wal_level").await, "logical");
    assert_eq!(setting(&mut connection, "max_connections").await, "200");
    sqlx::raw_sql("CREATE EXTENSION pg_stat_statements; SELECT 1 FROM pg_stat_statements")
        .execute(&mut connection)
        .await
        .expect("statements are counted");
}

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let server = Postgres::start().await;
    let mut url = url::Url::parse(&server.url("postgres")).expect("a URL");
    url.set_password(Some("wrong"))
        .expect("a URL with a password");
    let error = PgConnection::connect(url.as_str())
        .await
        .expect_err("no way in");
    let code = error
        .as_database_error()
        .and_then(|error| error.code().map(String::from));
    assert_eq!(code.as_deref(), Some("28P01"));
}

#[tokio::test]
async fn a_server_comes_back_with_what_was_committed() {
    let mut server = Postgres::start().await;
    let url = server.create_database().await;
    let mut connection = connect(&url).await;
    sqlx::raw_sql("CREATE TABLE kept (n int)")
        .execute(&mut connection)
        .await
        .expect("a table");
    for how in ["killed", "stopped at once", "stopped"] {
        let mut connection = connect(&url).await;
        sqlx::raw_sql("INSERT INTO kept VALUES (1)")
            .execute(&mut connection)
            .await
            .expect(how);
        match how {
            "killed" => tokio::time::timeout(A_MINUTE, server.kill())
                .await
                .expect(how),
            "stopped at once" => server.stop(Stop::Immediate).await,
            _ => server.stop(Stop::Fast).await,
        }
        PgConnection::connect(&url)
            .await
            .expect_err("no server listens");
        server.start_again().await;
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM kept")
        .fetch_one(&mut connect(&url).await)
        .await
        .expect("the table");
    assert_eq!(rows, 3);
}
