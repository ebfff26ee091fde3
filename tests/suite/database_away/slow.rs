//! The database is too slow for a whole page of a statement.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{LockTerms, RowTerms};
use jobwire_core::{
    CommitHook, Hint, InProcessTransport, NewJob, Node, NodeId, NodeOptions, Outcome, PgOptions,
    PgStore, Running, Store,
};
use jobwire_tests::{eventually, shared};

use super::SOON;
use crate::world::Notes;

/// The jobs of a dead node. With the trigger below, ending their leases takes three statement
/// timeouts.
const JOBS: usize = 300;

/// Ends of leases are undone by the statement timeout, and after each a leader waits for the
/// renewals of living nodes. So a leader that asks for as many rows each time gets nowhere.
#[tokio::test]
async fn the_leases_of_a_dead_node_end_although_one_statement_cannot_end_them_all() {
    let url = shared::postgres().await.migrated_database().await;
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(1);
    let store = PgStore::connect_with(&url, options).await.unwrap();
    let prepares = PgStore::connect(&url).await.unwrap();
    let client = prepares.client(CommitHook::disconnected());
    let mut tx = client.begin().await.unwrap();
    let jobs = tx
        .create_many((0..JOBS).map(|_| NewJob::of("noop", &())).collect())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let terms = LockTerms {
        owner: NodeId::generate(),
        lease: Duration::from_secs(1),
        types: vec!["noop".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    let hints: Vec<Hint> = jobs.into_iter().map(Hint::new).collect();
    let locked = prepares.lock(&terms, &hints).await.unwrap().jobs;
    assert_eq!(locked.len(), JOBS);
    for sql in [
        "CREATE FUNCTION public.take_long() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$",
        "CREATE TRIGGER take_long BEFORE UPDATE ON jobwire.job_lease FOR EACH ROW
         WHEN (NEW.owner IS NULL) EXECUTE FUNCTION public.take_long()",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }

    let mut options = NodeOptions::default();
    options.lease = Duration::from_secs(3);
    options.sweep_interval = Duration::from_secs(1);
    let runs = Notes::default();
    let seen = runs.clone();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options)
        .handler("noop", move |job: Running<()>| {
            seen.add(job.job.id.to_string());
            async { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    eventually("all jobs to run", SOON, async || {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job")
            .fetch_one(store.pool())
            .await
            .ok()?;
        (left == 0).then_some(())
    })
    .await;
    // On a slow machine a job may run again after a lost lease.
    let ran: HashSet<String> = runs.all().into_iter().collect();
    assert_eq!(ran.len(), JOBS);
    node.stop().await;
}
