use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{Handoff, Refusal};
use jobwire_core::{Hint, NewJob};

use super::world::{
    Bench, SqlBench, World, done, ids, job_ids, needs_of_unserved, node, retry_after, take,
    unserved, why, work,
};

fn of(instance: &str) -> NewJob {
    work().instance(instance)
}

pub(super) async fn two_jobs_of_an_instance_never_run_together<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a"), of("b")]).await;
    let (worker, other) = (node(), node());
    let locked = w.lock(worker, &hints).await;
    assert_eq!(job_ids(&locked.jobs).len(), 2);
    assert!(job_ids(&locked.jobs).contains(&hints[0].id));
    assert_eq!(why(&locked, hints[1].id), Some(Refusal::InstanceHeld));
    assert_eq!(
        w.refusal(other, &hints[1]).await,
        Some(Refusal::InstanceHeld)
    );
    assert_eq!(
        w.refusal(worker, &hints[1]).await,
        Some(Refusal::InstanceHeld)
    );
}

pub(super) async fn the_first_by_creation_runs_whichever_is_hinted<S: Bench>(w: &World<S>) {
    let hints = w.ready((0..5).map(|_| of("a")).collect()).await;
    let worker = node();
    for hint in [&hints[3], &hints[1], &hints[4], &hints[2], &hints[0]] {
        let locked = w.lock(worker, std::slice::from_ref(hint)).await;
        assert_eq!(locked.jobs.len(), 1);
        w.complete(worker, &locked.jobs[0], &Handoff::Hint).await;
        let first = &hints[5 - w.rows("job").await as usize - 1];
        assert_eq!(locked.jobs[0].job.id, first.id);
    }
    assert_eq!(w.refusal(worker, &hints[0]).await, Some(Refusal::Gone));
    assert_eq!(w.rows("instance_lock").await, 0);
}

pub(super) async fn a_hint_without_its_instance_tries_it_all_the_same<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let worker = node();
    let locked = w.lock(worker, &[Hint::new(hints[1].id)]).await;
    assert_eq!(job_ids(&locked.jobs), [hints[0].id]);
    assert_eq!(
        w.refusal(worker, &Hint::new(hints[1].id)).await,
        Some(Refusal::InstanceHeld)
    );
}

pub(super) async fn whoever_finishes_takes_the_next<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![of("a"), of("a"), of("a"), of("b"), work()])
        .await;
    let worker = node();
    let first = w
        .lock(
            worker,
            &[hints[0].clone(), hints[3].clone(), hints[4].clone()],
        )
        .await
        .jobs;
    assert_eq!(first.len(), 3);
    let batch: Vec<_> = first.iter().map(done).collect();
    let settled = w
        .store
        .complete(worker, &batch, &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied.len(), 3);
    assert_eq!(job_ids(&settled.next), [hints[1].id]);
    assert!(settled.ready.is_empty());
    assert!(settled.next[0].fence > first[0].fence);
    assert_eq!(
        w.refusal(node(), &hints[2]).await,
        Some(Refusal::InstanceHeld)
    );

    let tx = w
        .store
        .begin_completing(Arc::new(jobwire_core::CommitHook::disconnected()))
        .await
        .unwrap();
    let settled = tx
        .complete(worker, &done(&settled.next[0]), &take(worker))
        .await
        .unwrap();
    assert_eq!(job_ids(&settled.next), [hints[2].id]);
    let settled = w.complete(worker, &settled.next[0], &take(worker)).await;
    assert!(settled.next.is_empty() && settled.ready.is_empty());
    assert_eq!(w.rows("instance_lock").await, 0);
}

pub(super) async fn a_node_that_stops_only_says_who_is_next<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert!(settled.next.is_empty());
    assert_eq!(ids(&settled.ready), [hints[1].id]);
    assert_eq!(settled.ready[0].hint.instance.as_deref(), Some("a"));
    assert_eq!(w.rows("job_lease").await, 0);
    w.hold(node(), &settled.ready[0].hint).await;
}

pub(super) async fn failing_hands_over_and_a_waiting_retry_lets_siblings_pass<S: Bench>(
    w: &World<S>,
) {
    let hints = w.ready(vec![of("a"), of("a"), of("a")]).await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    let failure = retry_after(&job, Duration::from_secs(60));
    let settled = w
        .store
        .fail(worker, &[failure], &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied, [hints[0].id]);
    assert_eq!(job_ids(&settled.next), [hints[1].id]);
    // Ready again, the job is the first in creation order.
    w.make_due(hints[0].id, 1).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(moved.ready[0].hint.instance.as_deref(), Some("a"));
    assert_eq!(
        w.refusal(node(), &moved.ready[0].hint).await,
        Some(Refusal::InstanceHeld)
    );
    let settled = w.complete(worker, &settled.next[0], &take(worker)).await;
    assert_eq!(job_ids(&settled.next), [hints[0].id]);
}

pub(super) async fn releasing_hints_the_first_again<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let worker = node();
    let job = w.hold(worker, &hints[1]).await;
    assert_eq!(job.job.id, hints[0].id);
    let settled = w.release(worker, job.held()).await;
    assert_eq!(settled.applied, [hints[0].id]);
    assert_eq!(ids(&settled.ready), [hints[0].id]);
    assert_eq!(w.rows("instance_lock").await, 0);
    assert_eq!(w.hold(node(), &hints[1]).await.job.id, hints[0].id);
}

pub(super) async fn a_dead_holders_instance_is_taken_over<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let (dead, alive) = (node(), node());
    let lost = w.hold(dead, &hints[0]).await;
    w.die(hints[0].id).await;
    // Any hint of the instance leads to the dead node's job, which is the first.
    let job = w.hold(alive, &hints[1]).await;
    assert_eq!((job.job.id, job.strikes), (hints[0].id, 1));
    let settled = w.complete(dead, &lost, &take(dead)).await;
    assert!(settled.applied.is_empty() && settled.next.is_empty());
    let settled = w.complete(alive, &job, &take(alive)).await;
    assert_eq!(job_ids(&settled.next), [hints[1].id]);
}

pub(super) async fn an_unserved_first_sibling_blocks<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![of("a"), unserved().instance("a"), of("a")])
        .await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    let settled = w.complete(worker, &job, &take(worker)).await;
    // This node does not serve the job, but another may, so it is hinted.
    assert!(settled.next.is_empty());
    assert_eq!(ids(&settled.ready), [hints[1].id]);
    let locked = w.lock(worker, &hints[1..]).await;
    let refused = |at: usize| (hints[at].id, Refusal::Unserved);
    assert_eq!(locked.refused, [refused(1), refused(2)]);
    // The last job is served, and waits for the unserved one before it.
    let unserved = |at: usize| (hints[at].id, needs_of_unserved());
    assert_eq!(locked.unserved, [unserved(1), unserved(2)]);
}

pub(super) async fn an_unserved_sibling_is_not_hinted_over_and_over<S: Bench>(w: &World<S>) {
    let hint = w.one(unserved().instance("a")).await;
    assert_eq!(w.refusal(node(), &hint).await, Some(Refusal::Unserved));
    // An unserved job is reported, never republished (protocol rule 8).
    assert!(w.store.free_instances().await.unwrap().is_empty());
}

pub(super) async fn concurrent_jobs_of_an_instance_run_together<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![of("a"), of("a").concurrent(), of("a").concurrent()])
        .await;
    assert!(hints[1].instance.is_none());
    assert_eq!(w.lock(node(), &hints).await.jobs.len(), 3);
}

pub(super) async fn a_late_release_does_not_open_an_instance_that_another_holds<S: Bench>(
    w: &World<S>,
) {
    let hints = w.ready(vec![of("a"), of("a"), of("a")]).await;
    let (late, other) = (node(), node());
    // The first job waits for a retry while the second runs on a node whose lease expires.
    let first = w.hold(late, &hints[0]).await;
    let failure = retry_after(&first, Duration::from_secs(60));
    let second = w
        .store
        .fail(late, &[failure], &take(late))
        .await
        .unwrap()
        .next
        .remove(0);
    w.die(second.job.id).await;
    w.make_due(hints[0].id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    assert_eq!(w.hold(other, &hints[0]).await.job.id, hints[0].id);
    // No node has locked the second job again. Its late release must not free the instance.
    let settled = w.release(late, second.held()).await;
    assert!(settled.ready.is_empty(), "{:?}", settled.ready);
    assert_eq!(
        w.refusal(late, &hints[2]).await,
        Some(Refusal::InstanceHeld)
    );
}

pub(super) async fn left_over_instances_are_freed<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![of("a"), of("a"), of("b")]).await;
    let worker = node();
    w.lock(worker, &[hints[0].clone(), hints[2].clone()]).await;
    assert!(w.store.free_instances().await.unwrap().is_empty());
    for table in ["job_lease WHERE job_id", "job WHERE id"] {
        w.store
            .execute(&format!("DELETE FROM {{s}}{table} = '{}'", hints[0].id))
            .await;
    }
    let ready = w.store.free_instances().await.unwrap();
    assert_eq!(ids(&ready), [hints[1].id]);
    assert!(w.store.free_instances().await.unwrap().is_empty());
    assert_eq!(
        w.refusal(worker, &hints[2]).await,
        Some(Refusal::InstanceHeld)
    );
}
