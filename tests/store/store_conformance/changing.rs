//! Operators' changes of jobs, and the end of instances and definitions.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jobwire_core::chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::job::LockedJob;
use jobwire_core::store::{Change, EndedScope, Handoff, Operated, SuspensionScope};
use jobwire_core::{Client, Hint, JobId, JobQuery, JobState, NodeId, PgStore, Store, StoreError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::world::{Bench, SqlBench, World, give_up, ids, node, retry_after, work};

fn in_an_hour() -> DateTime<Utc> {
    (Utc::now() + Duration::from_secs(3_600)).trunc_subsecs(6)
}

fn changes() -> [Change; 7] {
    [
        Change::MakeExecutable,
        Change::Reschedule(in_an_hour()),
        Change::Suspend,
        Change::Activate,
        Change::MakeDeadLetter("an operator decided".to_owned()),
        Change::SetRetries(9),
        Change::SetPriority(-7),
    ]
}

/// Creates a job, not exclusive, and brings it into a state.
async fn job_in<S: Bench>(w: &World<S>, state: JobState) -> JobId {
    let hint = w.one(work()).await;
    let brought = match state {
        JobState::Timer => Change::Reschedule(in_an_hour()),
        JobState::Suspended => Change::Suspend,
        JobState::DeadLetter => Change::MakeDeadLetter("brought".to_owned()),
        _ => return hint.id,
    };
    changed(w, hint.id, &brought).await;
    hint.id
}

/// Changes one job, and returns the hinted jobs.
async fn changed<S: Bench>(w: &World<S>, id: JobId, change: &Change) -> Vec<JobId> {
    let changed = w.store.change_many(&[id], change).await.unwrap();
    assert_eq!(changed.operated, [(id, Operated::Done)], "{change:?}");
    ids(&changed.ready)
}

pub(super) async fn a_change_applies_to_its_states_only<S: Bench>(w: &World<S>) {
    for change in changes() {
        for state in JobState::ALL {
            let id = job_in(w, *state).await;
            let (before, job, _) = w.store.get(id).await.unwrap().unwrap();
            let revision = job.revision;
            let done = w.store.change_many(&[id], &change).await.unwrap();
            let (after, job, _) = w.store.get(id).await.unwrap().unwrap();
            assert!(done.refused.is_empty(), "{done:?}");
            if !change.applies_to(*state) {
                assert_eq!(
                    done.operated,
                    [(id, Operated::OtherState)],
                    "{change:?} {state}"
                );
                assert_eq!((after.state, job.revision), (*state, revision));
                assert!(done.ready.is_empty());
                continue;
            }
            assert_eq!(done.operated, [(id, Operated::Done)], "{change:?} {state}");
            assert_eq!(after.correlation_id, before.correlation_id);
            assert_eq!(after.created_at, before.created_at);
            assert_eq!(job.revision, revision + 1, "{change:?} {state}");
            let is_ready = after.state == JobState::Executable && *state != JobState::Executable;
            assert_eq!(ids(&done.ready), Vec::from_iter(is_ready.then_some(id)));
            match &change {
                Change::MakeExecutable => assert_eq!(after.state, JobState::Executable),
                Change::Reschedule(due) => {
                    assert_eq!(after.due_at, Some(*due));
                    assert_ne!(after.state, JobState::Executable);
                    let told = (*state != JobState::Suspended).then_some(*due);
                    assert_eq!(done.timer, told);
                }
                Change::Suspend => assert_eq!(after.state, JobState::Suspended),
                Change::Activate => assert_eq!(after.state, JobState::Executable),
                Change::MakeDeadLetter(reason) => {
                    assert_eq!(after.state, JobState::DeadLetter);
                    assert_eq!(after.exception_message.as_ref(), Some(reason));
                }
                Change::SetRetries(retries) => {
                    assert_eq!((after.state, after.retries), (*state, *retries));
                }
                Change::SetPriority(priority) => {
                    assert_eq!((after.state, after.priority), (*state, *priority));
                }
                other => panic!("{other:?} is not tested"),
            }
        }
    }
}

pub(super) async fn a_running_job_is_not_changed_and_a_missing_one_is_told<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let nobody = JobId::generate();
    for change in changes() {
        let told = w
            .store
            .change_many(&[hint.id, nobody], &change)
            .await
            .unwrap();
        let mut operated = told.operated;
        operated.sort_unstable_by_key(|(id, _)| *id);
        let result = if change.applies_to(JobState::Executable) {
            Operated::Running
        } else {
            Operated::OtherState
        };
        assert_eq!(
            operated,
            [(hint.id, result), (nobody, Operated::NotFound)],
            "{change:?}"
        );
    }
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
}

pub(super) async fn a_value_that_can_not_be_changes_nothing<S: Bench>(w: &World<S>) {
    let id = job_in(w, JobState::Timer).await;
    let refused = w.store.change_many(&[id], &Change::SetRetries(0)).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("`retries`"), "{said}");
    assert_eq!(w.view(id).await.unwrap().retries, 3);
}

pub(super) async fn a_job_that_leaves_its_instance_lets_the_next_one_go<S: Bench>(w: &World<S>) {
    for change in changes() {
        let stays = matches!(change, Change::SetRetries(_) | Change::SetPriority(_));
        let leaves = change.applies_to(JobState::Executable) && !stays;
        let of = || work().instance(format!("{change:?}"));
        let hints = w.ready(vec![of(), of()]).await;
        let hinted = w.store.change_many(&[hints[0].id], &change).await.unwrap();
        let next = leaves.then_some(hints[1].id);
        assert_eq!(ids(&hinted.ready), Vec::from_iter(next), "{change:?}");
        if leaves {
            w.hold(node(), &hints[1]).await;
        }
    }
}

pub(super) async fn a_suspended_scope_keeps_its_jobs_from_activation<S: Bench>(w: &World<S>) {
    let tenant = SuspensionScope::Tenant("t".to_owned());
    let hint = w.one(work().tenant("t")).await;
    w.store.suspend(&tenant).await.unwrap();
    let kept = w
        .store
        .change_many(&[hint.id], &Change::Activate)
        .await
        .unwrap();
    assert_eq!(kept.operated, [(hint.id, Operated::OtherState)]);
    assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
    // A job that was suspended alone comes back with its scope.
    let alone = w.one(work().tenant("t")).await;
    changed(w, alone.id, &Change::Suspend).await;
    let mut back = ids(&w.store.activate(&tenant).await.unwrap().ready);
    back.sort_unstable();
    assert_eq!(back, [hint.id, alone.id]);
}

pub(super) async fn an_activated_timer_waits_for_its_due_date<S: Bench>(w: &World<S>) {
    let due = in_an_hour();
    let id = job_in(w, JobState::Executable).await;
    changed(w, id, &Change::Reschedule(due)).await;
    changed(w, id, &Change::Suspend).await;
    let back = w.store.change_many(&[id], &Change::Activate).await.unwrap();
    assert_eq!((back.timer, back.ready.len()), (Some(due), 0));
    let view = w.view(id).await.unwrap();
    assert_eq!((view.state, view.due_at), (JobState::Timer, Some(due)));
}

pub(super) async fn an_unlocked_job_is_ready_again_and_its_old_holder_changes_nothing<S: Bench>(
    w: &World<S>,
) {
    let of = || work().instance("a");
    let hints = w.ready(vec![of(), of()]).await;
    let (stuck, other) = (node(), node());
    let job = w.hold(stuck, &hints[0]).await;
    let (done, ready) = w.store.unlock(hints[0].id).await.unwrap();
    assert_eq!((done, ids(&ready)), (Operated::Done, vec![hints[0].id]));
    let again = w.hold(other, &ready[0].hint).await;
    assert!(again.fence > job.fence);
    assert!(
        w.complete(stuck, &job, &Handoff::Hint)
            .await
            .applied
            .is_empty()
    );
    assert_eq!(
        w.complete(other, &again, &Handoff::Hint).await.applied,
        [hints[0].id]
    );
    let told = |id| w.store.unlock(id);
    assert_eq!(told(hints[1].id).await.unwrap().0, Operated::OtherState);
    assert_eq!(told(hints[0].id).await.unwrap().0, Operated::NotFound);
}

/// What a job must keep, and what may only grow.
#[derive(Debug)]
struct Kept {
    correlation: jobwire_core::uuid::Uuid,
    created_at: DateTime<Utc>,
    seq: i64,
    fence: Option<i64>,
}

/// Any sequence of operations keeps each job in exactly one table, under its id. Retries change
/// only by the operation that names them, and fences only grow.
pub(super) async fn any_sequence_of_operations_keeps_a_job_in_one_table<S: SqlBench>(w: &World<S>) {
    let mut done = BTreeSet::new();
    for seed in 0..3 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut jobs: HashMap<JobId, (Hint, Kept)> = HashMap::new();
        for n in 0..8 {
            let job = match n % 4 {
                0 => work().instance(format!("i{seed}")).max_attempts(5),
                1 => work().tenant("t").repeat_text("R/PT10M"),
                _ => work(),
            };
            let hint = w.one(job).await;
            let view = w.view(hint.id).await.unwrap();
            let kept = Kept {
                correlation: view.correlation_id,
                created_at: view.created_at,
                seq: view.seq,
                fence: None,
            };
            jobs.insert(hint.id, (hint, kept));
        }
        let mut order: Vec<JobId> = jobs.keys().copied().collect();
        order.sort_unstable();
        let mut held: HashMap<JobId, (NodeId, LockedJob)> = HashMap::new();
        for step in 0..120 {
            let mut locked: Vec<JobId> = held.keys().copied().collect();
            locked.sort_unstable();
            // Half of the steps act on a running job, if there is one.
            let among = if locked.is_empty() || step % 2 == 0 {
                &order
            } else {
                &locked
            };
            let id = among[random.random_range(0..among.len())];
            let before = w.view(id).await;
            let what = one_step(w, &mut random, &jobs[&id].0, &mut held).await;
            let place = format!("seed {seed}, step {step}: {what}");
            done.insert(what.clone());
            let mut after = HashMap::new();
            for view in w
                .store
                .find(&JobQuery::default().limit(1_000))
                .await
                .unwrap()
            {
                assert!(jobs.contains_key(&view.id), "{place}: {} is new", view.id);
                let twice = after.insert(view.id, view);
                assert!(twice.is_none(), "{place}: {twice:?} is in two tables");
            }
            for (id, (_, kept)) in &mut jobs {
                let Some(view) = after.get(id) else { continue };
                assert_eq!(view.correlation_id, kept.correlation, "{place}");
                assert_eq!(view.created_at, kept.created_at, "{place}");
                assert_eq!(view.seq, kept.seq, "{place}");
                if let Some(fence) = view.fence.filter(|_| view.lock_owner.is_some()) {
                    assert!(Some(fence) >= kept.fence, "{place}");
                    kept.fence = Some(fence);
                }
                assert!(view.retries >= 0 && view.failures >= 0, "{place}");
            }
            if let (Some(before), Some(after)) = (before, after.get(&id)) {
                let names_retries =
                    ["retry", "set retries", "fail", "dead letter"].contains(&what.as_str());
                assert!(names_retries || before.retries == after.retries, "{place}");
                if before.lock_owner.is_some()
                    && !["fail", "release", "die", "unlock"].contains(&what.as_str())
                {
                    assert_eq!(after.lock_owner, before.lock_owner, "{place}");
                    assert_eq!(after.state, JobState::Executable, "{place}");
                }
            }
            order.retain(|id| after.contains_key(id));
            held.retain(|id, _| after.get(id).is_some_and(|view| view.lock_owner.is_some()));
            if order.is_empty() {
                break;
            }
        }
        let left: i64 = w.rows("job").await
            + w.rows("timer_job").await
            + w.rows("suspended_job").await
            + w.rows("dead_letter_job").await;
        assert_eq!(left, order.len() as i64);
        let leases = w.number_of_stray_leases().await;
        assert_eq!(
            leases, 0,
            "seed {seed}: leases of jobs that are not executable"
        );
        w.store.delete_many(&order).await.unwrap();
        for id in w.find(JobQuery::default()).await {
            w.die(id).await;
            w.store.delete(id).await.unwrap();
        }
    }
    // Each operation was tried.
    for what in [
        "lock",
        "fail",
        "release",
        "die",
        "unlock",
        "retry",
        "delete",
        "move due timers",
        "suspend the tenant",
        "activate the tenant",
        "make executable",
        "reschedule",
        "suspend",
        "activate",
        "dead letter",
        "set retries",
    ] {
        assert!(done.contains(what), "{what} is not among {done:?}");
    }
}

/// Does one operation on a job, and returns its name.
async fn one_step<S: SqlBench>(
    w: &World<S>,
    random: &mut impl Rng,
    hint: &Hint,
    held: &mut HashMap<JobId, (NodeId, LockedJob)>,
) -> String {
    let id = hint.id;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    let what = match random.random_range(0..18) {
        0..=3 => {
            let worker = node();
            let mut locked = w.lock(worker, std::slice::from_ref(hint)).await;
            if let Some(job) = locked.jobs.pop() {
                held.insert(job.job.id, (worker, job));
            }
            "lock"
        }
        4 | 5 => match held.remove(&id) {
            Some((worker, job)) => {
                let failure = if job.job.retries > 1 {
                    retry_after(&job, Duration::from_secs(60))
                } else {
                    give_up(&job)
                };
                w.fail(worker, failure).await;
                "fail"
            }
            None => "nothing",
        },
        6 => match held.remove(&id) {
            Some((worker, job)) => {
                w.release(worker, job.held()).await;
                "release"
            }
            None => "nothing",
        },
        7 if held.remove(&id).is_some() => {
            w.die(id).await;
            "die"
        }
        8 => {
            if w.store.unlock(id).await.unwrap().0 == Operated::Done {
                held.remove(&id);
            }
            "unlock"
        }
        9 => {
            w.store.retry(id, 4).await.unwrap();
            "retry"
        }
        10 if random.random_range(0..6) == 0 => {
            w.store.delete(id).await.unwrap();
            "delete"
        }
        11 => {
            if w.state(id).await == Some(JobState::Timer) {
                w.make_due(id, 1).await;
            }
            w.store.move_due_timers(10).await.unwrap();
            "move due timers"
        }
        12 => {
            w.store.suspend(&tenant).await.unwrap();
            "suspend the tenant"
        }
        13 => {
            w.store.activate(&tenant).await.unwrap();
            "activate the tenant"
        }
        n => {
            let all = changes();
            let change = &all[(n as usize + random.random_range(0..all.len())) % all.len()];
            let done = w.store.change_many(&[id], change).await.unwrap();
            assert_eq!(done.operated.len(), 1, "{done:?}");
            match change {
                Change::MakeExecutable => "make executable",
                Change::Reschedule(_) => "reschedule",
                Change::Suspend => "suspend",
                Change::Activate => "activate",
                Change::MakeDeadLetter(_) => "dead letter",
                _ => "set retries",
            }
        }
    };
    what.to_owned()
}

impl<S: SqlBench> World<S> {
    /// Returns the number of leases that have an owner, but no executable job.
    async fn number_of_stray_leases(&self) -> i64 {
        let sql = "SELECT count(*) FROM {s}job_lease l WHERE owner IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM {s}job j WHERE j.id = l.job_id)";
        self.store.number(sql).await
    }
}

/// Creates a job of an instance in each state, and one that runs.
async fn instance_in_each_state<S: Bench>(w: &World<S>, name: &str) -> (Vec<JobId>, JobId) {
    let of = || {
        work()
            .instance(name)
            .execution(format!("{name}-1"))
            .concurrent()
    };
    let hints = w.ready(vec![of(), of(), of(), of(), of()]).await;
    changed(w, hints[1].id, &Change::Reschedule(in_an_hour())).await;
    changed(w, hints[2].id, &Change::Suspend).await;
    changed(
        w,
        hints[3].id,
        &Change::MakeDeadLetter("brought".to_owned()),
    )
    .await;
    w.hold(node(), &hints[4]).await;
    (hints[..4].iter().map(|hint| hint.id).collect(), hints[4].id)
}

pub(super) async fn an_instance_ends_with_all_its_jobs_in_the_callers_transaction<S: SqlBench>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    for scope in [
        EndedScope::ProcessInstance("a".to_owned()),
        EndedScope::Execution("a-1".to_owned()),
    ] {
        let (mut waiting, running) = instance_in_each_state(w, "a").await;
        let (others, other) = instance_in_each_state(w, "b").await;
        let mut tx = client.begin().await.unwrap();
        tx.end(&scope).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(w.find(JobQuery::default().instance("a")).await.len(), 5);
        let mut ended = client.end(&scope).await.unwrap();
        ended.deleted.sort_unstable();
        waiting.sort_unstable();
        assert_eq!((ended.deleted, ended.running), (waiting, vec![running]));
        assert_eq!(w.find(JobQuery::default().instance("a")).await, [running]);
        let kept = w.find(JobQuery::default().instance("b")).await;
        assert_eq!(kept.len(), others.len() + 1);
        for id in [running, other] {
            w.die(id).await;
        }
        w.store.delete_many(&kept).await.unwrap();
        w.store.delete(running).await.unwrap();
    }
}

pub(super) async fn the_end_of_an_execution_lets_the_next_job_of_its_instance_go<S: SqlBench>(
    w: &World<S>,
) {
    let of = |execution: &str| work().instance("a").execution(execution);
    let hints = w.ready(vec![of("first"), of("second")]).await;
    let client = Client::without_hints(w.store.clone());
    let first = EndedScope::Execution("first".to_owned());
    let ended = client.end(&first).await.unwrap();
    assert_eq!(ended.deleted, [hints[0].id]);
    assert_eq!(ids(&ended.ready), [hints[1].id]);
    w.hold(node(), &hints[1]).await;
}

pub(super) async fn start_timers_are_replaced_with_the_transaction<S: SqlBench>(w: &World<S>) {
    let client = Client::without_hints(w.store.clone());
    let timer = || {
        work()
            .process_definition("invoice")
            .delay(Duration::from_secs(60))
    };
    let old = client.create(timer().repeat_text("R/PT1M")).await.unwrap();
    let suspended = client.create(timer()).await.unwrap();
    changed(w, suspended, &Change::Suspend).await;
    let of_an_instance = client.create(timer().instance("a")).await.unwrap();
    let of_another = work()
        .process_definition("order")
        .delay(Duration::from_secs(60));
    let of_another = client.create(of_another).await.unwrap();
    let message = client
        .create(work().process_definition("invoice"))
        .await
        .unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.replace_start_timers("invoice", vec![timer()])
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(w.state(old).await, Some(JobState::Timer));
    let mut tx = client.begin().await.unwrap();
    let new = timer();
    let new_id = new.id();
    let ended = tx.replace_start_timers("invoice", vec![new]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        (ended.deleted, ended.running),
        (vec![old, suspended], vec![])
    );
    let mut left = w.find(JobQuery::default()).await;
    left.sort_unstable();
    let mut expected = [of_an_instance, of_another, message, new_id];
    expected.sort_unstable();
    assert_eq!(left, expected);
}

/// On SQLite there is one writer, so no row is locked.
#[tokio::test]
async fn a_locked_row_delays_no_other_change_and_is_named() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work().instance("a"), work().instance("b")])
        .await;
    let (locked, free) = (hints[0].id, hints[1].id);
    let mut other = w.store.pool().begin().await.unwrap();
    jobwire_core::sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(locked.uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    let asked = [locked, free];
    let client = Client::without_hints(w.store.clone());
    let instance = EndedScope::ProcessInstance("a".to_owned());
    let (changed, ended) = tokio::join!(
        w.store.change_many(&asked, &Change::Suspend),
        client.end(&instance),
    );
    let changed = changed.unwrap();
    assert_eq!(changed.operated, [(free, Operated::Done)]);
    assert_eq!(changed.refused.len(), 1);
    assert_eq!(changed.refused[0].0, locked);
    assert!(
        changed.refused[0].1.contains("another transaction locks"),
        "{changed:?}"
    );
    assert!(
        matches!(ended, Err(StoreError::RowLocked(id)) if id == locked),
        "{ended:?}"
    );
    other.rollback().await.unwrap();
    assert_eq!(w.state(locked).await, Some(JobState::Executable));
    assert_eq!(client.end(&instance).await.unwrap().deleted, [locked]);
}
