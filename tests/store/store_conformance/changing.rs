//! Operators' changes of jobs, and the end of instances and definitions.

use std::time::Duration;

use jobwire_core::chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::store::{Change, EndedScope, Handoff, Operated, SuspensionScope};
use jobwire_core::{Client, JobId, JobQuery, JobState, PgStore, Store, StoreError};

use super::world::{Bench, SqlBench, World, ids, node, work};

pub(super) fn in_an_hour() -> DateTime<Utc> {
    (Utc::now() + Duration::from_secs(3_600)).trunc_subsecs(6)
}

pub(super) fn changes() -> [Change; 7] {
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
    let unlocked = w.store.unlock(hints[0].id).await.unwrap();
    let ready = &unlocked.ready;
    assert_eq!(unlocked.operated, [(hints[0].id, Operated::Done)]);
    assert_eq!(ids(ready), [hints[0].id]);
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
    let told = async |id| w.store.unlock(id).await.unwrap().operated[0].1;
    assert_eq!(told(hints[1].id).await, Operated::OtherState);
    assert_eq!(told(hints[0].id).await, Operated::NotFound);
}

/// Creates a job of an instance in each state, and one that runs.
async fn instance_in_each_state<S: Bench>(w: &World<S>, name: &str) -> (Vec<JobId>, JobId) {
    let of = || {
        work()
            .instance(name)
            .execution(format!("{name}-1"))
            .process_definition(format!("{name}:1"))
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
        EndedScope::ProcessDefinition("a:1".to_owned()),
    ] {
        let (mut waiting, running) = instance_in_each_state(w, "a").await;
        let (others, other) = instance_in_each_state(w, "b").await;
        let mut tx = client.begin().await.unwrap();
        tx.end(&scope).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(w.find(JobQuery::default().instance("a")).await.len(), 5);
        let is_cancelled = async |id| w.view(id).await.unwrap().cancelled_at.is_some();
        assert!(!is_cancelled(running).await);
        let mut ended = client.end(&scope).await.unwrap();
        ended.deleted.sort_unstable();
        waiting.sort_unstable();
        assert_eq!((ended.deleted, ended.running), (waiting, vec![running]));
        assert_eq!(w.find(JobQuery::default().instance("a")).await, [running]);
        assert!(is_cancelled(running).await && !is_cancelled(other).await);
        let kept = w.find(JobQuery::default().instance("b")).await;
        assert_eq!(kept.len(), others.len() + 1);
        for id in [running, other] {
            w.die(id).await;
        }
        assert_eq!(w.state(running).await, None, "it does not run again");
        w.store.delete_many(&kept).await.unwrap();
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
    assert_eq!(ended.left, ["a"]);
    assert_eq!(
        ids(&w.store.next_of(&ended.left).await.unwrap()),
        [hints[1].id]
    );
    w.hold(node(), &hints[1]).await;
}

pub(super) async fn a_definition_ends_with_its_instances_and_its_start_timers<S: SqlBench>(
    w: &World<S>,
) {
    let of = |definition: &str| work().process_definition(definition);
    let hints = w
        .ready(vec![
            of("order:1").instance("a"),
            of("order:2").instance("a"),
            of("order:1").instance("b"),
            of("order:1"),
        ])
        .await;
    let letter = Change::MakeDeadLetter("brought".to_owned());
    changed(w, hints[2].id, &letter).await;
    let client = Client::without_hints(w.store.clone());
    let timer = of("order:1").delay(Duration::from_secs(60));
    let timer = client.create(timer).await.unwrap();
    let definition = EndedScope::ProcessDefinition("order:1".to_owned());
    let mut ended = client.end(&definition).await.unwrap();
    ended.deleted.sort_unstable();
    let mut expected = [hints[0].id, hints[2].id, hints[3].id, timer];
    expected.sort_unstable();
    assert_eq!(ended.deleted, expected);
    assert_eq!(
        (ended.dead_letters, ended.running),
        (vec![hints[2].id], vec![])
    );
    // The job of the other definition was behind one of the same instance.
    assert_eq!(
        ids(&w.store.next_of(&ended.left).await.unwrap()),
        [hints[1].id]
    );
    assert_eq!(w.find(JobQuery::default()).await, [hints[1].id]);
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
