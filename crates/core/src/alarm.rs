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

    /// What is known before the database is asked.
    pub(crate) fn known(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// The database said that it was `now` at `then`, and when the next timer is due (or that there is
    /// none). It need not have seen what has changed the alarm since it was `known`.
    pub(crate) fn set(
        &self,
        known: Option<Instant>,
        then: Instant,
        now: DateTime<Utc>,
        due: Option<DateTime<Utc>>,
    ) {
        let due = due.map(|due| moment(then, now, due));
        self.0.send_modify(|next| {
            let unseen = next.filter(|_| *next != known);
            *next = due.into_iter().chain(unseen).min();
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_told_of_while_the_database_answers_is_not_forgotten() {
        let alarm = Alarm::new();
        let (then, now) = (Instant::now(), Utc::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let wakes = |seconds| Some(then + Duration::from_secs(seconds) + SLACK);
        alarm.set(alarm.known(), then, now, Some(after(60)));
        let known = alarm.known();
        assert_eq!(known, wakes(60));
        alarm.earlier(now, after(10));
        // The answer is from before.
        alarm.set(known, then, now, Some(after(60)));
        assert_eq!(alarm.known(), wakes(10));
        let known = alarm.known();
        alarm.set(known, then, now, None);
        assert_eq!(alarm.known(), None);
        alarm.earlier(now, after(20));
        alarm.set(known, then, now, None);
        assert_eq!(alarm.known(), wakes(20));
    }
}
