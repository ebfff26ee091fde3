//! A readiness probe names the absent database, its address and the cause.

use jobwire_tests::{Postgres, Stop, shared};

use super::{endpoint, until_problem};
use crate::fleet::Fleet;

/// The probe itself asks the database: no other part of this node has asked it since the server
/// stopped.
#[tokio::test]
async fn an_absent_database_is_named_with_its_address_and_the_cause() {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let settings = [("JOBWIRE_SWEEP_INTERVAL", "10m"), ("JOBWIRE_LEASE", "10m")];
    let node = fleet.node(&settings).await;
    let endpoint = endpoint(&node).await;
    server.stop(Stop::Immediate).await;
    let problem = until_problem(&endpoint, "database").await;
    assert!(problem.contains(&server.address()), "{problem}");
    assert!(problem.contains("refused"), "{problem}");
}
