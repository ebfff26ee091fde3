use std::time::Duration;

use jobwire_core::store::{
    ClaimOf, ClaimPage, Gate, Handoff, Lifted, OrphanQuery, PauseScope, Refusal, SUSPENSION_TYPE,
    Store, SuspensionScope,
};
use jobwire_core::{Hint, JobId, JobState, Lane, NewJob};

use super::world::{
    Bench, SqlBench, World, ids, job_ids, node, retry_after, take, terms, why, work,
};

fn of_lane() -> PauseScope {
    PauseScope::Lane(Lane::default())
}

/// Each scope of a pause, with a job of it. The other jobs of the cases are of none but the last.
fn scopes() -> Vec<(PauseScope, fn() -> NewJob)> {
    vec![
        (PauseScope::Type("other-work".to_owned()), || {
            NewJob::of("other-work", &())
        }),
        (PauseScope::Category("c".to_owned()), || {
            work().category("c")
        }),
        (PauseScope::Lane(Lane::unchecked("bulk")), || {
            work().lane("bulk")
        }),
        (PauseScope::All, work),
    ]
}

/// Returns the hints of all pages that follow the end of a suspension or a pause.
async fn all_pages<S: Store>(store: &S, mut page: Lifted) -> Vec<JobId> {
    let mut hinted = Vec::new();
    loop {
        hinted.extend(ids(&page.ready));
        match page.next {
            Some(next) => page = store.waited(&next).await.unwrap(),
            None => return hinted,
        }
    }
}

async fn pause<S: Bench>(w: &World<S>, scope: &PauseScope) {
    assert!(w.store.pause(scope).await.unwrap());
}

async fn resumed<S: Bench>(w: &World<S>, scope: &PauseScope) -> Vec<JobId> {
    let lifted = w.store.resume(scope).await.unwrap();
    assert!(lifted.was_there);
    all_pages(&w.store, lifted).await
}

pub(super) async fn what_is_paused_stays_ready_and_is_hinted_at_the_end<S: SqlBench>(w: &World<S>) {
    let bystander = w.one(work()).await;
    let other = w.one(work()).await;
    w.hold(node(), &bystander).await;
    for (scope, job) in scopes() {
        let before = w.one(job()).await;
        pause(w, &scope).await;
        assert!(
            !w.store.pause(&scope).await.unwrap(),
            "it is paused already"
        );
        let during = w.one(job()).await;
        for hint in [&before, &during] {
            assert_eq!(w.refusal(node(), hint).await, Some(Refusal::Suspended));
            let view = w.view(hint.id).await.unwrap();
            assert_eq!(view.state, JobState::Executable);
            assert_eq!(view.gate, Some(Gate::from(scope.clone())));
        }
        if scope != PauseScope::All {
            assert!(w.view(other.id).await.unwrap().gate.is_none());
        }
        let listed = w.store.suspensions().await.unwrap();
        let waiting = if scope == PauseScope::All { 3 } else { 2 };
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].gate, Gate::from(scope.clone()));
        assert_eq!((listed[0].moved, listed[0].waiting), (0, waiting));
        let mut hinted = resumed(w, &scope).await;
        hinted.retain(|id| *id != other.id);
        hinted.sort_unstable();
        let mut both = [before.id, during.id];
        both.sort_unstable();
        assert_eq!(hinted, both);
        assert_eq!(w.lock(node(), &[before, during]).await.jobs.len(), 2);
        assert!(!w.store.resume(&scope).await.unwrap().was_there);
        assert_eq!(w.rows("suspension").await, 0);
    }
}

pub(super) async fn a_pause_keeps_only_its_own_jobs_from_being_locked_and_claimed<S: SqlBench>(
    w: &World<S>,
) {
    for (scope, job) in scopes() {
        pause(w, &scope).await;
        let own = w.one(job()).await;
        let other = w.one(work().lane("free")).await;
        let claim = |lane: Lane| ClaimPage {
            lane,
            of: ClaimOf::Next {
                after: None,
                look_at: 1_000,
            },
            at_most: 10,
        };
        for lane in [Lane::default(), Lane::unchecked("bulk")] {
            let claimed = w.store.claim(&terms(node()), &claim(lane)).await.unwrap();
            assert!(claimed.jobs.is_empty(), "{scope:?}");
        }
        let locked = w.lock(node(), &[own.clone(), other.clone()]).await;
        assert_eq!(why(&locked, own.id), Some(Refusal::Suspended), "{scope:?}");
        let free = if scope == PauseScope::All {
            vec![]
        } else {
            vec![other.id]
        };
        assert_eq!(job_ids(&locked.jobs), free);
        resumed(w, &scope).await;
        w.hold(node(), &own).await;
    }
}

/// A pause is a gate: nothing is taken for lost. After its end, what was not hinted is.
pub(super) async fn what_is_paused_is_no_orphan_before_the_end_and_one_after_it<S: SqlBench>(
    w: &World<S>,
) {
    for (scope, job) in scopes() {
        pause(w, &scope).await;
        let hint = w.one(job()).await;
        let lane = w.view(hint.id).await.unwrap().lane;
        let orphans = async || {
            w.make_old(60).await;
            let now = w.store.move_due_timers(0).await.unwrap().now;
            let before = now - Duration::from_secs(50);
            let mut query = OrphanQuery::new(lane.clone(), terms(node()).types, before, 100);
            query.whole = true;
            ids(&w.store.orphans(&query).await.unwrap().ready)
        };
        assert!(orphans().await.is_empty(), "{scope:?}");
        // The process that resumes dies before it publishes a hint.
        w.store.execute("DELETE FROM {s}suspension").await;
        assert_eq!(orphans().await, [hint.id], "{scope:?}");
        w.store.delete(hint.id).await.unwrap();
    }
}

pub(super) async fn a_due_timer_of_a_pause_waits_in_the_executable_table<S: SqlBench>(
    w: &World<S>,
) {
    for (scope, job) in scopes() {
        pause(w, &scope).await;
        let timer = job().delay(Duration::from_secs(60));
        let id = timer.id();
        w.create(vec![timer]).await;
        w.make_due(id, 1).await;
        let lanes = [Lane::default(), Lane::unchecked("bulk")];
        let moved = w.store.take_due_timers(&terms(node()), &lanes, 5).await;
        let moved = moved.unwrap();
        assert_eq!(
            (job_ids(&moved.locked), ids(&moved.ready)),
            (vec![], vec![id])
        );
        let refused = w.refusal(node(), &moved.ready[0].hint).await;
        assert_eq!(refused, Some(Refusal::Suspended), "{scope:?}");
        assert_eq!(resumed(w, &scope).await, [id]);
        w.hold(node(), &Hint::new(id)).await;
    }
}

pub(super) async fn a_running_job_goes_on_through_a_pause_and_its_failure_waits_as_a_timer<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let hints = w.ready(vec![work(), work()]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints).await.jobs;
    pause(w, &PauseScope::All).await;
    let settled = w.complete(worker, &jobs[0], &Handoff::Hint).await;
    assert_eq!(settled.applied, [jobs[0].job.id]);
    let failure = retry_after(&jobs[1], Duration::from_secs(60));
    w.fail(worker, failure).await;
    assert_eq!(w.state(jobs[1].job.id).await, Some(JobState::Timer));
    assert!(resumed(w, &PauseScope::All).await.is_empty());
}

/// Unlike a suspended job, a paused one lets no younger sibling pass.
pub(super) async fn a_paused_first_sibling_keeps_its_instance_waiting<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let of = |job: NewJob| job.instance("a");
    let hints = w
        .ready(vec![
            of(work()),
            of(NewJob::of("other-work", &())),
            of(work()),
        ])
        .await;
    let first = w.hold(worker, &hints[0]).await;
    let scope = PauseScope::Type("other-work".to_owned());
    pause(w, &scope).await;
    let settled = w.complete(worker, &first, &take(worker)).await;
    assert!(settled.next.is_empty() && settled.ready.is_empty());
    for hint in &hints[1..] {
        assert!(w.refusal(node(), hint).await.is_some());
    }
    assert!(
        w.find(jobwire_core::JobQuery::default().locked(true))
            .await
            .is_empty()
    );
    let hinted = resumed(w, &scope).await;
    assert_eq!(hinted, [hints[1].id], "the second is not ready yet");
    let second = w.hold(worker, &hints[2]).await;
    assert_eq!(second.job.id, hints[1].id);
    let settled = w.complete(worker, &second, &take(worker)).await;
    assert_eq!(job_ids(&settled.next), [hints[2].id]);
}

/// The holder may have looked for the next job before the pause ended.
pub(super) async fn the_siblings_of_a_running_job_are_hinted_at_the_end<S: SqlBench>(w: &World<S>) {
    let hints = w
        .ready((0..3).map(|_| work().instance("a")).collect())
        .await;
    w.hold(node(), &hints[0]).await;
    pause(w, &of_lane()).await;
    let hinted = resumed(w, &of_lane()).await;
    assert_eq!(hinted, [hints[1].id]);
}

pub(super) async fn only_a_pause_of_its_own_type_covers_a_change_at_a_date<S: SqlBench>(
    w: &World<S>,
) {
    let change = || NewJob::of(SUSPENSION_TYPE, &());
    let mut serves = terms(node());
    serves.types = vec![SUSPENSION_TYPE.to_owned()].into();
    pause(w, &PauseScope::All).await;
    pause(w, &of_lane()).await;
    let hint = w.one(change()).await;
    let locked = w.store.lock(&serves, &[hint]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1);
    let gates = w.store.suspensions().await.unwrap();
    assert!(gates.iter().all(|gate| gate.waiting == 0), "{gates:?}");
    pause(w, &PauseScope::Type(SUSPENSION_TYPE.to_owned())).await;
    let hint = w.one(change()).await;
    let locked = w.store.lock(&serves, std::slice::from_ref(&hint)).await;
    assert_eq!(why(&locked.unwrap(), hint.id), Some(Refusal::Suspended));
}

pub(super) async fn a_job_of_two_pauses_waits_for_both<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    pause(w, &PauseScope::All).await;
    pause(w, &of_lane()).await;
    assert!(resumed(w, &PauseScope::All).await.is_empty());
    assert_eq!(w.refusal(node(), &hint).await, Some(Refusal::Suspended));
    assert_eq!(resumed(w, &of_lane()).await, [hint.id]);
    w.hold(node(), &hint).await;
}

/// More jobs than one page: each is hinted once, and the end of a suspension brings all back.
pub(super) async fn many_jobs_come_back_in_pages<S: SqlBench>(w: &World<S>) {
    const JOBS: usize = 5_001;
    let mut made: Vec<JobId> = w
        .ready((0..JOBS).map(|_| work().tenant("t")).collect())
        .await
        .into_iter()
        .map(|hint| hint.id)
        .collect();
    made.sort_unstable();
    pause(w, &PauseScope::All).await;
    let first = w.store.resume(&PauseScope::All).await.unwrap();
    assert!(first.ready.len() < JOBS && first.next.is_some());
    // This job has a hint of its own.
    w.one(work()).await;
    let mut hinted = all_pages(&w.store, first).await;
    hinted.sort_unstable();
    assert!(hinted == made, "{} hinted", hinted.len());
    let tenant = SuspensionScope::Tenant("t".to_owned());
    assert_eq!(w.store.suspend(&tenant).await.unwrap().moved, JOBS as u64);
    let lifted = w.store.activate(&tenant).await.unwrap();
    let mut hinted = all_pages(&w.store, lifted).await;
    hinted.sort_unstable();
    assert!(hinted == made, "{} hinted", hinted.len());
    assert_eq!(
        w.rows("suspended_job").await + w.rows("suspension").await,
        0
    );
}

/// The process that activates dies between two parts: the suspension continues, with some of its
/// jobs in the executable table.
pub(super) async fn an_interrupted_end_of_a_suspension_is_continued<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work().tenant("t"), work().tenant("t")]).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&tenant).await.unwrap();
    let columns = "id, seq, revision, kind, type, payload, process_instance, execution, \
                   process_definition, element, tenant, category, deployment, priority, \
                   exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, \
                   correlation_id, created_at, lane, origin, exception_message, custom_values, \
                   trace_parent, ready_at, hints";
    let id = hints[0].id;
    for statement in [
        format!(
            "INSERT INTO {{s}}job ({columns}) SELECT {columns} FROM {{s}}suspended_job WHERE id = '{id}'"
        ),
        format!("DELETE FROM {{s}}suspended_job WHERE id = '{id}'"),
    ] {
        assert_eq!(w.store.execute(&statement).await, 1);
    }
    assert!(w.lock(node(), &hints).await.jobs.is_empty());
    let view = w.view(id).await.unwrap();
    assert_eq!(view.gate, Some(Gate::from(tenant.clone())));
    let listed = w.store.suspensions().await.unwrap();
    assert_eq!((listed[0].moved, listed[0].waiting), (1, 1));
    let lifted = w.store.activate(&tenant).await.unwrap();
    let mut hinted = all_pages(&w.store, lifted).await;
    hinted.sort_unstable();
    let mut both = [hints[0].id, hints[1].id];
    both.sort_unstable();
    assert_eq!(hinted, both);
    assert_eq!(w.lock(node(), &hints).await.jobs.len(), 2);
}

pub(super) async fn a_leader_cycle_counts_suspensions_and_pauses_by_scope<S: SqlBench>(
    w: &World<S>,
) {
    let leader = node();
    assert!(w.lead(leader).await.suspensions.is_empty());
    pause(w, &PauseScope::All).await;
    for tenant in ["t", "u"] {
        let tenant = SuspensionScope::Tenant(tenant.to_owned());
        w.store.suspend(&tenant).await.unwrap();
    }
    let pay = SuspensionScope::Element {
        definition: "d".to_owned(),
        element: "pay".to_owned(),
    };
    w.store.suspend(&pay).await.unwrap();
    let counted = w.lead(leader).await.suspensions;
    let counted: Vec<(&str, i64)> = counted.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(counted, [("element", 1), ("pause_all", 1), ("tenant", 2)]);
}
