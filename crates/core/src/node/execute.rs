//! Executes one job now, on an operator's request.
//!
//! The execution needs no hint, leader or timer. It locks the job by its id, runs it under a
//! renewed lease, and completes it as on any node. It takes no other job: the next job of a
//! released instance is only hinted.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::{NodeBuilder, StartError};
use crate::hint::Hint;
use crate::job::JobId;
use crate::job::query::JobView;
use crate::job::scope::Scope;
use crate::store::Refusal;
use crate::worker::executor;
use crate::worker::release;
use crate::worker::stages::Stages;

/// The time that the node's tasks have to end.
const END_WITHIN: Duration = Duration::from_secs(30);

/// The result of executing a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Executed {
    /// The job ran and is done.
    Done,
    /// The job ran and is not done. It waits in this state.
    Left(Box<JobView>),
    /// The job could not be locked.
    Refused(Refusal),
    /// This sibling of its process instance comes first. No job ran.
    SiblingFirst(JobId),
}

impl NodeBuilder {
    /// Executes one executable job now. When `stop` becomes ready, the job is asked to stop and is
    /// released without spending an attempt.
    ///
    /// # Errors
    /// Fails if the options are invalid, the database is not ready, or a statement fails.
    /// [`StartError`] names the remedy.
    pub async fn execute(
        mut self,
        id: JobId,
        stop: impl Future<Output = ()>,
    ) -> Result<Executed, StartError> {
        self.options.validate().map_err(StartError::Options)?;
        self.store.check().await?.ready()?;
        for limit in self.handlers.limits() {
            super::keeps_permits(&*self.store, limit)?;
        }
        self.options.concurrency = 1;
        let owns_hook = self.hook.is_none();
        let slots = self.join()?;
        let reach = self.store.reach().await;
        let reach = reach.map(|reach| Scope::clone(&reach.borrow()));
        let (node, queue, _) = self.share(slots, reach.unwrap_or_default());
        // The node drains from the start: the next jobs are for other nodes.
        node.signals.one_job.cancel();
        node.signals.draining.cancel();
        let mut keepers = super::keep(&node, queue);
        let sent = Instant::now();
        let hint = [Hint::new(id)];
        let terms = node.terms();
        let locks = node.store.lock(&terms, &hint);
        let end = async {
            node.signals.ended.cancel();
            keepers.join(END_WITHIN).await;
            if owns_hook {
                node.hook.close(Duration::from_secs(5)).await;
            }
        };
        let mut locked = match node.asks(locks).await {
            Ok(locked) => locked,
            Err(error) => {
                // If the lock has committed, the keepers find its lease and release it.
                end.await;
                return Err(error.into());
            }
        };
        let refused = match locked.jobs.pop() {
            None => {
                let why = locked.refused.into_iter().find(|(job, _)| *job == id);
                Some(Executed::Refused(why.map_or(Refusal::Gone, |(_, why)| why)))
            }
            Some(other) if other.job.id != id => {
                release::release(&node, vec![other.held()]).await;
                Some(Executed::SiblingFirst(other.job.id))
            }
            Some(job) => {
                let stages = Stages::locked_now();
                let slot = node.slots.of_node.take().await;
                executor::start(&node, job, sent, stages, slot);
                node.jobs.close();
                tokio::select! {
                    biased;
                    () = node.jobs.wait() => {}
                    () = stop => {
                        node.signals.stop_jobs.cancel();
                        node.jobs.wait().await;
                    }
                }
                None
            }
        };
        end.await;
        if let Some(refused) = refused {
            return Ok(refused);
        }
        Ok(match node.store.get(id).await? {
            Some((view, ..)) => Executed::Left(Box::new(view)),
            None => Executed::Done,
        })
    }
}
