//! Random sequences of operations on the same jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::job::LockedJob;
use jobwire_core::job::series::next_occurrence;
use jobwire_core::store::permits::{Asking, KeyRequest, PermitAnswer, PermitKey, PermitRequest};
use jobwire_core::store::{
    Change, Completion, DefinitionKey, Destination, EndedScope, Failure, Handoff, Lifted, Operated,
    PauseScope, SuspensionScope,
};
use jobwire_core::uuid::Uuid;
use jobwire_core::{
    Calendars, Client, CommitHook, Creation, Hint, JobId, JobKind, JobQuery, JobState,
    JobTransaction, JobView, NewJob, NodeId, Purge, StoreError,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::changing::changes;
use super::world::{LEASE, SqlBench, World, done, give_up, node, retry_after, work};

/// The sequences that run in any case.
const SEEDS: u64 = 3;
/// The sequences that run until each operation was tried.
const MOST_SEEDS: u64 = 12;
const STEPS: usize = 160;

/// The operations, each with its weight among the steps.
const OPERATIONS: [(&str, u32); 26] = [
    ("lock", 40),
    ("complete", 5),
    ("fail", 16),
    ("snooze", 6),
    ("release", 8),
    ("renew", 4),
    ("die", 8),
    ("unlock", 4),
    ("cancel", 3),
    ("park", 12),
    ("wake", 8),
    ("retry", 8),
    ("delete", 2),
    ("move due timers", 8),
    ("suspend the tenant", 8),
    ("activate the tenant", 8),
    ("suspend a scope", 4),
    ("activate a scope", 8),
    ("pause the type", 4),
    ("resume the type", 6),
    ("create the key again", 6),
    ("end the instance", 1),
    ("replace the timers", 3),
    ("roll back", 8),
    ("purge the tenant", 1),
    ("change", 45),
];

/// The operations that are done in a transaction of the caller, too.
const IN_TRANSACTIONS: [&str; 9] = [
    "retry",
    "delete",
    "cancel",
    "unlock",
    "change",
    "end the instance",
    "replace the timers",
    "suspend a scope",
    "activate a scope",
];

/// The attempts that an operator's retry gives.
const RETRIED: i32 = 4;
/// The operations that may end a lock.
const ENDS_A_LOCK: [&str; 7] = [
    "fail", "snooze", "release", "die", "unlock", "park", "complete",
];

/// What a job must keep, and what may only grow.
#[derive(Debug)]
struct Kept {
    correlation: Uuid,
    created_at: DateTime<Utc>,
    seq: i64,
    /// The holder and the fence of the last lock. Each lock is taken by a new node.
    holder: Option<Uuid>,
    fence: Option<i64>,
}

/// The jobs of one sequence.
struct Sequence<'w, S: SqlBench> {
    w: &'w World<S>,
    client: Client<S>,
    random: SmallRng,
    jobs: BTreeMap<JobId, Kept>,
    held: HashMap<JobId, (NodeId, LockedJob)>,
    /// The node that has the only permit, so that other jobs wait for it.
    keeper: NodeId,
}

fn suspended() -> SuspensionScope {
    SuspensionScope::Tenant("t".to_owned())
}

fn scopes() -> [SuspensionScope; 5] {
    [
        SuspensionScope::ProcessInstance("i".to_owned()),
        SuspensionScope::ProcessDefinition("d".to_owned()),
        SuspensionScope::DefinitionKey(DefinitionKey::new("d").unwrap().of_tenant("t")),
        SuspensionScope::Element {
            definition: "d".to_owned(),
            element: "e".to_owned(),
        },
        SuspensionScope::Type("other-work".to_owned()),
    ]
}

fn instance() -> EndedScope {
    EndedScope::ProcessInstance("i".to_owned())
}

fn paused() -> PauseScope {
    PauseScope::Type("other-work".to_owned())
}

fn unique() -> NewJob {
    work().unique("k")
}

fn start_timer() -> NewJob {
    let job = work().process_definition("d");
    job.delay(Duration::from_secs(60))
}

/// Checks the result of a retry. It is refused only while another job has the key of the dead letter.
fn retried<T>(id: JobId, retried: Result<T, StoreError>) {
    if let Err(error) = retried {
        let refused = format!("has the unique key of job {id}");
        assert!(error.to_string().contains(&refused), "{error}");
    }
}

/// Returns the seed that the environment names; `JOBWIRE_TEST_SEED` repeats a sequence.
fn named_seed() -> Option<u64> {
    let seed = std::env::var("JOBWIRE_TEST_SEED").ok()?;
    Some(seed.parse().expect("JOBWIRE_TEST_SEED is a number"))
}

/// Any sequence of operations keeps each job in exactly one table, under its id, until an operation
/// ends it. Its attempts never
/// grow but by an operation that names their number, and each lock has a larger fence than the one
/// before.
pub(super) async fn any_sequence_of_operations_keeps_a_job_in_one_table<S: SqlBench>(w: &World<S>) {
    let mut tried = BTreeSet::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = named_seed().unwrap_or_else(|| now.unwrap().as_secs());
    println!("JOBWIRE_TEST_SEED={seed} repeats the first sequence");
    run(w, seed, &mut tried).await;
    tried.clear();
    for seed in 0..MOST_SEEDS {
        if seed >= SEEDS && OPERATIONS.iter().all(|(what, _)| tried.contains(what)) {
            break;
        }
        run(w, seed, &mut tried).await;
    }
    for (what, _) in OPERATIONS {
        assert!(tried.contains(what), "{what} is not among {tried:?}");
    }
}

/// Runs the sequence of a seed, and adds its operations to `tried`.
async fn run<S: SqlBench>(w: &World<S>, seed: u64, tried: &mut BTreeSet<&'static str>) {
    let mut it = Sequence::new(w, seed).await;
    let mut before = it.check(&format!("seed {seed}, at the start")).await;
    for step in 0..STEPS {
        let Some(id) = it.pick(step % 2 == 1) else {
            break;
        };
        let what = it.step(id).await;
        let place = format!("seed {seed}, step {step}: {what}");
        tried.insert(what);
        let after = it.check(&place).await;
        for (job, before) in &before {
            match after.get(job) {
                Some(after) => {
                    let what = if *job == id { what } else { "nothing" };
                    unchanged(before, after, what, &place);
                }
                None => assert!(may_go(before, what, id), "{place}: {job} is lost"),
            }
        }
        before = after;
    }
    it.end().await;
}

/// Returns whether a job may be gone after an operation on the job `picked`.
fn may_go(job: &JobView, what: &str, picked: JobId) -> bool {
    let is_picked = job.id == picked;
    match what {
        "complete" | "delete" | "cancel" => is_picked,
        "end the instance" => job.process_instance.as_deref() == Some("i"),
        "replace the timers" => is_start_timer(job),
        "purge the tenant" => job.tenant.as_deref() == Some("p"),
        // The end of the lock of a cancelled job deletes it.
        _ => is_picked && job.cancelled_at.is_some() && ENDS_A_LOCK.contains(&what),
    }
}

fn is_start_timer(job: &JobView) -> bool {
    job.kind == JobKind::Timer
        && job.process_definition.as_deref() == Some("d")
        && job.process_instance.is_none()
}

/// Checks the values of a job that the operation does not name. Of the other jobs than the one that
/// was picked it names none.
fn unchanged(before: &JobView, after: &JobView, what: &str, place: &str) {
    check_attempts(before, after, what, place);
    let is_history = |job: &JobView| job.kind == JobKind::History;
    assert_eq!(is_history(before), is_history(after), "{place}");
    if before.lock_owner.is_some() && !ENDS_A_LOCK.contains(&what) {
        assert_eq!(after.lock_owner, before.lock_owner, "{place}");
        assert_eq!(after.state, JobState::Executable, "{place}");
    }
}

/// Checks the attempts of a job, those that are left and those that failed. A failure moves one from
/// the former to the latter, and the last one leaves a dead letter with none. An operator's retry
/// names the number that is left and keeps the total, unless it gives more. A change may name the
/// number, too; a job that it makes a dead letter has none left. Nothing else changes them.
fn check_attempts(before: &JobView, after: &JobView, what: &str, place: &str) {
    let (left, failed) = (before.retries, before.failures);
    let mut allowed = vec![(left, failed)];
    match what {
        "fail" => allowed = vec![(left - 1, failed + 1)],
        "retry" => allowed.push((RETRIED, (left + failed - RETRIED).max(0))),
        "change" if after.state == JobState::DeadLetter => allowed.push((0, failed)),
        "change" => allowed.extend(changes().iter().filter_map(|change| match change {
            Change::SetRetries(retries) => Some((*retries, failed)),
            _ => None,
        })),
        _ => {}
    }
    let now = (after.retries, after.failures);
    assert!(
        allowed.contains(&now),
        "{place}: {now:?} after {:?}",
        (left, failed)
    );
}

impl<'w, S: SqlBench> Sequence<'w, S> {
    async fn new(w: &'w World<S>, seed: u64) -> Self {
        let mut it = Self {
            w,
            client: Client::without_hints(w.store.clone()),
            random: SmallRng::seed_from_u64(seed),
            jobs: BTreeMap::new(),
            held: HashMap::new(),
            keeper: node(),
        };
        for job in [
            work().instance("i").max_attempts(5),
            work().instance("i"),
            work().tenant("t").repeat_text("R/PT10M"),
            work().tenant("t"),
            work().tenant("p"),
            NewJob::of("other-work", &()),
            unique(),
            work(),
            work().history(),
            work().process_definition("d").element("e"),
            work()
                .process_definition("d")
                .instance("i")
                .delay(Duration::from_secs(60)),
            start_timer(),
        ] {
            let id = it.client.create(job).await.unwrap();
            it.came(id).await;
        }
        it.ask(it.keeper, &[], 1).await;
        it
    }

    /// Notes a job that an operation has created.
    async fn came(&mut self, id: JobId) {
        let view = self.w.view(id).await.unwrap();
        let kept = Kept {
            correlation: view.correlation_id,
            created_at: view.created_at,
            seq: view.seq,
            holder: None,
            fence: None,
        };
        assert!(self.jobs.insert(id, kept).is_none(), "{id} is there twice");
    }

    /// Picks a job: one that runs, if asked to and there is one.
    fn pick(&mut self, running: bool) -> Option<JobId> {
        // The order of creation, which ids do not have within a millisecond.
        let by_creation = |(id, kept): (&JobId, &Kept)| (kept.seq, *id);
        let mut among: Vec<(i64, JobId)> = self.jobs.iter().map(by_creation).collect();
        if running && !self.held.is_empty() {
            among.retain(|(_, id)| self.held.contains_key(id));
        }
        among.sort_unstable();
        let at = self.random.random_range(0..among.len().max(1));
        among.get(at).map(|(_, id)| *id)
    }

    /// Asks for permits of the only key. Returns the answer.
    async fn ask(&self, node: NodeId, jobs: &[&LockedJob], spare: i32) -> PermitAnswer {
        let asking = |job: &&LockedJob| Asking {
            held: job.held(),
            job_type: job.job.job_type.clone(),
            seq: job.job.seq,
            fair_key: None,
        };
        let request = KeyRequest {
            key: PermitKey {
                limit: "work".to_owned(),
                key: String::new(),
            },
            size: 1,
            keep: 0,
            spare,
            cool_down: Duration::ZERO,
            cooling: Vec::new(),
            asking: jobs.iter().map(asking).collect(),
        };
        let request = PermitRequest::new(node, LEASE, vec![request]);
        self.w.store.exchange_permits(&request).await.unwrap()
    }

    /// Does one operation on a job, and returns its name.
    async fn step(&mut self, id: JobId) -> &'static str {
        let all: u32 = OPERATIONS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.random_range(0..all);
        let chosen = OPERATIONS.iter().find(|(_, weight)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let (what, _) = *chosen.unwrap();
        let of_lock = [
            "complete", "fail", "snooze", "release", "renew", "die", "park",
        ];
        let of_lock = of_lock.contains(&what);
        let taken = if of_lock { self.held.remove(&id) } else { None };
        match taken {
            Some((worker, job)) => self.with_lock(what, worker, job).await,
            None if of_lock => return "nothing",
            None => self.without_lock(what, id).await,
        }
        what
    }

    async fn with_lock(&mut self, what: &str, worker: NodeId, job: LockedJob) {
        let (w, id) = (self.w, job.job.id);
        match what {
            "complete" => {
                let ready = job.job.ready_at;
                let next = next_occurrence(&job.job, ready, &Calendars::default()).map(Box::new);
                let completion = Completion { next, ..done(&job) };
                let settled = w
                    .store
                    .complete(worker, &[completion], &Handoff::Hint)
                    .await;
                for created in settled.unwrap().created {
                    self.came(created).await;
                }
            }
            "fail" => {
                let failure = match job.job.retries {
                    2.. => retry_after(&job, Duration::from_secs(60)),
                    _ => give_up(&job),
                };
                w.fail(worker, failure).await;
            }
            "snooze" => {
                let to = Destination::Retry {
                    delay: Duration::from_secs(60),
                    since: None,
                    retries: job.job.retries,
                    failures: job.job.failures,
                };
                let snooze = Failure {
                    to,
                    message: None,
                    stack: None,
                    ..retry_after(&job, Duration::ZERO)
                };
                w.fail(worker, snooze).await;
            }
            "release" => {
                w.release(worker, job.held()).await;
            }
            "renew" => {
                let renewed = w.store.renew(worker, LEASE, &[job.held()]).await.unwrap();
                assert_eq!(renewed.renewed, [id]);
                self.held.insert(id, (worker, job));
            }
            "die" => w.die(id).await,
            _ => {
                let answer = self.ask(worker, &[&job], 0).await;
                if !answer.parked.contains(&id) {
                    self.held.insert(id, (worker, job));
                }
            }
        }
    }

    async fn without_lock(&mut self, what: &str, id: JobId) {
        let needs_transaction = what == "replace the timers";
        if IN_TRANSACTIONS.contains(&what) && (self.random.random() || needs_transaction) {
            let mut tx = self.client.begin().await.unwrap();
            let created = self.operate_in(&mut tx, what, id).await;
            tx.commit().await.unwrap();
            if let Some(created) = created {
                self.came(created).await;
            }
            return;
        }
        let store = &self.w.store;
        match what {
            "roll back" => self.roll_back(id).await,
            "lock" => {
                let worker = node();
                let mut locked = self.w.lock(worker, &[Hint::new(id)]).await;
                if let Some(job) = locked.jobs.pop() {
                    self.held.insert(job.job.id, (worker, job));
                }
            }
            "unlock" => {
                let unlocked = store.unlock(id).await.unwrap().operated;
                if unlocked == [(id, Operated::Done)] {
                    self.held.remove(&id);
                }
            }
            "cancel" => {
                store.cancel(id).await.unwrap();
            }
            "wake" => {
                // The permit goes back, and is taken again if nobody waits.
                self.ask(self.keeper, &[], 0).await;
                self.ask(self.keeper, &[], 1).await;
            }
            "retry" => {
                retried(id, store.retry(id, RETRIED).await);
            }
            "delete" => {
                store.delete(id).await.unwrap();
            }
            "move due timers" => {
                if self.w.state(id).await == Some(JobState::Timer) {
                    self.w.make_due(id, 1).await;
                }
                store.move_due_timers(10).await.unwrap();
            }
            "suspend the tenant" => {
                store.suspend(&suspended()).await.unwrap();
            }
            "activate the tenant" => {
                let activated = store.activate(&suspended()).await.unwrap();
                self.all_pages(activated).await;
            }
            "suspend a scope" => {
                let scope = self.random.random_range(0..scopes().len());
                store.suspend(&scopes()[scope]).await.unwrap();
            }
            "activate a scope" => {
                let scope = self.random.random_range(0..scopes().len());
                let activated = store.activate(&scopes()[scope]).await.unwrap();
                self.all_pages(activated).await;
            }
            "pause the type" => {
                store.pause(&paused()).await.unwrap();
            }
            "resume the type" => {
                let resumed = store.resume(&paused()).await.unwrap();
                self.all_pages(resumed).await;
            }
            "create the key again" => {
                let creation = self.client.create_unique(unique()).await.unwrap();
                match creation {
                    Creation::Created(id) => self.came(id).await,
                    Creation::Existing(id) => {
                        assert!(self.jobs.contains_key(&id), "{id} has the key");
                    }
                }
            }
            "end the instance" => {
                self.client.end(&instance()).await.unwrap();
            }
            "purge the tenant" => {
                let hook = CommitHook::disconnected();
                Purge::tenant("p").run(store, &hook).await.unwrap();
            }
            _ => {
                let all = changes();
                let change: &Change = &all[self.random.random_range(0..all.len())];
                let changed = store.change_many(&[id], change).await.unwrap();
                assert_eq!(changed.operated.len(), 1, "{changed:?}");
            }
        }
    }

    /// Does an operation in a transaction of the caller. Returns the job that it creates.
    async fn operate_in(
        &mut self,
        tx: &mut JobTransaction<S>,
        what: &str,
        id: JobId,
    ) -> Option<JobId> {
        match what {
            "retry" => {
                retried(id, tx.retry(id, RETRIED).await);
                Ok(())
            }
            "delete" => tx.delete(id).await.map(drop),
            "cancel" => tx.cancel(id).await.map(drop),
            "unlock" => tx.unlock(id).await.map(drop),
            "end the instance" => tx.end(&instance()).await.map(drop),
            "suspend a scope" => {
                let scope = self.random.random_range(0..scopes().len());
                tx.suspend(&scopes()[scope]).await.map(drop)
            }
            "activate a scope" => {
                let scope = self.random.random_range(0..scopes().len());
                tx.activate(&scopes()[scope]).await.map(drop)
            }
            "replace the timers" => {
                let timer = start_timer();
                let created = timer.id();
                tx.replace_start_timers("d", vec![timer]).await.unwrap();
                return Some(created);
            }
            _ => {
                let all = changes();
                let change = &all[self.random.random_range(0..all.len())];
                tx.change(&[id], change).await.map(drop)
            }
        }
        .unwrap();
        None
    }

    /// Does an operation in a transaction, and creates a job there. After the rollback every job is as
    /// it was, and there is no other.
    async fn roll_back(&mut self, id: JobId) {
        let what = IN_TRANSACTIONS[self.random.random_range(0..IN_TRANSACTIONS.len())];
        let before = self.rows().await;
        let mut tx = self.client.begin().await.unwrap();
        self.operate_in(&mut tx, what, id).await;
        tx.create(work().instance("i")).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(self.rows().await, before, "{what}, rolled back");
    }

    /// Returns all jobs with their columns.
    async fn rows(&self) -> BTreeMap<JobId, String> {
        let query = JobQuery::default().limit(1_000);
        let found = self.w.store.find(&query).await.unwrap();
        let row = |view: JobView| (view.id, format!("{view:?}"));
        found.into_iter().map(row).collect()
    }

    async fn all_pages(&self, mut page: Lifted) {
        while let Some(next) = page.next.take() {
            page = self.w.store.waited(&next).await.unwrap();
        }
    }

    /// Checks all jobs, and forgets those that are gone. Returns the rest.
    async fn check(&mut self, place: &str) -> HashMap<JobId, JobView> {
        let twice = "SELECT count(*) - count(DISTINCT id) FROM (
            SELECT id FROM {s}job UNION ALL SELECT id FROM {s}timer_job
            UNION ALL SELECT id FROM {s}suspended_job UNION ALL SELECT id FROM {s}dead_letter_job) j";
        assert_eq!(self.w.store.number(twice).await, 0, "{place}");
        let query = JobQuery::default().limit(1_000);
        let found = self.w.store.find(&query).await.unwrap();
        let after: HashMap<JobId, JobView> = found.into_iter().map(|v| (v.id, v)).collect();
        for (id, view) in &after {
            let Some(kept) = self.jobs.get_mut(id) else {
                panic!("{place}: {id} is new");
            };
            assert_eq!(view.correlation_id, kept.correlation, "{place}");
            assert_eq!(view.created_at, kept.created_at, "{place}");
            assert_eq!(view.seq, kept.seq, "{place}");
            if view.lock_owner.is_some() {
                if view.lock_owner == kept.holder {
                    assert_eq!(view.fence, kept.fence, "{place}: a lock has one fence");
                } else {
                    assert!(view.fence > kept.fence, "{place}: an older fence");
                }
                (kept.holder, kept.fence) = (view.lock_owner, view.fence);
            }
            assert!(view.retries >= 0 && view.failures >= 0, "{place}");
        }
        self.jobs.retain(|id, _| after.contains_key(id));
        let is_held = |id: &JobId| after.get(id).is_some_and(|view| view.lock_owner.is_some());
        self.held.retain(|id, _| is_held(id));
        after
    }

    /// Checks the tables, and deletes all jobs.
    async fn end(self) {
        let w = self.w;
        // Leases of jobs that are not executable.
        let stray = "SELECT count(*) FROM {s}job_lease l WHERE owner IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM {s}job j WHERE j.id = l.job_id)";
        assert_eq!(w.store.number(stray).await, 0);
        self.ask(self.keeper, &[], 0).await;
        self.all_pages(w.store.activate(&suspended()).await.unwrap())
            .await;
        for scope in scopes() {
            self.all_pages(w.store.activate(&scope).await.unwrap())
                .await;
        }
        self.all_pages(w.store.resume(&paused()).await.unwrap())
            .await;
        for id in self.jobs.keys() {
            if self.held.contains_key(id) {
                w.die(*id).await;
            }
            w.store.delete(*id).await.unwrap();
        }
        assert!(w.find(JobQuery::default()).await.is_empty());
    }
}
