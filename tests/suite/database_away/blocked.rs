//! A trigger waits for a row lock that is not released: only the row of the trigger waits, not the
//! other rows of its page.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{Completion, CycleOutcome, Handoff, LeaderCycle, LockTerms, RowTerms};
use jobwire_core::{CommitHook, Hint, NewJob, NodeId, PgOptions, PgStore, Store};
use jobwire_tests::{eventually, shared};
use serde_json::json;
use sqlx::{Connection, PgConnection, Postgres, Transaction};

use super::SOON;

const GOOD: usize = 20;
const WAITING: usize = 3;

/// Returns a store with a statement timeout of two seconds.
async fn store() -> (String, PgStore) {
    let url = shared::postgres().await.migrated_database().await;
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(2);
    let store = PgStore::connect_with(&url, options).await.unwrap();
    store.migrate().await.unwrap();
    for sql in [
        "CREATE TABLE public.door (open boolean)",
        "INSERT INTO public.door VALUES (true)",
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM FROM public.door FOR UPDATE; RETURN coalesce(NEW, OLD); END $$",
        "CREATE TRIGGER wait BEFORE INSERT ON jobwire.job FOR EACH ROW
         WHEN (NEW.element = 'waits') EXECUTE FUNCTION public.wait()",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    (url, store)
}

async fn timers(store: &PgStore, many: usize, element: &str) {
    let mut tx = store
        .client(CommitHook::disconnected())
        .begin()
        .await
        .unwrap();
    for _ in 0..many {
        let timer = NewJob::of("noop", &json!({})).element(element);
        tx.create(timer.delay(Duration::from_secs(3600)))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    let due = "UPDATE jobwire.timer_job SET due_at = due_at - interval '2 hours'";
    sqlx::query(due).execute(store.pool()).await.unwrap();
}

/// Locks the row that the triggers wait for, until the transaction is rolled back.
async fn shut(holder: &mut PgConnection) -> Transaction<'_, Postgres> {
    let mut holds = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM public.door FOR UPDATE")
        .execute(&mut *holds)
        .await
        .unwrap();
    holds
}

/// Creates a job for each element and locks them for `owner`. A job of `waits` has a trigger that
/// waits at its end.
async fn held(store: &PgStore, owner: NodeId, elements: &[&str]) -> Vec<LockedJob> {
    let mut tx = store
        .client(CommitHook::disconnected())
        .begin()
        .await
        .unwrap();
    let mut hints = Vec::new();
    for element in elements {
        let job = NewJob::of("noop", &json!({})).element(*element);
        hints.push(Hint::new(tx.create(job).await.unwrap()));
    }
    tx.commit().await.unwrap();
    let terms = LockTerms {
        owner,
        lease: Duration::from_secs(600),
        types: vec!["noop".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    store.lock(&terms, &hints).await.unwrap().jobs
}

/// Returns the number of timers that one call moves.
async fn moved(store: &PgStore) -> usize {
    let moved = store.move_due_timers(1_000).await;
    moved.map_or(0, |moved| moved.ready.len())
}

#[tokio::test]
async fn a_timer_whose_trigger_waits_for_a_lock_holds_up_no_other() {
    let (url, store) = store().await;
    timers(&store, WAITING, "waits").await;
    timers(&store, GOOD, "").await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let holds = shut(&mut holder).await;
    // Three moves reach the timeout before the store suspects a row; then each search gets a few
    // rows closer.
    let got = Cell::new(0);
    eventually("the waiting rows to be identified", SOON, async || {
        got.set(got.get() + moved(&store).await);
        let stuck = store.stuck();
        stuck
            .first()
            .filter(|stuck| stuck.jobs == WAITING)
            .map(drop)
    })
    .await;
    assert_eq!(got.get(), GOOD);
    // Later timers do not reach the timeout again.
    timers(&store, GOOD, "").await;
    assert_eq!(moved(&store).await, GOOD);
    holds.rollback().await.unwrap();
    let rest = Cell::new(0);
    eventually("the waiting timers to be moved", SOON, async || {
        rest.set(rest.get() + moved(&store).await);
        (rest.get() == WAITING && store.stuck().is_empty()).then_some(())
    })
    .await;
}

/// The answer names the outcomes that were left, so that each of them is tried alone.
#[tokio::test]
async fn an_outcome_whose_trigger_waits_for_a_lock_holds_up_no_other_of_its_batch() {
    let (url, store) = store().await;
    let trigger = "CREATE TRIGGER wait_at_end BEFORE DELETE ON jobwire.job FOR EACH ROW
        WHEN (OLD.element = 'waits') EXECUTE FUNCTION public.wait()";
    sqlx::query(trigger).execute(store.pool()).await.unwrap();
    let owner = NodeId::generate();
    let jobs = held(&store, owner, &["", "", "waits", ""]).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let holds = shut(&mut holder).await;
    let done = |job: &LockedJob| Completion {
        held: job.held(),
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    };
    let batch: Vec<Completion> = jobs.iter().map(done).collect();
    let settled = eventually("an answer that names what was left", SOON, async || {
        store.complete(owner, &batch, &Handoff::Hint).await.ok()
    })
    .await;
    assert!(settled.left.contains(&jobs[2].job.id), "{settled:?}");
    for job in [&jobs[0], &jobs[1], &jobs[3]] {
        if settled.left.contains(&job.job.id) {
            let alone = store.complete(owner, &[done(job)], &Handoff::Hint).await;
            assert_eq!(alone.unwrap().applied, [job.job.id]);
        }
    }
    holds.rollback().await.unwrap();
    let last = eventually("the last job to be done", SOON, async || {
        let last = store.complete(owner, &batch[2..3], &Handoff::Hint).await;
        last.ok().filter(|settled| settled.left.is_empty())
    })
    .await;
    assert_eq!(last.applied, [jobs[2].job.id]);
}

/// Returns a leader cycle of a node with this lease.
fn cycle_of(node: NodeId, lease: Duration) -> LeaderCycle {
    LeaderCycle {
        node,
        lease,
        transport: "in-process",
        reset_at_most: 100,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: vec!["noop".to_owned()].into(),
        again_after: Duration::from_secs(30),
        hint_at_most: 100,
        attempts_kept: AttemptsKept::new(),
    }
}

/// Several leases cannot be reset: the node leads all the same, and the other leases are reset.
#[tokio::test]
async fn a_turn_of_which_several_rows_wait_for_a_lock_leads() {
    let (url, store) = store().await;
    let trigger = "CREATE TRIGGER wait_at_change BEFORE UPDATE ON jobwire.job FOR EACH ROW
        WHEN (NEW.element = 'waits') EXECUTE FUNCTION public.wait()";
    sqlx::query(trigger).execute(store.pool()).await.unwrap();
    held(&store, NodeId::generate(), &["waits"; 8]).await;
    let expire =
        "UPDATE jobwire.job_lease SET expires_at = clock_timestamp() - interval '1 minute'";
    sqlx::query(expire).execute(store.pool()).await.unwrap();
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let holds = shut(&mut holder).await;
    let turn = cycle_of(NodeId::generate(), Duration::from_secs(600));
    eventually("the node to lead", SOON, async || {
        let turn = store.run_leader_cycle(&turn).await;
        matches!(turn, Ok(CycleOutcome::Leads(_))).then_some(())
    })
    .await;
    // It stays the leader.
    for _ in 0..3 {
        let turn = store.run_leader_cycle(&turn).await.unwrap();
        assert!(matches!(turn, CycleOutcome::Leads(_)));
    }
    holds.rollback().await.unwrap();
}

/// No node leads while a transaction has the leader's row locked. The session is named.
#[tokio::test]
async fn a_transaction_that_locks_the_leaders_row_is_named() {
    let (url, store) = store().await;
    let lead = async |node, lease| {
        let cycle = cycle_of(node, Duration::from_secs(lease));
        store.run_leader_cycle(&cycle).await.unwrap()
    };
    let [dead, next] = [NodeId::generate(), NodeId::generate()];
    assert!(matches!(lead(dead, 1).await, CycleOutcome::Leads(_)));
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut holder)
        .await
        .unwrap();
    let mut locks = holder.begin().await.unwrap();
    sqlx::query("UPDATE jobwire.leader SET term = term")
        .execute(&mut *locks)
        .await
        .unwrap();
    let stuck = eventually("the transaction to be named", SOON, async || {
        assert!(matches!(
            lead(next, 600).await,
            CycleOutcome::Follows { .. }
        ));
        store.stuck().pop()
    })
    .await;
    assert_eq!(stuck.operation, "lead");
    for part in [
        &*format!("pid {pid}"),
        "table `leader`",
        "end that transaction",
    ] {
        assert!(stuck.reason.contains(part), "{part}: {}", stuck.reason);
    }
    locks.rollback().await.unwrap();
    assert!(matches!(lead(next, 600).await, CycleOutcome::Leads(_)));
    assert!(store.stuck().is_empty());
    // Another node leads, and this one follows.
    assert!(matches!(
        lead(dead, 600).await,
        CycleOutcome::Follows { .. }
    ));
    assert!(store.stuck().is_empty());
}
