use std::time::Duration;

use jobwire_core::store::{HandOver, SuspensionScope};
use jobwire_core::{CommitHook, Fence, JobState, NewJob, NodeId, StoreError};

use super::world::{Bench, LEASE, World, done, give_up, node, retry_after, take, work};

pub(super) async fn the_fence_grows_with_every_lock<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let other = w.one(work()).await;
    let worker = node();
    let mut last = Fence(0);
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
    // What the first two proved is worth nothing now.
    for stale in [&first, &second] {
        assert!(
            w.complete(worker, stale, &HandOver::Hint)
                .await
                .applied
                .is_empty()
        );
    }
    assert_eq!(
        w.complete(worker, &third, &HandOver::Hint).await.applied,
        [hint.id]
    );
}

/// Everything that somebody may try who does not own the job (any more); nothing may change.
async fn changes_nothing<S: Bench>(
    w: &World<S>,
    owner: jobwire_core::NodeId,
    stale: &jobwire_core::job::LockedJob,
) {
    let renewed = w.store.renew(owner, LEASE, &[stale.held()]).await.unwrap();
    assert!(renewed.is_empty());
    finishes_nothing(w, owner, stale).await;
}

/// The same without renewing, which an owner may whose lease merely ran out.
async fn finishes_nothing<S: Bench>(
    w: &World<S>,
    owner: jobwire_core::NodeId,
    stale: &jobwire_core::job::LockedJob,
) {
    let before = w.view(stale.job.id).await.unwrap();
    for then in [HandOver::Hint, take(owner)] {
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
        w.expire(hint.id).await;
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

pub(super) async fn a_lease_that_ran_out_is_worth_nothing_even_if_nobody_took_it<S: Bench>(
    w: &World<S>,
) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        let owner = node();
        let stale = w.hold(owner, &hint).await;
        w.expire(hint.id).await;
        finishes_nothing(w, owner, &stale).await;
        assert_eq!(w.state(hint.id).await, Some(JobState::Executable));
        assert_eq!(w.hold(node(), &hint).await.strikes, 1);
    }
}

pub(super) async fn another_node_changes_nothing_with_a_guessed_fence<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let owner = node();
    let mut job = w.hold(owner, &hint).await;
    changes_nothing(w, node(), &job).await;
    assert!(w.release(node(), job.held()).await.applied.is_empty());
    job.fence = Fence(job.fence.0 + 1);
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
    w.expire(hints[1].id).await;
    w.hold(node(), &hints[1]).await;
    let before = w.view(hints[0].id).await.unwrap();
    let renewed = w.store.renew(owner, 2 * LEASE, &held).await.unwrap();
    assert_eq!(renewed.len(), 2);
    assert!(!renewed.contains(&hints[1].id));
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
    // Renewed as it is, it still completes.
    let settled = w.store.release(owner, &held[..1]).await.unwrap();
    assert_eq!(settled.applied, [hints[0].id]);
}

/// After a jump of the database's clock the holders live on, as long as nobody else came.
pub(super) async fn a_lease_that_ran_out_is_revived_unless_somebody_came<S: Bench>(w: &World<S>) {
    let owner = node();
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        let held = w.hold(owner, &hint).await;
        w.expire(hint.id).await;
        let renewed = w.store.renew(owner, LEASE, &[held.held()]).await.unwrap();
        assert_eq!(renewed, [hint.id]);
        let settled = w.complete(owner, &held, &HandOver::Hint).await;
        assert_eq!(settled.applied, [hint.id]);
    }
}

/// A sibling has the instance by now: reviving the lease would let the two overlap.
pub(super) async fn a_lease_is_not_revived_after_a_sibling_took_the_instance<S: Bench>(
    w: &World<S>,
) {
    let first = NewJob::of("other-work", &1).instance("order-17");
    let hints = w.ready(vec![first, work().instance("order-17")]).await;
    let (owner, other) = (node(), node());
    let first = w.hold(owner, &hints[0]).await;
    // Suspended while it runs, it is no longer the first that is ready once its lease has run out.
    w.store
        .suspend(&SuspensionScope::Type("other-work".to_owned()))
        .await
        .unwrap();
    w.expire(hints[0].id).await;
    let sibling = w.hold(other, &hints[1]).await;
    assert_eq!(sibling.job.id, hints[1].id);
    let renewed = w.store.renew(owner, LEASE, &[first.held()]).await.unwrap();
    assert!(renewed.is_empty());
}

/// What is suspended is nobody's, however its last holder comes back.
pub(super) async fn a_lease_is_not_revived_after_its_job_was_suspended<S: Bench>(w: &World<S>) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        let owner = node();
        let held = w.hold(owner, &hint).await;
        w.expire(hint.id).await;
        let scope = SuspensionScope::Type("work".to_owned());
        w.store.suspend(&scope).await.unwrap();
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        let renewed = w.store.renew(owner, LEASE, &[held.held()]).await.unwrap();
        assert!(renewed.is_empty());
        w.store.activate(&scope).await.unwrap();
        let heir = node();
        let held = w.hold(heir, &hint).await;
        let settled = w.complete(heir, &held, &HandOver::Hint).await;
        assert_eq!(settled.applied, [hint.id]);
    }
}

/// Protocol rule 26: what waits beside another suspect is not to blame for its deaths.
pub(super) async fn from_the_second_strike_on_only_deaths_while_alone_count<S: Bench>(
    w: &World<S>,
) {
    for job in [work(), work().instance("order-17")] {
        let hint = w.one(job).await;
        for strikes in [0, 1, 2, 2, 2] {
            let owner = node();
            assert_eq!(w.hold(owner, &hint).await.strikes, strikes);
            w.expire(hint.id).await;
        }
        for strikes in [2, 3, 4] {
            let owner = node();
            let held = w.hold(owner, &hint).await;
            assert_eq!(held.strikes, strikes);
            assert!(w.store.run_alone(owner, &held.held()).await.unwrap());
            w.expire(hint.id).await;
        }
        // The same where the leader takes the lock off, and not the next holder.
        let leader = NodeId(uuid::Uuid::from_u128(17));
        let owner = node();
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 5);
        w.expire(hint.id).await;
        assert_eq!(w.lead(leader).await.expired.len(), 1);
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 5);
        assert!(w.store.run_alone(owner, &held.held()).await.unwrap());
        w.expire(hint.id).await;
        assert_eq!(w.lead(leader).await.expired.len(), 1);
        // An orderly end clears them.
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 6);
        w.release(owner, held.held()).await;
        let held = w.hold(owner, &hint).await;
        assert_eq!(held.strikes, 0);
        w.complete(owner, &held, &HandOver::Hint).await;
    }
}

/// A node that lost its lock and lives takes the strike back; nobody is struck below nothing.
pub(super) async fn a_living_loser_takes_its_strike_back<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    for strikes in [0, 1] {
        assert_eq!(w.hold(node(), &hint).await.strikes, strikes);
        w.expire(hint.id).await;
    }
    let owner = node();
    assert_eq!(w.hold(owner, &hint).await.strikes, 2);
    w.store.absolve(&[hint.id]).await.unwrap();
    w.expire(hint.id).await;
    assert_eq!(w.hold(owner, &hint).await.strikes, 2);
    for _ in 0..3 {
        w.store.absolve(&[hint.id]).await.unwrap();
    }
    w.expire(hint.id).await;
    let held = w.hold(owner, &hint).await;
    assert_eq!(held.strikes, 1);
    let settled = w.complete(owner, &held, &HandOver::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
    w.store.absolve(&[hint.id]).await.unwrap();
}

pub(super) async fn a_transaction_completes_only_what_is_held<S: Bench>(w: &World<S>) {
    let hook = CommitHook::disconnected();
    let hint = w.one(work()).await;
    let owner = node();
    let stale = w.hold(owner, &hint).await;
    w.expire(hint.id).await;
    let tx = w.store.begin_completing(&hook).await.unwrap();
    let lost = tx.complete(owner, &done(&stale), &HandOver::Hint).await;
    assert!(matches!(lost, Err(StoreError::LostLock(id)) if id == hint.id));
    assert_eq!(w.rows("job").await, 1);

    let held = w.hold(owner, &hint).await;
    let tx = w.store.begin_completing(&hook).await.unwrap();
    tx.roll_back().await;
    assert_eq!(w.rows("job").await, 1);
    let tx = w.store.begin_completing(&hook).await.unwrap();
    let settled = tx.complete(owner, &done(&held), &HandOver::Hint).await;
    assert_eq!(settled.unwrap().applied, [hint.id]);
    assert_eq!(w.rows("job").await + w.rows("job_lease").await, 0);
}
