use std::collections::BTreeSet;

use jobwire_core::store::{ClaimOf, ClaimPage, Claimed, Handoff, SuspensionScope};
use jobwire_core::{JobId, JobQuery, Lane, NewJob, NodeId};

use super::world::{Bench, World, done, job_ids, node, terms, unserved, work};

fn page(after: Option<JobId>, at_most: i64) -> ClaimPage {
    ClaimPage {
        lane: Lane::default(),
        of: ClaimOf::Next {
            after,
            look_at: 1_000,
        },
        at_most,
    }
}

fn of(of: ClaimOf) -> ClaimPage {
    ClaimPage {
        of,
        ..page(None, 8)
    }
}

async fn claim<S: Bench>(w: &World<S>, owner: NodeId, page: &ClaimPage) -> Claimed {
    w.store.claim(&terms(owner), page).await.unwrap()
}

/// Claims all jobs that can be locked now. Returns their ids.
async fn all<S: Bench>(w: &World<S>) -> Vec<JobId> {
    job_ids(&claim(w, node(), &page(None, 1_000)).await.jobs)
}

pub(super) async fn jobs_are_claimed_page_by_page_in_the_order_of_their_ids<S: Bench>(
    w: &World<S>,
) {
    let hints = w.ready((0..10).map(|_| work()).collect()).await;
    let mut made: Vec<JobId> = hints.iter().map(|h| h.id).collect();
    made.sort_unstable();
    let (worker, mut after, mut claimed) = (node(), None, Vec::new());
    for pages in 1.. {
        let next = claim(w, worker, &page(after, 4)).await;
        claimed.extend(job_ids(&next.jobs));
        after = next.after;
        if after.is_none() {
            assert_eq!(pages, 3, "the last page is not full, and reports that");
            break;
        }
        assert_eq!(after.as_ref(), claimed.last());
    }
    assert_eq!(claimed, made);
    // These locks are like any other: no other node gets the jobs, and their holder completes them.
    assert!(all(w).await.is_empty());
    assert_eq!(w.rows("job_lease").await, 10);
}

pub(super) async fn a_claimed_job_is_completed_like_a_hinted_one<S: Bench>(w: &World<S>) {
    let hint = w.one(work().instance("a")).await;
    let worker = node();
    let mut claimed = claim(w, worker, &page(None, 8)).await;
    let job = claimed.jobs.remove(0);
    assert_eq!(job.job.id, hint.id);
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
    for table in ["job", "job_lease", "instance_lock"] {
        assert_eq!(w.rows(table).await, 0, "{table}");
    }
}

pub(super) async fn what_is_gated_is_not_claimed<S: Bench>(w: &World<S>) {
    let resting = SuspensionScope::Tenant("resting".to_owned());
    w.store.suspend(&resting).await.unwrap();
    let hints = w
        .ready(vec![
            work(),
            work().tenant("resting"),
            work().lane("another"),
            unserved(),
            work().instance("held"),
            work().instance("held"),
            work(),
        ])
        .await;
    let other = node();
    w.lock(other, &[hints[0].clone(), hints[4].clone()]).await;
    assert_eq!(all(w).await, [hints[6].id]);
    let another = ClaimPage {
        lane: Lane::unchecked("another"),
        ..page(None, 8)
    };
    assert_eq!(
        job_ids(&claim(w, node(), &another).await.jobs),
        [hints[2].id]
    );
}

pub(super) async fn of_an_instance_only_the_first_ready_sibling_is_claimed<S: Bench>(w: &World<S>) {
    let siblings: Vec<NewJob> = (0..3).map(|_| work().instance("a")).collect();
    let hints = w.ready(siblings).await;
    let alone = w.one(work().instance("b")).await;
    let worker = node();
    let mut claimed = claim(w, worker, &page(None, 8)).await;
    assert_eq!(job_ids(&claimed.jobs), [hints[0].id, alone.id]);
    // No younger sibling runs beside the first; then they follow in order.
    assert!(all(w).await.is_empty());
    for next in [Some(hints[1].id), Some(hints[2].id), None] {
        let job = claimed.jobs.remove(0);
        w.complete(worker, &job, &Handoff::Hint).await;
        claimed = claim(w, worker, &page(None, 8)).await;
        assert_eq!(claimed.jobs.first().map(|l| l.job.id), next);
    }
}

pub(super) async fn an_unserved_first_sibling_keeps_the_others_from_being_claimed<S: Bench>(
    w: &World<S>,
) {
    w.ready(vec![
        unserved().instance("a"),
        work().instance("a"),
        unserved().instance("b"),
    ])
    .await;
    assert!(all(w).await.is_empty());
    assert_eq!(w.rows("instance_lock").await, 0);
}

pub(super) async fn what_a_dead_node_held_is_claimed_with_a_strike<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work().instance("a")]).await;
    let dead = node();
    w.lock(dead, &hints).await;
    assert!(all(w).await.is_empty());
    w.die(hints[0].id).await;
    w.die(hints[1].id).await;
    let next = claim(w, node(), &page(None, 8)).await;
    assert!(
        next.jobs.is_empty(),
        "jobs with strikes are claimed separately"
    );
    let claimed = claim(w, node(), &of(ClaimOf::Rescued { after: None })).await;
    assert_eq!(job_ids(&claimed.jobs), [hints[0].id, hints[1].id]);
    assert!(claimed.jobs.iter().all(|locked| locked.strikes == 1));
}

/// These jobs are found by their leases, however many jobs wait before them.
pub(super) async fn rescued_jobs_and_suspects_are_claimed_apart<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work(),
            work(),
            work().instance("a"),
            unserved(),
            work(),
        ])
        .await;
    let (rescued, suspects) = (
        of(ClaimOf::Rescued { after: None }),
        of(ClaimOf::Suspects { after: None }),
    );
    assert!(claim(w, node(), &rescued).await.jobs.is_empty());
    for _ in 0..2 {
        w.lock(node(), &hints[4..]).await;
        w.die(hints[4].id).await;
    }
    w.lock(node(), &hints[1..3]).await;
    w.die(hints[1].id).await;
    w.die(hints[2].id).await;
    let claimed = claim(w, node(), &rescued).await;
    assert_eq!(job_ids(&claimed.jobs), [hints[1].id, hints[2].id]);
    assert_eq!(claimed.after, None);
    let claimed = claim(w, node(), &page(None, 8)).await;
    assert_eq!(job_ids(&claimed.jobs), [hints[0].id]);
    let claimed = claim(w, node(), &suspects).await;
    assert_eq!(job_ids(&claimed.jobs), [hints[4].id]);
}

pub(super) async fn what_can_not_be_taken_is_passed_slice_by_slice<S: Bench>(w: &World<S>) {
    w.ready((0..10).map(|_| unserved()).collect()).await;
    let hint = w.one(work()).await;
    let (worker, mut after) = (node(), None);
    for _ in 0..2 {
        let slice = ClaimPage {
            of: ClaimOf::Next { after, look_at: 5 },
            ..page(None, 8)
        };
        let passed = claim(w, worker, &slice).await;
        assert!(passed.jobs.is_empty());
        assert!(passed.after > after, "five rows further");
        after = passed.after;
    }
    let last = claim(w, worker, &page(after, 8)).await;
    assert_eq!(job_ids(&last.jobs), [hint.id]);
    assert_eq!(last.after, None);
}

pub(super) async fn four_nodes_that_claim_at_once_take_different_jobs<S: Bench>(w: &World<S>) {
    const JOBS: usize = 300;
    let jobs = (0..JOBS).map(|n| match n % 3 {
        0 => work().instance(format!("instance-{}", n % 30)),
        _ => work(),
    });
    let made: BTreeSet<JobId> = w.ready(jobs.collect()).await.iter().map(|h| h.id).collect();
    let claimers = (0..4).map(|_| {
        let (store, owner) = (w.store.clone(), node());
        tokio::spawn(async move {
            let (mut after, mut mine) = (None, Vec::new());
            loop {
                let claimed = store.claim(&terms(owner), &page(after, 7)).await.unwrap();
                let completions: Vec<_> = claimed.jobs.iter().map(done).collect();
                let settled = store.complete(owner, &completions, &Handoff::Hint).await;
                let settled = settled.unwrap();
                assert_eq!(settled.applied.len(), completions.len(), "only its own");
                mine.extend(settled.applied);
                after = claimed.after;
                let all = JobQuery::default();
                if after.is_none() && store.count(&all).await.unwrap() == 0 {
                    return mine;
                }
            }
        })
    });
    let claimers: Vec<_> = claimers.collect();
    let mut taken = Vec::new();
    for claimer in claimers {
        taken.extend(claimer.await.unwrap());
    }
    assert_eq!(taken.len(), JOBS, "each once");
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), made);
}
