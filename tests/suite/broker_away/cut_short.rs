//! Receiving fails once, while jobs of one instance follow each other on the node.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::transport::{
    Control, Delivery, Publisher, Receiver, Subscription, Ticket, Transport, TransportError,
};
use jobwire_core::{InProcessTransport, NewJob, Node, Outcome, Running};
use jobwire_tests::eventually;
use tokio::sync::Notify;

use crate::world::{Notes, SOON, World, hook, pass, quick};

/// A transport of which one call of `receive` fails after each notice.
struct Failing {
    inner: InProcessTransport,
    notice: Arc<Notify>,
}

struct FailingReceiver {
    inner: Box<dyn Receiver>,
    notice: Arc<Notify>,
}

#[async_trait]
impl Transport for Failing {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        self.inner.publisher()
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        Ok(Box::new(FailingReceiver {
            inner: self.inner.subscribe(subscription).await?,
            notice: self.notice.clone(),
        }))
    }

    fn listen(&self) -> tokio::sync::broadcast::Receiver<Control> {
        self.inner.listen()
    }

    async fn close(&self, within: Duration) {
        self.inner.close(within).await;
    }
}

#[async_trait]
impl Receiver for FailingReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        tokio::select! {
            () = self.notice.notified() => Err(TransportError::Unreachable("cut".to_owned())),
            received = self.inner.receive(max) => received,
        }
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        self.inner.settle(tickets).await;
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        self.inner.requeue(tickets).await;
    }

    async fn pause(&mut self) {
        self.inner.pause().await;
    }

    async fn resume(&mut self) {
        self.inner.resume().await;
    }
}

/// The node hints its own next job several times a second, and each time stops to wait for a message. No
/// message comes.
#[tokio::test]
async fn a_node_whose_wait_for_messages_is_cut_short_receives_again() {
    const JOBS: usize = 400;
    let (world, notes) = (World::new().await, Notes::default());
    let transport = Failing {
        inner: world.transport.clone(),
        notice: Arc::default(),
    };
    let notice = transport.notice.clone();
    let jobs = world.store.client(hook(&transport, Duration::from_secs(1)));
    let mut options = quick();
    options.claim_after = Some(Duration::from_millis(100));
    // The sweeper sends markers, which are messages.
    options.sweep_interval = Duration::from_secs(600);
    let seen = notes.clone();
    let node = Node::builder(world.store.clone(), Arc::new(transport))
        .options(options)
        .handler("link", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                pass(Duration::from_millis(250)).await;
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let chain = (0..JOBS).map(|_| NewJob::of("link", &()).instance("i").exclusive());
    jobs.create_many(chain.collect()).await.unwrap();
    notes.until(2).await;
    notice.notify_one();
    let claims = async |wanted: bool| (node.health().claiming.is_empty() != wanted).then_some(());
    eventually("the node to claim", SOON, || claims(true)).await;
    eventually("the node to receive again", SOON, || claims(false)).await;
    assert!(notes.all().len() < JOBS, "the chain ended first");
    node.stop().await;
}
