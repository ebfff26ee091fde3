//! Permits of a rate: they cool down after the start of a job, on a node or in the database.

use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::job::scope::Scope;
use jobwire_core::store::permits::{
    Asking, Cooling, KeyAnswer, KeyRequest, PermitAnswer, PermitKey, PermitRequest, StalledKey,
};
use jobwire_core::{Hint, JobId, NewJob, NodeId};

use super::membership::membership;
use super::world::{LEADER, LEASE, SqlBench, World, ids, job_ids, node, work};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A request for permits that cool down for this time.
fn of(size: i32, keep: i32, cool_down: Duration, jobs: &[LockedJob]) -> KeyRequest {
    let asking = |job: &LockedJob| Asking {
        held: job.held(),
        job_type: job.job.job_type.clone(),
        seq: job.job.seq,
        fair_key: None,
    };
    KeyRequest {
        key: key(),
        size,
        keep,
        spare: 0,
        cool_down,
        cooling: Vec::new(),
        asking: jobs.iter().map(asking).collect(),
    }
}

fn key() -> PermitKey {
    PermitKey {
        limit: "work".to_owned(),
        key: String::new(),
    }
}

fn handing(mut of: KeyRequest, number: i32, rest: Duration) -> KeyRequest {
    of.cooling.push(Cooling { number, rest });
    of
}

async fn exchange<S: SqlBench>(
    w: &World<S>,
    node: NodeId,
    of: KeyRequest,
) -> (KeyAnswer, PermitAnswer) {
    let request = PermitRequest::new(node, LEASE, vec![of]);
    loop {
        match w.store.exchange_permits(&request).await {
            // The row of a key stayed locked on a busy machine. A node tries again, too.
            Err(error) if error.is_conflict() => {}
            answer => {
                let mut answer = answer.unwrap();
                return (answer.keys.remove(0), answer);
            }
        }
    }
}

async fn hold_all<S: SqlBench>(w: &World<S>, owner: NodeId, jobs: Vec<NewJob>) -> Vec<LockedJob> {
    let hints = w.ready(jobs).await;
    let mut held = w.lock(owner, &hints).await.jobs;
    held.sort_by_key(|job| job.job.seq);
    assert_eq!(held.len(), hints.len());
    held
}

async fn jobs<S: SqlBench>(w: &World<S>, owner: NodeId, number: usize) -> Vec<LockedJob> {
    hold_all(w, owner, (0..number).map(|_| work()).collect()).await
}

async fn sum<S: SqlBench>(w: &World<S>) -> i64 {
    let sum = "SELECT coalesce(CAST(sum(number) AS bigint), 0) FROM {s}permit";
    w.store.number(sum).await
}

/// The number of rows of permits that expire after this many seconds.
async fn later_than<S: SqlBench>(w: &World<S>, seconds: u64) -> u64 {
    let rows = format!(
        "UPDATE {{s}}permit SET number = number WHERE expires_at > {{now}} + {seconds} * {{second}}"
    );
    w.store.execute(&rows).await
}

pub(super) async fn permits_of_a_node_expire_a_cool_down_after_its_trust<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let jobs = jobs(w, worker, 1).await;
    exchange(w, worker, of(1, 0, HOUR, &jobs)).await;
    assert_eq!(
        later_than(w, 3600).await,
        1,
        "it may start until the trust ends"
    );
    assert_eq!(later_than(w, 3600 + LEASE.as_secs() + 60).await, 0);
    // The leader does not take them for rows that no node could have written.
    exchange(w, worker, of(1, 1, DAY, &[])).await;
    w.die(jobs[0].job.id).await;
    w.lead(LEADER).await;
    let report = w.lead(LEADER).await;
    assert!(!report.freed_permits);
    assert_eq!(sum(w).await, 1);
}

pub(super) async fn a_permit_that_a_node_hands_over_is_in_use_until_it_is_cold<S: SqlBench>(
    w: &World<S>,
) {
    let (one, other) = (node(), node());
    let started = jobs(w, one, 3).await;
    exchange(w, one, of(3, 0, HOUR, &started)).await;
    // Two have started, the third is about to. The answer is lost, and the request repeated.
    for _ in 0..2 {
        let request = handing(of(3, 1, HOUR, &[]), 2, HOUR / 2);
        let (got, _) = exchange(w, one, request).await;
        assert_eq!((got.number, sum(w).await), (1, 3));
    }
    let waits = jobs(w, other, 1).await;
    let (got, answer) = exchange(w, other, of(3, 0, HOUR, &waits)).await;
    assert!(got.granted.is_empty() && got.contended);
    assert_eq!(answer.parked, job_ids(&waits));

    // The node ends. All three cool down now, each until its time.
    exchange(w, one, handing(of(3, 0, HOUR, &[]), 1, HOUR)).await;
    assert_eq!((sum(w).await, later_than(w, 3500).await), (3, 1));
    assert!(!w.lead(LEADER).await.freed_permits);
    assert_eq!(w.store.stalled_keys(&[]).await.unwrap(), []);
    let pass = "UPDATE {s}permit SET expires_at = expires_at - 1830 * {second}";
    assert_eq!(w.store.execute(pass).await, 2);
    assert!(w.lead(LEADER).await.freed_permits);
    assert_eq!(sum(w).await, 1, "the last one is not cold yet");
    let stalled = StalledKey {
        key: key(),
        size: 3,
    };
    assert_eq!(w.store.stalled_keys(&[]).await.unwrap(), [stalled]);
    let (_, answer) = exchange(w, other, of(3, 0, HOUR, &[])).await;
    assert_eq!(ids(&answer.ready), job_ids(&waits));
    assert!(!w.lead(LEADER).await.freed_permits);
}

/// No request names the key: the node has handed everything over.
pub(super) async fn jobs_that_wait_for_permits_that_cool_down_for_long_go_on_waiting<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let worker = node();
    let held = jobs(w, worker, 2).await;
    exchange(w, worker, of(1, 0, HOUR, &held)).await;
    exchange(w, worker, handing(of(1, 0, HOUR, &[]), 1, HOUR)).await;
    let unused = "UPDATE {s}permit_key SET used_at = {now} - 420 * {second}";
    let recently = "UPDATE {s}permit_key SET size = size WHERE used_at > {now} - 240 * {second}";
    for (serves, used) in [("other", 0), ("work", 1)] {
        assert_eq!(w.store.execute(unused).await, 1);
        let stalled = w.store.stalled_keys(&[serves.to_owned()]).await.unwrap();
        assert_eq!(stalled, []);
        assert_eq!(w.store.execute(recently).await, used, "{serves}");
    }
    // The permit is cold, and the key stalled.
    let pass = "UPDATE {s}permit SET expires_at = {now} - {second}";
    assert_eq!(w.store.execute(pass).await, 1);
    assert_eq!(w.store.execute(unused).await, 1);
    w.store.stalled_keys(&["work".to_owned()]).await.unwrap();
    assert_eq!(w.store.execute(recently).await, 0);
}

/// The node knows of more than the database: its row has expired, and the leader has freed it.
pub(super) async fn no_permit_is_handed_over_that_the_database_does_not_know_of<S: SqlBench>(
    w: &World<S>,
) {
    let (lost, alive) = (node(), node());
    let held = jobs(w, alive, 2).await;
    exchange(w, alive, of(2, 0, HOUR, &held)).await;
    let (got, _) = exchange(w, lost, handing(of(2, 0, HOUR, &[]), 2, HOUR)).await;
    assert_eq!((got.number, sum(w).await), (0, 2));
}

pub(super) async fn permits_that_cool_down_for_long_need_a_bounded_number_of_rows<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let held = jobs(w, worker, 40).await;
    exchange(w, worker, of(1_000, 0, DAY, &held)).await;
    for keep in (0..40).rev() {
        let rest = DAY - Duration::from_secs(40 - keep);
        let keep = i32::try_from(keep).unwrap();
        exchange(w, worker, handing(of(1_000, keep, DAY, &[]), 1, rest)).await;
    }
    assert_eq!(sum(w).await, 40);
    let rows = w.rows("permit").await;
    assert!(rows <= 2, "{rows}");
}

pub(super) async fn a_waiting_job_of_a_tenant_that_no_node_takes_reserves_nothing<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let mut serves = membership(worker);
    serves.types = vec!["work".to_owned()];
    serves.scope = Scope::default().tenants(["acme"]).min_priority(5);
    w.store.write_node(&serves).await.unwrap();
    let all = hold_all(
        w,
        worker,
        vec![
            work().priority(5),
            work().tenant("zeta").priority(5),
            work().tenant("acme").priority(4),
            work().tenant("acme").priority(5),
        ],
    )
    .await;
    exchange(w, worker, of(1, 0, Duration::ZERO, &all)).await;
    assert_eq!(w.rows("waiting_job").await, 3);
    let (got, answer) = exchange(w, worker, of(1, 0, Duration::ZERO, &[])).await;
    assert_eq!(ids(&answer.ready), [all[3].job.id]);
    assert!(!got.contended);
    assert_eq!(w.rows("waiting_job").await, 1, "the woken one");
    // A node that takes them finds them like any other.
    let found: JobId = all[1].job.id;
    assert_eq!(w.hold(node(), &Hint::new(found)).await.job.id, found);
}
