//! The end of a scope, and a replacement of start timers, while jobs of it run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::EndedScope;
use jobwire_core::{
    Client, HandlerError, HandlerOptions, HandlerResult, JobQuery, JobState, NewJob, Outcome,
    Running,
};
use jobwire_harness::world::quick;
use tokio::sync::Semaphore;

use super::bed::Bed;
use super::world::{SqlBench, World};

type Answer = Pin<Box<dyn Future<Output = HandlerResult<Outcome>> + Send>>;

impl<S: SqlBench> Bed<S> {
    /// Returns a handler that notes its payload, and fails when it is asked to stop or the gate opens.
    fn failing(&self, gate: &Arc<Semaphore>) -> impl Fn(Running<String>) -> Answer + use<S> {
        let (notes, gate) = (self.notes.clone(), gate.clone());
        move |job| {
            let (notes, gate) = (notes.clone(), gate.clone());
            Box::pin(async move {
                notes.add(&*job.payload);
                tokio::select! {
                    () = job.stop.cancelled() => {}
                    opened = gate.acquire() => opened.unwrap().forget(),
                }
                Err(HandlerError::retry("no luck"))
            })
        }
    }
}

/// Its handler fails because it is asked to stop, or before the message reaches it.
pub(super) async fn a_running_job_whose_scope_ends_does_not_run_again<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let gate = Arc::new(Semaphore::new(0));
    let node = bed.node(quick()).handler("work", bed.failing(&gate));
    let node = node.start().await.unwrap();
    let silent = Client::without_hints(w.store.clone());
    let mut starts = 0;
    for scope in [
        EndedScope::ProcessInstance("a".to_owned()),
        EndedScope::Execution("a-1".to_owned()),
        EndedScope::ProcessDefinition("a:1".to_owned()),
    ] {
        for is_told in [true, false] {
            let job = NewJob::of("work", "runs").instance("a").execution("a-1");
            let id = bed.create(vec![job.process_definition("a:1")]).await[0];
            starts += 1;
            bed.notes.until(starts).await;
            let client = if is_told { &bed.client } else { &silent };
            let ended = client.end(&scope).await.unwrap();
            assert_eq!((ended.deleted, ended.running), (vec![], vec![id]));
            if !is_told {
                gate.add_permits(1);
            }
            bed.until_left(0).await;
            assert_eq!(bed.notes.all().len(), starts, "{scope:?}, {is_told}");
        }
    }
    node.stop().await;
}

pub(super) async fn a_start_timer_that_is_replaced_while_it_runs_has_no_successor<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let gate = Arc::new(Semaphore::new(0));
    let (notes, opens) = (bed.notes.clone(), gate.clone());
    let start = move |job: Running<String>| {
        let (notes, opens) = (notes.clone(), opens.clone());
        async move {
            notes.add(job.payload);
            opens.acquire().await.unwrap().forget();
            Ok(Outcome::Done)
        }
    };
    let node = bed.node(quick()).handler("start", start);
    let node = node.start().await.unwrap();
    let silent = Client::without_hints(w.store.clone());
    for client in [&bed.client, &silent] {
        let of_invoice = |what: &str| NewJob::of("start", what).process_definition("invoice");
        let old = of_invoice("old").repeat_text("R/PT1H");
        let old = bed.create(vec![old]).await[0];
        bed.notes.until(1).await;
        let new = of_invoice("new").delay(Duration::from_secs(3_600));
        let id = new.id();
        let mut tx = client.begin().await.unwrap();
        let ended = tx.replace_start_timers("invoice", vec![new]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((ended.deleted, ended.running), (vec![], vec![old]));
        gate.add_permits(1);
        bed.until_done(old).await;
        assert_eq!(w.find(JobQuery::default()).await, [id]);
        w.store.delete(id).await.unwrap();
        bed.notes.clear();
    }
    node.stop().await;
}

/// Its own job completes, so the next occurrence of its series follows. The other one is cancelled.
pub(super) async fn a_handler_that_ends_its_own_instance_completes_its_job<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let gate = Arc::new(Semaphore::new(0));
    let notes = bed.notes.clone();
    let last = move |job: Running<String>| {
        let notes = notes.clone();
        async move {
            let mut tx = job.transaction::<S>().await?;
            let instance = EndedScope::ProcessInstance("a".to_owned());
            let ended = tx.transaction().end(&instance).await?;
            notes.add(format!("{} run", ended.running.len()));
            Ok(Outcome::Done)
        }
    };
    let inside = HandlerOptions::default().in_transaction();
    let node = bed
        .node(quick())
        .handler("work", bed.failing(&gate))
        .handler_with("last", inside, last)
        .start()
        .await
        .unwrap();
    let of_instance = |what: &str| NewJob::of(what, what).instance("a").concurrent();
    bed.create(vec![of_instance("work")]).await;
    bed.notes.until(1).await;
    let first = of_instance("last").repeat_text("R2/PT1H");
    let first = bed.create(vec![first]).await[0];
    bed.until_left(1).await;
    assert_eq!(bed.notes.all(), ["work", "2 run"]);
    let left = w.store.find(&JobQuery::default()).await.unwrap();
    assert_eq!(
        (&*left[0].job_type, left[0].state),
        ("last", JobState::Timer)
    );
    assert_eq!(left[0].correlation_id, first.uuid());
    node.stop().await;
}
