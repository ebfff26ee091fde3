//! A job that a node lost and locked again may have both outcomes in one batch: the present lock
//! decides.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{Handoff, LeaderCycle, LockTerms, RowTerms};
use jobwire_core::{NewJob, NodeId, Store};
use jobwire_tests::eventually;

use super::world::{SOON, create, done, store};

#[tokio::test]
async fn of_two_outcomes_of_a_job_in_one_batch_the_newest_lock_completes() {
    let store = store().await;
    let hint = create(&store, NewJob::of("work", &())).await;
    let owner = NodeId::generate();
    let terms = |lease| LockTerms {
        owner,
        lease,
        types: vec!["work".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    let hints = std::slice::from_ref(&hint);
    let brief = terms(Duration::from_millis(1));
    let first = store.lock(&brief, hints).await.unwrap().jobs.remove(0);
    let long = terms(Duration::from_secs(3600));
    let turn = LeaderCycle {
        node: NodeId::generate(),
        lease: Duration::from_secs(3600),
        transport: "in-process",
        reset_at_most: 10,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: vec!["work".to_owned()].into(),
        again_after: Duration::from_secs(3600),
        hint_at_most: 0,
        attempts_kept: AttemptsKept::new(),
    };
    let second = eventually("the first lease to end", SOON, async || {
        store.run_leader_cycle(&turn).await.unwrap();
        store.lock(&long, hints).await.unwrap().jobs.pop()
    })
    .await;
    assert!(second.fence.number() > first.fence.number());
    let both = [done(&first), done(&second)];
    let settled = store.complete(owner, &both, &Handoff::Hint).await.unwrap();
    assert_eq!(settled.applied, [hint.id]);
    assert!(store.get(hint.id).await.unwrap().is_none());
}
