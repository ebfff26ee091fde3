//! A fleet without a broker: PostgreSQL wakes the nodes, and they claim.
//!
//! The nodes of these tests have intervals of an hour, except where an interval is tested. So what
//! runs before was woken, and no test waits for time to pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::transport::{Control, Publisher, Subscription, Transport};
use jobwire_core::{
    Client, CommitHook, Elastic, HandlerError, HandlerOptions, JobId, JobQuery, Lane, LaneOrder,
    LaneShare, NewJob, Node, NodeId, NodeOptions, Outcome, PgOptions, PgStore, PgTransport,
    RetryPolicy, Running, StartOrder, Store,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{Notes, SOON, database, hook, pass, quick};
use tokio::sync::Semaphore;

const HOUR: Duration = Duration::from_secs(3_600);

/// Options of a node that looks for nothing by itself.
fn woken() -> NodeOptions {
    let mut options = quick();
    (options.lease, options.sweep_interval) = (HOUR, HOUR);
    options.claim_interval = HOUR;
    options.hook.max_age = Duration::from_secs(10);
    options.suspect_after = Duration::from_secs(10);
    options
}

/// How often each job has run.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Ran {
    fn note(&self, job: u64) -> u32 {
        let mut ran = self.0.lock().unwrap();
        let times = ran.entry(job).or_default();
        *times += 1;
        *times
    }

    fn times(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }
}

/// A database, and a creator in a process of its own: it shares no transport with a node.
struct Fleet {
    store: PgStore,
    jobs: Client<PgStore>,
    /// Keeps the creator's connection open.
    _creator: PgTransport,
    ran: Ran,
    nodes: Vec<Node>,
}

impl Fleet {
    async fn new() -> Self {
        let store = database().await;
        let creator = PgTransport::new(&store);
        // The first hints must not meet a connection that is still being opened.
        eventually("the creator's connection", SOON, || async {
            creator.health().publishing.then_some(())
        })
        .await;
        let jobs = store.client(hook(&creator, Duration::from_secs(60)));
        Self {
            store,
            jobs,
            _creator: creator,
            ran: Ran::default(),
            nodes: Vec::new(),
        }
    }

    /// Starts a node, and waits until it listens.
    async fn start(&mut self, options: NodeOptions) -> PgTransport {
        let transport = PgTransport::new(&self.store);
        self.start_on(transport.clone(), options).await;
        eventually("the node to listen", SOON, || async {
            transport.health().receiving.then_some(())
        })
        .await;
        transport
    }

    async fn start_on(&mut self, transport: PgTransport, options: NodeOptions) {
        let ran = self.ran.clone();
        let node = Node::builder(self.store.clone(), Arc::new(transport))
            .options(options)
            .handler("note", move |job: Running<u64>| {
                let ran = ran.clone();
                async move {
                    ran.note(job.payload);
                    Ok::<_, HandlerError>(Outcome::Done)
                }
            });
        self.nodes.push(node.start().await.unwrap());
    }

    async fn until_empty(&self) {
        eventually("all jobs to be done", SOON, || async {
            let left = self.store.count(&JobQuery::default()).await.ok()?;
            (left == 0).then_some(())
        })
        .await;
    }

    /// Ends the sessions that carry wakes, of the creator and of all nodes. Returns their number.
    async fn cut(&self) -> i64 {
        sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'jobwire wakes'",
        )
        .fetch_one(self.store.pool())
        .await
        .unwrap()
    }

    async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

/// Returns a transport that never connects, since nothing listens at its address.
fn nowhere() -> PgTransport {
    let options = PgOptions::default();
    PgTransport::of_url("postgres://me@127.0.0.1:1/nowhere", &options).unwrap()
}

fn once(jobs: u64) -> BTreeMap<u64, u32> {
    (0..jobs).map(|job| (job, 1)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_another_process_wake_the_nodes_and_run_once() {
    let mut fleet = Fleet::new().await;
    for _ in 0..3 {
        // Fewer slots than jobs: a node continues when a slot is free.
        fleet.start(woken().concurrency(4)).await;
    }
    for job in 0..100_u64 {
        fleet.jobs.create(NewJob::of("note", &job)).await.unwrap();
    }
    let more = (100..600_u64).map(|job| NewJob::of("note", &job));
    fleet.jobs.create_many(more.collect()).await.unwrap();
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(600));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_job_starts_soon_on_an_idle_node() {
    let mut fleet = Fleet::new().await;
    fleet.start(woken()).await;
    let mut took = Vec::new();
    for job in 0..20_u64 {
        let began = std::time::Instant::now();
        fleet.jobs.create(NewJob::of("note", &job)).await.unwrap();
        while !fleet.ran.times().contains_key(&job) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took.push(began.elapsed());
    }
    took.sort();
    println!(
        "from the call that creates a lone job to its start: {:?} in the median",
        took[10]
    );
    // A busy machine takes a tenth of a second, and a node that was not woken an hour.
    assert!(took[10] < Duration::from_secs(2), "{took:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_creates_a_job_and_ends_wakes_a_node() {
    let mut fleet = Fleet::new().await;
    fleet.start(woken()).await;
    // Nothing waits for the connection, which is still being opened.
    let transport = PgTransport::new(&fleet.store);
    let hook = hook(&transport, Duration::from_secs(10));
    let jobs = fleet.store.client(hook.clone());
    jobs.create(NewJob::of("note", &0_u64)).await.unwrap();
    hook.close(SOON).await;
    transport.close(SOON).await;
    fleet.until_empty().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_the_own_process_starts_while_the_connection_is_lost() {
    let mut fleet = Fleet::new().await;
    let nowhere = nowhere();
    let mut options = woken();
    // The node waits for its hints when it stops.
    options.hook.max_age = Duration::from_secs(1);
    fleet.start_on(nowhere.clone(), options).await;
    let own = fleet.store.client(fleet.nodes[0].hook());
    own.create(NewJob::of("note", &0_u64)).await.unwrap();
    fleet.until_empty().await;
    let health = eventually("the reason to be known", SOON, || async {
        let health = fleet.nodes[0].health();
        let problem = health.problems.get("transport")?;
        problem.contains("can't be reached").then_some(health)
    })
    .await;
    let problem = &health.problems["transport"];
    assert!(
        !health.ready && problem.contains("can't be reached"),
        "{problem}"
    );
    assert!(nowhere.comes_back(Duration::from_millis(10)).await.is_err());
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_lose_no_job_and_run_none_twice() {
    let mut fleet = Fleet::new().await;
    for _ in 0..2 {
        fleet.start(woken()).await;
    }
    let mut cut = 0;
    for job in 0..300_u64 {
        fleet.jobs.create(NewJob::of("note", &job)).await.unwrap();
        if job % 30 == 0 {
            cut += eventually("a connection to cut", SOON, || async {
                Some(fleet.cut().await).filter(|cut| *cut > 0)
            })
            .await;
        }
    }
    assert!(cut >= 10, "{cut} connections were cut");
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(300));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_wake_costs_one_claim_interval() {
    let mut fleet = Fleet::new().await;
    fleet
        .start(woken().claim_interval(Duration::from_millis(300)))
        .await;
    fleet.start(woken()).await;
    // The jobs count as hinted, and no wake leaves.
    let silent = fleet.store.client(CommitHook::disconnected());
    for job in 0..5_u64 {
        silent.create(NewJob::of("note", &job)).await.unwrap();
    }
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(5));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_plain_sql_wait_for_one_claim_interval() {
    let mut fleet = Fleet::new().await;
    fleet
        .start(woken().claim_interval(Duration::from_millis(300)))
        .await;
    for job in 0..3 {
        sqlx::query("SELECT jobwire.create_job('note', $1::jsonb)")
            .bind(job.to_string())
            .execute(fleet.store.pool())
            .await
            .unwrap();
    }
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(3));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hears_no_leader_claims_at_its_interval() {
    let mut fleet = Fleet::new().await;
    let elsewhere = Lane::new("elsewhere").unwrap();
    fleet.start(woken().lanes(vec![elsewhere.into()])).await;
    // The leader is the first node, and no message of it arrives here.
    let nowhere = nowhere();
    let deaf = woken().claim_interval(Duration::from_millis(200));
    fleet.start_on(nowhere, deaf).await;
    fleet.jobs.create(NewJob::of("note", &0_u64)).await.unwrap();
    fleet.until_empty().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_looks_for_timers_that_were_set_while_it_heard_nothing() {
    let mut fleet = Fleet::new().await;
    fleet.start(woken()).await;
    let leads = async || fleet.nodes[0].health().leads.then_some(());
    eventually("the node to lead", SOON, leads).await;
    // No message tells of these timers.
    let silent = fleet.store.client(CommitHook::disconnected());
    let mut jobs = 0;
    // The first session, too, lets the leader look, and may find the first ones.
    while jobs < 10 && fleet.ran.times() == once(jobs) {
        let due = chrono::Utc::now() + Duration::from_millis(500);
        let later = NewJob::of("note", &jobs).due(due);
        silent.create(later).await.unwrap();
        jobs += 1;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(
        fleet.ran.times(),
        once(jobs - 1),
        "timers were found by themselves"
    );
    // The next session shows that messages may have been lost.
    fleet.cut().await;
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(jobs));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_of_the_own_process_is_on_time_while_the_connection_is_lost() {
    let mut fleet = Fleet::new().await;
    let nowhere = nowhere();
    let mut options = woken();
    options.hook.max_age = Duration::from_secs(1);
    fleet.start_on(nowhere.clone(), options).await;
    eventually("the first session to fail", SOON, || async {
        (fleet.nodes[0].health().leads && !nowhere.health().publishing).then_some(())
    })
    .await;
    let own = fleet.store.client(fleet.nodes[0].hook());
    let due = chrono::Utc::now() + Duration::from_millis(200);
    let later = NewJob::of("note", &0_u64).due(due);
    own.create(later).await.unwrap();
    fleet.until_empty().await;
    fleet.stop().await;
}

/// Only the creator knows of the timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_whose_creator_has_just_lost_its_connection_is_on_time() {
    let mut fleet = Fleet::new().await;
    let creators: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'jobwire wakes'",
    )
    .fetch_all(fleet.store.pool())
    .await
    .unwrap();
    fleet.start(woken()).await;
    eventually("the node to lead", SOON, || async {
        fleet.nodes[0].health().leads.then_some(())
    })
    .await;
    // The leader looks by itself when its session is new.
    pass(Duration::from_secs(3)).await;
    for creator in creators {
        sqlx::query("SELECT pg_terminate_backend($1)")
            .bind(creator)
            .execute(fleet.store.pool())
            .await
            .unwrap();
    }
    let due = chrono::Utc::now() + Duration::from_millis(200);
    let later = NewJob::of("note", &0_u64).due(due);
    fleet.jobs.create(later).await.unwrap();
    fleet.until_empty().await;
    assert_eq!(fleet.ran.times(), once(1));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_sets_a_timer_and_ends_tells_the_leader() {
    let mut fleet = Fleet::new().await;
    fleet.start(woken()).await;
    eventually("the node to lead", SOON, async || {
        fleet.nodes[0].health().leads.then_some(())
    })
    .await;
    let transport = PgTransport::new(&fleet.store);
    let hook = hook(&transport, Duration::from_secs(10));
    let due = chrono::Utc::now() + Duration::from_millis(200);
    let later = NewJob::of("note", &0_u64).due(due);
    fleet
        .store
        .client(hook.clone())
        .create(later)
        .await
        .unwrap();
    hook.close(SOON).await;
    transport.close(SOON).await;
    fleet.until_empty().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_retries_and_siblings_wake_the_nodes() {
    let mut fleet = Fleet::new().await;
    let transport = PgTransport::new(&fleet.store);
    let ran = fleet.ran.clone();
    let node = Node::builder(fleet.store.clone(), Arc::new(transport.clone()))
        .options(woken().retry(RetryPolicy::fixed(Duration::from_millis(50))))
        .handler("fails first", move |job: Running<u64>| {
            let times = ran.note(job.payload);
            async move {
                if times < 3 {
                    return Err(HandlerError::retry("not yet"));
                }
                Ok(Outcome::Done)
            }
        });
    fleet.nodes.push(node.start().await.unwrap());
    eventually("the node to listen", SOON, || async {
        transport.health().receiving.then_some(())
    })
    .await;
    fleet.start(woken()).await;
    let job = |n: u64| NewJob::of("fails first", &n);
    fleet.jobs.create(job(0)).await.unwrap();
    let due = chrono::Utc::now() + Duration::from_millis(200);
    let later = NewJob::of("note", &1_u64).due(due);
    fleet.jobs.create(later).await.unwrap();
    let siblings = (2..8_u64).map(|n| NewJob::of("note", &n).instance("one"));
    fleet.jobs.create_many(siblings.collect()).await.unwrap();
    fleet.until_empty().await;
    let mut expected = once(8);
    expected.insert(0, 3);
    assert_eq!(fleet.ran.times(), expected);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_free_slot_leaves_the_jobs_to_others() {
    let mut fleet = Fleet::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let (of_job, store) = (gate.clone(), fleet.store.clone());
    let ran = fleet.ran.clone();
    let full = Node::builder(store, Arc::new(PgTransport::new(&fleet.store)))
        .options(woken().concurrency(1))
        .handler("holds", move |_: Running<()>| {
            let gate = of_job.clone();
            async move {
                let _ = gate.acquire().await;
                Ok::<_, HandlerError>(Outcome::Done)
            }
        })
        .handler("note", move |job: Running<u64>| {
            // A number that the test does not expect.
            ran.note(1_000 + job.payload);
            async { Ok::<_, HandlerError>(Outcome::Done) }
        });
    fleet.nodes.push(full.start().await.unwrap());
    fleet.jobs.create(NewJob::of("holds", &())).await.unwrap();
    eventually("the slot to be taken", SOON, || async {
        (fleet.nodes[0].health().in_flight == 1).then_some(())
    })
    .await;
    fleet.start(woken()).await;
    for job in 0..20_u64 {
        fleet.jobs.create(NewJob::of("note", &job)).await.unwrap();
    }
    eventually("the other node to run them", SOON, || async {
        (fleet.ran.times() == once(20)).then_some(())
    })
    .await;
    gate.add_permits(1);
    fleet.until_empty().await;
    fleet.stop().await;
}

/// A node that has claimed all that waits needs no more slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_elastic_node_shrinks_when_no_job_waits() {
    const MOST: usize = 6;
    let mut fleet = Fleet::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let of_job = gate.clone();
    let elastic = Elastic::from_min(1)
        .idle_after(Duration::from_secs(1))
        .cpu_below(100);
    let node = Node::builder(
        fleet.store.clone(),
        Arc::new(PgTransport::new(&fleet.store)),
    )
    .options(woken().concurrency(MOST).elastic(Some(elastic)))
    .handler("holds", move |_: Running<()>| {
        let gate = of_job.clone();
        async move {
            gate.acquire().await?.forget();
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    fleet.nodes.push(node.start().await.unwrap());
    let flood = || (0..4 * MOST).map(|_| NewJob::of("holds", &())).collect();
    fleet.jobs.create_many(flood()).await.unwrap();
    eventually("all slots to be taken", SOON, async || {
        (fleet.nodes[0].health().in_flight == MOST).then_some(())
    })
    .await;
    gate.add_permits(4 * MOST);
    fleet.until_empty().await;
    // It looks at its slots once a second.
    pass(Duration::from_secs(5)).await;
    fleet.jobs.create_many(flood()).await.unwrap();
    eventually("the first job", SOON, async || {
        (fleet.nodes[0].health().in_flight > 0).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let at_once = fleet.nodes[0].health().in_flight;
    assert!(at_once < MOST, "{at_once} jobs at once");
    gate.add_permits(4 * MOST);
    fleet.until_empty().await;
    fleet.stop().await;
}

/// `jobwire doctor` remarks a start order beside wakes for this reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn woken_nodes_start_jobs_in_creation_order_whatever_their_start_order() {
    let mut fleet = Fleet::new().await;
    let (gate, notes) = (Arc::new(Semaphore::new(0)), Notes::default());
    let (of_job, starts) = (gate.clone(), notes.clone());
    let order = StartOrder::default().by_priority().by_due_date();
    let node = Node::builder(
        fleet.store.clone(),
        Arc::new(PgTransport::new(&fleet.store)),
    )
    .options(woken().concurrency(1).start_order(order))
    .handler("note", move |job: Running<String>| {
        let gate = of_job.clone();
        starts.add(job.payload);
        async move {
            gate.acquire().await?.forget();
            Ok::<_, HandlerError>(Outcome::Done)
        }
    });
    fleet.nodes.push(node.start().await.unwrap());
    let note = |name: &str| NewJob::of("note", name);
    fleet.jobs.create(note("plug")).await.unwrap();
    notes.until(1).await;
    let jobs = [("low", 1), ("high", 9), ("middle", 5)];
    let jobs = jobs.map(|(name, priority)| note(name).priority(priority));
    fleet.jobs.create_many(jobs.into()).await.unwrap();
    gate.add_permits(4);
    fleet.until_empty().await;
    assert_eq!(notes.all(), ["plug", "low", "high", "middle"]);
    fleet.stop().await;
}

/// How many jobs of a type run, and the most that ever did.
#[derive(Clone, Default)]
struct AtOnce(Arc<Mutex<(usize, usize)>>);

impl AtOnce {
    fn begin(&self) {
        let mut at_once = self.0.lock().unwrap();
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
    }

    fn end(&self) {
        self.0.lock().unwrap().0 -= 1;
    }

    fn most(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

impl Fleet {
    /// Starts a node of eight slots that runs one job of the type `narrow` at once.
    async fn start_narrow(&mut self, gate: &Arc<Semaphore>) -> AtOnce {
        let at_once = AtOnce::default();
        let (counted, gate) = (at_once.clone(), gate.clone());
        let (ran, noted) = (self.ran.clone(), self.ran.clone());
        let narrow = HandlerOptions::default().concurrency(1);
        let transport = Arc::new(PgTransport::new(&self.store));
        let node = Node::builder(self.store.clone(), transport)
            .options(woken().concurrency(8))
            .handler_with("narrow", narrow, move |job: Running<u64>| {
                let (ran, counted, gate) = (ran.clone(), counted.clone(), gate.clone());
                async move {
                    counted.begin();
                    ran.note(job.payload);
                    let open = gate.acquire().await;
                    counted.end();
                    open.map_err(HandlerError::from)?.forget();
                    Ok(Outcome::Done)
                }
            })
            .handler("note", move |job: Running<u64>| {
                noted.note(job.payload);
                async { Ok::<_, HandlerError>(Outcome::Done) }
            });
        self.nodes.push(node.start().await.unwrap());
        at_once
    }

    async fn until_ran(&self, jobs: usize) {
        eventually(&format!("{jobs} jobs to have run"), SOON, async || {
            (self.ran.times().len() >= jobs).then_some(())
        })
        .await;
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_type_with_a_limit_no_more_is_claimed_than_may_run() {
    const LOCKS: &str = "SELECT last_value FROM jobwire.fence_seq";
    let mut fleet = Fleet::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let first = fleet.start_narrow(&gate).await;
    let flood = (0..100_u64).map(|job| NewJob::of("narrow", &job));
    fleet.jobs.create_many(flood.collect()).await.unwrap();
    fleet.until_ran(1).await;
    fleet
        .jobs
        .create(NewJob::of("note", &1_000_u64))
        .await
        .unwrap();
    eventually("the job of another type", SOON, async || {
        fleet.ran.times().contains_key(&1_000).then_some(())
    })
    .await;
    eventually("a second without a lock", SOON, async || {
        let before = fleet.count(LOCKS).await;
        pass(Duration::from_secs(1)).await;
        (fleet.count(LOCKS).await == before).then_some(())
    })
    .await;
    assert_eq!(fleet.ran.times().len(), 2);
    let leases = "SELECT count(*) FROM jobwire.job_lease";
    assert_eq!(fleet.count(leases).await, 1, "only the job that runs");
    let second = fleet.start_narrow(&gate).await;
    fleet.until_ran(3).await;
    gate.add_permits(100);
    fleet.until_empty().await;
    let mut expected = once(100);
    expected.insert(1_000, 1);
    assert_eq!(fleet.ran.times(), expected);
    assert_eq!((first.most(), second.most()), (1, 1));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_nodes_ask_nothing_of_the_job_tables_but_the_leader() {
    let mut fleet = Fleet::new().await;
    for _ in 0..3 {
        fleet.start(woken()).await;
    }
    fleet.jobs.create(NewJob::of("note", &0_u64)).await.unwrap();
    fleet.until_empty().await;
    let pool = fleet.store.pool();
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        .execute(pool)
        .await
        .unwrap();
    // The nodes that came too late find nothing, and stop. On a busy machine that takes a while.
    eventually("two seconds without a question", SOON, || async {
        sqlx::raw_sql(
            "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)",
        )
        .execute(pool)
        .await
        .ok()?;
        pass(Duration::from_secs(2)).await;
        let asked: Vec<(String, i64)> = sqlx::query_as(
            "SELECT left(query, 200), calls FROM pg_stat_statements
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query ~ 'jobwire\\.(job|timer_job|job_lease|suspended_job|process_instance)\\M'",
        )
        .fetch_all(pool)
        .await
        .ok()?;
        asked.is_empty().then_some(())
    })
    .await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_reach_every_process_whatever_their_length() {
    let store = database().await;
    let (one, other) = (PgTransport::new(&store), PgTransport::new(&store));
    let (mut here, mut there) = (one.listen(), other.listen());
    for transport in [&one, &other] {
        transport.comes_back(SOON).await.unwrap();
    }
    let types = (0..400).map(|n| format!("type-{n}-{}", "ä".repeat(40)));
    let message = Control::NodeAlive {
        node: NodeId::generate(),
        types: types.collect(),
        lanes: vec![Lane::default()],
        free: Some(1),
        rescue_room: None,
        speaks: 1,
        row: None,
    };
    assert!(message.write().unwrap().len() > 4 * 8_000);
    assert!(one.tell(message.clone()));
    for listener in [&mut here, &mut there] {
        let mut next = async || tokio::time::timeout(SOON, listener.recv()).await.unwrap();
        // Each session begins with this.
        assert_eq!(next().await.unwrap(), Control::Missed);
        assert_eq!(next().await.unwrap(), message);
    }
    one.close(SOON).await;
    assert!(!one.tell(Control::Look));
    let lane = Lane::default();
    assert!(one.publish(&lane, Vec::new()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_names_the_lane_and_the_number_of_its_jobs() {
    let store = database().await;
    let (creator, receiver) = (PgTransport::new(&store), PgTransport::new(&store));
    let mail = Lane::new("mail").unwrap();
    let subscription = Subscription {
        lanes: vec![mail.clone()],
        prefetch: 1,
    };
    let _receiver = receiver.subscribe(subscription).await.unwrap();
    for transport in [&creator, &receiver] {
        transport.comes_back(SOON).await.unwrap();
    }
    let wakes = receiver.wakes().unwrap();
    // A session that begins to listen may have missed wakes.
    assert!(wakes.next().await[&mail].at_once);
    let hints = |count: usize| {
        let ids = (0..count).map(|_| jobwire_core::Hint::new(JobId::generate()));
        ids.collect::<Vec<_>>()
    };
    let bulk = Lane::new("bulk").unwrap();
    creator.publish(&bulk, hints(5)).await.unwrap();
    creator.publish(&mail, hints(3)).await.unwrap();
    let woken = tokio::time::timeout(SOON, wakes.next()).await.unwrap();
    assert_eq!(woken.len(), 1);
    assert_eq!((woken[&mail].jobs, woken[&mail].at_once), (3, false));
    creator.wake(std::slice::from_ref(&mail));
    let woken = tokio::time::timeout(SOON, wakes.next()).await.unwrap();
    assert!(woken[&mail].waiting && woken[&mail].jobs == 0);
}

/// Claimed jobs have no hints with an age, so those of all lanes but the first one count as old.
#[tokio::test]
async fn while_jobs_are_claimed_each_tenth_start_is_of_another_lane_under_aging() {
    let fleet = Fleet::new().await;
    let of = |lane: &str| {
        let jobs = (0..100_u64).map(|number| NewJob::of("work", &number).lane(lane));
        jobs.collect::<Vec<_>>()
    };
    // Those of the lower lane are older.
    for lane in ["low", "high"] {
        fleet.jobs.create_many(of(lane)).await.unwrap();
    }
    let lanes = ["high", "low"].map(|lane| LaneShare::new(lane, 1));
    let mut options = woken().lane_order(LaneOrder::Aging);
    options.concurrency = 1;
    options.lanes = lanes.to_vec();
    let notes = Notes::default();
    let seen = notes.clone();
    let node = Node::builder(
        fleet.store.clone(),
        Arc::new(PgTransport::new(&fleet.store)),
    )
    .options(options)
    .handler("work", move |job: Running<u64>| {
        seen.add(job.job.lane.to_string());
        async { Ok(Outcome::Done) }
    })
    .start()
    .await
    .unwrap();
    let starts = notes.until_within(200, SOON).await;
    let low = starts[..100].iter().filter(|lane| *lane == "low").count();
    assert!((8..=12).contains(&low), "{low}: {starts:?}");
    node.stop().await;
}
