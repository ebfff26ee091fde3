//! Rule 7: a job whose row somebody else has locked for a moment is neither gone nor running. Its hint is tried
//! again in the same node, then given back, never settled. Nobody sweeps here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::transport::{
    Control, Delivery, Publisher, Receiver, Subscription, Ticket, Transport, TransportError,
};
use jobwire_core::{InProcessTransport, NewJob, Node, Outcome, Running};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::broadcast;

use super::world::{SOON, create, refused, unswept, until_led};
use crate::world::{Notes, World};

/// Notes how many busy rows had been met when the first hint went back to the broker.
#[derive(Clone)]
struct Watch {
    scraped: PrometheusHandle,
    busy_when_returned: Arc<OnceLock<u64>>,
    returned: Arc<AtomicU64>,
}

struct Watched(InProcessTransport, Watch);

struct WatchedReceiver(Box<dyn Receiver>, Watch);

#[async_trait]
impl Transport for Watched {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_single_node(&self) -> bool {
        self.0.is_single_node()
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        self.0.publisher()
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        let receiver = self.0.subscribe(subscription).await?;
        Ok(Box::new(WatchedReceiver(receiver, self.1.clone())))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.listen()
    }

    async fn close(&self, within: Duration) {
        self.0.close(within).await;
    }
}

#[async_trait]
impl Receiver for WatchedReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        self.0.receive(max).await
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        self.0.settle(tickets).await;
    }

    async fn give_back(&mut self, tickets: &[Ticket]) {
        let busy = refused(&self.1.scraped, "busy");
        self.1.busy_when_returned.get_or_init(|| busy);
        self.1.returned.fetch_add(1, Ordering::SeqCst);
        self.0.give_back(tickets).await;
    }

    async fn pause(&mut self) {
        self.0.pause().await;
    }

    async fn resume(&mut self) {
        self.0.resume().await;
    }
}

/// Lock the job's row, hint the job, and let go when `enough` says so: it runs.
async fn runs_when_its_row_is_free(job: NewJob, enough: impl Fn(u64, &Watch) -> bool) -> Watch {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let watch = Watch {
        scraped: recorder.handle(),
        busy_when_returned: Arc::default(),
        returned: Arc::default(),
    };
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let transport = Watched(world.transport.clone(), watch.clone());
    let node = Node::builder(world.store.clone(), Arc::new(transport))
        .options(unswept())
        .handler("note", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    let hint = create(&world.store, job).await;
    let mut other = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(hint.id.0)
        .execute(&mut *other)
        .await
        .unwrap();
    let lane = jobwire_core::Lane::default();
    let publisher = world.transport.publisher();
    publisher.publish(&lane, vec![hint]).await.unwrap();
    eventually("the row to be met while it is busy", SOON, async || {
        enough(refused(&watch.scraped, "busy"), &watch).then_some(())
    })
    .await;
    assert_eq!(notes.all().len(), 0, "it ran while somebody had its row");
    other.rollback().await.unwrap();
    notes.until_within(1, SOON).await;
    world.until_empty().await;
    assert_eq!(notes.all().len(), 1);
    node.stop().await;
    watch
}

fn plain() -> NewJob {
    NewJob::of("note", &())
}

fn exclusive() -> NewJob {
    NewJob::of("note", &()).instance("a")
}

#[tokio::test]
async fn a_busy_row_is_tried_again_and_its_job_runs() {
    let met_at_all = |busy, _: &Watch| busy >= 1;
    runs_when_its_row_is_free(plain(), met_at_all).await;
    runs_when_its_row_is_free(exclusive(), met_at_all).await;
}

/// Somebody holds the row for long: the hint goes round over the broker, after many attempts here.
#[tokio::test]
async fn a_row_that_stays_busy_sends_its_hint_round_and_its_job_runs() {
    for job in [plain(), exclusive()] {
        let returned_twice = |_, watch: &Watch| watch.returned.load(Ordering::SeqCst) >= 2;
        let watch = runs_when_its_row_is_free(job, returned_twice).await;
        let attempts = watch.busy_when_returned.get();
        assert!(
            attempts.is_some_and(|attempts| *attempts >= 10),
            "it went back after {attempts:?} attempts"
        );
    }
}
