//! Rule 11: refusing and releasing both lock the instance's row, so no sibling is forgotten between
//! them. No sweeps run here, so a forgotten sibling stays lost.

use jobwire_core::store::{BatchOutcome, Destination, Failure, Handoff, Refusal};
use jobwire_core::{NodeId, PgStore, Store};
use rand::Rng;

use super::world::{
    create, done, hold, lock, shut, soon, stop_at_commit, store, store_isolated, take,
    until_waiting, until_waiting_or_ended, work,
};

/// Returns the jobs that the release named: those that it locked and those to be hinted.
fn named(settled: &BatchOutcome) -> Vec<jobwire_core::JobId> {
    let taken = settled.next.iter().map(|job| job.job.id);
    let hinted = settled.ready.iter().map(|ready| ready.hint.id);
    taken.chain(hinted).collect()
}

/// The release waits for a refusal that has the instance's row locked; a sibling commits meanwhile.
async fn a_late_sibling_is_seen(store: &PgStore, then: Handoff, owner: NodeId) {
    let held = hold(store, owner, &create(store, work("a")).await).await;
    let mut door = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.instance_lock WHERE process_instance = 'a' FOR UPDATE")
        .execute(&mut *door)
        .await
        .unwrap();
    let (completing, completion) = (store.clone(), done(&held));
    let release = tokio::spawn(async move {
        loop {
            let done = std::slice::from_ref(&completion);
            let settled = completing.complete(owner, done, &then).await.unwrap();
            // It waits for a locked row only for a moment, and this machine may be slow.
            if !settled.applied.is_empty() {
                return settled;
            }
        }
    });
    until_waiting(store, 1).await;
    let sibling = create(store, work("a")).await;
    door.rollback().await.unwrap();
    let settled = soon(release).await.unwrap();
    assert_eq!(settled.applied, [held.job.id]);
    assert_eq!(named(&settled), [sibling.id]);
    // Cleared for the next round. A sibling whose row is busy at that moment is hinted instead.
    let next = match settled.next.into_iter().next() {
        Some(taken) => taken,
        None => hold(store, owner, &sibling).await,
    };
    let ended = [done(&next)];
    let ended = store.complete(owner, &ended, &Handoff::Hint);
    assert!(named(&ended.await.unwrap()).is_empty());
}

#[tokio::test]
async fn a_sibling_that_commits_while_a_release_waits_for_the_door_is_seen() {
    let (store, owner) = (store().await, NodeId::generate());
    a_late_sibling_is_seen(&store, take(owner), owner).await;
    a_late_sibling_is_seen(&store, Handoff::Hint, owner).await;
}

/// Rule 9: the store's transactions read committed rows under any default of the database.
#[tokio::test]
async fn a_late_sibling_is_seen_where_transactions_are_isolated_by_default() {
    for isolation in ["repeatable read", "serializable"] {
        let (store, owner) = (store_isolated(isolation).await, NodeId::generate());
        a_late_sibling_is_seen(&store, take(owner), owner).await;
        a_late_sibling_is_seen(&store, Handoff::Hint, owner).await;
        // The application's own transactions keep the default that it has chosen.
        let mut creating = jobwire_core::SqlStore::begin(&store).await.unwrap();
        let level: String = sqlx::query_scalar("SHOW transaction_isolation")
            .fetch_one(&mut *creating)
            .await
            .unwrap();
        assert_eq!(level, isolation);
    }
}

/// The release has looked for siblings, found none, and is about to commit. A sibling commits, and
/// its hint is tried.
#[tokio::test]
async fn a_refusal_waits_for_the_release_that_no_longer_looks() {
    let (store, owner) = (store().await, NodeId::generate());
    let held = hold(&store, owner, &create(&store, work("a")).await).await;
    stop_at_commit(&store, "DELETE ON jobwire.job").await;
    let gate = shut(&store).await;
    let (completing, completion) = (store.clone(), done(&held));
    let release = tokio::spawn(async move {
        let then = take(owner);
        completing
            .complete(owner, &[completion], &then)
            .await
            .unwrap()
    });
    until_waiting(&store, 1).await;
    let sibling = create(&store, work("a")).await;
    let (trying, hint) = (store.clone(), sibling.clone());
    let attempt = tokio::spawn(async move { lock(&trying, NodeId::generate(), &hint).await });
    until_waiting_or_ended(&store, 2, &attempt).await;
    gate.rollback().await.unwrap();
    assert!(named(&soon(release).await.unwrap()).is_empty());
    let locked = soon(attempt).await.unwrap();
    let ids: Vec<_> = locked.jobs.iter().map(|job| job.job.id).collect();
    assert_eq!(ids, [sibling.id], "{:?}", locked.refused);
}

/// Runs one instance: its holder finishes or fails at the moment when a sibling commits and is
/// hinted.
async fn race(store: &PgStore, instance: &str) -> Option<Refusal> {
    let (one, other) = (NodeId::generate(), NodeId::generate());
    let held = hold(store, one, &create(store, work(instance)).await).await;
    let (fails, then, first) = {
        let mut random = rand::rng();
        let then = if random.random() {
            take(one)
        } else {
            Handoff::Hint
        };
        (random.random(), then, random.random_range(0..40))
    };
    let (releasing, creating) = (store.clone(), store.clone());
    let release = tokio::spawn(async move {
        for _ in 0..first {
            tokio::task::yield_now().await;
        }
        if fails {
            let failure = Failure {
                held: held.held(),
                to: Destination::DeadLetter,
                message: None,
                stack: None,
                attempt: None,
            };
            releasing.fail(one, &[failure], &then).await.unwrap()
        } else {
            let done = [done(&held)];
            releasing.complete(one, &done, &then).await.unwrap()
        }
    });
    let name = instance.to_owned();
    let attempt = tokio::spawn(async move {
        let hint = create(&creating, work(&name)).await;
        (hint.id, lock(&creating, other, &hint).await)
    });
    let settled = soon(release).await.unwrap();
    let (sibling, locked) = soon(attempt).await.unwrap();
    assert_eq!(settled.applied.len(), 1);
    let (named, taken) = (named(&settled), locked.jobs.len());
    // Both are right: a release that names the sibling, and a hint that locks it before the node
    // learns that.
    assert!(settled.next.len() + taken <= 1, "two jobs hold {instance}");
    assert!(
        taken == 1 || named.contains(&sibling),
        "the sibling in {instance} is forgotten: refused as {:?}, and the release did not name it",
        locked.refused
    );
    locked.refused.first().map(|(_, why)| *why)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_sibling_is_forgotten_between_a_refusal_and_a_release() {
    const AT_ONCE: usize = 4;
    const TIMES: usize = 100;
    let store = store().await;
    let racers = (0..AT_ONCE).map(|racer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut refused = 0;
            for time in 0..TIMES {
                let why = race(&store, &format!("{racer}-{time}")).await;
                refused += usize::from(why == Some(Refusal::InstanceHeld));
            }
            refused
        })
    });
    let racers: Vec<_> = racers.collect();
    let mut refused = 0;
    for racer in racers {
        refused += racer.await.unwrap();
    }
    println!("{refused} of {} siblings were refused", AT_ONCE * TIMES);
}
