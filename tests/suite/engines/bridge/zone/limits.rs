//! Rows at the limits of PostgreSQL's types fail no statement.

use jobwire_core::JobQuery;
use jobwire_core::store::Release;

use super::*;

/// A local time that cannot be converted in a zone behind UTC.
const END_OF_TIME: &str = "294276-12-31 20:00";

impl Tables {
    /// Runs a statement about a job, `$1`.
    async fn change(&self, statement: &'static str, made: &Made) {
        let changed = sqlx::query(statement).bind(&made.job).execute(&self.pool);
        assert_eq!(changed.await.unwrap().rows_affected(), 1);
    }
}

async fn the_largest_revision(tables: &str, job: &'static str) {
    let tables = Tables::create(tables, job).await;
    let largest = tables.job(JOBS, ENGINES).await;
    let other = tables.job(JOBS, ENGINES).await;
    let at_limit = "UPDATE act_ru_job SET rev_ = 2147483647 WHERE id_ = $1";
    tables.change(at_limit, &largest).await;
    let store = tables.connect(ENGINES).await;
    let both = [&largest, &other].map(|made| hint(&made.job));
    let locked = store.lock(&terms(NodeId::generate()), &both).await.unwrap();
    let locked: HashSet<JobId> = locked.jobs.iter().map(|locked| locked.job.id).collect();
    assert_eq!(locked, ids([&largest, &other]));
    let revisions = "SELECT rev_ FROM act_ru_job ORDER BY rev_";
    let revisions: Vec<i32> = sqlx::query_scalar(revisions)
        .fetch_all(&tables.pool)
        .await
        .unwrap();
    assert_eq!(revisions, [1, 2]);
    Store::close(&store).await;
}

#[tokio::test]
async fn a_flowable_job_with_the_largest_revision_is_locked_with_its_neighbours() {
    the_largest_revision(FLOWABLE, JOB_OF_FLOWABLE).await;
}

#[tokio::test]
async fn a_camunda_job_with_the_largest_revision_is_locked_with_its_neighbours() {
    the_largest_revision(CAMUNDA, JOB_OF_CAMUNDA).await;
}

#[tokio::test]
async fn a_flowable_instance_with_the_largest_revision_fails_no_move_of_timers() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let largest = tables.timer(TIMERS, -1).await;
    let other = tables.timer(TIMERS, -1).await;
    let at_limit = "UPDATE act_ru_execution SET rev_ = 2147483647
        WHERE id_ = (SELECT process_instance_id_ FROM act_ru_timer_job WHERE id_ = $1)";
    tables.change(at_limit, &largest).await;
    let store = tables.connect(ENGINES).await;
    let due = store.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&due), ids([&largest, &other]));
    Store::close(&store).await;
}

/// Sends the leader's statements and an operator's list in a database with a timer at the end of time.
async fn the_end_of_time(tables: &Tables, timers: &str, ready: &Made) -> EngineStore {
    let timer = tables.timer(timers, 60).await;
    let far = format!("UPDATE {timers} SET duedate_ = '{END_OF_TIME}' WHERE id_ = $1");
    let far = sqlx::query(AssertSqlSafe(far)).bind(&timer.job);
    assert_eq!(far.execute(&tables.pool).await.unwrap().rows_affected(), 1);
    let store = tables.connect(ENGINES).await;
    let due = store.move_due_timers(100).await.unwrap();
    assert_eq!((moved(&due), due.next_due), (HashSet::new(), None));
    let report = tables.cycle(&store).await;
    assert_eq!(hints(&report), ids([ready]));
    let lane = store.options().lane.clone();
    let query = OrphanQuery::new(lane, terms(tables.node).types, Utc::now(), 100);
    let orphans = store.orphans(&query).await.unwrap().ready;
    let orphans: HashSet<JobId> = orphans.iter().map(|ready| ready.hint.id).collect();
    assert_eq!(orphans, ids([ready]));
    let listed = store.find(&JobQuery::default()).await.unwrap();
    let listed: HashSet<JobId> = listed.iter().map(|view| view.id).collect();
    assert_eq!(listed, ids([ready, &timer]));
    let soon = JobQuery::default().due_before(Utc::now() + chrono::Duration::days(1));
    assert_eq!(store.count(&soon).await.unwrap(), 0);
    store
}

#[tokio::test]
async fn a_due_date_at_the_end_of_time_fails_no_statement_of_flowable() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let ready = tables.job(JOBS, ENGINES).await;
    let store = the_end_of_time(&tables, TIMERS, &ready).await;
    Store::close(&store).await;
}

#[tokio::test]
async fn a_due_date_at_the_end_of_time_fails_no_statement_of_camunda() {
    let tables = Tables::create(CAMUNDA, JOB_OF_CAMUNDA).await;
    let ready = tables.job(JOBS, ENGINES).await;
    let store = the_end_of_time(&tables, JOBS, &ready).await;
    // The timer belongs to the instance of a job that ends.
    let one_instance = "UPDATE act_ru_job SET process_instance_id_ =
        (SELECT process_instance_id_ FROM act_ru_job WHERE id_ = $1) WHERE id_ <> $1";
    tables.change(one_instance, &ready).await;
    let node = NodeId::generate();
    let locked = store.lock(&terms(node), &[hint(&ready.job)]).await.unwrap();
    let held = locked
        .jobs
        .iter()
        .map(|locked| Release::of_attempt(locked.held()));
    let held: Vec<_> = held.collect();
    assert_eq!(held.len(), 1, "{locked:?}");
    let outcome = store.release(node, &held).await.unwrap();
    assert_eq!(outcome.applied, [job_id(&ready.job)]);
    Store::close(&store).await;
}

/// Local times at the limits: no zone ahead of the row's can convert them, or this program cannot read
/// them.
const LIMITS: [&str; 4] = ["infinity", "-infinity", END_OF_TIME, "4713-01-01 BC"];

/// Sends the leader's statements and an operator's list while jobs were created at the limits of time,
/// locks these jobs, and takes them over from locks that ended at its beginning.
async fn created_at_the_limits(tables: &str, job: &'static str) {
    let tables = Tables::create(tables, job).await;
    let usual = tables.job(JOBS, ENGINES).await;
    let mut hinted = vec![hint(&usual.job)];
    for limit in LIMITS {
        let made = tables.job(JOBS, ENGINES).await;
        let set = format!("UPDATE act_ru_job SET create_time_ = '{limit}' WHERE id_ = $1");
        let set = sqlx::query(AssertSqlSafe(set)).bind(&made.job);
        assert_eq!(set.execute(&tables.pool).await.unwrap().rows_affected(), 1);
        hinted.push(hint(&made.job));
    }
    let all: HashSet<JobId> = hinted.iter().map(|hint| hint.id).collect();
    let store = tables.connect(ENGINES).await;
    let findings = store.examine().await.unwrap();
    assert!(
        findings.iter().any(|found| found.about == "waiting"),
        "{findings:#?}"
    );
    assert_eq!(hints(&tables.cycle(&store).await), all);
    let lane = store.options().lane.clone();
    let query = OrphanQuery::new(lane, terms(tables.node).types, Utc::now(), 100);
    let orphans = store.orphans(&query).await.unwrap().ready;
    let orphans: HashSet<JobId> = orphans.iter().map(|ready| ready.hint.id).collect();
    assert_eq!(orphans, all);
    let listed = store.find(&JobQuery::default()).await.unwrap();
    let listed: HashSet<JobId> = listed.iter().map(|view| view.id).collect();
    assert_eq!(listed, all);
    let locked = store.lock(&terms(NodeId::generate()), &hinted).await;
    let locked = locked.unwrap().jobs;
    let locked: HashSet<JobId> = locked.iter().map(|locked| locked.job.id).collect();
    assert_eq!(locked, all);
    let ends = "UPDATE act_ru_job SET lock_exp_time_ =
        CASE WHEN create_time_ = 'infinity' THEN '-infinity' ELSE '4713-01-01 BC' END::timestamp";
    sqlx::query(ends).execute(&tables.pool).await.unwrap();
    let counted = store.sweepable(&Services::default(), &[]).await.unwrap();
    assert_eq!(counted.expired, hinted.len() as i64, "{counted:?}");
    assert_eq!(rescued(&tables.cycle(&store).await), all);
    Store::close(&store).await;
}

#[tokio::test]
async fn jobs_of_flowable_that_were_created_at_the_limits_of_time_fail_no_statement() {
    created_at_the_limits(FLOWABLE, JOB_OF_FLOWABLE).await;
}

#[tokio::test]
async fn jobs_of_camunda_that_were_created_at_the_limits_of_time_fail_no_statement() {
    created_at_the_limits(CAMUNDA, JOB_OF_CAMUNDA).await;
}

#[tokio::test]
async fn a_timer_of_flowable_that_was_due_at_the_beginning_of_time_moves() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let timer = tables.timer(TIMERS, -1).await;
    let first = "UPDATE act_ru_timer_job SET duedate_ = '-infinity' WHERE id_ = $1";
    tables.change(first, &timer).await;
    let store = tables.connect(ENGINES).await;
    let report = tables.cycle(&store).await;
    assert!(report.next_due.is_some_and(|due| due < report.now));
    let due = store.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&due), ids([&timer]));
    Store::close(&store).await;
}
