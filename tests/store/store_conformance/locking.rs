use jobwire_core::store::{Refusal, SuspensionScope};
use jobwire_core::{Hint, JobId};

use super::world::{Bench, World, job_ids, needs_of_unserved, node, unserved, why, work};

pub(super) async fn what_can_not_be_locked_is_classified<S: Bench>(w: &World<S>) {
    let mut hints = w
        .ready(vec![work(), unserved(), work().tenant("resting"), work()])
        .await;
    hints.push(Hint::new(JobId::generate()));
    let finished = hints[3].id;
    let worker = node();
    let job = w.hold(worker, &hints[3]).await;
    w.complete(worker, &job, &super::world::take(worker)).await;
    w.hold(node(), &hints[0]).await;
    let resting = SuspensionScope::Tenant("resting".to_owned());
    // Suspended without being moved, as if it had been created after the suspension.
    let created_later = work().tenant("resting");
    assert_eq!(w.store.suspend(&resting).await.unwrap().moved, 1);
    let later = w.one(created_later).await;

    hints.push(later.clone());
    let locked = w.lock(worker, &hints).await;
    assert!(locked.jobs.is_empty());
    assert_eq!(locked.refused.len(), hints.len());
    assert_eq!(why(&locked, hints[0].id), Some(Refusal::Locked));
    assert_eq!(why(&locked, hints[1].id), Some(Refusal::Unserved));
    assert_eq!(locked.unserved, [(hints[1].id, needs_of_unserved())]);
    // The job is in the suspended table, so it is gone from the executable one.
    assert_eq!(why(&locked, hints[2].id), Some(Refusal::Gone));
    assert_eq!(why(&locked, finished), Some(Refusal::Gone));
    assert_eq!(why(&locked, hints[4].id), Some(Refusal::Gone));
    assert_eq!(why(&locked, later.id), Some(Refusal::Suspended));
}

pub(super) async fn a_batch_with_duplicates_locks_each_job_once<S: Bench>(w: &World<S>) {
    let jobs = (0..300).map(|i| match i % 3 {
        0 => work().instance(format!("instance-{i}")),
        _ => work(),
    });
    let hints = w.ready(jobs.collect()).await;
    let doubled: Vec<Hint> = hints.iter().chain(&hints).cloned().collect();
    let locked = w.lock(node(), &doubled).await;
    let mut got = job_ids(&locked.jobs);
    got.sort_unstable();
    let mut wanted: Vec<JobId> = hints.iter().map(|h| h.id).collect();
    wanted.sort_unstable();
    assert_eq!(got, wanted);
    assert!(locked.refused.is_empty(), "{:?}", locked.refused);
    let mut fences: Vec<_> = locked.jobs.iter().map(|l| l.fence).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), hints.len());
}

pub(super) async fn an_expired_lock_is_taken_over_with_a_strike<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    for strikes in 0..3 {
        assert_eq!(w.hold(node(), &hint).await.strikes, strikes);
        w.die(hint.id).await;
    }
}

pub(super) async fn a_job_that_was_given_back_starts_without_strikes<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    w.hold(worker, &hint).await;
    w.die(hint.id).await;
    let again = w.hold(worker, &hint).await;
    assert_eq!(again.strikes, 1);
    w.release(worker, again.held()).await;
    assert_eq!(w.hold(worker, &hint).await.strikes, 0);
}
