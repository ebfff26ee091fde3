//! The leader over the store in memory, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::store::{LockTerms, Origin, RowTerms};
use jobwire_core::{
    HandlerResult, InProcessTransport, JobId, NewJob, Node, NodeId, NodeOptions, Outcome, Running,
    Store,
};
use jobwire_simulation::simulation::{Database, MemoryStore};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// The time between the lock of the job and the end of its lease.
const HELD: Duration = Duration::from_secs(65);
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets a node lock a job and die. Returns how long after the lock another node starts the job. The
/// leader cycle that would end the lease takes effect `late`.
async fn takeover(late: Duration) -> Duration {
    let store = MemoryStore::new(Database::simulated());
    let (starts, mut started) = mpsc::unbounded_channel();
    let run = move |_: Running<i64>| {
        let _ = starts.send(Instant::now());
        std::future::ready(HandlerResult::Ok(Outcome::Done))
    };
    let options = NodeOptions::default()
        .lease(Duration::from_secs(30))
        .sweep_interval(INTERVAL);
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options)
        .handler("work", run)
        .start()
        .await
        .unwrap();
    // The next leader cycle finds the job, and those that follow are one interval apart.
    let begun = Instant::now();
    let job = NewJob::of("work", &17);
    let id: JobId = job.id();
    store.database().create(vec![job], Origin::Hook).unwrap();
    let terms = LockTerms {
        owner: NodeId::generate(),
        lease: HELD,
        types: vec!["work".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    let locked = store.lock(&terms, &[Hint::new(id)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1);
    // The lease ends between two cycles.
    sleep(HELD + Duration::from_millis(100)).await;
    assert!(started.try_recv().is_err());
    store.delay_next_cycle(late);
    let at = started.recv().await.unwrap();
    node.stop().await;
    at - begun
}

/// Protocol rule 24: neither an outage nor a jump of the clock.
#[tokio::test(start_paused = true)]
async fn a_late_leader_cycle_costs_no_interval() {
    for late in [0, 1_500, 3_000] {
        let late = Duration::from_millis(late);
        let passed = takeover(late).await;
        println!("{late:?}: {passed:?}");
        assert!(passed >= HELD, "{passed:?}");
        assert!(
            passed <= HELD + INTERVAL + late + Duration::from_millis(500),
            "{late:?}: {passed:?}"
        );
    }
}
