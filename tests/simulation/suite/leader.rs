//! The leader over the store in memory, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::store::{LockTerms, Origin, RowTerms};
use jobwire_core::{
    HandlerResult, InProcessTransport, JobId, NewJob, Node, NodeId, NodeOptions, Outcome, Running,
    Store,
};
use jobwire_simulation::simulation::{Database, Death, MemoryStore};
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

/// The task that deletes old attempts, incidents, unique keys, batches and progress runs on a node.
#[tokio::test(start_paused = true)]
async fn a_node_that_leads_deletes_old_rows_until_it_stops() {
    let store = MemoryStore::new(Database::simulated());
    let begun = Instant::now();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .start()
        .await
        .unwrap();
    sleep(Duration::from_secs(7_200)).await;
    node.stop().await;
    sleep(Duration::from_secs(7_200)).await;
    let seconds = |at: Instant| (at - begun).as_secs();
    let times: Vec<u64> = store.prunings().into_iter().map(seconds).collect();
    assert_eq!(times.len(), 2, "{times:?}");
    assert!((300..310).contains(&times[0]), "{times:?}");
    assert!((3_900..3_920).contains(&times[1]), "{times:?}");
}

/// Protocol rule 24: after the death of a node, its jobs start elsewhere within the lease, the sweep
/// interval and two seconds. So do those of the leader, whose own lease has to end first.
#[test]
fn jobs_of_a_dead_node_start_elsewhere_within_the_bound_also_if_it_led() {
    let times = [(30, 10), (60, 10), (10, 30), (6, 1), (3, 1)];
    for (lease, sweep_interval) in times {
        let (lease, sweep_interval) = (
            Duration::from_secs(lease),
            Duration::from_secs(sweep_interval),
        );
        let bound = lease + sweep_interval + Duration::from_secs(2);
        for of_the_leader in [false, true] {
            let mut takeovers = Vec::new();
            for seed in 1..=10 {
                let death = Death {
                    seed,
                    of_the_leader,
                    lease,
                    sweep_interval,
                };
                let slowest = death.takeovers().into_iter().max();
                assert!(slowest <= Some(bound), "{death:?}: {slowest:?}");
                takeovers.extend(slowest);
            }
            let slowest = takeovers.iter().max();
            println!(
                "lease {lease:?}, sweep {sweep_interval:?}, leader {of_the_leader}: {slowest:?}"
            );
            assert!(takeovers.len() >= 5, "too few nodes held a job");
        }
    }
}
