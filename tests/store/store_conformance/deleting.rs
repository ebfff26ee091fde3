//! Deletions of a job that another transaction moves. PostgreSQL only: SQLite has one writer.

use std::pin::pin;
use std::time::Duration;

use jobwire_core::hint::Ready;
use jobwire_core::store::{Handoff, Operated};
use jobwire_core::{JobId, JobState, PgStore, Store, StoreError};
use jobwire_harness::world::until_waiting;

use super::world::{SqlBench, World, ids, node, work};

const OPERATIONS: [&str; 3] = ["delete", "cancel", "delete_many"];

async fn operate(
    store: &PgStore,
    operation: &str,
    id: JobId,
) -> Result<(Operated, Vec<Ready>), StoreError> {
    match operation {
        "delete" => store.delete(id).await,
        "cancel" => store.cancel(id).await,
        _ => {
            let mut told = store.delete_many(&[id]).await?;
            match told.operated.pop() {
                Some((_, operated)) => Ok((operated, told.ready)),
                None => Err(StoreError::RowLocked(id)),
            }
        }
    }
}

/// Creates a timer that is due.
async fn due(w: &World<PgStore>) -> JobId {
    let timer = work().instance("a").delay(Duration::from_secs(60));
    let id = timer.id();
    w.create(vec![timer]).await;
    w.make_due(id, 1).await;
    id
}

/// The mover has deleted the timer and written the executable job, and has not committed.
#[tokio::test]
async fn a_job_that_becomes_due_at_its_deletion_is_not_called_missing() {
    let w = World::<PgStore>::open().await;
    for pause in [
        "CREATE FUNCTION {s}pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_xact_lock_shared(17);
            RETURN NULL;
         END $$",
        "CREATE TRIGGER pause AFTER INSERT ON {s}job FOR EACH ROW EXECUTE FUNCTION {s}pause()",
    ] {
        w.store.execute(pause).await;
    }
    for operation in OPERATIONS {
        let id = due(&w).await;
        let mut gate = w.store.pool().begin().await.unwrap();
        PgStore::execute_in(&mut gate, "SELECT pg_advisory_xact_lock(17)").await;
        let (moved, told) = tokio::join!(w.store.move_due_timers(10), async {
            until_waiting(&w.store, 1).await;
            let mut told = pin!(operate(&w.store, operation, id));
            // The operation meets the row during the move.
            let early = tokio::time::timeout(Duration::from_millis(300), &mut told).await;
            assert!(early.is_err(), "{operation}: {early:?}");
            gate.commit().await.unwrap();
            told.await
        });
        assert_eq!(ids(&moved.unwrap().ready), [id]);
        match told {
            // This machine may be slow.
            Err(StoreError::RowLocked(_)) => {
                assert_eq!(w.state(id).await, Some(JobState::Executable));
                w.store.delete(id).await.unwrap();
            }
            told => assert_eq!(told.unwrap().0, Operated::Done, "{operation}"),
        }
        assert_eq!(w.state(id).await, None, "{operation}");
    }
}

/// The move and the lock are committed between two statements of the deletion.
#[tokio::test]
async fn a_job_that_becomes_due_and_starts_during_its_deletion_keeps_its_lease() {
    let w = World::<PgStore>::open().await;
    for operation in OPERATIONS {
        let id = due(&w).await;
        let (sibling, worker) = (w.one(work().instance("a")).await, node());
        let mut gate = w.store.pool().begin().await.unwrap();
        let lock = "LOCK TABLE {s}job_exception IN ACCESS EXCLUSIVE MODE";
        PgStore::execute_in(&mut gate, lock).await;
        let (told, job) = tokio::join!(operate(&w.store, operation, id), async {
            until_waiting(&w.store, 1).await;
            let moved = w.store.move_due_timers(10).await.unwrap();
            let job = w.hold(worker, &moved.ready[0].hint).await;
            gate.commit().await.unwrap();
            job
        });
        assert_eq!(job.job.id, id);
        let (told, ready) = told.unwrap();
        assert_eq!(
            (told, ids(&ready)),
            (Operated::Running, vec![]),
            "{operation}"
        );
        // No second job of the instance runs.
        w.refusal(node(), &sibling).await.unwrap();
        let settled = w.complete(worker, &job, &Handoff::Hint).await;
        assert_eq!(settled.applied, [id], "{operation}");
        assert_eq!(w.store.delete(sibling.id).await.unwrap().0, Operated::Done);
    }
}
