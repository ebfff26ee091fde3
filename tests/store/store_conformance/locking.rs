use jobwire_core::job::LockedJob;
use jobwire_core::store::{Refusal, SuspensionScope};
use jobwire_core::{Hint, JobId};

use super::world::{
    Bench, LEASE, World, job_ids, needs_of_unserved, node, take, unserved, why, work,
};

pub(super) async fn what_can_not_be_locked_is_classified<S: Bench>(w: &World<S>) {
    let mut hints = w
        .ready(vec![work(), unserved(), work().tenant("resting"), work()])
        .await;
    hints.push(Hint::new(JobId::generate()));
    let finished = hints[3].id;
    let worker = node();
    let job = w.hold(worker, &hints[3]).await;
    w.complete(worker, &job, &take(worker)).await;
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

/// Asserts that a lock tells the time of which the database has a record.
async fn tells_its_time<S: Bench>(w: &World<S>, locked: &LockedJob) {
    let recorded = w.view(locked.job.id).await.unwrap().locked_at.unwrap();
    let apart = (locked.locked_at - recorded).abs().to_std().unwrap();
    assert!(apart.as_secs() < 60, "{} and {recorded}", locked.locked_at);
}

/// A series is dated by it, so it costs no statement more.
pub(super) async fn each_lock_tells_its_time_by_the_databases_clock<S: Bench>(w: &World<S>) {
    let owner = node();
    let plain = w.one(work()).await;
    let siblings = [(); 2].map(|()| work().instance("i").exclusive()).into();
    let siblings = w.ready(siblings).await;
    // They became ready long before.
    w.make_old(3_600).await;
    tells_its_time(w, &w.hold(owner, &plain).await).await;
    w.die(plain.id).await;
    let again = w.hold(owner, &plain).await;
    assert_eq!(again.strikes, 1);
    tells_its_time(w, &again).await;
    // Of an instance: the first job by its hint, the next one at the end of the first.
    let first = w.hold(owner, &siblings[0]).await;
    tells_its_time(w, &first).await;
    let next = w.complete(owner, &first, &take(owner)).await.next;
    assert_eq!(job_ids(&next), [siblings[1].id]);
    tells_its_time(w, &next[0]).await;
    // The answers were lost.
    let unknown = w.store.unknown(owner, LEASE, &[]).await.unwrap();
    assert_eq!(unknown.len(), 2);
    for locked in &unknown {
        tells_its_time(w, locked).await;
    }
}
