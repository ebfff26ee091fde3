//! One publication: its first poll, its end, and the consequences.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use chrono::Utc;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use metrics::{counter, histogram};
use tokio::sync::mpsc::Permit;
use tokio::time::Instant;

use super::{Entry, Inner};
use crate::runtime::panic_place;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::transport::TransportError;

/// Hints and the result of their publication.
pub(super) type Published = (Entry, Result<(), TransportError>);
/// A publication under way.
pub(super) type Publication = BoxFuture<'static, Published>;

/// Starts a publication. If the transport panics, only these hints are lost.
pub(super) fn start_publication(inner: &Arc<Inner>, entry: Entry) -> Publication {
    inner
        .under_way
        .fetch_add(entry.hints.len(), Ordering::Relaxed);
    let inner = inner.clone();
    Box::pin(async move {
        let began = Instant::now();
        let publishing = async {
            let publisher = &inner.publisher;
            publisher.publish(&entry.lane, entry.hints.clone()).await
        };
        let result = match AssertUnwindSafe(publishing).catch_unwind().await {
            Ok(result) => result,
            Err(panic) => {
                let why = panic_place::message(&*panic);
                tracing::error!(
                    lane = %entry.lane,
                    why,
                    "the transport panicked while publishing; the sweeper finds the jobs of these \
                     hints"
                );
                Err(TransportError::Closed)
            }
        };
        inner.noted(&entry.lane, began, &result);
        (entry, result)
    })
}

/// Polls a publication for the first time, on the calling thread, so that the transport writes the
/// message at once. The task continues the publication. The waker of this poll does nothing, so the
/// task polls again as soon as it has the publication.
pub(super) fn begin(inner: &Arc<Inner>, entry: Entry, place: Permit<'_, Publication>) {
    let mut publication = start_publication(inner, entry);
    let _runtime = inner.runtime.enter();
    let turn = publication
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    match turn {
        Poll::Pending => place.send(publication),
        // The task pauses before it retries.
        Poll::Ready((entry, Err(error))) if may_go_again(inner, &error) => {
            place.send(Box::pin(ready((entry, Err(error)))));
        }
        Poll::Ready(ended) => {
            account(inner, ended);
            inner.show_buffered();
        }
    }
}

fn may_go_again(inner: &Inner, error: &TransportError) -> bool {
    error.is_transient() && !inner.stop.is_cancelled()
}

/// Records the end of a publication. Returns the hints to be retried.
pub(super) fn account(inner: &Inner, (mut entry, result): Published) -> Option<Entry> {
    let (lane, hints) = (&entry.lane, entry.hints.len());
    inner.under_way.fetch_sub(hints, Ordering::Relaxed);
    match result {
        Ok(()) => confirmed(inner, &entry),
        Err(error) if may_go_again(inner, &error) => {
            tracing::debug!(
                %lane,
                hints,
                %error,
                "the broker did not confirm hints; they are published again"
            );
            entry.hints.shrink_to_fit();
            return Some(entry);
        }
        Err(error) => {
            if let Some(more) = inner.given_up().now() {
                let lane = lane.0.escape_debug();
                tracing::warn!(
                    %lane,
                    hints,
                    %error,
                    more,
                    "hints could not be published; the sweeper finds their jobs"
                );
            }
            inner.forget(lane, hints, "failed");
        }
    }
    None
}

fn confirmed(inner: &Inner, entry: &Entry) {
    let count = entry.hints.len();
    *inner.moved() = Instant::now();
    inner.buffered.fetch_sub(count, Ordering::Relaxed);
    crash_point!("hints-confirmed");
    counter!(m::HINTS_PUBLISHED, "lane" => label::lane(&entry.lane), "cause" => entry.cause.as_str())
        .increment(count as u64);
    let now = Utc::now();
    let latency = histogram!(m::COMMIT_TO_PUBLISH, "lane" => label::lane(&entry.lane));
    for committed in entry.hints.iter().filter_map(|h| h.committed_at) {
        m::latency(&latency, "commit_to_publish", committed, now);
    }
}
