//! Floods and storms: one tenant that creates far more than the others, and very many timers that
//! are due within one second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::{
    Client, CommitHook, HandlerOptions, HookOptions, InProcessTransport, JobId, LaneRule,
    LaneShare, Limit, NewJob, Node, NodeOptions, Outcome, Running, Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::wait::patience;
use jobwire_harness::world::{Notes, SOON, quick};
use tokio::sync::Semaphore;

use super::bed::Bed;
use super::world::{SqlBench, World};

fn hook(transport: &InProcessTransport) -> CommitHook {
    CommitHook::start(transport.publisher(), HookOptions::default())
}

/// The loud tenant has a lane of its own, by a rule. Its backlog is ten times that of the others
/// together, and older.
pub(super) async fn a_flood_of_one_tenant_leaves_the_others_their_share<S: SqlBench>(w: &World<S>) {
    const QUIET: [&str; 3] = ["a", "b", "c"];
    const EACH: usize = 50;
    let rules = [LaneRule::to("flood").tenant("loud")];
    w.store.set_lane_rules(&rules).await.unwrap();
    let transport = InProcessTransport::new();
    let hook = hook(&transport);
    let client = Client::new(w.store.clone(), hook.clone());
    let of = |tenant: &str| NewJob::of("note", tenant).tenant(tenant);
    let flood = (0..QUIET.len() * EACH * 10).map(|_| of("loud"));
    client.create_many(flood.collect()).await.unwrap();
    for tenant in QUIET {
        let jobs = (0..EACH).map(|_| of(tenant)).collect();
        client.create_many(jobs).await.unwrap();
    }
    eventually("the hints to be published", SOON, async || {
        (hook.buffered() == 0).then_some(())
    })
    .await;
    let notes = Notes::default();
    let noting = {
        let notes = notes.clone();
        move |job: Running<String>| {
            notes.add(job.payload);
            async { Ok(Outcome::Done) }
        }
    };
    let lanes = vec![LaneShare::new("flood", 1), LaneShare::new("default", 3)];
    let node = Node::builder(w.store.clone(), Arc::new(transport))
        .options(quick().concurrency(4).lanes(lanes))
        .hook(hook)
        .handler("note", noting)
        .start()
        .await
        .unwrap();
    let count = |starts: &[String], tenant: &str| starts.iter().filter(|s| *s == tenant).count();
    let starts = eventually("the jobs of the others", SOON, async || {
        let starts = notes.all();
        let quiet = QUIET.iter().all(|tenant| count(&starts, tenant) == EACH);
        quiet.then_some(starts)
    })
    .await;
    let last = starts.iter().rposition(|s| s != "loud").unwrap();
    let loud = count(&starts[..last], "loud");
    // Three of four starts are theirs, so 50 of the flood start meanwhile; without lanes all 1,500.
    assert!((30..=120).contains(&loud), "{loud} jobs of the flood");
    node.stop().await;
}

/// All tenants are in one lane, and each may run two jobs at once. The flood is older, and its jobs
/// wait for a gate: the others start and end before the first of the flood ends.
pub(super) async fn a_flood_under_a_limit_holds_up_no_other_tenant_of_its_lane<S: SqlBench>(
    w: &World<S>,
) {
    const QUIET: [&str; 2] = ["a", "b"];
    const EACH: usize = 10;
    const FLOOD: usize = 200;
    let bed = Bed::new(w);
    let of = |tenant: &str| NewJob::of("note", tenant).tenant(tenant);
    bed.create((0..FLOOD).map(|_| of("loud")).collect()).await;
    for tenant in QUIET {
        bed.create((0..EACH).map(|_| of(tenant)).collect()).await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let noting = {
        let (notes, gate) = (bed.notes.clone(), gate.clone());
        let (now, most) = (now.clone(), most.clone());
        move |job: Running<String>| {
            let (notes, gate) = (notes.clone(), gate.clone());
            let (now, most) = (now.clone(), most.clone());
            async move {
                if job.payload == "loud" {
                    let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(running, Ordering::SeqCst);
                    gate.acquire().await?.forget();
                    now.fetch_sub(1, Ordering::SeqCst);
                }
                notes.add(job.payload);
                Ok(Outcome::Done)
            }
        }
    };
    let limited = HandlerOptions::default().limit(Limit::running(2).per_tenant());
    let node = bed
        .node(quick().concurrency(4))
        .handler_with("note", limited, noting)
        .start()
        .await
        .unwrap();
    let others = QUIET.len() * EACH;
    let ended = bed.notes.until(others).await;
    assert!(ended.iter().all(|tenant| tenant != "loud"), "{ended:?}");
    // The flood came first, and has all that its limit gives.
    assert_eq!(now.load(Ordering::SeqCst), 2);
    gate.add_permits(FLOOD);
    bed.until_left(0).await;
    assert_eq!(bed.notes.all().len(), FLOOD + others);
    assert_eq!(most.load(Ordering::SeqCst), 2);
    node.stop().await;
    assert_eq!(w.rows("permit").await, 0);
}

/// All tenants share two permits. While a hundred jobs of one of them wait, each job of another has the
/// next turn but one.
pub(super) async fn a_flood_under_a_fair_limit_leaves_the_other_tenants_their_turns<S: SqlBench>(
    w: &World<S>,
) {
    const QUIET: [&str; 2] = ["a", "b"];
    const FLOOD: usize = 100;
    let bed = Bed::new(w);
    let of = |tenant: &str| NewJob::of("note", tenant).tenant(tenant);
    bed.create((0..FLOOD).map(|_| of("loud")).collect()).await;
    let gate = Arc::new(Semaphore::new(0));
    let noting = {
        let (notes, gate) = (bed.notes.clone(), gate.clone());
        move |job: Running<String>| {
            let (notes, gate) = (notes.clone(), gate.clone());
            async move {
                gate.acquire().await?.forget();
                notes.add(job.payload);
                Ok(Outcome::Done)
            }
        }
    };
    let fair = HandlerOptions::default().limit(Limit::running(2).fair_per_tenant());
    let node = bed
        .node(quick().concurrency(4))
        .handler_with("note", fair, noting)
        .start()
        .await
        .unwrap();
    let waiting = async |jobs: i64| {
        eventually("jobs that wait", SOON, async || {
            (w.rows("waiting_job").await == jobs).then_some(())
        })
        .await;
    };
    let of_flood = i64::try_from(FLOOD).unwrap() - 2;
    waiting(of_flood).await;
    bed.create(QUIET.map(of).into()).await;
    waiting(of_flood + i64::try_from(QUIET.len()).unwrap()).await;
    // Two run already, one of the flood has a turn before those that came late, and another one starts
    // beside the last of them.
    let soon = 2 + 1 + QUIET.len() + 1;
    gate.add_permits(soon);
    let ended = bed.notes.until(soon).await;
    for tenant in QUIET {
        assert!(ended.iter().any(|of| of == tenant), "{tenant}: {ended:?}");
    }
    gate.add_permits(FLOOD);
    bed.until_left(0).await;
    node.stop().await;
    assert_eq!(w.rows("permit").await, 0);
}

/// The jobs of a limit of one wait for it, and then other jobs fill their lane. Each of them starts as
/// soon as the one before has ended.
pub(super) async fn woken_jobs_do_not_queue_behind_the_backlog_of_their_lane<S: SqlBench>(
    w: &World<S>,
) {
    const LIMITED: usize = 8;
    const BACKLOG: usize = 600;
    let bed = Bed::new(w);
    let gate = Arc::new(Semaphore::new(0));
    let noting = {
        let (notes, gate) = (bed.notes.clone(), gate.clone());
        move |job: Running<String>| {
            let (notes, gate) = (notes.clone(), gate.clone());
            async move {
                gate.acquire().await?.forget();
                notes.add(job.payload);
                Ok(Outcome::Done)
            }
        }
    };
    let other = {
        let notes = bed.notes.clone();
        move |job: Running<String>| {
            let notes = notes.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(40)).await;
                notes.add(job.payload);
                Ok(Outcome::Done)
            }
        }
    };
    let one = HandlerOptions::default().limit(Limit::running(1));
    let node = bed
        .node(quick().concurrency(4))
        .handler_with("limited", one, noting)
        .handler("other", other)
        .start()
        .await
        .unwrap();
    let limited = (0..LIMITED).map(|_| NewJob::of("limited", "limited"));
    bed.create(limited.collect()).await;
    eventually("jobs that wait", SOON, async || {
        let waiting = i64::try_from(LIMITED).unwrap() - 1;
        (w.rows("waiting_job").await == waiting).then_some(())
    })
    .await;
    let others = (0..BACKLOG).map(|_| NewJob::of("other", "other"));
    bed.create(others.collect()).await;
    gate.add_permits(LIMITED);
    bed.until_left(0).await;
    let ended = bed.notes.all();
    let last = ended.iter().rposition(|of| of == "limited").unwrap();
    assert!(
        last < BACKLOG / 2,
        "the last limited job ended as number {last}"
    );
    node.stop().await;
}

/// What became of a storm: how late each job started.
struct Storm {
    late: Vec<Duration>,
}

impl Storm {
    fn percentile(&self, percent: usize) -> Duration {
        self.late[(self.late.len() - 1) * percent / 100]
    }
}

/// Creates timers that are due within one second after `lead`, and runs them on one node. Asserts
/// that none starts before its date, and none twice.
async fn storm<S: SqlBench>(w: &World<S>, timers: usize, lead: Duration) -> Storm {
    type Starts = Arc<Mutex<HashMap<JobId, Vec<(DateTime<Utc>, DateTime<Utc>)>>>>;
    let transport = InProcessTransport::new();
    let hook = hook(&transport);
    let client = Client::new(w.store.clone(), hook.clone());
    let begin = Utc::now() + lead;
    for part in (0..timers).collect::<Vec<_>>().chunks(5_000) {
        let jobs = part.iter().map(|number| {
            let within = Duration::from_secs(1).mul_f64(*number as f64 / timers as f64);
            NewJob::of("timer", number).due(begin + within)
        });
        client.create_many(jobs.collect()).await.unwrap();
    }
    assert!(Utc::now() < begin, "the timers were due before all existed");
    let starts = Starts::default();
    let noting = {
        let starts = starts.clone();
        move |job: Running<usize>| {
            let now = Utc::now();
            let due = job.job.due_at.unwrap_or(DateTime::<Utc>::MAX_UTC);
            let mut starts = starts.lock().unwrap();
            starts.entry(job.job.id).or_default().push((due, now));
            async { Ok(Outcome::Done) }
        }
    };
    let options: NodeOptions = quick().concurrency(1_024);
    let node = Node::builder(w.store.clone(), Arc::new(transport))
        .options(options)
        .hook(hook)
        .handler("timer", noting)
        .start()
        .await
        .unwrap();
    eventually("every timer", lead + SOON, async || {
        (starts.lock().unwrap().len() == timers).then_some(())
    })
    .await;
    eventually("every completion", SOON, async || {
        (w.rows("job").await + w.rows("timer_job").await == 0).then_some(())
    })
    .await;
    node.stop().await;
    let starts = starts.lock().unwrap();
    let mut late = Vec::with_capacity(timers);
    for (id, of) in starts.iter() {
        let [(due, started)] = of[..] else {
            panic!("job {id} started {} times", of.len());
        };
        let by = (started - due).to_std();
        late.push(by.unwrap_or_else(|_| panic!("job {id} started at {started}, due at {due}")));
    }
    late.sort_unstable();
    Storm { late }
}

pub(super) async fn timers_of_one_second_start_once_and_none_early<S: SqlBench>(w: &World<S>) {
    let storm = storm(w, 2_000, Duration::from_secs(8)).await;
    assert_eq!(storm.late.len(), 2_000);
    let (last, within) = (storm.percentile(100), patience(Duration::from_secs(5)));
    assert!(last <= within, "the last one after {last:?}");
}

/// The long form, with 100,000 timers: each starts within this time of its date.
async fn hundred_thousand<S: SqlBench>(w: &World<S>, within: Duration) {
    let storm = storm(w, 100_000, Duration::from_secs(60)).await;
    let [half, most, last] = [50, 99, 100].map(|percent| storm.percentile(percent));
    println!(
        "100,000 timers due in one second, on {}: half within {half:?}, 99 % within {most:?}, the \
         last after {last:?}",
        w.store.name()
    );
    assert!(last <= within, "the last one after {last:?}");
}

mod long {
    use std::time::Duration;

    use super::{World, hundred_thousand};

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes two minutes; asserts a time, so it needs a machine without other work"]
    async fn a_storm_of_timers_starts_within_five_seconds_on_postgres() {
        let world = World::<jobwire_core::PgStore>::open().await;
        hundred_thousand(&world, Duration::from_secs(5)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes two minutes; asserts a time, so it needs a machine without other work"]
    async fn a_storm_of_timers_starts_within_ten_seconds_on_sqlite() {
        let world = World::<jobwire_core::SqliteStore>::open().await;
        hundred_thousand(&world, Duration::from_secs(10)).await;
    }
}
