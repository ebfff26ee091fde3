use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{
    ClaimOf, ClaimPage, Handoff, Refusal, Release, Renewed, SuspensionScope,
};
use jobwire_core::{CommitHook, Fence, JobState, Lane, NewJob, Outcome, Running, StoreError};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::{Bed, noting};
use super::world::{
    Bench, LEADER, LEASE, SqlBench, World, done, give_up, job_ids, node, retry_after, take, terms,
    work,
};

pub(super) async fn the_fence_grows_with_every_lock<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let other = w.one(work()).await;
    let worker = node();
    let mut last = Fence::new(0);
    for _ in 0..4 {
        let job = w.hold(worker, &hint).await;
        assert!(job.fence > last);
        let neighbour = w.hold(worker, &other).await;
        assert!(neighbour.fence > job.fence);
        last = neighbour.fence;
        w.release(worker, job.held()).await;
        w.release(worker, neighbour.held()).await;
    }
}

pub(super) async fn the_fence_grows_through_failure_timer_and_revival<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let first = w.hold(worker, &hint).await;
    w.fail(worker, retry_after(&first, Duration::from_secs(60)))
        .await;
    w.make_due(hint.id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let second = w.hold(worker, &hint).await;
    assert!(second.fence > first.fence);
    w.fail(worker, give_up(&second)).await;
    w.store.retry(hint.id, 3).await.unwrap();
    let third = w.hold(worker, &hint).await;
    assert!(third.fence > second.fence);
    // The lock tokens of the first two locks are invalid now.
    for stale in [&first, &second] {
        assert!(
            w.complete(worker, stale, &Handoff::Hint)
                .await
                .applied
                .is_empty()
        );
    }
    assert_eq!(
        w.complete(worker, &third, &Handoff::Hint).await.applied,
        [hint.id]
    );
}

/// Tries everything as a node that does not hold the job, and asserts that nothing changes.
async fn changes_nothing<S: Bench>(
    w: &World<S>,
    owner: jobwire_core::NodeId,
    stale: &jobwire_core::job::LockedJob,
) {
    let renewed = w.store.renew(owner, LEASE, &[stale.held()]).await.unwrap();
    assert_eq!(renewed, Renewed::default());
    let before = w.view(stale.job.id).await.unwrap();
    for then in [Handoff::Hint, take(owner)] {
        let settled = w.complete(owner, stale, &then).await;
        assert!(settled.applied.is_empty() && settled.next.is_empty() && settled.ready.is_empty());
    }
    for failure in [retry_after(stale, Duration::from_secs(1)), give_up(stale)] {
        let settled = w.fail(owner, failure).await;
        assert!(settled.applied.is_empty() && settled.timer.is_none() && settled.ready.is_empty());
    }
    assert!(!w.store.run_alone(owner, &stale.held()).await.unwrap());
    assert_eq!(w.rows("job_exception").await, 0);
    let after = w.view(stale.job.id).await.unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
}

pub(super) async fn a_stale_owner_changes_nothing_after_a_takeover<S: Bench>(w: &World<S>) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        let (stale_owner, owner) = (node(), node());
        let stale = w.hold(stale_owner, &hint).await;
        w.die(hint.id).await;
        let current = w.hold(owner, &hint).await;
        assert_eq!(current.strikes, 1);
        changes_nothing(w, stale_owner, &stale).await;
        let settled = w.release(stale_owner, stale.held()).await;
        assert!(settled.applied.is_empty() && settled.ready.is_empty());
        assert_eq!(
            w.complete(owner, &current, &take(owner)).await.applied,
            [hint.id]
        );
    }
}

/// Protocol rule 1: no guard names a time. A slow node loses nothing until another node gets its
/// jobs.
pub(super) async fn a_lease_that_ran_out_counts_until_the_leader_ends_it<S: Bench>(w: &World<S>) {
    let owner = node();
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job.clone()).await;
        let held = w.hold(owner, &hint).await;
        w.expire(hint.id).await;
        let renewed = w.store.renew(owner, LEASE, &[held.held()]).await.unwrap();
        assert_eq!(renewed.renewed, [hint.id]);
        w.expire(hint.id).await;
        assert!(w.store.run_alone(owner, &held.held()).await.unwrap());
        let settled = w.complete(owner, &held, &take(owner)).await;
        assert_eq!(settled.applied, [hint.id]);

        let failing = w.one(again(&job)).await;
        let held = w.hold(owner, &failing).await;
        w.expire(failing.id).await;
        let settled = w.fail(owner, give_up(&held)).await;
        assert_eq!(settled.applied, [failing.id]);
        assert_eq!(w.state(failing.id).await, Some(JobState::DeadLetter));
    }
}

/// Returns the same job with its own id.
fn again(job: &NewJob) -> NewJob {
    let again = work();
    match job.validate() {
        Ok(()) if format!("{job:?}").contains("order-17") => again.instance("order-17"),
        _ => again,
    }
}

/// Protocol rule 24: a lock statement does not judge leases, so a jump of the clock ends no lock.
pub(super) async fn only_the_leaders_turn_ends_a_lease<S: Bench>(w: &World<S>) {
    let of = || work().instance("order-17");
    let hints = w.ready(vec![work(), of(), of()]).await;
    let (owner, other) = (node(), node());
    w.lock(owner, &hints[..2]).await;
    for hint in &hints[..2] {
        w.expire(hint.id).await;
    }
    assert_eq!(w.refusal(other, &hints[0]).await, Some(Refusal::Locked));
    for sibling in &hints[1..] {
        let refused = w.refusal(other, sibling).await;
        assert_eq!(refused, Some(Refusal::InstanceHeld));
    }
    for of in [
        ClaimOf::Rescued { after: None },
        ClaimOf::Suspects { after: None },
        ClaimOf::Next {
            after: None,
            look_at: 100,
        },
    ] {
        let page = ClaimPage {
            lane: Lane::default(),
            of,
            at_most: 10,
        };
        let claimed = w.store.claim(&terms(other), &page).await.unwrap();
        assert!(claimed.jobs.is_empty(), "{of:?}");
    }
    assert_eq!(w.lead(LEADER).await.rescued.len(), 2);
    assert_eq!(w.hold(other, &hints[0]).await.strikes, 1);
    assert_eq!(w.hold(other, &hints[2]).await.job.id, hints[1].id);
}

/// Protocol rule 6: a node finds the leases of an answer that was lost.
pub(super) async fn a_node_finds_the_leases_that_it_does_not_know_of<S: Bench>(w: &World<S>) {
    let of = || work().instance("order-17");
    let hints = w.ready(vec![work(), work(), of(), of()]).await;
    let (owner, other) = (node(), node());
    let known = w.hold(owner, &hints[0]).await;
    w.hold(other, &hints[1]).await;
    let first = w.hold(owner, &hints[2]).await;
    // The answer of a completion that locked the next sibling is lost.
    w.complete(owner, &first, &take(owner)).await;
    w.expire(hints[3].id).await;
    let known = [known.fence];
    let unknown = || w.store.unknown(owner, LEASE, &known);
    let found = unknown().await.unwrap();
    assert_eq!(job_ids(&found), [hints[3].id]);
    assert_eq!(found[0].job.exclusive_instance(), Some("order-17"));
    // Finding the lease also renews it: the leader does not end it.
    assert!(w.lead(LEADER).await.rescued.is_empty());
    let settled = w.complete(owner, &found[0], &Handoff::Hint).await;
    assert_eq!(settled.applied, [hints[3].id]);
    assert!(unknown().await.unwrap().is_empty());
}

pub(super) async fn another_node_changes_nothing_with_a_guessed_fence<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let owner = node();
    let mut job = w.hold(owner, &hint).await;
    changes_nothing(w, node(), &job).await;
    assert!(w.release(node(), job.held()).await.applied.is_empty());
    job.fence = Fence::new(job.fence.number() + 1);
    changes_nothing(w, owner, &job).await;
    assert!(w.release(owner, job.held()).await.applied.is_empty());
}

pub(super) async fn a_held_lease_is_renewed<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    let owner = node();
    let held: Vec<_> = w
        .lock(owner, &hints)
        .await
        .jobs
        .iter()
        .map(jobwire_core::job::LockedJob::held)
        .collect();
    w.die(hints[1].id).await;
    w.hold(node(), &hints[1]).await;
    let before = w.view(hints[0].id).await.unwrap();
    let renewed = w.store.renew(owner, 2 * LEASE, &held).await.unwrap();
    assert_eq!(renewed.renewed.len(), 2);
    assert!(!renewed.renewed.contains(&hints[1].id) && renewed.busy.is_empty());
    let after = w.view(hints[0].id).await.unwrap();
    let gained = after.lock_expires_at.unwrap() - before.lock_expires_at.unwrap();
    assert!(
        gained.to_std().unwrap() >= LEASE - Duration::from_secs(1),
        "{gained}"
    );
    assert_eq!(
        (after.fence, after.locked_at),
        (before.fence, before.locked_at)
    );
    // The lock token is still valid after the renewal.
    let settled = w.release(owner, held[0].clone()).await;
    assert_eq!(settled.applied, [hints[0].id]);
}

/// A sibling has the instance now: a renewed lease would overlap with the sibling's.
pub(super) async fn a_lease_is_not_renewed_after_a_sibling_took_the_instance<S: Bench>(
    w: &World<S>,
) {
    let first = NewJob::of("other-work", &1).instance("order-17");
    let hints = w.ready(vec![first, work().instance("order-17")]).await;
    let (owner, other) = (node(), node());
    let first = w.hold(owner, &hints[0]).await;
    // The first job is suspended while it runs, so it is not the first ready job once its lease has
    // expired.
    w.store
        .suspend(&SuspensionScope::Type("other-work".to_owned()))
        .await
        .unwrap();
    w.die(hints[0].id).await;
    let sibling = w.hold(other, &hints[1]).await;
    assert_eq!(sibling.job.id, hints[1].id);
    let renewed = w.store.renew(owner, LEASE, &[first.held()]).await.unwrap();
    assert_eq!(renewed, Renewed::default());
}

/// A suspended job has no holder, even if its last holder comes back.
pub(super) async fn a_lease_is_not_renewed_after_its_job_was_suspended<S: Bench>(w: &World<S>) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        let owner = node();
        let held = w.hold(owner, &hint).await;
        w.die(hint.id).await;
        let scope = SuspensionScope::Type("work".to_owned());
        w.store.suspend(&scope).await.unwrap();
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        let renewed = w.store.renew(owner, LEASE, &[held.held()]).await.unwrap();
        assert_eq!(renewed, Renewed::default());
        w.store.activate(&scope).await.unwrap();
        let heir = node();
        let held = w.hold(heir, &hint).await;
        let settled = w.complete(heir, &held, &Handoff::Hint).await;
        assert_eq!(settled.applied, [hint.id]);
    }
}

/// Protocol rule 26: a job that waits beside another suspect is not to blame for its deaths.
pub(super) async fn from_the_second_strike_on_only_deaths_while_alone_count<S: Bench>(
    w: &World<S>,
) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        for strikes in [0, 1, 2, 2, 2] {
            let owner = node();
            assert_eq!(w.hold(owner, &hint).await.strikes, strikes);
            w.die(hint.id).await;
        }
        for strikes in [2, 3, 4] {
            let owner = node();
            let held = w.hold(owner, &hint).await;
            assert_eq!(held.strikes, strikes);
            assert!(w.store.run_alone(owner, &held.held()).await.unwrap());
            w.die(hint.id).await;
        }
        // An orderly end clears the strikes.
        let owner = node();
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 5);
        w.release(owner, held.held()).await;
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 0);
        w.complete(owner, &held, &Handoff::Hint).await;
    }
}

/// The node stops while the suspect waits for the end of the other job.
pub(super) async fn a_suspect_that_never_ran_keeps_its_strikes<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let notes = bed.notes.clone();
    let long = move |job: Running<String>| {
        let notes = notes.clone();
        async move {
            notes.add("long");
            job.stop.cancelled().await;
            Ok(Outcome::Done)
        }
    };
    let options = quick().shutdown_timeout(Duration::from_millis(200));
    let stops = bed.node(options).handler("long", long);
    let stops = stops.handler("work", noting(&bed.notes));
    let stops = stops.start().await.unwrap();
    bed.create(vec![NewJob::of("long", "")]).await;
    bed.notes.until(1).await;
    // Two nodes died while they held this job, and no hint of it is left.
    let hint = w.one(NewJob::of("work", "suspect")).await;
    w.hold(node(), &hint).await;
    let struck = "UPDATE {s}job_lease SET owner = NULL, strikes = 2 WHERE job_id = ";
    w.store.execute(&format!("{struck}'{}'", hint.id)).await;
    w.make_old(1_000).await;
    eventually("the suspect to wait", SOON, async || {
        w.view(hint.id).await?.lock_owner.map(|_| ())
    })
    .await;
    stops.stop().await;
    assert_eq!(bed.notes.all(), ["long"]);
    assert_eq!(w.hold(node(), &hint).await.strikes, 2);
}

/// A living node that lost its lock takes that strike back, once, and no strike of another node.
pub(super) async fn a_living_loser_takes_its_strike_back_once<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.die(hint.id).await;
    let living = w.hold(node(), &hint).await;
    assert_eq!(living.strikes, 1);
    w.die(hint.id).await;
    let heir = node();
    let held = w.hold(heir, &hint).await;
    assert_eq!(held.strikes, 2);
    for _ in 0..3 {
        assert!(w.store.clear_strike(&[living.held()]).await.unwrap());
    }
    assert!(
        !w.store.clear_strike(&[held.held()]).await.unwrap(),
        "a cycle that is not committed yet may count a strike for this lock"
    );
    let known = w.store.unknown(heir, LEASE, &[]).await.unwrap();
    assert_eq!(
        known[0].strikes, 1,
        "the strike of the first holder is left"
    );
    w.release(heir, held.held()).await;
    assert!(w.store.clear_strike(&[held.held()]).await.unwrap());
    assert_eq!(w.hold(heir, &hint).await.strikes, 0);
}

/// Protocol rule 26: only an attempt clears strikes. A suspect may be released before its start, because
/// its node stops while the job waits to be alone.
pub(super) async fn a_job_that_is_released_before_its_start_keeps_its_strikes<S: Bench>(
    w: &World<S>,
) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        w.hold(node(), &hint).await;
        w.die(hint.id).await;
        let living = w.hold(node(), &hint).await;
        w.die(hint.id).await;
        for _ in 0..2 {
            let owner = node();
            let held = w.hold(owner, &hint).await;
            assert_eq!(held.strikes, 2);
            let released = [Release::without_attempt(held.held())];
            let settled = w.store.release(owner, &released).await.unwrap();
            assert_eq!(settled.applied, [hint.id]);
            assert_eq!(settled.ready[0].hint.id, hint.id);
            assert_eq!(w.view(hint.id).await.unwrap().lock_owner, None);
            // The guard has passed.
            let again = w.store.release(owner, &released).await.unwrap();
            assert!(again.applied.is_empty());
        }
        // The strike still names the lock for which it was counted.
        assert!(w.store.clear_strike(&[living.held()]).await.unwrap());
        let owner = node();
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 1);
        w.release(owner, held.held()).await;
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 0);
        w.complete(owner, &held, &Handoff::Hint).await;
    }
}

pub(super) async fn a_transaction_completes_only_what_is_held<S: Bench>(w: &World<S>) {
    let hook = CommitHook::disconnected();
    let hint = w.one(work()).await;
    let owner = node();
    let stale = w.hold(owner, &hint).await;
    w.die(hint.id).await;
    let tx = w
        .store
        .begin_completing(Arc::new(hook.clone()))
        .await
        .unwrap();
    let lost = tx.complete(owner, &done(&stale), &Handoff::Hint).await;
    assert!(matches!(lost, Err(StoreError::LostLock(id)) if id == hint.id));
    assert_eq!(w.rows("job").await, 1);

    let held = w.hold(owner, &hint).await;
    let tx = w
        .store
        .begin_completing(Arc::new(hook.clone()))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(w.rows("job").await, 1);
    let tx = w
        .store
        .begin_completing(Arc::new(hook.clone()))
        .await
        .unwrap();
    let settled = tx.complete(owner, &done(&held), &Handoff::Hint).await;
    assert_eq!(settled.unwrap().applied, [hint.id]);
    assert_eq!(w.rows("job").await + w.rows("job_lease").await, 0);
}
