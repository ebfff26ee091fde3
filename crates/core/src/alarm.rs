//! The alarm: when the next timer is due, on this machine's monotonic clock.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

/// Waking a little late beats waking early and asking twice.
const SLACK: Duration = Duration::from_millis(1);

/// What the mover sleeps by: the moment, on this machine's monotonic clock, when the next timer is due.
#[derive(Clone)]
pub(crate) struct Alarm(pub(crate) Arc<watch::Sender<Option<Instant>>>);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// The database said that it was `now` at `then`, and when the next timer is due (or that there is
    /// none).
    pub(crate) fn set(&self, then: Instant, now: DateTime<Utc>, due: Option<DateTime<Utc>>) {
        self.0.send_replace(due.map(|due| moment(then, now, due)));
    }

    /// A timer was created; wake up for it if it is earlier than the next one known.
    pub(crate) fn earlier(&self, now: DateTime<Utc>, due: DateTime<Utc>) {
        let at = moment(Instant::now(), now, due);
        self.0.send_if_modified(|next| {
            let earlier = next.is_none_or(|n| at < n);
            if earlier {
                *next = Some(at);
            }
            earlier
        });
    }
}

fn moment(then: Instant, now: DateTime<Utc>, due: DateTime<Utc>) -> Instant {
    let wait = (due - now).to_std().unwrap_or_default() + SLACK;
    // A timer a century away overflows nothing: the next turn looks again anyway.
    then + wait.min(Duration::from_secs(24 * 3600))
}
