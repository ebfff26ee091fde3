//! Outcomes that the database refuses while it takes the others of their batch, and that could not be set aside.
//!
//! The lease of such a job is kept and renewed, so that no other node runs it again, and its outcome is tried again,
//! alone, until the database takes it, the job is set aside, or the node ends. Those of one type ask the database [`EACH`]
//! apart. A type of which too many wait [closes](crate::worker::served), so that the others go on. An outcome that has not been tried
//! alone waits for none that was refused alone, and closes no type: it may only have stood in a page with others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{Attempt, AttemptFate, settled_batch};
use crate::job::LockToken;
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::survived;
use crate::store::{Completion, Failure, Handoff, Settled, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::held_instances::End;
use crate::worker::served::TypeTurn;

/// Outcomes that have not been tried alone: each of them is soon.
const UNTRIED: usize = 1_000;
/// Outcomes that are tried alone at one moment, each on a connection of its own.
const AT_ONCE: usize = 2;
/// From a refused attempt to the next one of its type.
const EACH: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Room for outcomes that have not been tried alone.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(UNTRIED))
}

/// Who may try an outcome alone.
pub(crate) fn attempts() -> Semaphore {
    Semaphore::new(AT_ONCE)
}

/// An outcome that was refused.
pub(super) enum Refused {
    Done(Completion),
    Failed(Failure),
    Released(LockToken),
}

impl Refused {
    pub(super) fn held(&self) -> &LockToken {
        match self {
            Self::Done(completion) => &completion.held,
            Self::Failed(failure) => &failure.held,
            Self::Released(held) => held,
        }
    }

    const fn operation(&self) -> &'static str {
        match self {
            Self::Done(_) => "complete",
            Self::Failed(_) => "fail",
            Self::Released(_) => "release",
        }
    }

    async fn commit(&self, node: &NodeContext) -> Result<Settled, StoreError> {
        let then = Handoff::Hint;
        let (store, id) = (&node.store, node.id);
        match self {
            Self::Done(completion) => {
                store
                    .complete(id, std::slice::from_ref(completion), &then)
                    .await
            }
            Self::Failed(failure) => store.fail(id, std::slice::from_ref(failure), &then).await,
            Self::Released(held) => store.release(id, std::slice::from_ref(held)).await,
        }
    }
}

/// Try it again and again, in a task of its own. Waits while very many have not been tried alone yet.
pub(super) async fn keep_trying(
    node: &Arc<NodeContext>,
    refused: Refused,
    attempt: Option<Attempt>,
) {
    node.leases.has_run(refused.held());
    // The semaphore is never closed.
    let untried = node.untried.clone().acquire_owned().await.ok();
    let tasks = &node.refused;
    let node = node.clone();
    tasks.spawn(async move {
        let held = refused.held().clone();
        if survived("refused", try_until_taken(&node, refused, attempt, untried))
            .await
            .is_none()
        {
            // What became of it is unknown.
            node.leases.lose(std::iter::once(&held));
            node.let_go(&held, End::Unsure);
            node.is_in_doubt(&held);
        }
    });
}

/// An outcome that was refused alone and waits.
struct Waits {
    node: Arc<NodeContext>,
    job_type: String,
    turn: TypeTurn,
}

impl Waits {
    fn begin(node: &Arc<NodeContext>, job_type: &str) -> Self {
        Self {
            turn: node.served.begin_to_wait(job_type),
            node: node.clone(),
            job_type: job_type.to_owned(),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.node.served.end_to_wait(&self.job_type);
    }
}

async fn try_until_taken(
    node: &Arc<NodeContext>,
    refused: Refused,
    attempt: Option<Attempt>,
    mut untried: Option<OwnedSemaphorePermit>,
) {
    // The answer to an earlier attempt may be lost.
    let in_doubt = true;
    let held = refused.held();
    let job_type = attempt.as_ref().map_or("", |attempt| &attempt.job.job_type);
    let mut pause = FIRST_PAUSE;
    let mut waits: Option<Waits> = None;
    let fate = loop {
        let turn = waits.as_ref().map_or(&node.first_turn, |waits| &waits.turn);
        let turn = turn.clone().lock_owned();
        // One of a type at a time, in the order in which they come: an attempt may wait as long as a statement may.
        let its_turn = async {
            tokio::time::sleep(pause).await;
            let turn = turn.await;
            // The semaphore is never closed.
            (turn, node.attempts.acquire().await.ok())
        };
        let turn = tokio::select! {
            biased;
            () = node.ended.cancelled() => {
                node.let_go(held, End::Unsure);
                // The last look of the node releases it: without that its lease would end as that of a dead node.
                node.is_in_doubt(held);
                break AttemptFate::Unknown;
            }
            turn = its_turn => turn,
        };
        let sent = Instant::now();
        let answer = refused.commit(node).await;
        if let Ok(settled) = answer
            && settled.left.is_empty()
        {
            drop(turn);
            let operation = refused.operation();
            let committed = settled_batch(node, operation, &[held], settled, in_doubt);
            let fate = committed.fate(held.id);
            let settled = committed.settled;
            if matches!(refused, Refused::Released(_)) {
                node.hook.publish(Cause::Requeue, settled.ready);
            } else {
                executor::follow_up(node, settled, sent, Vec::new()).await;
            }
            break fate;
        }
        drop(turn.1);
        pause = (pause * 2).min(LONGEST_PAUSE);
        if waits.is_some() {
            tokio::select! {
                () = node.ended.cancelled() => {}
                () = tokio::time::sleep(EACH) => {}
            }
        } else {
            drop(turn.0);
            waits = Some(Waits::begin(node, job_type));
            untried = None;
        }
    };
    drop(untried);
    if let Some(attempt) = attempt {
        attempt.count(node, fate);
    }
}
