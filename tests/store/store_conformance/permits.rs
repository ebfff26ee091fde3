//! Permits of limits: borrowed, given back, waited for.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::permits::{
    Asking, KeyAnswer, KeyRequest, LONGEST_LOAN, LastingPermit, PermitAnswer, PermitKey,
    PermitRequest, StalledKey, WaitingJob,
};
use jobwire_core::store::{
    ClaimOf, ClaimPage, ClockWindow, CycleOutcome, LeaderCycle, OrphanQuery, PauseScope,
};
use jobwire_core::{Hint, JobId, Lane, NewJob, NodeId};

use super::membership::membership;
use super::world::{LEADER, LEASE, SqlBench, World, ids, job_ids, node, terms, work};

fn key(name: &str) -> PermitKey {
    PermitKey {
        limit: "work".to_owned(),
        key: name.to_owned(),
    }
}

fn asking(job: &LockedJob) -> Asking {
    Asking {
        held: job.held(),
        job_type: job.job.job_type.clone(),
        seq: job.job.seq,
        fair_key: None,
    }
}

/// A request for one key.
fn of(name: &str, size: i32, keep: i32, jobs: &[&LockedJob]) -> KeyRequest {
    KeyRequest {
        key: key(name),
        size,
        keep,
        spare: 0,
        cool_down: Duration::ZERO,
        cooling: Vec::new(),
        asking: jobs.iter().map(|job| asking(job)).collect(),
    }
}

async fn exchange<S: SqlBench>(w: &World<S>, node: NodeId, keys: Vec<KeyRequest>) -> PermitAnswer {
    let request = PermitRequest::new(node, LEASE, keys);
    loop {
        match w.store.exchange_permits(&request).await {
            // The row of a key stayed locked on a busy machine. A node tries again, too.
            Err(error) if error.is_conflict() => {}
            answer => return answer.unwrap(),
        }
    }
}

async fn exchange_one<S: SqlBench>(
    w: &World<S>,
    node: NodeId,
    of: KeyRequest,
) -> (KeyAnswer, PermitAnswer) {
    let mut answer = exchange(w, node, vec![of]).await;
    (answer.keys.remove(0), answer)
}

/// Creates and locks jobs, in creation order.
async fn hold_all<S: SqlBench>(w: &World<S>, owner: NodeId, jobs: usize) -> Vec<LockedJob> {
    let hints = w.ready((0..jobs).map(|_| work()).collect()).await;
    let mut held = w.lock(owner, &hints).await.jobs;
    held.sort_by_key(|job| job.job.seq);
    assert_eq!(held.len(), jobs);
    held
}

fn each(jobs: &[LockedJob]) -> Vec<&LockedJob> {
    jobs.iter().collect()
}

async fn sum<S: SqlBench>(w: &World<S>) -> i64 {
    let sum = "SELECT coalesce(CAST(sum(number) AS bigint), 0) FROM {s}permit";
    w.store.number(sum).await
}

pub(super) async fn all_nodes_together_borrow_no_more_than_the_size<S: SqlBench>(w: &World<S>) {
    let (one, other) = (node(), node());
    let jobs = hold_all(w, one, 3).await;
    let mut request = of("a", 5, 0, &each(&jobs));
    request.spare = 1;
    let (got, answer) = exchange_one(w, one, request).await;
    assert_eq!((got.number, got.contended), (4, false));
    assert_eq!(got.granted, job_ids(&jobs));
    assert!(answer.parked.is_empty() && answer.ready.is_empty());

    let more = hold_all(w, other, 2).await;
    let both = vec![of("a", 5, 0, &[&more[0]]), of("b", 1, 0, &[&more[1]])];
    let answer = exchange(w, other, both).await;
    let numbers: Vec<i32> = answer.keys.iter().map(|of| of.number).collect();
    assert_eq!(numbers, [1, 1], "each key has permits of its own");
    assert_eq!(sum(w).await, 6);

    // The same request again changes nothing; what is not kept goes back.
    let (got, _) = exchange_one(w, one, of("a", 5, 4, &[])).await;
    assert_eq!(got.number, 4);
    let (got, _) = exchange_one(w, one, of("a", 5, 0, &[])).await;
    assert_eq!(got.number, 0);
    assert_eq!(sum(w).await, 2);
    assert_eq!(w.rows("waiting_job").await, 0);
}

pub(super) async fn a_job_without_a_permit_waits_and_the_first_is_woken<S: SqlBench>(w: &World<S>) {
    let (one, other) = (node(), node());
    let first = hold_all(w, one, 1).await;
    exchange_one(w, one, of("", 1, 0, &each(&first))).await;
    let jobs = hold_all(w, other, 2).await;
    let retries = jobs[0].job.retries;
    let turned = [&jobs[1], &jobs[0]];
    let (got, answer) = exchange_one(w, other, of("", 1, 0, &turned)).await;
    assert!(got.granted.is_empty() && got.contended && answer.ready.is_empty());
    let mut parked = answer.parked;
    parked.sort_unstable();
    assert_eq!(parked, job_ids(&jobs));
    assert_eq!(w.rows("job_lease").await, 1, "that of the running job");
    let waiting = w.store.waiting_for_permits(10).await.unwrap();
    assert_eq!((&*waiting[0].job_type, waiting[0].jobs), ("work", 2));
    let of_page = w.store.waiting_of(&[first[0].job.id, jobs[1].job.id]).await;
    let waits = WaitingJob {
        id: jobs[1].job.id,
        key: key(""),
    };
    assert_eq!(of_page.unwrap(), [waits], "the other one runs");

    // The end of the running job wakes the one that was created first.
    let (got, answer) = exchange_one(w, one, of("", 1, 0, &[])).await;
    assert!(got.contended, "the second one waits");
    assert_eq!(ids(&answer.ready), [jobs[0].job.id]);
    assert_eq!(w.store.waiting_for_permits(10).await.unwrap()[0].jobs, 1);
    assert_eq!(w.store.waiting_of(&[jobs[0].job.id]).await.unwrap(), []);

    // A later job does not take its permit.
    let late = hold_all(w, one, 1).await;
    let (got, _) = exchange_one(w, one, of("", 1, 0, &each(&late))).await;
    assert!(got.granted.is_empty());
    let hint = Hint::new(jobs[0].job.id);
    let again = w.hold(other, &hint).await;
    assert_eq!(again.job.retries, retries, "no attempt is spent");
    let (got, _) = exchange_one(w, other, of("", 1, 0, &[&again])).await;
    assert_eq!(got.granted, [again.job.id]);
    assert_eq!(w.rows("waiting_job").await, 2);
    assert_eq!(sum(w).await, 1);
}

/// A request for permits of a fair limit of one, whose jobs take turns by their key.
fn fair(keep: i32, jobs: &[LockedJob], fair_key: &str) -> KeyRequest {
    let mut request = of("", 1, keep, &each(jobs));
    for job in &mut request.asking {
        job.fair_key = Some(fair_key.to_owned());
    }
    request
}

/// Gives the permit back, has the job that is woken run under it, and returns that job.
async fn next_turn<S: SqlBench>(w: &World<S>, worker: NodeId) -> JobId {
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    let woken = ids(&answer.ready);
    assert_eq!(woken.len(), 1, "{woken:?}");
    let held = w.hold(worker, &Hint::new(woken[0])).await;
    let (got, _) = exchange_one(w, worker, of("", 1, 0, &[&held])).await;
    assert_eq!(got.granted, woken);
    woken[0]
}

pub(super) async fn waiting_jobs_of_a_fair_limit_take_turns<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let running = hold_all(w, worker, 1).await;
    exchange_one(w, worker, fair(0, &running, "loud")).await;
    let loud = hold_all(w, worker, 6).await;
    exchange_one(w, worker, fair(1, &loud[..4], "loud")).await;
    exchange_one(w, worker, fair(1, &loud[4..], "loud")).await;
    let quiet = hold_all(w, worker, 2).await;
    exchange_one(w, worker, fair(1, &quiet, "quiet")).await;
    let loud = job_ids(&loud);
    let quiet = job_ids(&quiet);
    for job in [loud[0], quiet[0], loud[1], quiet[1]] {
        assert_eq!(next_turn(w, worker).await, job);
    }
    // A job that comes later has the next turn but one, also if its key had one just now.
    for first in [loud[2], loud[3]] {
        let late = hold_all(w, worker, 1).await;
        exchange_one(w, worker, fair(1, &late, "late")).await;
        assert_eq!(next_turn(w, worker).await, first);
        assert_eq!(next_turn(w, worker).await, late[0].job.id);
    }
    for job in &loud[4..] {
        assert_eq!(next_turn(w, worker).await, *job);
    }
    exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(w.rows("waiting_job").await, 0);
}

/// Its hint came after its reservation had ended, and another job has the permit.
pub(super) async fn a_woken_job_that_comes_too_late_keeps_its_turn<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let running = hold_all(w, worker, 1).await;
    exchange_one(w, worker, fair(0, &running, "a")).await;
    let jobs = hold_all(w, worker, 3).await;
    exchange_one(w, worker, fair(1, &jobs, "a")).await;
    let jobs = job_ids(&jobs);
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [jobs[0]]);
    let late =
        "UPDATE {s}waiting_job SET woken_at = woken_at - 6 * {second} WHERE woken_at IS NOT NULL";
    assert_eq!(w.store.execute(late).await, 1);
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [jobs[1]]);
    let held = w.hold(worker, &Hint::new(jobs[1])).await;
    let (got, _) = exchange_one(w, worker, fair(0, &[held], "a")).await;
    assert_eq!(got.granted, [jobs[1]]);
    let held = w.hold(worker, &Hint::new(jobs[0])).await;
    let (got, _) = exchange_one(w, worker, fair(1, &[held], "a")).await;
    assert_eq!(got.granted, []);
    assert_eq!(next_turn(w, worker).await, jobs[0]);
    assert_eq!(next_turn(w, worker).await, jobs[2]);
}

/// They wait since before the limit was fair. Many other jobs were created between them.
pub(super) async fn jobs_without_a_turn_are_not_overtaken_by_a_flood_of_newer_ones<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let without = hold_all(w, worker, 3).await;
    exchange_one(w, worker, of("", 1, 0, &each(&without))).await;
    let before = "UPDATE {s}waiting_job SET seq = seq - 1000 WHERE job_id = '{id}'";
    let before = before.replace("{id}", &without[1].job.id.to_string());
    assert_eq!(w.store.execute(&before).await, 1);
    let flood = hold_all(w, worker, 4).await;
    exchange_one(w, worker, fair(1, &flood, "loud")).await;
    let quiet = hold_all(w, worker, 1).await;
    exchange_one(w, worker, fair(1, &quiet, "quiet")).await;
    // Behind them, the keys take turns again.
    let turns = without[1..].iter().chain(&flood[..2]).chain(&quiet);
    for job in turns.chain(&flood[2..]) {
        assert_eq!(next_turn(w, worker).await, job.job.id);
    }
}

/// An older node parks a job while a fair queue never gets empty. Its place is far behind the turns.
pub(super) async fn a_job_without_a_turn_is_not_overtaken_for_ever<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let running = hold_all(w, worker, 1).await;
    exchange_one(w, worker, fair(0, &running, "loud")).await;
    let loud = hold_all(w, worker, 2).await;
    exchange_one(w, worker, fair(1, &loud, "loud")).await;
    let before = "UPDATE {s}waiting_job SET seq = seq - 1000";
    assert_eq!(w.store.execute(before).await, 2);
    let without = hold_all(w, worker, 1).await;
    exchange_one(w, worker, of("", 1, 1, &each(&without))).await;
    let late = hold_all(w, worker, 3).await;
    exchange_one(w, worker, fair(1, &late, "late")).await;
    for job in loud.iter().chain(&without).chain(&late) {
        assert_eq!(next_turn(w, worker).await, job.job.id);
    }
}

/// Rows of another writer have the first and the last of all places.
pub(super) async fn a_place_at_either_end_stops_no_job_of_a_fair_limit<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let running = hold_all(w, worker, 1).await;
    exchange_one(w, worker, fair(0, &running, "a")).await;
    let jobs = hold_all(w, worker, 4).await;
    exchange_one(w, worker, fair(1, &jobs[..2], "a")).await;
    for (job, place) in [(&jobs[0], i64::MIN), (&jobs[1], i64::MAX)] {
        let id = job.job.id;
        let place = format!("UPDATE {{s}}waiting_job SET seq = {place} WHERE job_id = '{id}'");
        assert_eq!(w.store.execute(&place).await, 1);
    }
    exchange_one(w, worker, fair(1, &jobs[2..3], "a")).await;
    exchange_one(w, worker, fair(1, &jobs[3..], "b")).await;
    let mut turns = Vec::new();
    for _ in 0..4 {
        turns.push(next_turn(w, worker).await);
    }
    assert_eq!(turns, [0, 3, 2, 1].map(|at| jobs[at].job.id));
}

async fn orphans<S: SqlBench>(w: &World<S>) -> Vec<JobId> {
    let now = w.lead(super::world::LEADER).await.now;
    let query = OrphanQuery::new(Lane::default(), terms(node()).types, now, 100);
    ids(&w.store.orphans(&query).await.unwrap().ready)
}

async fn claimable_of<S: SqlBench>(w: &World<S>, of: ClaimOf) -> Vec<JobId> {
    let page = ClaimPage {
        lane: Lane::default(),
        at_most: 100,
        of,
    };
    let found = w.store.claimable(&terms(node()), &page).await.unwrap();
    found.hints.iter().map(|hint| hint.id).collect()
}

async fn claimable<S: SqlBench>(w: &World<S>) -> Vec<JobId> {
    let next = ClaimOf::Next {
        after: None,
        look_at: 100,
    };
    claimable_of(w, next).await
}

pub(super) async fn a_waiting_job_is_passed_over_while_its_key_is_in_use<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let jobs = hold_all(w, worker, 2).await;
    exchange_one(w, worker, of("", 1, 0, &each(&jobs))).await;
    let waits = [jobs[1].job.id];
    w.make_old(600).await;
    assert_eq!(orphans(w).await, []);
    assert_eq!(claimable(w).await, []);
    // No node has named the key for long.
    let unused = "UPDATE {s}permit_key SET used_at = used_at - 601 * {second}";
    assert_eq!(w.store.execute(unused).await, 1);
    assert_eq!(orphans(w).await, waits);
    assert_eq!(claimable(w).await, waits);
    // A woken job is like any other.
    exchange_one(w, worker, of("", 1, 0, &[])).await;
    w.make_old(600).await;
    assert_eq!(orphans(w).await, waits);
    assert_eq!(claimable(w).await, waits);
}

async fn expire_permits<S: SqlBench>(w: &World<S>) {
    let expired = "UPDATE {s}permit SET expires_at = {now} - {second}";
    w.store.execute(expired).await;
}

pub(super) async fn permits_of_a_dead_node_are_free_when_its_leases_have_ended<S: SqlBench>(
    w: &World<S>,
) {
    let (dead, alive) = (node(), node());
    let held = hold_all(w, dead, 1).await;
    exchange_one(w, dead, of("", 1, 0, &each(&held))).await;
    let jobs = hold_all(w, alive, 1).await;
    exchange_one(w, alive, of("", 1, 0, &each(&jobs))).await;
    assert_eq!(w.store.stalled_keys(&[]).await.unwrap(), []);
    expire_permits(w).await;
    w.lead(LEADER).await;
    assert_eq!(
        w.store.stalled_keys(&[]).await.unwrap(),
        [],
        "its job may still run"
    );
    assert_eq!(sum(w).await, 1);
    w.die(held[0].job.id).await;
    // The cycle that ends its leases still saw them.
    w.lead(LEADER).await;
    let stalled = StalledKey {
        key: key(""),
        size: 1,
    };
    assert_eq!(w.store.stalled_keys(&[]).await.unwrap(), [stalled]);
    assert_eq!(sum(w).await, 0);
    // A request that names the key wakes the job that waits, once.
    let (_, answer) = exchange_one(w, alive, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [jobs[0].job.id]);
    assert_eq!(w.store.stalled_keys(&[]).await.unwrap(), []);
    // The dead node lives after all. It keeps nothing, and gets nothing.
    let again = w.hold(alive, &Hint::new(jobs[0].job.id)).await;
    let (got, _) = exchange_one(w, alive, of("", 1, 0, &[&again])).await;
    assert_eq!(got.number, 1);
    let (got, _) = exchange_one(w, dead, of("", 1, 1, &[])).await;
    assert_eq!(got.number, 0);
    assert_eq!(sum(w).await, 1);
}

pub(super) async fn a_parked_exclusive_job_stays_the_first_of_its_instance<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let plain = hold_all(w, worker, 1).await;
    exchange_one(w, worker, of("", 1, 0, &each(&plain))).await;
    let hints = w
        .ready(vec![work().instance("one"), work().instance("one")])
        .await;
    let first = w.hold(worker, &hints[0]).await;
    let (_, answer) = exchange_one(w, worker, of("", 1, 1, &[&first])).await;
    assert_eq!(answer.parked, [first.job.id]);
    assert!(answer.ready.is_empty(), "no sibling goes before it");
    assert_eq!(orphans(w).await, [], "neither it nor its sibling");
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [first.job.id]);
    assert_eq!(w.hold(worker, &hints[1]).await.job.id, first.job.id);
}

pub(super) async fn a_lost_lock_is_not_parked_and_a_cancelled_job_is_deleted<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let jobs = hold_all(w, worker, 4).await;
    exchange_one(w, worker, of("", 1, 0, &[&jobs[0]])).await;
    w.die(jobs[1].job.id).await;
    w.store.cancel(jobs[2].job.id).await.unwrap();
    let (got, answer) = exchange_one(w, worker, of("", 1, 1, &each(&jobs[1..]))).await;
    assert!(got.granted.is_empty());
    let mut parked = answer.parked;
    parked.sort_unstable();
    assert_eq!(parked, [jobs[2].job.id, jobs[3].job.id]);
    assert_eq!(answer.cancelled, [jobs[2].job.id]);
    assert_eq!(w.state(jobs[2].job.id).await, None);
    assert_eq!(w.rows("waiting_job").await, 1);
}

pub(super) async fn a_waiting_job_that_is_deleted_holds_no_other_back<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let jobs = hold_all(w, worker, 4).await;
    exchange_one(w, worker, of("", 1, 0, &each(&jobs))).await;
    for gone in &jobs[1..3] {
        w.store.delete(gone.job.id).await.unwrap();
    }
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [jobs[3].job.id]);
    assert_eq!(w.rows("waiting_job").await, 1, "the woken one");
}

/// Writes rows of waiting jobs that are in no table, before all others of the key.
async fn put_ghosts<S: SqlBench>(w: &World<S>, number: i64, woken_at: &str) {
    let rows = (1..=number).map(|seq| {
        let id = JobId::generate();
        format!("('{id}', 'work', '', 'work', -{seq}, {woken_at})")
    });
    let rows = Vec::from_iter(rows).join(", ");
    let sql = format!(
        "INSERT INTO {{s}}waiting_job (job_id, limit_name, key, type, seq, woken_at) VALUES {rows}"
    );
    assert_eq!(w.store.execute(&sql).await, number as u64);
}

pub(super) async fn thousands_of_rows_whose_jobs_are_gone_hold_no_other_back<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let jobs = hold_all(w, worker, 3).await;
    exchange_one(w, worker, of("", 1, 0, &each(&jobs))).await;
    put_ghosts(w, 2_500, "NULL").await;
    let (got, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [jobs[1].job.id]);
    assert!(got.contended, "the third one waits");
    assert_eq!(w.rows("waiting_job").await, 2);

    // A job that comes gets a permit if only rows of jobs that are gone wait.
    let again = w.hold(worker, &answer.ready[0].hint).await;
    exchange_one(w, worker, of("", 1, 0, &[&again])).await;
    w.store.delete(jobs[2].job.id).await.unwrap();
    let late = hold_all(w, worker, 1).await;
    let (got, answer) = exchange_one(w, worker, of("", 1, 0, &each(&late))).await;
    assert_eq!(got.granted, job_ids(&late));
    assert!(!got.contended && answer.ready.is_empty());
    assert_eq!(w.rows("waiting_job").await, 0);
}

pub(super) async fn waiting_jobs_that_nobody_may_lock_hold_no_other_back<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let jobs = hold_all(w, worker, 2).await;
    let paused = w.one(NewJob::of("other-work", &())).await;
    let paused = w.hold(worker, &paused).await;
    let last = hold_all(w, worker, 1).await;
    let all = [&jobs[0], &jobs[1], &paused, &last[0]];
    exchange_one(w, worker, of("", 1, 0, &all)).await;
    w.store.delete(jobs[1].job.id).await.unwrap();
    let scope = PauseScope::Type("other-work".to_owned());
    assert!(w.store.pause(&scope).await.unwrap());
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), job_ids(&last));
    // At the end of the pause it is hinted and asks again.
    let lifted = w.store.resume(&scope).await.unwrap();
    assert_eq!(ids(&lifted.ready), [paused.job.id]);
    let again = w.hold(worker, &lifted.ready[0].hint).await;
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[&again])).await;
    assert_eq!(answer.parked, [paused.job.id], "a permit is reserved");

    // No node serves its type any more.
    let woken = w.hold(worker, &Hint::new(last[0].job.id)).await;
    exchange_one(w, worker, of("", 1, 0, &[&woken])).await;
    let mut other = membership(node());
    other.types = vec!["work".to_owned()];
    w.store.write_node(&other).await.unwrap();
    let late = hold_all(w, worker, 1).await;
    let (got, _) = exchange_one(w, worker, of("", 1, 0, &each(&late))).await;
    assert_eq!(got.granted, job_ids(&late));
}

pub(super) async fn a_parked_job_keeps_its_strikes<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let running = hold_all(w, worker, 1).await;
    exchange_one(w, worker, of("", 1, 0, &each(&running))).await;
    let hint = w.one(work()).await;
    let job = w.hold(worker, &hint).await;
    w.die(job.job.id).await;
    let again = w.hold(worker, &hint).await;
    assert_eq!(again.strikes, 1);
    let (_, answer) = exchange_one(w, worker, of("", 1, 1, &[&again])).await;
    assert_eq!(answer.parked, [job.job.id]);
    // It is not rescued, claimed or found while it waits.
    w.make_old(600).await;
    assert!(w.lead(LEADER).await.rescued.is_empty());
    let rescued = ClaimOf::Rescued { after: None };
    assert_eq!(claimable_of(w, rescued).await, []);
    assert_eq!(orphans(w).await, []);
    let (_, answer) = exchange_one(w, worker, of("", 1, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [job.job.id]);
    let again = w.hold(worker, &hint).await;
    assert_eq!(again.strikes, 1);
    let (got, _) = exchange_one(w, worker, of("", 1, 0, &[&again])).await;
    assert_eq!(got.granted, [job.job.id]);
}

pub(super) async fn permits_are_not_freed_while_the_clock_is_in_doubt<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let jobs = hold_all(w, worker, 1).await;
    let mut request = of("", 8, 0, &each(&jobs));
    request.spare = 1;
    exchange_one(w, worker, request).await;
    // The node trusts its two permits by its own clock; no lease names it.
    w.complete(worker, &jobs[0], &jobwire_core::store::Handoff::Hint)
        .await;
    expire_permits(w).await;
    w.store.stalled_keys(&[]).await.unwrap();
    assert_eq!(sum(w).await, 2);
    let now = w.lead(LEADER).await.now;
    assert_eq!(sum(w).await, 0, "the leader believes the clock");

    let (got, _) = exchange_one(w, worker, of("", 8, 0, &[])).await;
    assert_eq!(got.number, 0);
    let jobs = hold_all(w, worker, 1).await;
    exchange_one(w, worker, of("", 8, 0, &each(&jobs))).await;
    w.complete(worker, &jobs[0], &jobwire_core::store::Handoff::Hint)
        .await;
    expire_permits(w).await;
    let doubts = LeaderCycle {
        node: LEADER,
        lease: LEASE,
        transport: "in-process",
        reset_at_most: 100,
        clock: Some(ClockWindow {
            from: now - LEASE,
            until: now - LEASE / 2,
        }),
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: vec!["work".to_owned()].into(),
        again_after: Duration::from_secs(30),
        hint_at_most: 100,
        attempts_kept: AttemptsKept::new(),
    };
    let cycle = w.store.run_leader_cycle(&doubts).await.unwrap();
    assert!(matches!(cycle, CycleOutcome::Leads(_)));
    assert_eq!(sum(w).await, 1);
}

pub(super) async fn a_job_that_was_woken_in_the_future_reserves_nothing<S: SqlBench>(w: &World<S>) {
    let worker = node();
    put_ghosts(w, 3, "{now} + 3600 * {second}").await;
    let jobs = hold_all(w, worker, 2).await;
    let (got, _) = exchange_one(w, worker, of("", 1, 0, &each(&jobs))).await;
    assert_eq!(got.granted, [jobs[0].job.id]);
    w.store.execute("DELETE FROM {s}permit").await;
    let stalled = w.store.stalled_keys(&[]).await.unwrap();
    assert_eq!(stalled.len(), 1, "the second job could run");
    assert_eq!(w.rows("waiting_job").await, 1, "that of the second job");
}

pub(super) async fn a_late_request_takes_no_job_of_another_holder_out_of_the_queue<S: SqlBench>(
    w: &World<S>,
) {
    let (frozen, other) = (node(), node());
    let running = hold_all(w, other, 1).await;
    exchange_one(w, other, of("", 1, 0, &each(&running))).await;
    let job = hold_all(w, frozen, 1).await.remove(0);
    w.die(job.job.id).await;
    let again = w.hold(other, &Hint::new(job.job.id)).await;
    let (_, answer) = exchange_one(w, other, of("", 1, 1, &[&again])).await;
    assert_eq!(answer.parked, [job.job.id]);
    // The request of the frozen node arrives at last, and there is a permit.
    let (got, _) = exchange_one(w, frozen, of("", 2, 0, &[&job])).await;
    assert_eq!(got.granted, [job.job.id]);
    let waiting = w.store.waiting_of(&[job.job.id]).await.unwrap();
    assert_eq!(waiting.len(), 1);
    // The permit that the frozen node gives back wakes the job, and then its row goes.
    let (_, answer) = exchange_one(w, frozen, of("", 2, 0, &[])).await;
    assert_eq!(ids(&answer.ready), [job.job.id]);
    let again = w.hold(other, &answer.ready[0].hint).await;
    let (got, _) = exchange_one(w, other, of("", 2, 1, &[&again])).await;
    assert_eq!(got.granted, [job.job.id]);
    assert_eq!(w.rows("waiting_job").await, 0);
}

pub(super) async fn the_row_of_a_key_goes_with_its_last_permit<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let jobs = hold_all(w, worker, 2).await;
    exchange_one(w, worker, of("acme", 1, 0, &each(&jobs))).await;
    assert_eq!(w.rows("permit_key").await, 1);
    let (_, answer) = exchange_one(w, worker, of("acme", 1, 0, &[])).await;
    let again = w.hold(worker, &answer.ready[0].hint).await;
    let (got, _) = exchange_one(w, worker, of("acme", 1, 0, &[&again])).await;
    assert_eq!((got.number, w.rows("permit_key").await), (1, 1));
    exchange_one(w, worker, of("acme", 1, 0, &[])).await;
    assert_eq!(w.rows("permit_key").await, 0);

    // Nodes that died have left these.
    let rows = (0..2_500).map(|of| format!("('work', 'k{of}', 1, {{now}} - 601 * {{second}})"));
    let rows = Vec::from_iter(rows).join(", ");
    let left =
        format!("INSERT INTO {{s}}permit_key (limit_name, key, size, used_at) VALUES {rows}");
    assert_eq!(w.store.execute(&left).await, 2_500);
    w.store.stalled_keys(&[]).await.unwrap();
    assert_eq!(w.rows("permit_key").await, 0);
}

/// Its node does not exist. No other node changes its row, so it is deleted after the time of its limit.
pub(super) async fn a_permit_that_no_node_would_borrow_for_so_long_ends<S: SqlBench>(w: &World<S>) {
    let limits = [("work".to_owned(), LEASE + LONGEST_LOAN)];
    let look = |ended: Vec<LastingPermit>| {
        let (w, limits) = (&w, &limits);
        async move { w.store.lasting_permits(limits, &ended).await.unwrap() }
    };
    let (alive, waits) = (node(), node());
    let running = hold_all(w, alive, 2).await;
    for (name, job) in ["", "other"].iter().zip(&running) {
        exchange_one(w, alive, of(name, 2, 0, &[job])).await;
    }
    let forge = async |key: &str, node: NodeId, seconds: u64| {
        let forge = format!(
            "INSERT INTO {{s}}permit (limit_name, key, node, number, expires_at)
             VALUES ('work', '{key}', '{node}', 1, {{now}} + {seconds} * {{second}})"
        );
        assert_eq!(w.store.execute(&forge).await, 1);
    };
    forge("", node(), 40 * 3600).await;
    forge("other", node(), 40 * 3600).await;
    assert_eq!(look(Vec::new()).await, [], "no job waits");
    let job = hold_all(w, waits, 1).await;
    let (_, answer) = exchange_one(w, waits, of("", 2, 0, &each(&job))).await;
    assert_eq!(answer.parked, job_ids(&job));
    let lasting = look(Vec::new()).await;
    assert_eq!(lasting.len(), 1, "not that of the living node: {lasting:?}");

    // A row that was renewed meanwhile stays, and so does that of a node that has a lease.
    let renew = "UPDATE {s}permit SET expires_at = expires_at + {second} WHERE key = ''";
    assert_eq!(w.store.execute(renew).await, 2);
    let renewed = look(lasting.clone()).await;
    assert_eq!(renewed.len(), 1);
    assert_ne!(renewed, lasting);
    let far = format!(
        "UPDATE {{s}}permit SET expires_at = {{now}} + 40 * 3600 * {{second}} WHERE key = '' AND node = '{alive}'"
    );
    assert_eq!(w.store.execute(&far).await, 1);
    let both = look(Vec::new()).await;
    assert_eq!(both.len(), 2);
    let left = look(both).await;
    assert_eq!(left.len(), 1, "that of the living node");
    assert_eq!(sum(w).await, 3);

    // Now the job runs.
    let stalled = w.store.stalled_keys(&[]).await.unwrap();
    let stalled: Vec<PermitKey> = stalled.into_iter().map(|of| of.key).collect();
    assert_eq!(stalled, [key("")]);
    let (_, answer) = exchange_one(w, waits, of("", 2, 0, &[])).await;
    assert_eq!(ids(&answer.ready), job_ids(&job));
}

/// Every node asks, runs a moment and gives back, at once with the others.
pub(super) async fn jobs_under_a_limit_of_one_exclude_each_other<S: SqlBench>(w: &World<S>) {
    const NODES: usize = 4;
    const EACH: usize = 4;
    let (inside, run) = (&AtomicI32::new(0), &AtomicI32::new(0));
    let work_off = |worker: NodeId| async move {
        let mut ready: Vec<Hint> = w.ready((0..EACH).map(|_| work()).collect()).await;
        let all = (NODES * EACH) as i32;
        while run.load(Ordering::SeqCst) < all {
            let locked = w.lock(worker, &ready).await.jobs;
            ready.clear();
            let request = of("", 1, 0, &each(&locked));
            let (got, answer) = exchange_one(w, worker, request).await;
            ready.extend(answer.ready.into_iter().map(|ready| ready.hint));
            for id in &got.granted {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two run at once");
                assert!(sum(w).await <= 1);
                inside.fetch_sub(1, Ordering::SeqCst);
                run.fetch_add(1, Ordering::SeqCst);
                let job = locked.iter().find(|job| job.job.id == *id).unwrap();
                let then = jobwire_core::store::Handoff::Hint;
                w.complete(worker, job, &then).await;
            }
            if ready.is_empty() && got.granted.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let all = async {
        tokio::join!(
            work_off(node()),
            work_off(node()),
            work_off(node()),
            work_off(node()),
        )
    };
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .expect("every job gets its turn");
    assert_eq!(w.rows("job").await, 0);
}
