//! Receiving fails once, and the node is then busy with other things.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::transport::{
    Control, Delivery, Publisher, Receiver, Subscription, Ticket, Transport, TransportError,
};
use jobwire_core::{InProcessTransport, Lane, Node, NodeId, Outcome, Running};
use jobwire_tests::eventually;
use tokio::sync::Notify;

use crate::world::{SOON, World, pass, quick};

/// A transport of which one call of `receive` fails after the notice. Afterwards no message comes.
struct Failing {
    inner: InProcessTransport,
    notice: Arc<Notify>,
}

struct FailingReceiver {
    inner: Box<dyn Receiver>,
    notice: Arc<Notify>,
    failed: bool,
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
            failed: false,
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
            () = self.notice.notified() => {
                self.failed = true;
                Err(TransportError::Unreachable("cut".to_owned()))
            }
            received = self.inner.receive(max), if !self.failed => received,
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

/// Questions of a leader come several times a second, and the node stops to wait for messages each time.
#[tokio::test]
async fn a_node_whose_wait_for_messages_is_cut_short_receives_again() {
    let world = World::new().await;
    let transport = Failing {
        inner: world.transport.clone(),
        notice: Arc::default(),
    };
    let (notice, publisher) = (transport.notice.clone(), transport.publisher());
    let node = Node::builder(world.store.clone(), Arc::new(transport))
        .options(quick())
        .handler("note", |_: Running<()>| async { Ok(Outcome::Done) })
        .start()
        .await
        .unwrap();
    notice.notify_one();
    let fails = || node.health().problems.contains_key("consumer");
    eventually("receiving to fail", SOON, || {
        std::future::ready(fails().then_some(()))
    })
    .await;
    let mut questions = 0;
    while fails() {
        questions += 1;
        assert!(questions < 100, "receiving still counts as failing");
        publisher.tell(Control::WhichHeld {
            node: NodeId::generate(),
            question: questions,
            lane: Lane::default(),
            within: Duration::from_secs(1),
        });
        pass(Duration::from_millis(500)).await;
    }
    node.stop().await;
}
