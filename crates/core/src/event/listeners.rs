//! Listeners, each with its own thread and a bounded buffer.
//!
//! The teller never waits: an event that does not fit is dropped and counted. The thread ends with
//! the last clone of the [`Listeners`], after it has told what waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::Utc;
use metrics::counter;
use tokio::sync::Notify;

use super::{JobEvent, JobListener};
use crate::runtime::panic_place;
use crate::runtime::supervisor::describe_panic;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;

/// Maximum number of events that wait for one listener. Further events are dropped.
pub const LISTENER_BUFFER: usize = 10_000;

/// The listeners of a process. Cheap to clone; clones share the listeners.
#[derive(Clone, Default)]
pub struct Listeners(Vec<Arc<Outlet>>);

/// The way to one listener.
struct Outlet {
    /// `None`: its thread could not be started.
    events: Option<SyncSender<Arc<JobEvent>>>,
    backlog: Arc<Backlog>,
    dropped: Mutex<LogThrottle>,
}

/// The events that a listener was not told yet.
#[derive(Default)]
struct Backlog {
    count: AtomicUsize,
    empty: Notify,
}

impl Backlog {
    fn one_less(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.empty.notify_waiters();
        }
    }

    async fn until_empty(&self) {
        loop {
            let empty = self.empty.notified();
            tokio::pin!(empty);
            empty.as_mut().enable();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            empty.await;
        }
    }
}

impl Listeners {
    /// Adds a listener, and starts its thread.
    pub fn add(&mut self, listener: impl JobListener) {
        self.add_with(listener, LISTENER_BUFFER);
    }

    fn add_with(&mut self, listener: impl JobListener, buffer: usize) {
        panic_place::install();
        let (events, waiting) = sync_channel(buffer);
        let backlog = Arc::<Backlog>::default();
        let told = backlog.clone();
        let thread = std::thread::Builder::new().name("jobwire-listener".to_owned());
        let started = thread.spawn(move || tell_all(listener, &waiting, &told));
        if let Err(error) = &started {
            tracing::error!(%error, "the thread of a listener of events could not be started");
        }
        self.0.push(Arc::new(Outlet {
            events: started.is_ok().then_some(events),
            backlog,
            dropped: Mutex::default(),
        }));
    }

    /// Adds the listeners of others.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Returns whether there is a listener. Without one no event need be built.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Tells an event. Never waits.
    pub(crate) fn tell(&self, mut event: JobEvent) {
        if !self.any() {
            return;
        }
        // An event that was noted in a transaction is older than its commit.
        event.at = Utc::now();
        let event = Arc::new(event);
        for outlet in &self.0 {
            outlet.offer(event.clone());
        }
    }

    /// Waits until the listeners were told everything, at most for the given time.
    pub(crate) async fn until_told(&self, within: Duration) {
        let all = async {
            for outlet in &self.0 {
                outlet.backlog.until_empty().await;
            }
        };
        if tokio::time::timeout(within, all).await.is_err() {
            tracing::warn!("a listener of events is slow; events wait for it after the end");
        }
    }
}

impl Outlet {
    fn offer(&self, event: Arc<JobEvent>) {
        self.backlog.count.fetch_add(1, Ordering::AcqRel);
        let reason = match self.events.as_ref().map(|events| events.try_send(event)) {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(_))) => "full",
            Some(Err(TrySendError::Disconnected(_))) | None => "no-thread",
        };
        self.backlog.one_less();
        counter!(m::EVENTS_DROPPED, "reason" => reason).increment(1);
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(more) = dropped.now() {
            tracing::warn!(
                reason,
                more,
                "an event was dropped, because its listener is too slow or has no thread"
            );
        }
    }
}

/// Tells a listener all events, until no one is left who tells any.
fn tell_all(mut listener: impl JobListener, events: &Receiver<Arc<JobEvent>>, backlog: &Backlog) {
    let mut panics = LogThrottle::default();
    while let Ok(event) = events.recv() {
        let told = catch_unwind(AssertUnwindSafe(|| listener.on_event(&event)));
        if let Err(panic) = told {
            counter!(m::EVENTS_DROPPED, "reason" => "panicked").increment(1);
            if let Some(more) = panics.now() {
                let why = describe_panic(&*panic);
                tracing::error!(
                    event = event.kind.name(), job = %event.job, why, more,
                    "a listener of events panicked; it is told the next ones"
                );
            }
        }
        backlog.one_less();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::event::JobEventKind;
    use crate::job::JobId;

    const SOON: Duration = Duration::from_secs(30);

    fn event() -> JobEvent {
        JobEvent::of_id(JobId::generate(), JobEventKind::Started)
    }

    #[tokio::test]
    async fn a_listener_is_told_each_event_once_and_in_order() {
        let (told, heard) = mpsc::channel();
        let mut listeners = Listeners::default();
        assert!(!listeners.any());
        listeners.add(move |event: &JobEvent| told.send(event.job).unwrap());
        let events: Vec<JobEvent> = (0..100).map(|_| event()).collect();
        for event in &events {
            listeners.tell(event.clone());
        }
        listeners.until_told(SOON).await;
        let ids: Vec<JobId> = events.iter().map(|event| event.job).collect();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ids);
    }

    /// The listener stands still until the test lets it go on. The teller and the other listener do
    /// not notice.
    #[tokio::test]
    async fn a_slow_listener_loses_events_and_delays_no_one() {
        let (go_on, wait) = mpsc::channel::<()>();
        let (told, heard) = mpsc::channel();
        let (to_quick, from_quick) = mpsc::channel();
        let mut listeners = Listeners::default();
        listeners.add_with(
            move |event: &JobEvent| {
                told.send(event.job).unwrap();
                let _ = wait.recv();
            },
            10,
        );
        listeners.add(move |event: &JobEvent| to_quick.send(event.job).unwrap());
        listeners.tell(event());
        let first = heard.recv_timeout(SOON).unwrap();
        for _ in 0..100 {
            listeners.tell(event());
        }
        for _ in 0..101 {
            from_quick.recv_timeout(SOON).unwrap();
        }
        listeners.until_told(Duration::from_millis(10)).await;
        assert_eq!(heard.try_iter().count(), 0, "it has not gone on");
        drop(go_on);
        listeners.until_told(SOON).await;
        let rest: Vec<JobId> = heard.try_iter().collect();
        assert_eq!(rest.len(), 10, "as many as the buffer holds");
        assert!(!rest.contains(&first));
    }

    #[tokio::test]
    async fn a_listener_that_panics_is_told_the_next_event() {
        let (told, heard) = mpsc::channel();
        let mut listeners = Listeners::default();
        listeners.add(move |event: &JobEvent| {
            told.send(event.job).unwrap();
            if true {
                panic!("as the test wants it");
            }
        });
        for _ in 0..3 {
            listeners.tell(event());
        }
        listeners.until_told(SOON).await;
        assert_eq!(heard.try_iter().count(), 3);
    }

    /// Waiting events are told also after the last clone is gone.
    #[tokio::test]
    async fn a_dropped_teller_leaves_nothing_untold() {
        let (told, heard) = mpsc::channel();
        let mut listeners = Listeners::default();
        listeners.add(move |event: &JobEvent| told.send(event.job).unwrap());
        for _ in 0..10 {
            listeners.tell(event());
        }
        drop(listeners);
        for _ in 0..10 {
            heard.recv_timeout(SOON).unwrap();
        }
        // The thread has ended, and the listener with it.
        assert_eq!(
            heard.recv_timeout(SOON),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}
