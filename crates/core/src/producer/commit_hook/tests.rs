//! Tests of the hook with a broker that is away, slow, or panics.

use super::publishing::gather;
use super::*;
use crate::hint::Marker;
use crate::job::JobId;
use crate::transport::TransportHealth;

/// The answers of the broker to the next publications, the last element first. Without an element
/// it confirms.
type Moods = Mutex<Vec<Mood>>;

#[derive(Clone, Copy)]
enum Mood {
    Away,
    /// It takes the hints, and confirms when the test notifies it.
    Slow,
    Refuses,
    Panics,
}

#[derive(Default)]
struct Broker {
    moods: Moods,
    /// For [`Mood::Slow`].
    answers: Notify,
    /// The hints that the broker took, by publication.
    came: Mutex<Vec<Vec<JobId>>>,
}

impl Broker {
    /// Returns a broker with this mood for `times` publications, which then confirms.
    fn of(mood: Mood, times: usize) -> Arc<Self> {
        Arc::new(Self {
            moods: Mutex::new(vec![mood; times]),
            ..Self::default()
        })
    }

    fn came(&self) -> Vec<Vec<JobId>> {
        self.came.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<JobId> {
        self.came().concat()
    }
}

#[async_trait::async_trait]
impl Publisher for Broker {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        if lane.0.starts_with("nobody") {
            return Err(TransportError::NoReceiver(lane.clone()));
        }
        let mood = self.moods.lock().unwrap().pop();
        let ids = hints.iter().map(|h| h.id).collect();
        match mood {
            Some(Mood::Away) => return Err(TransportError::Unreachable("away".to_owned())),
            Some(Mood::Refuses) => return Err(TransportError::Closed),
            Some(Mood::Panics) => panic!("ordered"),
            None => self.came.lock().unwrap().push(ids),
            Some(Mood::Slow) => {
                self.came.lock().unwrap().push(ids);
                self.answers.notified().await;
            }
        }
        Ok(())
    }
    async fn publish_marker(&self, _: &Lane, _: Marker) -> Result<(), TransportError> {
        Ok(())
    }
    fn tell(&self, _: Control) -> bool {
        true
    }
    fn health(&self) -> TransportHealth {
        TransportHealth::default()
    }
}

fn ready() -> Ready {
    Ready {
        lane: Lane::default(),
        hint: Hint::new(JobId::generate()),
    }
}

async fn drained(hook: &CommitHook) {
    for _ in 0..1_000 {
        if hook.buffered() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} hints are still buffered", hook.buffered());
}

/// Protocol rule 16: the sweeper has begun to suspect older hints.
#[tokio::test(start_paused = true)]
async fn a_hint_that_grew_too_old_is_dropped_and_a_younger_one_is_published() {
    let publisher = Broker::of(Mood::Away, 3);
    let options = HookOptions {
        max_age: Duration::from_millis(600),
        ..HookOptions::default()
    };
    let hook = CommitHook::start(publisher.clone(), options);
    let (old, young) = (ready(), ready());
    hook.publish(Cause::Commit, vec![old]);
    tokio::time::sleep(Duration::from_millis(600)).await;
    hook.publish(Cause::Timer, vec![young.clone()]);
    drained(&hook).await;
    assert_eq!(publisher.ids(), [young.hint.id]);
}

/// More hints than may be under way at once become stale, so no publication is left whose end could
/// wake the task.
#[tokio::test(start_paused = true)]
async fn however_many_hints_grew_too_old_the_next_one_is_published() {
    let publisher = Broker::of(Mood::Away, 6);
    let options = HookOptions {
        max_age: Duration::from_millis(600),
        in_flight: 2,
        batch: 2,
        ..HookOptions::default()
    };
    let hook = CommitHook::start(publisher.clone(), options);
    hook.publish(Cause::Commit, (0..50).map(|_| ready()).collect());
    tokio::time::sleep(Duration::from_millis(800)).await;
    let young = ready();
    hook.publish(Cause::Timer, vec![young.clone()]);
    drained(&hook).await;
    assert_eq!(publisher.ids(), [young.hint.id]);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_drops_nothing() {
    let publisher = Broker::of(Mood::Away, 2);
    let hook = CommitHook::start(publisher.clone(), HookOptions::default());
    let all: Vec<Ready> = (0..10).map(|_| ready()).collect();
    hook.publish(Cause::Commit, all.clone());
    drained(&hook).await;
    assert_eq!(publisher.ids().len(), all.len());
}

/// Any creator may name lanes that nobody receives.
#[tokio::test(start_paused = true)]
async fn a_lane_that_takes_no_hints_delays_no_other() {
    let publisher = Arc::new(Broker::default());
    let options = HookOptions {
        in_flight: 4,
        ..HookOptions::default()
    };
    let hook = CommitHook::start(publisher.clone(), options);
    let nobody = (0..500).map(|i| Ready {
        lane: Lane(format!("nobody-{i}")),
        ..ready()
    });
    hook.publish(Cause::Commit, nobody.collect());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let good = ready();
    hook.publish(Cause::Timer, vec![good.clone()]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(publisher.ids(), [good.hint.id]);
    drop(hook);
}

#[tokio::test]
async fn a_full_buffer_drops_and_never_waits() {
    let publisher = Broker::of(Mood::Away, 1_000);
    let options = HookOptions {
        buffer: 5,
        ..HookOptions::default()
    };
    let hook = CommitHook::start(publisher, options);
    for _ in 0..50 {
        hook.publish(Cause::Commit, vec![ready()]);
    }
    assert_eq!(hook.buffered(), 5);
}

fn entry(lane: &str, hints: usize) -> Entry {
    Entry {
        cause: Cause::Commit,
        since: Instant::now(),
        lane: Lane(lane.to_owned()),
        hints: (0..hints).map(|_| Hint::new(JobId::generate())).collect(),
    }
}

#[test]
fn what_came_together_leaves_together() {
    let mut waiting = vec![entry("a", 3), entry("b", 2), entry("a", 4)];
    let publications = gather(&mut waiting, 10, 4);
    let sizes: Vec<_> = publications
        .iter()
        .map(|p| (&*p.lane.0, p.hints.len()))
        .collect();
    assert_eq!(sizes, [("a", 7), ("b", 2)]);
    assert!(waiting.is_empty());
}

#[test]
fn a_large_commit_is_cut_and_nothing_is_lost() {
    let mut waiting = vec![entry("a", 25)];
    let mut sent = 0;
    while !waiting.is_empty() {
        for publication in gather(&mut waiting, 10, 1) {
            assert!(publication.hints.len() <= 10);
            sent += publication.hints.len();
        }
    }
    assert_eq!(sent, 25);
}

/// The test does not yield in between, so hints that wait for a task would not be there yet.
#[tokio::test]
async fn a_hint_is_written_before_its_commit_returns() {
    let broker = Broker::of(Mood::Slow, 1);
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    let ready = ready();
    hook.publish(Cause::Commit, vec![ready.clone()]);
    assert_eq!(broker.ids(), [ready.hint.id]);
    assert_eq!(hook.buffered(), 1, "the hint is not confirmed");
    broker.answers.notify_one();
    drained(&hook).await;
}

/// A transport uses the timers of the runtime, even if the transaction was committed on a thread
/// without one.
#[tokio::test]
async fn hints_leave_from_a_thread_without_a_runtime() {
    let broker = Broker::of(Mood::Slow, 1);
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    let committed = hook.clone();
    let fired = std::thread::spawn(move || committed.publish(Cause::Commit, vec![ready()]));
    fired.join().unwrap();
    broker.answers.notify_one();
    drained(&hook).await;
    assert_eq!(broker.ids().len(), 1);
}

/// Each publication costs a message, so the hints beyond the bound share publications.
#[tokio::test]
async fn what_finds_much_under_way_leaves_together() {
    let broker = Broker::of(Mood::Slow, 4);
    let options = HookOptions {
        in_flight: 4,
        ..HookOptions::default()
    };
    let hook = CommitHook::start(broker.clone(), options);
    for _ in 0..50 {
        hook.publish(Cause::Commit, vec![ready()]);
    }
    assert_eq!(broker.came().len(), 4);
    for _ in 0..4 {
        broker.answers.notify_one();
        tokio::task::yield_now().await;
    }
    let answers = async {
        loop {
            broker.answers.notify_one();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = answers => {}
        () = drained(&hook) => {}
    }
    let sizes: Vec<_> = broker.came().iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 50);
    assert!(sizes.len() <= 8, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_publication_that_panics_costs_its_own_hints_only() {
    let broker = Broker::of(Mood::Panics, 1);
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    hook.publish(Cause::Commit, vec![ready()]);
    assert_eq!(hook.buffered(), 0, "the hints are left to the sweeper");
    let next = ready();
    hook.publish(Cause::Commit, vec![next.clone()]);
    drained(&hook).await;
    assert_eq!(broker.ids(), [next.hint.id]);
    assert!(!hook.is_down());
}

/// The second attempt after a failure is made in the task.
#[tokio::test(start_paused = true)]
async fn a_second_attempt_that_panics_costs_its_own_hints_only() {
    let broker = Arc::new(Broker {
        moods: Mutex::new(vec![Mood::Panics, Mood::Away]),
        ..Broker::default()
    });
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    hook.publish(Cause::Commit, vec![ready()]);
    assert_eq!(hook.buffered(), 1, "the hint is tried again");
    drained(&hook).await;
    assert!(broker.ids().is_empty());
    hook.publish(Cause::Commit, vec![ready()]);
    drained(&hook).await;
    assert_eq!(broker.ids().len(), 1);
    assert!(!hook.is_down());
}

#[tokio::test]
async fn what_a_broker_refuses_is_given_up_at_once() {
    let broker = Broker::of(Mood::Refuses, 1);
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    hook.publish(Cause::Commit, vec![ready(), ready()]);
    assert_eq!(hook.buffered(), 0);
    assert!(broker.ids().is_empty());
}

#[tokio::test]
async fn what_is_under_way_is_waited_for_at_the_end() {
    let broker = Broker::of(Mood::Slow, 1);
    let hook = CommitHook::start(broker.clone(), HookOptions::default());
    hook.publish(Cause::Commit, vec![ready()]);
    let closing = hook.close(Duration::from_secs(10));
    tokio::pin!(closing);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut closing).await;
    assert!(early.is_err(), "the hint is not confirmed");
    broker.answers.notify_one();
    closing.await;
    assert_eq!(hook.buffered(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_does_not_get_on_says_so() {
    let broker = Broker::of(Mood::Slow, 1);
    let options = HookOptions {
        buffer: 1,
        ..HookOptions::default()
    };
    let hook = CommitHook::start(broker.clone(), options);
    // A hook that is idle for long is not stuck.
    tokio::time::sleep(STUCK_AT_LEAST * 2).await;
    hook.publish(Cause::Commit, vec![ready()]);
    assert_eq!(hook.is_stuck(), None);
    tokio::time::sleep(STUCK_AT_LEAST).await;
    assert_eq!(hook.is_stuck(), None, "the limit is not exceeded");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A refused hint does not count as progress.
    hook.publish(Cause::Commit, vec![ready()]);
    assert!(hook.is_stuck() > Some(STUCK_AT_LEAST));
    broker.answers.notify_one();
    drained(&hook).await;
    assert_eq!(hook.is_stuck(), None);
}
