//! Protocol rule 14 with strict order: a job that cannot go on keeps its younger siblings waiting,
//! for any reason.

use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::{Change, Destination, OrphanQuery, Refusal, SuspensionScope};
use jobwire_core::{Client, Hint, Lane, NewJob, NodeId};

use super::changing::in_an_hour;
use super::world::{SqlBench, World, give_up, ids, job_ids, node, retry_after, take, terms, work};

fn of(instance: &str) -> NewJob {
    work().instance(instance).exclusive()
}

async fn strict<S: SqlBench>(w: &World<S>) {
    assert!(!w.store.strict_order().await.unwrap());
    for _ in 0..2 {
        w.store.set_strict_order(true).await.unwrap();
        assert!(w.store.strict_order().await.unwrap());
    }
}

/// Holds the first of two siblings, beside a job of another instance.
async fn held<S: SqlBench>(w: &World<S>, worker: NodeId) -> (LockedJob, Hint) {
    strict(w).await;
    let hints = w.ready(vec![of("a").tenant("t"), of("a"), of("b")]).await;
    let job = w.hold(worker, &hints[0]).await;
    (job, hints[1].clone())
}

/// Asserts that no node may lock the job, and that it is not hinted.
async fn waits<S: SqlBench>(w: &World<S>, hint: &Hint) {
    assert_eq!(w.refusal(node(), hint).await, Some(Refusal::Gone));
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let orphans = OrphanQuery::new(Lane::default(), terms(node()).types, now, 100);
    let orphans = w.store.orphans(&orphans).await.unwrap().ready;
    assert!(!ids(&orphans).contains(&hint.id));
    let waiting = w.store.waiting_for_siblings(&[hint.id]).await.unwrap();
    assert_eq!(waiting, [hint.id]);
}

pub(super) async fn a_waiting_retry_keeps_its_siblings_waiting<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let (job, next) = held(w, worker).await;
    let failure = retry_after(&job, Duration::from_secs(60));
    let settled = w
        .store
        .fail(worker, &[failure], &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied, [job.job.id]);
    assert!(settled.next.is_empty() && settled.ready.is_empty());
    waits(w, &next).await;
    w.make_due(job.job.id, 1).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(ids(&moved.ready), [job.job.id]);
    let again = w.hold(worker, &moved.ready[0].hint).await;
    let settled = w.complete(worker, &again, &take(worker)).await;
    assert_eq!(job_ids(&settled.next), [next.id]);
}

/// A process that publishes no hints retries the first job, and puts it off before a leader looks.
pub(super) async fn a_retry_that_is_put_off_again_keeps_its_siblings_waiting<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let (job, next) = held(w, worker).await;
    let failure = retry_after(&job, Duration::from_secs(60));
    w.fail(worker, failure).await;
    let client = Client::without_hints(w.store.clone());
    let in_an_hour = Change::Reschedule(in_an_hour());
    for change in [in_an_hour, Change::Suspend] {
        client.retry(job.job.id, 1).await.unwrap();
        client.change(&[job.job.id], &change).await.unwrap();
        waits(w, &next).await;
    }
}

pub(super) async fn a_dead_letter_keeps_its_siblings_waiting_until_it_is_deleted<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let (job, next) = held(w, worker).await;
    let settled = w.fail(worker, give_up(&job)).await;
    assert!(settled.next.is_empty() && settled.ready.is_empty());
    waits(w, &next).await;
    let (_, ready) = w.store.delete(job.job.id).await.unwrap();
    assert_eq!(ids(&ready), [next.id]);
    w.hold(worker, &next).await;
}

pub(super) async fn a_suspended_job_keeps_its_siblings_waiting<S: SqlBench>(w: &World<S>) {
    strict(w).await;
    let hints = w.ready(vec![of("a").tenant("t"), of("a")]).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    let suspended = w.store.suspend(&tenant).await.unwrap();
    let (moved, ready) = (suspended.moved, suspended.ready);
    assert_eq!((moved, ids(&ready)), (1, vec![]));
    waits(w, &hints[1]).await;
    let ready = w.store.activate(&tenant).await.unwrap().ready;
    assert_eq!(ids(&ready), [hints[0].id]);
    assert_eq!(w.hold(node(), &hints[1]).await.job.id, hints[0].id);
}

pub(super) async fn a_job_created_during_a_suspension_keeps_its_siblings_waiting<S: SqlBench>(
    w: &World<S>,
) {
    strict(w).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&tenant).await.unwrap();
    let hints = w.ready(vec![of("a").tenant("t"), of("a")]).await;
    waits(w, &hints[1]).await;
    let ready = w.store.activate(&tenant).await.unwrap().ready;
    assert_eq!(ids(&ready), [hints[0].id]);
    assert_eq!(w.hold(node(), &hints[1]).await.job.id, hints[0].id);
}

pub(super) async fn a_timer_that_never_ran_keeps_nobody_waiting<S: SqlBench>(w: &World<S>) {
    strict(w).await;
    let timer = of("a").delay(Duration::from_secs(3600));
    w.create(vec![timer]).await;
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let worker = node();
    let first = w.hold(worker, &hints[0]).await;
    let settled = w.complete(worker, &first, &take(worker)).await;
    assert_eq!(job_ids(&settled.next), [hints[1].id]);
}

pub(super) async fn a_younger_dead_letter_keeps_no_elder_job_waiting<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let hints = w.ready(vec![of("a"), of("a")]).await;
    let elder = w.hold(worker, &hints[0]).await;
    w.fail(worker, retry_after(&elder, Duration::from_secs(60)))
        .await;
    let younger = w.hold(worker, &hints[1]).await;
    w.fail(worker, give_up(&younger)).await;
    strict(w).await;
    w.make_due(elder.job.id, 1).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(
        w.hold(worker, &moved.ready[0].hint).await.job.id,
        elder.job.id
    );
}

/// A snooze, or a conflict with another transaction.
pub(super) async fn a_wait_that_spends_no_attempt_keeps_siblings_waiting<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let (job, next) = held(w, worker).await;
    let mut snooze = retry_after(&job, Duration::from_secs(60));
    snooze.to = Destination::Retry {
        delay: Duration::from_secs(60),
        since: None,
        retries: job.job.retries,
        failures: job.job.failures,
    };
    let settled = w
        .store
        .fail(worker, &[snooze], &take(worker))
        .await
        .unwrap();
    assert!(settled.next.is_empty() && settled.ready.is_empty());
    waits(w, &next).await;
}

pub(super) async fn relaxed_again_the_siblings_go_on<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let (job, next) = held(w, worker).await;
    w.fail(worker, give_up(&job)).await;
    waits(w, &next).await;
    w.store.set_strict_order(false).await.unwrap();
    assert!(!w.store.strict_order().await.unwrap());
    assert_eq!(w.hold(worker, &next).await.job.id, next.id);
}
