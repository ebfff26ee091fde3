//! Operations that another transaction overtakes.

use jobwire_core::store::{Operated, Store};
use jobwire_core::{JobId, PgStore};
use jobwire_harness::world::until_waiting;

use crate::store_conformance::world::{World, give_up, node, work};

/// The statement of a retry has its snapshot, and has not come to the executable job, when a node locks
/// that job. The job either runs and is not retried, or is retried and does not run.
#[tokio::test]
async fn a_retry_changes_no_job_that_a_node_locks_at_the_same_moment() {
    let w = World::<PgStore>::open().await;
    let (executable, dead) = (w.one(work()).await, w.one(work()).await);
    let worker = node();
    let job = w.hold(worker, &dead).await;
    w.fail(worker, give_up(&job)).await;
    sqlx::raw_sql(
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM pg_advisory_xact_lock(17); RETURN OLD; END';
         CREATE TRIGGER stop BEFORE DELETE ON jobwire.dead_letter_job
             FOR EACH ROW EXECUTE FUNCTION stop()",
    )
    .execute(w.store.pool())
    .await
    .unwrap();
    let mut gate = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(17)")
        .execute(&mut *gate)
        .await
        .unwrap();
    let store = w.store.clone();
    let both = [dead.id, executable.id];
    let retrying = tokio::spawn(async move { store.retry_many(&both, 7).await });
    until_waiting(&w.store, 1).await;
    let locked = w.lock(node(), std::slice::from_ref(&executable)).await;
    gate.commit().await.unwrap();
    let retried = retrying.await.unwrap().unwrap();
    let told = |id: JobId| {
        retried
            .operated
            .iter()
            .find(|(of, _)| *of == id)
            .map(|(_, told)| *told)
    };
    assert_eq!(told(dead.id), Some(Operated::Done));
    let runs = locked.jobs.iter().any(|job| job.job.id == executable.id);
    let expected = if runs {
        Operated::Running
    } else {
        Operated::Done
    };
    assert_eq!(told(executable.id), Some(expected), "locked: {runs}");
}
