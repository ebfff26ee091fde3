//! The call of the handler. It ends with an answer, a panic, a timeout or a stop.
//!
//! A handler that was asked to stop has [`GRACE`] to end. Then its future is dropped.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::run::Run;
use crate::runtime::panic_place;
use crate::worker::checkpoint::Checkpoints;
use crate::worker::handler::{HandlerResult, Outcome, Running, Stop};
use crate::worker::handler_transaction::HandlerTransaction;

/// The time within which a handler must end after it was asked to stop.
const GRACE: Duration = Duration::from_secs(2);

/// The end of the call of a handler.
pub(super) enum AttemptResult {
    Answered(HandlerResult<Outcome>),
    Panicked {
        message: String,
        /// The file and line, and the backtrace if it was asked for.
        place: Option<String>,
    },
    TimedOut(Duration),
    /// The handler gave no heartbeat for this time.
    Silent(Duration),
    LostLease,
    /// The connection of the transaction does not respond.
    LostLine,
    Stopped,
    /// An operator has cancelled the job.
    Cancelled,
}

impl AttemptResult {
    /// Returns whether the handler answered an error, or panicked.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Answered(Err(_)) | Self::Panicked { .. })
    }
}

/// Calls the handler and returns its result. Calls `first_poll` when the handler has returned
/// control of the thread for the first time.
pub(super) async fn invoke(
    run: &Run<'_>,
    transaction: &HandlerTransaction,
    stop: &Stop,
    line_ends: BoxFuture<'static, ()>,
    first_poll: impl FnOnce(),
) -> AttemptResult {
    let running = Running {
        payload: (),
        job: run.opened.clone(),
        fence: run.held.fence,
        node: run.node.id,
        stop: stop.clone(),
        sealed: !Arc::ptr_eq(run.job, &run.opened),
        transaction: transaction.clone(),
        lease: run.lease.clone(),
        leases: Some(run.node.leases.clone()),
        checkpoints: Checkpoints::OfNode {
            store: run.node.store.clone(),
            owner: run.node.id,
            encryption: run.node.options.encryption.clone(),
        },
    };
    let handler = AssertUnwindSafe(run.registration.handler.run(running)).catch_unwind();
    tokio::pin!(handler);
    // Most short jobs end in the first poll and need no timer and no signals.
    let first = futures_util::poll!(&mut handler);
    first_poll();
    if let Poll::Ready(ended) = first {
        return answer(ended);
    }
    let limit = run.registration.options.timeout;
    let timeout = after(limit);
    tokio::pin!(timeout);
    let may_be_silent = run.registration.options.heartbeat_timeout;
    let reason = tokio::select! {
        biased;
        ended = &mut handler => return answer(ended),
        () = &mut timeout => AttemptResult::TimedOut(limit.unwrap_or_default()),
        () = silence(run, may_be_silent) => AttemptResult::Silent(may_be_silent.unwrap_or_default()),
        () = run.lease.lost.token().cancelled() => AttemptResult::LostLease,
        () = run.lease.cancelled.token().cancelled() => AttemptResult::Cancelled,
        () = line_ends => AttemptResult::LostLine,
        () = run.node.signals.stop_jobs.cancelled() => AttemptResult::Stopped,
    };
    stop.cancel();
    tokio::select! {
        biased;
        ended = &mut handler => match reason {
            // The handler ended in time, so its outcome counts. If the lease may be lost, the
            // completion's guard decides.
            AttemptResult::Stopped => answer(ended),
            AttemptResult::LostLease | AttemptResult::Cancelled if matches!(ended, Ok(Ok(Outcome::Done))) => answer(ended),
            other => other,
        },
        () = tokio::time::sleep(GRACE) => reason,
    }
}

async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Waits until the handler has given no heartbeat for this time.
async fn silence(run: &Run<'_>, limit: Option<Duration>) {
    match limit {
        Some(limit) => {
            let signs = run.lease.signs();
            // An earlier attempt under this lock may have ended long ago.
            signs.give();
            signs.silence(limit).await;
        }
        None => std::future::pending().await,
    }
}

fn answer(ended: std::thread::Result<HandlerResult<Outcome>>) -> AttemptResult {
    match ended {
        Ok(result) => AttemptResult::Answered(result),
        Err(panic) => AttemptResult::Panicked {
            message: panic_place::message(&*panic),
            place: panic_place::place_of(&*panic),
        },
    }
}
