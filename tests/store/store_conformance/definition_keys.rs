//! Scopes of all versions of a process definition: its key and its tenant.

use std::time::Duration;

use jobwire_core::store::{
    Change, DefinitionKey, EndedScope, Gate, Operated, Refusal, SuspensionScope,
};
use jobwire_core::{Client, JobId, JobQuery, JobState, NewJob, StoreError};

use super::world::{Bench, SqlBench, World, ids, node, retry_after, work};

fn key(key: &str, tenant: &str) -> DefinitionKey {
    DefinitionKey::new(key).unwrap().of_tenant(tenant)
}

fn scope(name: &str, tenant: &str) -> SuspensionScope {
    SuspensionScope::DefinitionKey(key(name, tenant))
}

fn of(definition: &str) -> NewJob {
    work().process_definition(definition)
}

fn later(job: NewJob) -> (JobId, NewJob) {
    let id = job.id();
    (id, job.delay(Duration::from_secs(600)))
}

fn sorted(mut ids: Vec<JobId>) -> Vec<JobId> {
    ids.sort_unstable();
    ids
}

/// Jobs that do not belong to the key `invoice` of the tenant `acme`.
fn strangers() -> Vec<NewJob> {
    vec![
        of("invoice:3:4711"),
        of("invoice:3:4711").tenant(""),
        of("invoice:3:4711").tenant("acme2"),
        of("invoice2:3:4711").tenant("acme"),
        of("invoic").tenant("acme"),
        of("Invoice:3:4711").tenant("acme"),
        of(":invoice").tenant("acme"),
        of("in%:1:1").tenant("acme"),
        work().element("invoice").tenant("acme"),
        work(),
    ]
}

pub(super) async fn a_key_is_suspended_in_every_version_of_its_tenant<S: Bench>(w: &World<S>) {
    let acme = |version: &str| of(version).tenant("acme");
    let mut others = w.ready(strangers()).await;
    let own = w
        .ready(vec![
            acme("invoice:3:4711"),
            acme("invoice:4:0198c0de-7777-7000-8000-000000000001"),
            acme("invoice"),
        ])
        .await;
    let (timer, job) = later(acme("invoice:4:5120"));
    w.create(vec![job]).await;
    let worker = node();
    let running = w.hold(worker, &own[0]).await;

    let invoice = scope("invoice", "acme");
    assert_eq!(w.store.suspend(&invoice).await.unwrap().moved, 3);
    for id in [own[1].id, own[2].id, timer] {
        assert_eq!(w.state(id).await, Some(JobState::Suspended));
    }
    let failed = w.fail(worker, retry_after(&running, Duration::ZERO)).await;
    assert_eq!(failed.applied, [own[0].id]);
    assert_eq!(w.state(own[0].id).await, Some(JobState::Suspended));
    // A version that is deployed during the suspension.
    let during = w.one(acme("invoice:5:6000")).await;
    assert_eq!(w.refusal(node(), &during).await, Some(Refusal::Suspended));
    others.extend(w.ready(strangers()).await);
    assert_eq!(w.lock(node(), &others).await.jobs.len(), others.len());

    let ready = ids(&w.store.activate(&invoice).await.unwrap().ready);
    let waited = vec![own[0].id, own[1].id, own[2].id, during.id];
    assert_eq!(sorted(ready), sorted(waited));
    assert_eq!(w.state(timer).await, Some(JobState::Timer));
    w.hold(node(), &during).await;
}

/// Each key covers one of the jobs. Activiti and Flowable write no tenant as an empty text.
pub(super) async fn keys_whose_names_run_together_are_told_apart<S: Bench>(w: &World<S>) {
    let alike = [
        ("a", ""),
        ("a", "b"),
        ("a", "b:c"),
        ("a", ":"),
        ("ab", ""),
        ("ä", "€"),
        ("ä€", ""),
        ("a b", "'"),
    ];
    let jobs = alike.map(|(key, tenant)| of(&format!("{key}:1:ü:7")).tenant(tenant));
    let hints = w.ready(jobs.to_vec()).await;
    for ((key, tenant), hint) in alike.into_iter().zip(&hints) {
        let scope = scope(key, tenant);
        assert_eq!(w.store.suspend(&scope).await.unwrap().moved, 1, "{scope:?}");
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        let ready = w.store.activate(&scope).await.unwrap().ready;
        assert_eq!(ids(&ready), [hint.id]);
    }
}

pub(super) async fn a_suspended_key_is_listed_with_its_jobs<S: SqlBench>(w: &World<S>) {
    let long = "x".repeat(1024);
    let (invoice, longest) = (scope("invoice", ""), scope(&long, &long));
    let before = w.one(of("invoice:3:4711")).await;
    w.ready(vec![
        of("invoice:3:4711").tenant("acme"),
        of(&long).tenant(&*long),
    ])
    .await;
    for scope in [&invoice, &longest] {
        assert_eq!(w.store.suspend(scope).await.unwrap().moved, 1);
    }
    let during = w
        .ready(vec![
            of("invoice:4:5120"),
            of("invoice").tenant(""),
            of("invoice:4:5120").tenant("acme"),
        ])
        .await;
    let listed = w.store.suspensions().await.unwrap();
    let listed: Vec<_> = listed
        .into_iter()
        .map(|view| (view.gate, view.moved, view.waiting))
        .collect();
    let gate = Gate::from(invoice);
    assert_eq!(listed, [(gate.clone(), 1, 2), (longest.into(), 1, 0)]);
    assert_eq!(w.view(during[0].id).await.unwrap().gate, Some(gate));
    assert_eq!(w.view(during[2].id).await.unwrap().gate, None);
    let waiting = JobQuery::default().definition_key("invoice");
    let waiting = w.find(waiting.suspended(true)).await;
    let expected = vec![before.id, during[0].id, during[1].id];
    assert_eq!(sorted(waiting), sorted(expected));
    let too_long = "x".repeat(2054);
    let insert = format!(
        "INSERT INTO {{s}}suspension (scope, value, since) VALUES ('definition_key', '{too_long}', {{now}})"
    );
    let refused = w.store.try_execute(&insert).await.unwrap_err();
    assert!(
        refused.to_string().contains("value_is_at_most"),
        "{refused}"
    );
}

/// The schema of an older program has no such scope.
pub(super) async fn an_older_schema_forgets_keys_only<S: SqlBench>(w: &World<S>) {
    let pay = SuspensionScope::Element {
        definition: "x".repeat(1024),
        element: "y".repeat(1024),
    };
    for scope in [&scope("invoice", "acme"), &pay] {
        w.store.suspend(scope).await.unwrap();
    }
    w.store.down_to(19).await;
    assert_eq!(w.rows("suspension").await, 1);
    let insert =
        "INSERT INTO {s}suspension (scope, value, since) VALUES ('definition_key', 'd', {now})";
    assert!(w.store.try_execute(insert).await.is_err());
    w.store.up().await;
    let listed = w.store.suspensions().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].gate, Gate::from(pay));
    w.store.suspend(&scope("invoice", "acme")).await.unwrap();
}

pub(super) async fn a_key_ends_with_the_jobs_of_all_its_versions<S: SqlBench>(w: &World<S>) {
    let client = Client::without_hints(w.store.clone());
    let acme = |version: &str| of(version).tenant("acme");
    let others = client.create_many(strangers()).await.unwrap();
    let hints = w
        .ready(vec![
            acme("invoice:3:4711").instance("i").concurrent(),
            acme("invoice:4:5120").instance("j"),
            acme("invoice"),
            acme("invoice:3:4711"),
        ])
        .await;
    let (timer, start) = later(acme("invoice:4:5120"));
    w.create(vec![start]).await;
    let letter = Change::MakeDeadLetter("brought".to_owned());
    let changed = w.store.change_many(&[hints[2].id], &letter).await.unwrap();
    assert_eq!(changed.operated, [(hints[2].id, Operated::Done)]);
    w.hold(node(), &hints[3]).await;

    let invoice = EndedScope::DefinitionKey(key("invoice", "acme"));
    let mut tx = client.begin().await.unwrap();
    assert_eq!(tx.end(&invoice).await.unwrap().deleted.len(), 4);
    tx.rollback().await.unwrap();
    assert_eq!(w.state(timer).await, Some(JobState::Timer));

    let ended = client.end(&invoice).await.unwrap();
    let gone = vec![hints[0].id, hints[1].id, hints[2].id, timer];
    assert_eq!(sorted(ended.deleted), sorted(gone));
    assert_eq!(ended.dead_letters, [hints[2].id]);
    assert_eq!(ended.running, [hints[3].id]);
    let mut left = others.clone();
    left.push(hints[3].id);
    assert_eq!(sorted(w.find(JobQuery::default()).await), sorted(left));
    // Those without a tenant, as Jobwire and as Activiti write it.
    let plain = EndedScope::DefinitionKey(key("invoice", ""));
    let ended = client.end(&plain).await.unwrap();
    assert_eq!(sorted(ended.deleted), sorted(others[..2].to_vec()));
}

/// As an engine deploys: the id of the new version differs from that of the version whose timers end.
pub(super) async fn the_start_timers_of_all_versions_are_replaced_with_the_transaction<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    let acme = |version: &str| later(of(version).tenant("acme"));
    let create = async |(id, job): (JobId, NewJob)| {
        client.create(job).await.unwrap();
        id
    };
    let third = create(acme("invoice:3:4711")).await;
    let (fourth, series) = acme("invoice:4:5120");
    create((fourth, series.repeat_text("R/PT1M"))).await;
    let suspended = create(acme("invoice:4:5120")).await;
    let changed = w.store.change_many(&[suspended], &Change::Suspend).await;
    assert_eq!(changed.unwrap().operated, [(suspended, Operated::Done)]);
    let (in_instance, job) = acme("invoice:4:5120");
    create((in_instance, job.instance("i"))).await;
    let message = client.create(of("invoice:4:5120").tenant("acme")).await;
    let of_nobody = create(later(of("invoice:4:5121"))).await;
    let of_another = create(acme("order:1:7")).await;

    let invoice = key("invoice", "acme");
    let mut tx = client.begin().await.unwrap();
    let (_, timer) = acme("invoice:5:6000");
    tx.replace_start_timers_of_key(&invoice, vec![timer])
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(w.state(third).await, Some(JobState::Timer));

    let (fifth, timer) = acme("invoice:5:6000");
    let mut tx = w.store.begin().await.unwrap();
    let mut hook = client.hook();
    let ended = hook
        .replace_start_timers_of_key(&mut tx, &invoice, vec![timer])
        .await
        .unwrap();
    hook.commit(tx).await.unwrap();
    let replaced = vec![third, fourth, suspended];
    assert_eq!(sorted(ended.deleted), sorted(replaced));
    assert_eq!(ended.running, []);
    let left = vec![in_instance, message.unwrap(), of_nobody, of_another, fifth];
    assert_eq!(sorted(w.find(JobQuery::default()).await), sorted(left));
    // The next deployment finds them.
    let ended = client.end(&EndedScope::StartTimersOfKey(invoice)).await;
    assert_eq!(ended.unwrap().deleted, [fifth]);
}

pub(super) async fn start_timers_of_another_key_or_tenant_change_nothing<S: SqlBench>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    let (old, timer) = later(of("invoice:3:4711").tenant("acme"));
    client.create(timer).await.unwrap();
    let invoice = key("invoice", "acme");
    for wrong in [
        of("order:1:7").tenant("acme"),
        of("invoice:4:5120"),
        work().tenant("acme"),
    ] {
        let mut tx = client.begin().await.unwrap();
        let right = of("invoice:4:5120").tenant("acme");
        let (id, timers) = (wrong.id(), vec![later(right).1, later(wrong).1]);
        let refused = tx.replace_start_timers_of_key(&invoice, timers).await;
        let Err(refused @ StoreError::InvalidJob { id: refused_id, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(refused_id, id);
        let said = "are not those of the definition key invoice of tenant acme; give the job";
        assert!(refused.to_string().contains(said), "{refused}");
        tx.commit().await.unwrap();
        assert_eq!(w.find(JobQuery::default()).await, [old]);
    }
}
