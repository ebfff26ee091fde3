//! The order in which a node starts the jobs whose hints it holds.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use jobwire_core::{
    Client, CommitHook, HookOptions, InProcessTransport, JobId, NewJob, Node, Outcome, Running,
    StartOrder, Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{Notes, SOON, quick};
use tokio::sync::Semaphore;

use super::world::{SqlBench, World, node, work};

pub(super) async fn the_rank_of_a_job_is_that_of_its_row<S: SqlBench>(w: &World<S>) {
    let ago = |seconds| Utc::now() - Duration::from_secs(seconds);
    let later = Utc::now() + Duration::from_secs(3_600);
    let due = ago(3_600);
    let hints = w
        .ready(vec![
            work().priority(7),
            work().due(due),
            work().repeat_text("R/PT1H"),
        ])
        .await;
    let waits = work().due(later);
    let not_ready = waits.id();
    w.create(vec![waits]).await;
    let mut asked: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    asked.extend([not_ready, JobId::generate()]);
    let ranks = w.store.ranks(&asked).await.unwrap().expect("ranks");
    let of = |at: usize| {
        let mut found = ranks.iter().filter(|(id, _)| *id == asked[at]);
        found.next().map(|(_, rank)| *rank)
    };
    assert_eq!(ranks.len(), 3, "neither timers nor gone jobs: {ranks:?}");
    let plain = of(0).unwrap();
    assert_eq!((plain.priority, plain.timer), (7, false));
    // Without a due date, since it became ready.
    let ready = w.view(asked[0]).await.unwrap().ready_at;
    assert_eq!(plain.due_at, ready);
    let dated = of(1).unwrap();
    assert_eq!(dated.due_at.timestamp_micros(), due.timestamp_micros());
    assert!(of(2).unwrap().timer);
    // A locked job has a rank like any other; the lock will refuse its hint.
    w.hold(node(), &hints[0]).await;
    assert_eq!(w.store.ranks(&asked).await.unwrap().unwrap().len(), 3);
    assert_eq!(w.store.ranks(&[]).await.unwrap(), Some(Vec::new()));
}

/// The slots of the node, which then holds twice as many hints.
const SLOTS: usize = 4;

/// Holds every slot, creates jobs in this order, frees one slot after the other, and returns the
/// order of their starts.
async fn starts<S: SqlBench>(w: &World<S>, order: StartOrder, jobs: Vec<NewJob>) -> Vec<String> {
    assert!(jobs.len() <= 2 * SLOTS);
    let transport = InProcessTransport::new();
    let hook = CommitHook::start(transport.publisher(), HookOptions::default());
    let client = Client::new(w.store.clone(), hook.clone());
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let noting = {
        let (notes, gate) = (notes.clone(), gate.clone());
        move |job: Running<String>| {
            let (notes, gate) = (notes.clone(), gate.clone());
            async move {
                notes.add(job.payload.clone());
                gate.acquire().await?.forget();
                Ok(Outcome::Done)
            }
        }
    };
    let node = Node::builder(w.store.clone(), Arc::new(transport))
        .options(quick().concurrency(SLOTS).start_order(order))
        .hook(hook.clone())
        .handler("note", noting)
        .start()
        .await
        .unwrap();
    let create = async |jobs: Vec<NewJob>| {
        let mut tx = client.begin().await.unwrap();
        tx.create_many(jobs).await.unwrap();
        tx.commit().await.unwrap();
        eventually("the hints to be published", SOON, async || {
            (hook.buffered() == 0).then_some(())
        })
        .await;
    };
    create((0..SLOTS).map(|_| NewJob::of("note", "plug")).collect()).await;
    notes.until(SLOTS).await;
    let count = jobs.len();
    create(jobs).await;
    for started in 1..=count {
        gate.add_permits(1);
        notes.until(SLOTS + started).await;
    }
    gate.add_permits(SLOTS);
    node.stop().await;
    notes.all().split_off(SLOTS)
}

pub(super) async fn jobs_start_in_camundas_order_of_preferences<S: SqlBench>(w: &World<S>) {
    let named = |name: &str| NewJob::of("note", name);
    let ago = |seconds| Utc::now() - Duration::from_secs(seconds);
    // A job with a due date is a timer.
    let jobs = || {
        vec![
            named("plain"),
            named("old").due(ago(7_200)),
            named("young").due(ago(60)),
            named("urgent").priority(9),
            named("urgent-old").priority(9).due(ago(3_600)),
        ]
    };
    let arrival = StartOrder::default();
    let expected = [
        (arrival, ["plain", "old", "young", "urgent", "urgent-old"]),
        (
            arrival.by_priority(),
            ["urgent", "urgent-old", "plain", "old", "young"],
        ),
        (
            arrival.by_due_date(),
            ["old", "urgent-old", "young", "plain", "urgent"],
        ),
        (
            arrival.timers_first(),
            ["old", "young", "urgent-old", "plain", "urgent"],
        ),
        (
            arrival.by_priority().timers_first().by_due_date(),
            ["urgent-old", "urgent", "old", "young", "plain"],
        ),
    ];
    for (order, names) in expected {
        // On a slow machine a slot may be free before the node has all hints. A wrong order stays
        // wrong.
        let mut started = Vec::new();
        for _ in 0..5 {
            started = starts(w, order, jobs()).await;
            if started == names {
                break;
            }
        }
        assert_eq!(started, names, "{order}");
    }
}
