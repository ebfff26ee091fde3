//! PgBouncer between the nodes and the database.

use jobwire_tests::{PgBouncer, Pooling, Program, shared};

use super::{SOON, endpoint, event, until_ready};
use crate::fleet::Fleet;

/// Session pooling gives each connection its own server session: everything works, timeouts
/// included.
#[tokio::test]
async fn a_pooler_of_sessions_is_as_good_as_the_server() {
    let postgres = shared::postgres().await;
    let database = postgres.create_database().await;
    let bouncer = PgBouncer::start(postgres.url(), Pooling::Sessions).await;
    let through = bouncer.url(&database);
    let space = shared::rabbitmq().await.space().await;
    let fleet = Fleet::new(through.clone(), space).await;
    let node = fleet.node(&[("JOBWIRE_STATEMENT_TIMEOUT", "7s")]).await;
    for position in 1..=20 {
        fleet.jobs.create(event("one", position)).await.unwrap();
    }
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 20);
    assert_eq!(fleet.cases().disorder().await, 0);
    until_ready(&endpoint(&node).await).await;
    let limit: String = sqlx::query_scalar("SELECT current_setting('statement_timeout')")
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
    assert_eq!(
        limit, "15s",
        "set on every connection, although PgBouncer passes no start-up option"
    );
    let (status, said) = Program::jobwire()
        .args(["doctor", "--database", &through])
        .env("JOBWIRE_BROKER_URL", &fleet.space.url)
        .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix)
        .run(SOON)
        .await;
    assert!(status.success(), "{said:#?}");
}

/// With transaction pooling, a session changes clients between transactions and keeps neither
/// prepared statements nor timeouts: the node refuses it at the start and names the remedy.
#[tokio::test]
async fn a_pooler_of_transactions_is_refused_with_a_remedy() {
    let postgres = shared::postgres().await;
    let database = postgres.create_database().await;
    let direct = jobwire_core::PgStore::connect(&database).await.unwrap();
    direct.migrate().await.unwrap();
    let bouncer = PgBouncer::start(postgres.url(), Pooling::Transactions).await;
    let through = bouncer.url(&database);
    for command in ["doctor", "run"] {
        let (status, said) = Program::jobwire()
            .args([command, "--database", &through])
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .run(SOON)
            .await;
        assert!(!status.success(), "{command}: {said:#?}");
        let said = said.join("\n");
        for part in ["several clients", "pool_mode = session"] {
            assert!(said.contains(part), "{command}: {part} in {said}");
        }
    }
}
