//! The events that listeners in the process are told. On SQLite and PostgreSQL. Budget: 10 s.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use jobwire::chrono::Utc;
use jobwire::event::EventStream;
use jobwire::store::{Change, EndedScope, Operated};
use jobwire::{
    Client, HandlerError, HandlerOptions, Handlers, InProcessTransport, JobEvent, JobEventKind,
    JobId, JobListener, JobQuery, NewJob, Node, NodeOptions, Outcome, PeriodicJob, RetryPolicy,
    Running, SqlStore, SqliteStore,
};
use jobwire_harness::world::database;
use jobwire_tests::{Scratch, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;

const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

async fn sqlite() -> (SqliteStore, Scratch) {
    let home = Scratch::new();
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let store = SqliteStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    (store, home)
}

/// The events that a listener was told.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<JobEvent>>>);

impl Heard {
    fn listener(&self) -> impl JobListener + use<> {
        let heard = self.0.clone();
        move |event: &JobEvent| heard.lock().unwrap().push(event.clone())
    }

    fn of(&self, job: JobId) -> Vec<JobEvent> {
        let heard = self.0.lock().unwrap();
        heard.iter().filter(|e| e.job == job).cloned().collect()
    }

    /// Returns the names of the events of a job, in their order.
    fn names(&self, job: JobId) -> Vec<&'static str> {
        self.of(job).iter().map(|event| event.kind.name()).collect()
    }

    async fn until(&self, job: JobId, name: &str, times: usize) {
        eventually(name, SOON, async || {
            let names = self.names(job);
            let count = names.iter().filter(|other| **other == name).count();
            (count >= times).then_some(())
        })
        .await;
    }
}

/// The handlers: `work` is done, `fussy` fails twice, `later` snoozes once, `patient` waits until it
/// is stopped.
fn handlers() -> Handlers {
    let mut handlers = Handlers::default();
    let quick = HandlerOptions::default().retry(RetryPolicy::Fixed(Duration::from_millis(1)));
    handlers.add("work", |_: Running<u64>| async { Ok(()) });
    let inside = HandlerOptions::default().in_transaction();
    handlers.add_with("inside", inside, |_: Running<u64>| async { Ok(()) });
    let short = HandlerOptions::default().row_lock();
    handlers.add_with("short", short, |_: Running<u64>| async { Ok(()) });
    let calls = Arc::new(AtomicUsize::new(0));
    handlers.add_with("fussy", quick, move |_: Running<u64>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if call < 2 {
                return Err(HandlerError::retry("the printer is on fire"));
            }
            Ok(())
        }
    });
    let calls = Arc::new(AtomicUsize::new(0));
    handlers.add("later", move |_: Running<u64>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                return Ok(Outcome::Snooze(Duration::from_millis(1)));
            }
            Ok(Outcome::Done)
        }
    });
    handlers.add("patient", |job: Running<u64>| async move {
        job.stop.cancelled().await;
        Err::<(), _>(HandlerError::unrecoverable("stopped"))
    });
    handlers
}

/// Nothing but hints and timers moves a job, so that each job takes one way.
fn options() -> NodeOptions {
    NodeOptions::default()
        .sweep_interval(HOUR)
        .lease(HOUR)
        .row_lock_from(1)
        .shutdown_timeout(Duration::from_millis(10))
}

async fn each_event_is_told_once<S: SqlStore>(store: S) {
    let heard = Heard::default();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options())
        .handlers(handlers())
        .listener(heard.listener())
        .start()
        .await
        .unwrap();
    let stream = EventStream::new("jobwire/test");
    store.switch_event_stream(Some(&stream)).await.unwrap();
    let client = Client::new(store.clone(), node.hook());
    let mut expected: HashMap<JobId, Vec<&str>> = HashMap::new();

    // The plain ways: concurrent, exclusive, in the completing transaction, held by row locks.
    const PLAIN: [&str; 4] = ["created", "locked", "started", "succeeded"];
    let mut jobs = vec![
        NewJob::of("work", &1),
        NewJob::of("work", &2).instance("order-17"),
        NewJob::of("work", &3).instance("order-17"),
        NewJob::of("inside", &1),
    ];
    jobs.extend((0..20).map(|number| NewJob::of("short", &number)));
    for id in client.create_many(jobs).await.unwrap() {
        expected.insert(id, PLAIN.to_vec());
    }
    // A caller's own transaction.
    let mut tx = store.begin().await.unwrap();
    let mut hook = client.hook();
    let own = hook.create(&mut tx, NewJob::of("work", &4)).await.unwrap();
    hook.commit(tx).await.unwrap();
    expected.insert(own, PLAIN.to_vec());
    // What is rolled back has no event.
    let mut tx = client.begin().await.unwrap();
    let undone = tx.create(NewJob::of("work", &5)).await.unwrap();
    tx.rollback().await.unwrap();
    expected.insert(undone, Vec::new());

    // Two failures, a dead letter, and its revival.
    let fussy = NewJob::of("fussy", &1).max_attempts(2);
    let fussy = client.create(fussy).await.unwrap();
    heard.until(fussy, "incident_opened", 1).await;
    assert_eq!(client.retry(fussy, 1).await.unwrap(), Operated::Done);
    let failing = "created locked started failed retries_decremented timer_scheduled timer_fired \
                   locked started failed retries_decremented dead_lettered incident_opened \
                   rescheduled incident_closed locked started succeeded";
    expected.insert(fussy, failing.split(' ').collect());
    heard.until(fussy, "succeeded", 1).await;
    let failed = heard.of(fussy).into_iter().filter_map(|event| {
        assert!(event.job_type.is_none_or(|name| name == "fussy"));
        match event.kind {
            JobEventKind::Failed { error, retries } => Some((error, retries)),
            _ => None,
        }
    });
    let error = "the printer is on fire".to_owned();
    assert_eq!(failed.collect::<Vec<_>>(), [(error.clone(), 1), (error, 0)]);

    let later = client.create(NewJob::of("later", &1)).await.unwrap();
    let snoozed = "created locked started rescheduled timer_fired locked started succeeded";
    expected.insert(later, snoozed.split(' ').collect());

    // An operator's changes of a timer.
    let timer = NewJob::of("work", &6).delay(HOUR).unique("one");
    let timer = client.create(timer).await.unwrap();
    let again = NewJob::of("work", &7).delay(HOUR).unique("one");
    assert_eq!(client.create(again).await.unwrap(), timer);
    for change in [
        Change::Reschedule(Utc::now() + HOUR),
        Change::MakeDeadLetter("no longer wanted".to_owned()),
    ] {
        client.change(&[timer], &change).await.unwrap();
    }
    assert_eq!(client.delete(timer).await.unwrap(), Operated::Done);
    let changed = "created timer_scheduled rescheduled dead_lettered incident_opened cancelled \
                   incident_closed";
    expected.insert(timer, changed.split(' ').collect());

    // The end of an instance with a timer and a dead letter.
    let waits = || NewJob::of("work", &8).delay(HOUR).instance("order-18");
    let waiting = client.create(waits()).await.unwrap();
    let dead = client.create(waits()).await.unwrap();
    let letter = Change::MakeDeadLetter("broken".to_owned());
    client.change(&[dead], &letter).await.unwrap();
    let instance = EndedScope::ProcessInstance("order-18".to_owned());
    let ended = client.end(&instance).await.unwrap();
    assert_eq!(ended.dead_letters, [dead]);
    expected.insert(waiting, vec!["created", "timer_scheduled", "cancelled"]);
    let buried = "created timer_scheduled dead_lettered incident_opened cancelled incident_closed";
    expected.insert(dead, buried.split(' ').collect());

    let cancelled = client.create(NewJob::of("patient", &1)).await.unwrap();
    heard.until(cancelled, "started", 1).await;
    assert_eq!(client.cancel(cancelled).await.unwrap(), Operated::Running);
    expected.insert(cancelled, vec!["created", "locked", "started", "cancelled"]);
    heard.until(cancelled, "cancelled", 1).await;

    // The next occurrence has another id.
    let first = NewJob::of("work", &9).repeat_text("R2/PT1H");
    let first = client.create(first).await.unwrap();
    expected.insert(first, PLAIN.to_vec());
    for (job, events) in &expected {
        let last = events.last();
        if let Some(last) = last.filter(|last| **last == "succeeded") {
            heard.until(*job, last, 1).await;
        }
    }
    let next = eventually("the next occurrence", SOON, async || {
        let heard = heard.0.lock().unwrap();
        let mut others = heard.iter().filter(|e| !expected.contains_key(&e.job));
        others.next().map(|event| event.job)
    })
    .await;
    expected.insert(next, vec!["created", "timer_scheduled"]);

    let rejected = client.create(NewJob::of("patient", &2)).await.unwrap();
    heard.until(rejected, "started", 1).await;
    let id = node.id();
    node.stop().await;
    expected.insert(rejected, vec!["created", "locked", "started", "rejected"]);

    for (job, events) in &expected {
        assert_eq!(heard.names(*job), *events, "{job}");
    }
    for event in heard.0.lock().unwrap().iter() {
        assert!(expected.contains_key(&event.job), "{event:?}");
        let of_node = matches!(event.kind, JobEventKind::Locked { .. });
        assert!(!of_node || event.node == Some(id), "{event:?}");
    }
    the_stream_tells_the_same(&store, &expected).await;
}

/// The event stream has the events that listeners are told, except those that change no row. A job that
/// is held by its row lock has no row of its lock.
async fn the_stream_tells_the_same<S: SqlStore>(store: &S, told: &HashMap<JobId, Vec<&str>>) {
    let mut events: HashMap<JobId, Vec<String>> = HashMap::new();
    let mut short = HashSet::new();
    for event in store.next_events(10_000).await.unwrap() {
        if event.job_type == "short" {
            short.insert(event.job);
        }
        events.entry(event.job).or_default().push(event.kind);
    }
    assert_eq!(short.len(), 20);
    for (job, told) in told {
        let mut streamed = events.remove(job).unwrap_or_default();
        let mut told = told.clone();
        told.retain(|kind| !["started", "rejected"].contains(kind));
        if short.contains(job) {
            streamed.retain(|kind| kind != "locked");
            told.retain(|kind| *kind != "locked");
        }
        assert_eq!(streamed, told, "{job}");
    }
    assert_eq!(events, HashMap::new());
}

#[tokio::test]
async fn each_event_of_a_job_is_told_once_and_in_order_on_sqlite() {
    let (store, _home) = sqlite().await;
    each_event_is_told_once(store).await;
}

#[tokio::test]
async fn each_event_of_a_job_is_told_once_and_in_order_on_postgres() {
    each_event_is_told_once(database().await).await;
}

/// One listener stands still, one panics at each event. The jobs run, a third listener is told
/// everything, and what does not fit into the buffer of the first one is counted.
#[tokio::test]
async fn a_listener_that_stands_still_or_panics_stops_no_job() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let (store, _home) = sqlite().await;
    let (hold, wait) = mpsc::channel::<()>();
    let heard = Heard::default();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options())
        .handlers(handlers())
        .listener(move |_: &JobEvent| assert!(wait.recv().is_err()))
        .listener(|event: &JobEvent| {
            // Prints nothing, unlike a panic.
            if event.kind != JobEventKind::IncidentClosed {
                std::panic::resume_unwind(Box::new("as the test wants it"));
            }
        })
        .start()
        .await
        .unwrap();
    // A listener of the client alone hears of what it creates.
    let client = Client::new(store, node.hook()).listener(heard.listener());
    let timers = (0..6_000).map(|number| NewJob::of("work", &number).delay(HOUR));
    client.create_many(timers.collect()).await.unwrap();
    let jobs = (0..50).map(|number| NewJob::of("work", &number));
    let ids = client.create_many(jobs.collect()).await.unwrap();
    eventually("the jobs to be done", SOON, async || {
        let left = client.count(&JobQuery::default()).await.unwrap();
        (left == 6_000).then_some(())
    })
    .await;
    for id in ids {
        heard.until(id, "created", 1).await;
        assert_eq!(heard.names(id), ["created"]);
    }
    // 12,000 events were more than fit.
    let metrics = handle.render();
    assert!(
        metrics.contains("jobwire_events_dropped_total{reason=\"full\"}"),
        "{metrics}"
    );
    // The stop waits for it for a moment only.
    tokio::time::timeout(SOON, node.stop()).await.unwrap();
    drop(hold);
}

#[tokio::test]
async fn the_leader_tells_which_jobs_of_a_schedule_it_creates() {
    let (store, _home) = sqlite().await;
    let heard = Heard::default();
    let each_second = PeriodicJob::new("each-second", "R/PT1S", NewJob::of("work", &1));
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options())
        .handlers(handlers())
        .periodic(each_second)
        .listener(heard.listener())
        .start()
        .await
        .unwrap();
    let by_leader = eventually("a job of the schedule", SOON, async || {
        let heard = heard.0.lock().unwrap();
        let mut events = heard.iter();
        let created = events.find(|e| e.kind == JobEventKind::Created && e.node == Some(node.id()));
        created.map(|event| event.job)
    })
    .await;
    let client = Client::new(store, node.hook());
    let at_once = client.run_periodic_job("each-second").await.unwrap();
    for job in [by_leader, at_once.unwrap()] {
        heard.until(job, "succeeded", 1).await;
        assert_eq!(
            heard.names(job),
            ["created", "locked", "started", "succeeded"]
        );
    }
    node.stop().await;
}
