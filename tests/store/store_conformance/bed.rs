//! A node over the store of a case, with a client beside it in the same process.

use std::future::{Ready, ready};
use std::sync::Arc;

use jobwire_core::node::NodeBuilder;
use jobwire_core::{
    Client, CommitHook, HandlerResult, HookOptions, InProcessTransport, JobId, JobQuery, NewJob,
    Node, NodeOptions, Outcome, Running, Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{Notes, SOON};

use super::world::{SqlBench, World};

/// A client, and what its node needs. A node closes its hook when it stops, so a second node needs
/// another bed.
pub(super) struct Bed<S: SqlBench> {
    pub(super) client: Client<S>,
    /// The notes of the handlers.
    pub(super) notes: Notes,
    store: S,
    transport: InProcessTransport,
    hook: CommitHook,
}

/// Returns a handler that notes the payload.
pub(super) fn noting(
    notes: &Notes,
) -> impl Fn(Running<String>) -> Ready<HandlerResult<Outcome>> + Send + Sync + 'static {
    let notes = notes.clone();
    move |job| {
        notes.add(job.payload);
        ready(Ok(Outcome::Done))
    }
}

impl<S: SqlBench> Bed<S> {
    pub(super) fn new(w: &World<S>) -> Self {
        let transport = InProcessTransport::new();
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        Self {
            client: Client::new(w.store.clone(), hook.clone()),
            notes: Notes::default(),
            store: w.store.clone(),
            transport,
            hook,
        }
    }

    /// Returns the builder of a node.
    pub(super) fn node(&self, options: NodeOptions) -> NodeBuilder {
        Node::builder(self.store.clone(), Arc::new(self.transport.clone()))
            .options(options)
            .hook(self.hook.clone())
    }

    /// Creates jobs in one transaction, and waits until their hints are published.
    pub(super) async fn create(&self, jobs: Vec<NewJob>) -> Vec<JobId> {
        let created = self.client.create_many(jobs).await.unwrap();
        eventually("the hints to be published", SOON, async || {
            (self.hook.buffered() == 0).then_some(())
        })
        .await;
        created
    }

    /// Waits until this number of jobs is left.
    pub(super) async fn until_left(&self, left: i64) {
        let all = JobQuery::default();
        eventually("the expected number of jobs", SOON, async || {
            (self.store.count(&all).await.ok()? == left).then_some(())
        })
        .await;
    }

    /// Waits until a job is done.
    pub(super) async fn until_done(&self, id: JobId) {
        eventually("the job to be done", SOON, async || {
            self.store.get(id).await.ok()?.is_none().then_some(())
        })
        .await;
    }
}
