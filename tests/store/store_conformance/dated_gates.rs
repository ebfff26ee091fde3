//! Suspensions and pauses that begin and end at a date.

use std::time::Duration;

use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::producer::gate_change::GateChange;
use jobwire_core::store::{
    DefinitionKey, Gate, LockTerms, PauseScope, SUSPENSION_TYPE, SuspensionScope,
};
use jobwire_core::{JobId, JobState, NewJob};
use jobwire_harness::world::quick;

use super::bed::{Bed, noting};
use super::world::{SqlBench, World, node, retry_after, terms};

fn in_half_a_second() -> DateTime<Utc> {
    Utc::now() + Duration::from_millis(500)
}

async fn gates<S: SqlBench>(w: &World<S>) -> Vec<Gate> {
    let all = w.store.suspensions().await.unwrap();
    all.into_iter().map(|view| view.gate).collect()
}

/// Asserts that a job is ready, and that this gate keeps it.
async fn is_kept<S: SqlBench>(w: &World<S>, id: JobId, gate: &Gate) {
    let view = w.view(id).await.unwrap();
    assert_eq!(
        (view.state, view.gate.as_ref(), view.lock_owner),
        (JobState::Executable, Some(gate), None)
    );
}

pub(super) async fn a_scope_is_suspended_and_activated_at_a_date<S: SqlBench>(w: &World<S>) {
    let acme = SuspensionScope::Tenant("acme".to_owned());
    changes_at_its_dates(w, &acme, |job| job.tenant("acme")).await;
}

pub(super) async fn an_element_is_suspended_and_activated_at_a_date<S: SqlBench>(w: &World<S>) {
    let pay = SuspensionScope::Element {
        definition: "invoice:3".to_owned(),
        element: "pay".to_owned(),
    };
    let of = |job: NewJob| job.process_definition("invoice:3").element("pay");
    changes_at_its_dates(w, &pay, of).await;
}

pub(super) async fn a_definition_key_is_suspended_and_activated_at_a_date<S: SqlBench>(
    w: &World<S>,
) {
    let invoice = DefinitionKey::new("invoice").unwrap().of_tenant("acme");
    let invoice = SuspensionScope::DefinitionKey(invoice);
    let of = |job: NewJob| job.process_definition("invoice:3:4711").tenant("acme");
    changes_at_its_dates(w, &invoice, of).await;
}

async fn changes_at_its_dates<S: SqlBench>(
    w: &World<S>,
    scope: &SuspensionScope,
    its: impl Fn(NewJob) -> NewJob,
) {
    let bed = Bed::new(w);
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let of = |what: &str| its(NewJob::of("note", what));
    let later = of("later").delay(Duration::from_secs(3_600));
    let later = bed.create(vec![later]).await[0];
    bed.create(vec![of("before")]).await;
    assert_eq!(bed.notes.until(1).await, ["before"]);

    let date = in_half_a_second();
    let planned = bed.client.suspend_at(scope, date).await.unwrap();
    bed.until_done(planned).await;
    assert!(Utc::now() >= date, "it is suspended before the date");
    let gate = Gate::from(scope.clone());
    assert_eq!(gates(w).await, std::slice::from_ref(&gate));
    assert_eq!(w.state(later).await, Some(JobState::Suspended));
    let kept = bed.create(vec![of("kept")]).await[0];
    bed.create(vec![NewJob::of("note", "free")]).await;
    assert_eq!(bed.notes.until(2).await, ["before", "free"]);
    is_kept(w, kept, &gate).await;

    let date = in_half_a_second();
    let planned = bed.client.activate_at(scope, date).await.unwrap();
    assert_eq!(bed.notes.until(3).await, ["before", "free", "kept"]);
    assert!(Utc::now() >= date, "it is activated before the date");
    bed.until_done(planned).await;
    assert!(gates(w).await.is_empty());
    assert_eq!(w.state(later).await, Some(JobState::Timer));
    node.stop().await;
}

pub(super) async fn a_scope_is_paused_and_resumed_at_a_date<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let mail = PauseScope::Category("mail".to_owned());
    let of = |what: &str| NewJob::of("note", what).category("mail");
    bed.create(vec![of("before")]).await;
    assert_eq!(bed.notes.until(1).await, ["before"]);

    let date = in_half_a_second();
    let planned = bed.client.pause_at(&mail, date).await.unwrap();
    bed.until_done(planned).await;
    assert!(Utc::now() >= date, "it is paused before the date");
    let gate = Gate::from(mail.clone());
    assert_eq!(gates(w).await, std::slice::from_ref(&gate));
    let kept = bed.create(vec![of("kept")]).await[0];
    bed.create(vec![NewJob::of("note", "free")]).await;
    assert_eq!(bed.notes.until(2).await, ["before", "free"]);
    is_kept(w, kept, &gate).await;

    let date = in_half_a_second();
    let planned = bed.client.resume_at(&mail, date).await.unwrap();
    assert_eq!(bed.notes.until(3).await, ["before", "free", "kept"]);
    assert!(Utc::now() >= date, "it is resumed before the date");
    bed.until_done(planned).await;
    assert!(gates(w).await.is_empty());
    node.stop().await;
}

/// A fleet that stands still while a pause and its end become due makes both, in the order of their
/// dates, whichever of them was created first.
pub(super) async fn changes_that_are_due_at_once_take_effect_by_their_dates<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let now = Utc::now();
    let ago = |minutes: u64| now - Duration::from_secs(60 * minutes);
    let (mail, bulk) = ("mail".to_owned(), "bulk".to_owned());
    let (mail, bulk) = (PauseScope::Category(mail), PauseScope::Category(bulk));
    let acme = SuspensionScope::Tenant("acme".to_owned());
    let mut planned = vec![
        bed.client.resume_at(&mail, ago(10)).await.unwrap(),
        bed.client.pause_at(&mail, ago(70)).await.unwrap(),
        bed.client.activate_at(&acme, ago(10)).await.unwrap(),
        bed.client.suspend_at(&acme, ago(70)).await.unwrap(),
        // The last of these begins a pause.
        bed.client.pause_at(&bulk, ago(5)).await.unwrap(),
        bed.client.resume_at(&bulk, ago(10)).await.unwrap(),
        bed.client.pause_at(&bulk, ago(70)).await.unwrap(),
    ];
    // Another date, which has not come, is not waited for.
    let later = now + Duration::from_secs(3_600);
    let later = bed.client.pause_at(&mail, later).await.unwrap();
    let node = bed.node(quick()).start().await.unwrap();
    for id in planned.drain(..) {
        bed.until_done(id).await;
    }
    assert_eq!(gates(w).await, [Gate::from(bulk)]);
    assert_eq!(w.state(later).await, Some(JobState::Timer));
    node.stop().await;
}

/// The end of a pause waits for a beginning that failed and is tried again later.
pub(super) async fn an_end_waits_for_a_beginning_that_is_tried_again<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let now = Utc::now();
    let ago = |minutes: u64| now - Duration::from_secs(60 * minutes);
    let mail = PauseScope::Category("mail".to_owned());
    let begins = GateChange::begin(mail.clone()).at(ago(70));
    let hint = w.one(begins).await;
    let owner = node();
    let serves = LockTerms {
        types: vec![SUSPENSION_TYPE.to_owned()].into(),
        ..terms(owner)
    };
    let hints = std::slice::from_ref(&hint);
    let begin = w.store.lock(&serves, hints).await.unwrap().jobs.remove(0);
    let ends = bed.client.resume_at(&mail, ago(10)).await.unwrap();
    w.fail(owner, retry_after(&begin, Duration::from_secs(3)))
        .await;
    let begins = hint.id;
    let node = bed.node(quick()).start().await.unwrap();
    bed.until_done(begins).await;
    bed.until_done(ends).await;
    assert!(gates(w).await.is_empty());
    node.stop().await;
}
