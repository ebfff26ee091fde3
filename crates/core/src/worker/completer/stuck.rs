//! Outcomes that the database refuses, although it accepts the others of their batch, and that
//! could not be set aside.
//!
//! The node keeps and renews the lease of such a job, so that no other node runs it again. It
//! retries the outcome alone until the database accepts it, the job is set aside, or the node ends.
//! Attempts of one type are [`EACH`] apart. A type with too many waiting outcomes is
//! [closed](crate::worker::served), so that other types continue. An outcome that was not yet tried
//! alone does not wait for outcomes that were refused alone, and does not close its type: its page
//! may have been refused because of other rows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::committed::batch_outcome;
use crate::job::LockToken;
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::survived;
use crate::store::{BatchOutcome, Completion, Failure, Handoff, Release, StoreError};
use crate::worker::attempt::{Attempt, AttemptFate};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::held_instances::End;
use crate::worker::served::TypeTurn;
use crate::worker::tell::Told;

/// The time from a refused attempt to the next one of its type.
const EACH: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An outcome that was refused.
pub(super) enum Refused {
    Done(Completion),
    Failed(Failure),
    Released(Release),
}

impl Refused {
    pub(super) fn held(&self) -> &LockToken {
        match self {
            Self::Done(completion) => &completion.held,
            Self::Failed(failure) => &failure.held,
            Self::Released(released) => &released.held,
        }
    }

    const fn operation(&self) -> &'static str {
        match self {
            Self::Done(_) => "complete",
            Self::Failed(_) => "fail",
            Self::Released(_) => "release",
        }
    }

    /// Tells the listeners that the outcome has committed.
    fn tell(&self, told: &Told<'_>, settled: &BatchOutcome) {
        match self {
            Self::Done(completion) => told.completed(std::slice::from_ref(completion), settled),
            Self::Failed(failure) => told.failed(std::slice::from_ref(failure), settled),
            Self::Released(released) => told.released(std::slice::from_ref(released), settled),
        }
    }

    async fn commit(&self, node: &NodeContext) -> Result<BatchOutcome, StoreError> {
        let then = Handoff::Hint;
        let (store, id) = (&node.store, node.id);
        match self {
            Self::Done(completion) => {
                store
                    .complete(id, std::slice::from_ref(completion), &then)
                    .await
            }
            Self::Failed(failure) => store.fail(id, std::slice::from_ref(failure), &then).await,
            Self::Released(released) => store.release(id, std::slice::from_ref(released)).await,
        }
    }
}

/// Retries an outcome in its own task. Waits while too many outcomes have not been tried alone.
pub(super) async fn keep_trying(
    node: &Arc<NodeContext>,
    refused: Refused,
    attempt: Option<Attempt>,
) {
    node.leases.has_run(refused.held());
    // The semaphore is never closed.
    let untried = node.refused.untried.clone().acquire_owned().await.ok();
    let tasks = &node.refused.tasks;
    let node = node.clone();
    tasks.spawn(async move {
        let held = refused.held().clone();
        if survived("refused", try_until_taken(&node, refused, attempt, untried))
            .await
            .is_none()
        {
            // The outcome is unknown.
            node.leases.lose(std::iter::once(&held));
            node.ended(&held, End::Unsure);
            node.may_have_lost(held);
        }
    });
}

/// An outcome that was refused alone and waits for its next attempt.
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
        let turn = waits
            .as_ref()
            .map_or(&node.refused.untried_turn, |waits| &waits.turn);
        let turn = turn.clone().lock_owned();
        // Outcomes of one type are tried one at a time, in order of arrival: an attempt may wait as
        // long as a statement may.
        let its_turn = async {
            tokio::time::sleep(pause).await;
            let turn = turn.await;
            // The semaphore is never closed.
            (turn, node.refused.attempts.acquire().await.ok())
        };
        let turn = tokio::select! {
            biased;
            () = node.signals.ended.cancelled() => {
                node.ended(held, End::Unsure);
                // The node's last search for lost leases releases it. Otherwise its lease would end
                // like that of a dead node.
                node.may_have_lost(held.clone());
                break AttemptFate::Unknown;
            }
            turn = its_turn => turn,
        };
        let sent = Instant::now();
        let answer = refused.commit(node).await;
        if let Ok(outcome) = answer
            && outcome.left.is_empty()
        {
            drop(turn);
            let operation = refused.operation();
            let committed = batch_outcome(node, operation, &[held], outcome, in_doubt);
            let fate = committed.fate(held.id);
            let outcome = committed.outcome;
            refused.tell(&Told::of(node, &attempt), &outcome);
            if matches!(refused, Refused::Released(_)) {
                node.hook.publish(Cause::Requeue, outcome.ready);
            } else {
                executor::follow_up(node, outcome, sent, Vec::new()).await;
            }
            break fate;
        }
        drop(turn.1);
        pause = (pause * 2).min(LONGEST_PAUSE);
        if waits.is_some() {
            tokio::select! {
                () = node.signals.ended.cancelled() => {}
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
        attempt.count(node, fate, Instant::now());
    }
}
