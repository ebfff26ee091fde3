//! The next timer: the earliest due date, on this machine's monotonic clock.
//!
//! Two tasks ask the database for it: the timer task and the leader cycle. Due dates that are
//! reported while a question is under way are kept beside the answer, because the answer may not
//! contain them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

/// The time that is added to each wait: a slightly late wake is cheaper than an early one, which
/// asks twice.
const SLACK: Duration = Duration::from_millis(1);

/// The tasks that ask the database for the next due date. Each asks one question at a time.
#[derive(Clone, Copy)]
pub(crate) enum Asker {
    Mover,
    LeaderCycle,
}

/// For each asker, the earliest due date that was reported since it asked.
#[derive(Default)]
struct Told {
    mover: Option<Instant>,
    cycle: Option<Instant>,
}

impl Told {
    fn since(&mut self, asker: Asker) -> &mut Option<Instant> {
        match asker {
            Asker::Mover => &mut self.mover,
            Asker::LeaderCycle => &mut self.cycle,
        }
    }

    fn note(&mut self, at: Instant) {
        for told in [&mut self.mover, &mut self.cycle] {
            *told = earliest(*told, Some(at));
        }
    }
}

/// The moment at which the next timer is due, on this machine's monotonic clock. The timer task
/// sleeps until then.
#[derive(Clone)]
pub(crate) struct NextTimer {
    next: Arc<watch::Sender<Option<Instant>>>,
    told: Arc<Mutex<Told>>,
}

impl NextTimer {
    pub(crate) fn new() -> Self {
        Self {
            next: Arc::new(watch::Sender::new(None)),
            told: Arc::default(),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Instant>> {
        self.next.subscribe()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the database is about to be asked.
    pub(crate) fn asks(&self, asker: Asker) {
        *self.told().since(asker) = None;
    }

    /// Records the database's answer: its clock showed `now` at `then`, and the next timer is due
    /// at `due`, or there is none.
    pub(crate) fn answered(
        &self,
        asker: Asker,
        then: Instant,
        now: DateTime<Utc>,
        due: Option<DateTime<Utc>>,
    ) {
        let due = due.map(|due| moment(then, now, due));
        let mut told = self.told();
        let next = earliest(due, told.since(asker).take());
        // The answer to the other asker may be older than this one.
        if let Some(due) = due {
            told.note(due);
        }
        self.next.send_replace(next);
    }

    /// Records that a timer was created. Wakes the timer task if it is earlier than the next known
    /// one.
    pub(crate) fn earlier(&self, now: DateTime<Utc>, due: DateTime<Utc>) {
        let at = moment(Instant::now(), now, due);
        let mut told = self.told();
        told.note(at);
        self.next.send_if_modified(|next| {
            let earlier = next.is_none_or(|n| at < n);
            if earlier {
                *next = Some(at);
            }
            earlier
        });
    }
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

fn moment(then: Instant, now: DateTime<Utc>, due: DateTime<Utc>) -> Instant {
    let wait = (due - now).to_std().unwrap_or_default() + SLACK;
    // The limit avoids an overflow for timers far in the future; the next leader cycle asks again
    // anyway.
    then + wait.min(Duration::from_secs(24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a next timer, and a function that returns its due date in seconds from now.
    fn alarm() -> (NextTimer, impl Fn(&NextTimer) -> Option<u64>) {
        let began = Instant::now();
        let next = move |alarm: &NextTimer| {
            let at = *alarm.next.borrow();
            at.map(|at| (at - began - SLACK).as_secs())
        };
        (NextTimer::new(), next)
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_told_of_while_the_database_answers_is_not_forgotten() {
        let ((alarm, next), then, now) = (alarm(), Instant::now(), Utc::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        for asker in [Asker::Mover, Asker::LeaderCycle] {
            alarm.asks(asker);
            alarm.answered(asker, then, now, Some(after(10)));
            assert_eq!(next(&alarm), Some(10));
            alarm.earlier(now, after(20));
            assert_eq!(next(&alarm), Some(10));
            // The first one is moved or deleted; the answer contains neither the second nor the
            // third.
            alarm.asks(asker);
            alarm.earlier(now, after(30));
            alarm.answered(asker, then, now, Some(after(60)));
            assert_eq!(next(&alarm), Some(30));
            alarm.asks(asker);
            alarm.answered(asker, then, now, None);
            assert_eq!(next(&alarm), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_does_not_outdo_another_one_that_came_meanwhile() {
        let ((alarm, next), then, now) = (alarm(), Instant::now(), Utc::now());
        let after = |seconds| Some(now + Duration::from_secs(seconds));
        alarm.asks(Asker::Mover);
        alarm.asks(Asker::LeaderCycle);
        alarm.answered(Asker::LeaderCycle, then, now, after(30));
        alarm.answered(Asker::Mover, then, now, after(60));
        assert_eq!(next(&alarm), Some(30));
        alarm.asks(Asker::Mover);
        alarm.answered(Asker::Mover, then, now, after(60));
        assert_eq!(next(&alarm), Some(60));
    }
}
