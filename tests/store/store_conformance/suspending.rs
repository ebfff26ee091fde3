use std::time::Duration;

use jobwire_core::store::{Gate, Handoff, Refusal, SuspensionScope};
use jobwire_core::{JobState, NewJob};

use super::world::{Bench, SqlBench, World, ids, job_ids, node, retry_after, why, work};

fn instance(name: &str) -> SuspensionScope {
    SuspensionScope::ProcessInstance(name.to_owned())
}

fn element(definition: &str, element: &str) -> SuspensionScope {
    SuspensionScope::Element {
        definition: definition.to_owned(),
        element: element.to_owned(),
    }
}

/// Returns a job of an element.
fn at(definition: &str, element: &str) -> NewJob {
    work().process_definition(definition).element(element)
}

pub(super) async fn what_is_suspended_is_put_aside_and_comes_back<S: Bench>(w: &World<S>) {
    let scopes = [
        (
            SuspensionScope::ProcessInstance("i".into()),
            work().instance("i"),
        ),
        (
            SuspensionScope::ProcessDefinition("d".into()),
            work().process_definition("d"),
        ),
        (element("d", "e"), at("d", "e")),
        (SuspensionScope::Tenant("t".into()), work().tenant("t")),
        (
            SuspensionScope::Type("other-work".into()),
            NewJob::of("other-work", &()),
        ),
    ];
    let bystander = w.one(work()).await;
    for (scope, job) in scopes {
        let hint = w.one(job).await;
        assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 1);
        assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 0);
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        assert_eq!(w.refusal(node(), &hint).await, Some(Refusal::Gone));
        let ready = w.store.activate(&scope).await.unwrap().ready;
        assert_eq!(ids(&ready), [hint.id]);
        assert_eq!(w.hold(node(), &hint).await.job.id, hint.id);
        assert_eq!(
            w.rows("suspension").await + w.rows("suspended_job").await,
            0
        );
    }
    w.hold(node(), &bystander).await;
}

pub(super) async fn a_first_sibling_that_is_put_aside_makes_the_next_one_ready<S: Bench>(
    w: &World<S>,
) {
    let exclusive = || work().instance("a").exclusive();
    let hints = w
        .ready(vec![
            exclusive().tenant("t"),
            exclusive().tenant("u"),
            exclusive(),
            exclusive(),
        ])
        .await;
    let put_aside = async |tenant: &str| {
        let tenant = SuspensionScope::Tenant(tenant.to_owned());
        let suspended = w.store.suspend(&tenant).await.unwrap();
        (suspended.moved, ids(&suspended.ready))
    };
    assert_eq!(put_aside("t").await, (1, vec![hints[1].id]));
    // The same when the holder has died: the instance still names the job.
    w.hold(node(), &hints[1]).await;
    assert_eq!(put_aside("u").await, (0, vec![]), "it runs");
    let tenant = SuspensionScope::Tenant("u".to_owned());
    w.store.activate(&tenant).await.unwrap();
    w.die(hints[1].id).await;
    assert_eq!(put_aside("u").await, (1, vec![hints[2].id]));
    // No job is next while another sibling runs, or where a later one was suspended.
    w.hold(node(), &hints[2]).await;
    let rest = SuspensionScope::ProcessInstance("a".to_owned());
    let suspended = w.store.suspend(&rest).await.unwrap();
    assert_eq!((suspended.moved, ids(&suspended.ready)), (1, vec![]));
}

pub(super) async fn a_locked_job_goes_on_and_its_failure_is_put_aside<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().tenant("t"),
            work().tenant("t"),
            work().tenant("t"),
        ])
        .await;
    let worker = node();
    let jobs = w.lock(worker, &hints[..2]).await.jobs;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    assert_eq!(w.store.suspend(&tenant).await.unwrap().moved, 1);
    assert_eq!(w.state(hints[0].id).await, Some(JobState::Executable));
    let settled = w
        .fail(worker, retry_after(&jobs[0], Duration::from_secs(60)))
        .await;
    assert_eq!(settled.applied, [jobs[0].job.id]);
    assert_eq!(settled.timer, None);
    assert_eq!(w.state(jobs[0].job.id).await, Some(JobState::Suspended));
    let settled = w.complete(worker, &jobs[1], &Handoff::Hint).await;
    assert_eq!(settled.applied, [jobs[1].job.id]);
    // The first job's retry is not due yet; the third job is ready.
    let ready = w.store.activate(&tenant).await.unwrap().ready;
    assert_eq!(ids(&ready), [hints[2].id]);
    let retry = w.view(jobs[0].job.id).await.unwrap();
    assert_eq!((retry.state, retry.failures), (JobState::Timer, 1));
}

pub(super) async fn a_job_created_during_suspension_is_refused_and_hinted_on_activation<
    S: Bench,
>(
    w: &World<S>,
) {
    w.store.suspend(&instance("a")).await.unwrap();
    let plain = w.one(work().instance("a").concurrent()).await;
    let exclusive = w.one(work().instance("a")).await;
    assert_eq!(w.refusal(node(), &plain).await, Some(Refusal::Suspended));
    assert!(w.refusal(node(), &exclusive).await.is_some());
    let ready = w.store.activate(&instance("a")).await.unwrap().ready;
    let mut hinted = ids(&ready);
    hinted.sort_unstable();
    assert_eq!(hinted, [plain.id, exclusive.id]);
    assert_eq!(w.lock(node(), &[plain, exclusive]).await.jobs.len(), 2);
}

/// Each lock statement looks for suspensions itself, with the same result each time.
pub(super) async fn a_suspension_keeps_only_its_own_jobs_from_being_locked<S: Bench>(w: &World<S>) {
    let before = w.one(work().instance("b").concurrent()).await;
    w.hold(node(), &before).await;
    w.store.suspend(&instance("a")).await.unwrap();
    for _ in 0..3 {
        let other = w.one(work().instance("b").concurrent()).await;
        let own = w.one(work().instance("a").concurrent()).await;
        let locked = w.lock(node(), &[own.clone(), other.clone()]).await;
        assert_eq!(job_ids(&locked.jobs), [other.id]);
        assert_eq!(why(&locked, own.id), Some(Refusal::Suspended));
    }
    let ready = w.store.activate(&instance("a")).await.unwrap().ready;
    let hints: Vec<_> = ready.into_iter().map(|r| r.hint).collect();
    assert_eq!(w.lock(node(), &hints).await.jobs.len(), 3);
    let after = w.one(work().instance("b").concurrent()).await;
    w.hold(node(), &after).await;
}

pub(super) async fn a_timer_comes_back_as_a_timer<S: SqlBench>(w: &World<S>) {
    let (waits, due) = (
        work().instance("a").delay(Duration::from_secs(600)),
        work().instance("a").delay(Duration::from_secs(60)),
    );
    let (waits_id, due_id) = (waits.id(), due.id());
    w.create(vec![waits, due]).await;
    assert_eq!(w.store.suspend(&instance("a")).await.unwrap().moved, 2);
    assert_eq!(w.store.move_due_timers(10).await.unwrap().next_due, None);
    w.store
        .execute(&format!(
            "UPDATE {{s}}suspended_job SET due_at = {{now}} - {{second}} WHERE id = '{due_id}'"
        ))
        .await;
    let ready = w.store.activate(&instance("a")).await.unwrap().ready;
    assert_eq!(ids(&ready), [due_id]);
    assert_eq!(w.state(waits_id).await, Some(JobState::Timer));
    assert_eq!(w.state(due_id).await, Some(JobState::Executable));
}

pub(super) async fn what_is_suspended_twice_stays_until_both_are_lifted<S: Bench>(w: &World<S>) {
    let hint = w.one(work().instance("a").tenant("t")).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    assert_eq!(w.store.suspend(&instance("a")).await.unwrap().moved, 1);
    assert_eq!(w.store.suspend(&tenant).await.unwrap().moved, 0);
    assert!(
        w.store
            .activate(&instance("a"))
            .await
            .unwrap()
            .ready
            .is_empty()
    );
    assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
    assert_eq!(
        ids(&w.store.activate(&tenant).await.unwrap().ready),
        [hint.id]
    );
    w.hold(node(), &hint).await;
}

pub(super) async fn activating_what_was_never_suspended_does_nothing<S: Bench>(w: &World<S>) {
    w.one(work().instance("a")).await;
    assert!(
        w.store
            .activate(&instance("a"))
            .await
            .unwrap()
            .ready
            .is_empty()
    );
}

pub(super) async fn an_element_is_suspended_in_its_definition_only<S: Bench>(w: &World<S>) {
    let pay = element("invoice:3", "pay");
    let others = [
        at("invoice:3", "send"),
        at("invoice:4", "pay"),
        work().process_definition("invoice:3"),
        work().element("pay"),
        work(),
    ];
    let mut others = w.ready(others.to_vec()).await;
    let own = w
        .ready(vec![at("invoice:3", "pay"), at("invoice:3", "pay")])
        .await;
    let later = at("invoice:3", "pay").delay(Duration::from_secs(600));
    let other_later = at("invoice:4", "pay").delay(Duration::from_secs(600));
    let (later_id, other_later_id) = (later.id(), other_later.id());
    w.create(vec![later, other_later]).await;
    let worker = node();
    let running = w.hold(worker, &own[0]).await;

    assert_eq!(w.store.suspend(&pay).await.unwrap().moved, 2);
    for id in [own[1].id, later_id] {
        assert_eq!(w.state(id).await, Some(JobState::Suspended));
    }
    assert_eq!(w.state(other_later_id).await, Some(JobState::Timer));
    let failed = w.fail(worker, retry_after(&running, Duration::ZERO)).await;
    assert_eq!(failed.applied, [own[0].id]);
    assert_eq!(w.state(own[0].id).await, Some(JobState::Suspended));
    let during = w.one(at("invoice:3", "pay")).await;
    assert_eq!(w.refusal(node(), &during).await, Some(Refusal::Suspended));
    others.push(w.one(at("invoice:3", "send")).await);
    assert_eq!(w.lock(node(), &others).await.jobs.len(), others.len());

    let mut ready = ids(&w.store.activate(&pay).await.unwrap().ready);
    ready.sort_unstable();
    let mut waited = [own[0].id, own[1].id, during.id];
    waited.sort_unstable();
    assert_eq!(ready, waited);
    assert_eq!(w.state(later_id).await, Some(JobState::Timer));
    w.hold(node(), &during).await;
}

/// The text of both names is the same without the length of the first one.
pub(super) async fn elements_whose_names_run_together_are_told_apart<S: Bench>(w: &World<S>) {
    let alike = [
        ("1:a", "b"),
        ("1", ":ab"),
        ("1:", "ab"),
        ("1:ab", ""),
        ("ü1", ":€"),
        ("ü", "1:€"),
    ];
    let jobs = alike.map(|(definition, element)| at(definition, element));
    let hints = w.ready(jobs.to_vec()).await;
    for ((definition, name), hint) in alike.into_iter().zip(&hints) {
        let scope = element(definition, name);
        assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 1);
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        let ready = w.store.activate(&scope).await.unwrap().ready;
        assert_eq!(ids(&ready), [hint.id]);
    }
}

pub(super) async fn an_element_of_a_suspended_definition_waits_for_both<S: Bench>(w: &World<S>) {
    let (pay, all) = (
        element("d", "pay"),
        SuspensionScope::ProcessDefinition("d".to_owned()),
    );
    let hints = w.ready(vec![at("d", "pay"), at("d", "send")]).await;
    assert_eq!(w.store.suspend(&pay).await.unwrap().moved, 1);
    assert_eq!(w.store.suspend(&all).await.unwrap().moved, 1);
    let during = w.one(at("d", "pay")).await;
    let ready = w.store.activate(&all).await.unwrap().ready;
    assert_eq!(ids(&ready), [hints[1].id]);
    assert_eq!(w.refusal(node(), &during).await, Some(Refusal::Suspended));
    assert_eq!(w.state(hints[0].id).await, Some(JobState::Suspended));
    w.store.suspend(&all).await.unwrap();
    assert_eq!(
        ids(&w.store.activate(&pay).await.unwrap().ready),
        [],
        "the definition is suspended"
    );
    let ready = w.store.activate(&all).await.unwrap().ready;
    assert_eq!(ready.len(), 3);
}

pub(super) async fn a_suspended_element_is_listed_with_its_jobs<S: SqlBench>(w: &World<S>) {
    let long = "x".repeat(1024);
    let (pay, longest) = (element("d", "pay"), element(&long, &long));
    w.ready(vec![at("d", "pay"), at("d", "send"), at("e", "pay")])
        .await;
    w.ready(vec![at(&long, &long)]).await;
    for scope in [&pay, &longest] {
        assert_eq!(w.store.suspend(scope).await.unwrap().moved, 1);
    }
    let during = w
        .ready(vec![at("d", "pay"), at("d", "pay"), at("d", "send")])
        .await;
    let listed = w.store.suspensions().await.unwrap();
    let listed: Vec<_> = listed
        .into_iter()
        .map(|view| (view.gate, view.moved, view.waiting))
        .collect();
    let gate = Gate::from(pay);
    assert_eq!(listed, [(gate.clone(), 1, 2), (longest.into(), 1, 0)]);
    assert_eq!(w.view(during[0].id).await.unwrap().gate, Some(gate));
    assert_eq!(w.view(during[2].id).await.unwrap().gate, None);
    let too_long = "x".repeat(2048);
    for (scope, value) in [
        ("process_definition", &too_long[..1025]),
        ("element", &format!("1024:{too_long}x")),
    ] {
        let insert = format!(
            "INSERT INTO {{s}}suspension (scope, value, since) VALUES ('{scope}', '{value}', {{now}})"
        );
        let refused = w.store.try_execute(&insert).await.unwrap_err();
        assert!(
            refused.to_string().contains("value_is_at_most"),
            "{refused}"
        );
    }
}

/// The schema of an older program has no such scope.
pub(super) async fn an_older_schema_forgets_elements_only<S: SqlBench>(w: &World<S>) {
    let tenant = SuspensionScope::Tenant("t".to_owned());
    for scope in [&element("d", "pay"), &tenant] {
        w.store.suspend(scope).await.unwrap();
    }
    w.store.down_to(15).await;
    assert_eq!(w.rows("suspension").await, 1);
    let insert =
        "INSERT INTO {s}suspension (scope, value, since) VALUES ('element', '1:dpay', {now})";
    assert!(w.store.try_execute(insert).await.is_err());
    w.store.up().await;
    let listed = w.store.suspensions().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].gate, Gate::from(tenant));
    w.store.suspend(&element("d", "pay")).await.unwrap();
}
