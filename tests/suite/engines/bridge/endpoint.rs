//! The store where the execution endpoint runs the jobs. The instances of Flowable 8 are locked by
//! the node, with the job; those of Activiti 7 by the engine.

use std::time::Duration;

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{BatchOutcome, Completion, Handoff, Operated, Refusal, Release, Store};
use jobwire_core::{Hint, JobId, NodeId};
use jobwire_engines::EngineStore;
use jobwire_tests::{EngineProgram, EngineServer, EngineSettings};

use super::flowable::{
    Bridge, hint, job_id, options, quick, store, terms, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{
    DEAD, JOB, JobRow, LOCK, LOCK_INSTANCE, Rows, SUSPENDED, TIMER, World, state,
};

/// An engine on which no node runs, a store on its tables, and its rows.
pub(super) type Shared = (&'static EngineServer, EngineStore, Rows);

const IS_LOCKED: &str =
    "SELECT count(*) FROM act_ru_execution WHERE id_ = $1 AND lock_time_ IS NOT NULL";

/// Makes a job of an instance a timer that is due.
const BECOMES_TIMER: &str = "
WITH job AS (DELETE FROM act_ru_job WHERE id_ = $1 RETURNING *), timer AS (
    INSERT INTO act_ru_timer_job SELECT * FROM job RETURNING id_, execution_id_)
UPDATE act_ru_execution SET job_count_ = job_count_ - 1, timer_job_count_ = timer_job_count_ + 1
WHERE id_ IN (SELECT execution_id_ FROM timer)";
const IS_DUE: &str =
    "UPDATE act_ru_timer_job SET duedate_ = localtimestamp - interval '1 day' WHERE id_ = $1";

fn completion(held: LockToken) -> Completion {
    Completion {
        held,
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    }
}

async fn lock_one(store: &EngineStore, owner: NodeId, job: &JobRow) -> LockedJob {
    let locked = store.lock(&terms(owner), &[hint(&job.id)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    locked.jobs.into_iter().next().unwrap()
}

async fn settle(
    store: &EngineStore,
    owner: NodeId,
    held: LockToken,
    then: &Handoff,
) -> BatchOutcome {
    let settled = store.complete(owner, &[completion(held)], then).await;
    settled.unwrap()
}

/// Runs a held job, as a node does.
async fn execute(engine: &EngineServer, id: JobId) -> String {
    let id = jobwire_engines::id::engine_id(id).unwrap();
    state(&match is_locked_by_engine(engine) {
        true => engine.execute_by_endpoint(&id).await,
        false => engine.execute_in_held_instance(&id).await,
    })
}

/// Returns whether the engine locks the instances.
fn is_locked_by_engine(engine: &EngineServer) -> bool {
    engine.program() == EngineProgram::Activiti7
}

/// The lock of an instance is written where it has an owner, and its jobs run one after the other.
pub(super) async fn jobs_of_an_instance_follow_each_other((engine, store, rows): Shared) {
    let instance = engine.start_instance("fork", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    assert_eq!(jobs.len(), 4, "two of them are not exclusive");
    let owner = NodeId::generate();
    let hints: Vec<Hint> = jobs.iter().map(|job| hint(&job.id)).collect();
    let locked = store.lock(&terms(owner), &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    let held = |why: &(JobId, Refusal)| why.1 == Refusal::InstanceHeld;
    assert!(locked.refused.iter().all(held), "{locked:?}");
    let mut running = locked.jobs[0].held();
    // The four branches, and the task behind the join.
    for left in [3, 2, 1, 1] {
        let locks = i64::from(!is_locked_by_engine(engine));
        assert_eq!(rows.count(IS_LOCKED, &instance).await, locks);
        assert_eq!(execute(engine, running.id).await, "gone");
        let take = Handoff::Take(terms(owner));
        let outcome = settle(&store, owner, running, &take).await;
        assert_eq!(outcome.next.len(), 1, "{outcome:?}");
        running = outcome.next[0].held();
        assert_eq!(rows.jobs(JOB, &instance).await.len(), left);
    }
    assert_eq!(execute(engine, running.id).await, "gone");
    settle(&store, owner, running, &Handoff::Hint).await;
    assert!(rows.ended(&instance).await);
    assert_eq!(rows.effects(&instance).await.len(), 5);
}

/// However many nodes try at once, one job of an instance is locked.
pub(super) async fn one_job_of_an_instance_is_locked((engine, store, rows): Shared) {
    for _ in 0..20 {
        let instance = engine.start_instance("fork", &[]).await;
        let mut tries = tokio::task::JoinSet::new();
        for job in &rows.jobs(JOB, &instance).await {
            let (store, hint) = (store.clone(), hint(&job.id));
            tries.spawn(async move {
                let owner = terms(NodeId::generate());
                store.lock(&owner, &[hint]).await.unwrap().jobs.len()
            });
        }
        let locked: usize = tries.join_all().await.into_iter().sum();
        // Each may have been busy for the others.
        assert!(locked <= 1, "{locked} jobs of an instance were locked");
        let in_rows = rows.jobs(JOB, &instance).await;
        let in_rows = in_rows.iter().filter(|job| job.is_locked()).count();
        assert_eq!(in_rows, locked);
    }
}

/// A job that the engine gives back is ready again, under whatever id, and no attempt is spent. The
/// lock that a dead execution has left on the instance is cleared.
pub(super) async fn a_job_that_is_given_back_is_ready_again((engine, store, rows): Shared) {
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(rows.change(LOCK_INSTANCE, &instance).await, 1);
    assert_eq!(execute(engine, locked.job.id).await, "job");
    let outcome = settle(&store, owner, locked.held(), &Handoff::Hint).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    let again = rows.job(JOB, &instance).await;
    assert!(!again.is_locked() && again.retries == Some(3), "{again:?}");
    let is_renamed = engine.program() == EngineProgram::Activiti7;
    assert_eq!(again.id != job.id, is_renamed);
    assert_eq!(outcome.ready.len(), 1, "{outcome:?}");
    assert_eq!(outcome.ready[0].hint.id, job_id(&again.id));
    assert_eq!(rows.count(IS_LOCKED, &instance).await, 0);
    let locked = lock_one(&store, owner, &again).await;
    assert_eq!(execute(engine, locked.job.id).await, "gone");
    assert!(rows.ended(&instance).await);
}

/// A job and an instance that an engine node has locked are left alone.
pub(super) async fn the_locks_of_an_engine_node_are_respected((engine, store, rows): Shared) {
    let instance = engine.start_instance("siblings", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    let refused = |job: &JobRow| {
        let (store, hint) = (store.clone(), hint(&job.id));
        async move {
            let owner = terms(NodeId::generate());
            let locked = store.lock(&owner, &[hint]).await.unwrap();
            assert!(locked.jobs.is_empty(), "{locked:?}");
            locked.refused[0].1
        }
    };
    rows.change(LOCK, &jobs[0].id).await;
    assert_eq!(refused(&jobs[0]).await, Refusal::Locked);
    assert_eq!(refused(&jobs[1]).await, Refusal::InstanceHeld);
    let unlock = "UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ = $1";
    rows.change(unlock, &jobs[0].id).await;
    rows.change(LOCK_INSTANCE, &instance).await;
    assert_eq!(refused(&jobs[1]).await, Refusal::InstanceHeld);
    if !is_locked_by_engine(engine) {
        return;
    }
    // The lock of an instance that an engine node works in stays when ours ends.
    let free = "UPDATE act_ru_execution SET lock_time_ = NULL WHERE id_ = $1";
    rows.change(free, &instance).await;
    let owner = NodeId::generate();
    let ours = lock_one(&store, owner, &jobs[1]).await;
    // The first job of the instance is locked, whichever its hint names.
    let theirs = jobs.iter().find(|job| job_id(&job.id) != ours.job.id);
    rows.change(LOCK, &theirs.unwrap().id).await;
    rows.change(LOCK_INSTANCE, &instance).await;
    let ended = [Release::of_attempt(ours.held())];
    let outcome = store.release(owner, &ended).await.unwrap();
    assert_eq!(outcome.applied, [ours.job.id]);
    assert_eq!(rows.count(IS_LOCKED, &instance).await, 1);
}

/// A timer keeps its id, and waits while a job of its instance runs.
pub(super) async fn a_timer_waits_for_the_running_job((engine, store, rows): Shared) {
    let instance = engine.start_instance("siblings", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    assert_eq!(rows.change(BECOMES_TIMER, &jobs[0].id).await, 1);
    let owner = NodeId::generate();
    let running = lock_one(&store, owner, &jobs[1]).await;
    assert_eq!(rows.change(IS_DUE, &jobs[0].id).await, 1);
    let moved = store.move_due_timers(100).await.unwrap();
    assert_eq!(rows.jobs(TIMER, &instance).await.len(), 1);
    let again = moved.next_due.unwrap() - moved.now;
    assert!(again > chrono::Duration::zero(), "it is tried in a loop");
    let ended = [Release::of_attempt(running.held())];
    store.release(owner, &ended).await.unwrap();
    let moved = store.move_due_timers(100).await.unwrap();
    let of_it = |ready: &jobwire_core::hint::Ready| ready.hint.id == job_id(&jobs[0].id);
    assert!(moved.ready.iter().any(of_it), "{moved:?}");
    assert_eq!(rows.jobs(JOB, &instance).await.len(), 2);
    // Both run to their end one after the other.
    engine.release(&instance).await;
    let mut running = lock_one(&store, owner, &jobs[0]).await.held();
    assert_eq!(execute(engine, running.id).await, "gone");
    let take = Handoff::Take(terms(owner));
    let outcome = settle(&store, owner, running, &take).await;
    running = outcome.next[0].held();
    assert_eq!(execute(engine, running.id).await, "gone");
    settle(&store, owner, running, &take).await;
    assert!(rows.ended(&instance).await);
}

/// While a job runs, the engine's lock of its instance is extended before it ends.
pub(super) async fn the_lock_of_the_engine_is_extended((engine, store, rows): Shared) {
    let instance = engine.start_instance("siblings", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    let owner = NodeId::generate();
    let running = lock_one(&store, owner, &jobs[0]).await;
    let soon = "UPDATE act_ru_execution SET lock_time_ = localtimestamp + interval '2 seconds' WHERE id_ = $1";
    rows.change(soon, &instance).await;
    let lease = Duration::from_secs(600);
    let renewed = store.renew(owner, lease, &[running.held()]).await.unwrap();
    assert_eq!(renewed.renewed, [running.job.id]);
    let later = "SELECT count(*) FROM act_ru_execution
        WHERE id_ = $1 AND lock_time_ > localtimestamp + interval '9 minutes'";
    assert_eq!(rows.count(later, &instance).await, 1);
    let ended = [Release::of_attempt(running.held())];
    store.release(owner, &ended).await.unwrap();
}

/// Lets the job of a new instance fail until it is a dead letter. No node runs: an operator retries
/// the job before each attempt. Returns the instance and the engine's id of the job. The next attempt
/// succeeds.
async fn dead_letter(engine: &EngineServer, store: &EngineStore, rows: &Rows) -> (String, String) {
    let instance = engine.start_instance("failing", &[("failures", "3")]).await;
    let job = rows.job(JOB, &instance).await;
    for left in [2, 1] {
        let answer = engine.execute_by_endpoint(&job.id).await;
        assert_eq!(state(&answer), "timer");
        let (operated, _) = store.retry(job_id(&job.id), 7).await.unwrap();
        assert_eq!(operated, Operated::Done);
        // The number is for dead letters.
        let ready = rows.job(JOB, &instance).await;
        assert_eq!((&ready.id, ready.retries), (&job.id, Some(left)));
        assert!(!ready.is_locked(), "{ready:?}");
    }
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "dead letter");
    let dead = rows.ids(DEAD, &instance).await;
    assert_eq!(dead, std::slice::from_ref(&job.id));
    (instance, job.id)
}

/// The engine has no REST interface for its jobs, so its endpoint makes the changes.
pub(super) async fn an_operator_retries_a_dead_letter_and_a_timer((engine, store, rows): Shared) {
    let (instance, job) = dead_letter(engine, &store, &rows).await;
    let id = job_id(&job);
    let done = store.retry_many(&[id], 5).await.unwrap();
    assert_eq!(done.operated, [(id, Operated::Done)], "{done:?}");
    let ready = rows.job(JOB, &instance).await;
    assert_eq!((&ready.id, ready.retries), (&job, Some(5)));
    assert!(!ready.is_locked(), "{ready:?}");
    assert!(rows.ids(DEAD, &instance).await.is_empty());
    assert_eq!(state(&engine.execute_by_endpoint(&job).await), "gone");
    assert!(rows.ended(&instance).await);
    assert_eq!(store.retry(id, 5).await.unwrap().0, Operated::NotFound);
}

/// Jobs of every state are deleted, but for one that is locked.
pub(super) async fn an_operator_deletes_jobs((engine, store, rows): Shared) {
    let (instance, job) = dead_letter(engine, &store, &rows).await;
    let (operated, _) = store.delete(job_id(&job)).await.unwrap();
    assert_eq!(operated, Operated::Done);
    assert!(rows.ids(DEAD, &instance).await.is_empty());
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = job_id(&rows.job(TIMER, &instance).await.id);
    assert_eq!(store.delete(timer).await.unwrap().0, Operated::Done);
    assert!(rows.ids(TIMER, &instance).await.is_empty());
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!(rows.change(LOCK, &job.id).await, 1);
    let locked = store.delete(job_id(&job.id)).await.unwrap();
    assert_eq!(locked.0, Operated::Running);
    let unlock = "UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ = $1";
    rows.change(unlock, &job.id).await;
    let done = store.delete_many(&[job_id(&job.id)]).await.unwrap();
    assert_eq!(done.operated, [(job_id(&job.id), Operated::Done)]);
    assert!(rows.ids(JOB, &instance).await.is_empty());
    let instance = engine.start_instance("one", &[]).await;
    engine.suspend(&instance).await;
    let suspended = job_id(&rows.ids(SUSPENDED, &instance).await[0]);
    let refused = store.retry(suspended, 1).await.expect_err("refused");
    let remedy = "the activation of its process instance";
    assert!(refused.to_string().contains(remedy), "{refused}");
    assert_eq!(store.delete(suspended).await.unwrap().0, Operated::Done);
    assert!(rows.ids(SUSPENDED, &instance).await.is_empty());
}

/// A node runs a dead letter that an operator has retried: its row is new, so it is hinted.
pub(super) async fn a_retried_dead_letter_runs(settings: fn(&str) -> EngineSettings) {
    let world = World::start(settings).await;
    let rows = world.connect().await;
    let store = store(&world, options(&world.engine)).await;
    let (instance, job) = dead_letter(&world.engine, &store, &rows).await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    // The node has begun to run jobs.
    let first = world.engine.start_instances("one", 1, &[]).await;
    until_ended(&rows, &first).await;
    let id = job_id(&job);
    let done = store.retry_many(&[id], 3).await.unwrap();
    assert_eq!(done.operated, [(id, Operated::Done)], "{done:?}");
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    assert_eq!(rows.effects(&instance).await, ["work"; 4]);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

/// Declares the cases for an engine: `endpoint_cases!(shared)`.
macro_rules! endpoint_cases {
    ($shared:path: $($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "long: scripts/test --long engines::"]
            async fn $case() {
                crate::engines::bridge::endpoint::$case($shared().await).await;
            }
        )+
    };
    ($shared:path) => {
        crate::engines::bridge::endpoint::endpoint_cases!(
            $shared: jobs_of_an_instance_follow_each_other,
            one_job_of_an_instance_is_locked,
            the_locks_of_an_engine_node_are_respected,
            a_timer_waits_for_the_running_job,
            an_operator_retries_a_dead_letter_and_a_timer,
            an_operator_deletes_jobs,
        );
    };
}
pub(super) use endpoint_cases;
