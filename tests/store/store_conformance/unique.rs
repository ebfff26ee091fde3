use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::store::{Handoff, Operated, SuspensionScope};
use jobwire_core::{Client, Creation, Hint, JobId, JobState, NewJob, PgStore, Store, UniqueKey};
use rand::Rng;

use super::world::{Bench, SqlBench, World, done, give_up, node, retry_after, work};

const DAY: Duration = Duration::from_secs(86_400);

async fn create<S: SqlBench>(w: &World<S>, job: NewJob) -> Creation {
    let client = Client::without_hints(w.store.clone());
    client.create_unique(job).await.unwrap()
}

/// Asserts that the job has the key of `work().unique("k")`.
async fn assert_taken<S: SqlBench>(w: &World<S>, by: JobId) {
    let other = create(w, work().unique("k")).await;
    assert_eq!(other, Creation::Existing(by));
}

pub(super) async fn while_a_job_has_a_key_it_stands_for_the_others<S: SqlBench>(w: &World<S>) {
    let first = create(w, work().unique("k")).await;
    assert!(first.is_created());
    assert_taken(w, first.id()).await;
    let client = Client::without_hints(w.store.clone());
    assert_eq!(client.create(work().unique("k")).await.unwrap(), first.id());
    let mut hook = client.hook();
    let mut tx = w.store.begin().await.unwrap();
    let again = hook.create_unique(&mut tx, work().unique("k")).await;
    assert_eq!(again.unwrap(), Creation::Existing(first.id()));
    hook.commit(tx).await.unwrap();
    assert_eq!(w.rows("job").await, 1);
    assert!(create(w, work()).await.is_created());
}

/// The creator does not know the fate of its first transaction.
pub(super) async fn a_job_that_is_created_again_exists_once<S: SqlBench>(w: &World<S>) {
    let pending = work().unique("k");
    let daily = work().unique(UniqueKey::new("daily").once_per(DAY));
    for job in [&pending, &daily] {
        create(w, job.clone()).await;
    }
    let worker = node();
    let held = w.hold(worker, &Hint::new(pending.id())).await;
    w.fail(worker, retry_after(&held, DAY)).await;
    let held = w.hold(worker, &Hint::new(daily.id())).await;
    w.complete(worker, &held, &Handoff::Hint).await;
    for job in [pending.clone(), daily] {
        create(w, job).await;
    }
    assert_eq!(w.rows("job").await, 0);
    assert_eq!(w.state(pending.id()).await, Some(JobState::Timer));
}

pub(super) async fn a_key_belongs_to_a_type_and_a_tenant_unless_it_is_global<S: SqlBench>(
    w: &World<S>,
) {
    let global = || UniqueKey::new("k").global();
    let jobs = || {
        vec![
            work().unique("k"),
            work().unique("other"),
            work().unique("k").tenant("t"),
            NewJob::of("other-work", &()).unique("k"),
            work().unique(global()),
        ]
    };
    let mut created = Vec::new();
    for job in jobs() {
        let job = create(w, job).await;
        assert!(job.is_created());
        created.push(job.id());
    }
    for (job, id) in jobs().into_iter().zip(&created) {
        assert_eq!(create(w, job).await, Creation::Existing(*id));
    }
    let elsewhere = NewJob::of("other-work", &()).tenant("t").unique(global());
    assert_eq!(create(w, elsewhere).await, Creation::Existing(created[4]));
}

pub(super) async fn of_the_jobs_of_a_transaction_the_first_has_the_key<S: SqlBench>(w: &World<S>) {
    let jobs = vec![
        work().unique("k"),
        work(),
        work().unique("k"),
        work().unique("k").delay(DAY),
    ];
    let own: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    let client = Client::without_hints(w.store.clone());
    let mut tx = client.begin().await.unwrap();
    let ids = tx.create_many(jobs).await.unwrap();
    assert_eq!(ids, [own[0], own[1], own[0], own[0]]);
    let later = tx.create_unique(work().unique("k")).await.unwrap();
    assert_eq!(later, Creation::Existing(own[0]));
    tx.commit().await.unwrap();
    assert_eq!((w.rows("job").await, w.rows("timer_job").await), (2, 0));
    let created = w.create(vec![work().unique("k")]).await;
    assert!(
        created.ready.is_empty(),
        "no hint for a job that is not created"
    );
}

pub(super) async fn a_key_is_free_after_a_rollback<S: SqlBench>(w: &World<S>) {
    let client = Client::without_hints(w.store.clone());
    let mut tx = client.begin().await.unwrap();
    let gone = tx.create_unique(work().unique("k")).await.unwrap();
    assert!(gone.is_created());
    tx.rollback().await.unwrap();
    assert!(create(w, work().unique("k")).await.is_created());
}

pub(super) async fn a_job_keeps_its_key_through_every_table_until_its_end<S: SqlBench>(
    w: &World<S>,
) {
    let hint = w.one(work().unique("k")).await;
    let id = hint.id;
    assert_taken(w, id).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    assert_taken(w, id).await;
    w.fail(worker, retry_after(&job, DAY)).await;
    assert_eq!(w.state(id).await, Some(JobState::Timer));
    assert_taken(w, id).await;
    let scope = SuspensionScope::Type("work".to_owned());
    w.store.suspend(&scope).await.unwrap();
    assert_eq!(w.state(id).await, Some(JobState::Suspended));
    assert_taken(w, id).await;
    w.store.activate(&scope).await.unwrap();
    w.make_due(id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    assert_taken(w, id).await;
    let job = w.hold(worker, &hint).await;
    w.complete(worker, &job, &Handoff::Hint).await;
    let next = create(w, work().unique("k")).await;
    assert!(next.is_created());
    w.store.delete(next.id()).await.unwrap();
    assert!(create(w, work().unique("k")).await.is_created());
}

/// Makes a dead letter of the job.
async fn kill<S: SqlBench>(w: &World<S>, hint: &Hint) {
    let worker = node();
    let job = w.hold(worker, hint).await;
    w.fail(worker, give_up(&job)).await;
    assert_eq!(w.state(hint.id).await, Some(JobState::DeadLetter));
}

pub(super) async fn a_dead_letter_has_its_key_if_asked_to<S: SqlBench>(w: &World<S>) {
    let lasting = || work().unique(UniqueKey::new("k").and_dead_letters());
    let dead = w.one(lasting()).await;
    kill(w, &dead).await;
    assert_taken(w, dead.id).await;
    let revived = w.store.retry(dead.id, 1).await.unwrap().0;
    assert_eq!(revived, Operated::Done);
    assert_taken(w, dead.id).await;
    kill(w, &dead).await;
    w.store.delete(dead.id).await.unwrap();
    let next = w.one(work().unique("k")).await;
    kill(w, &next).await;
    assert!(create(w, lasting()).await.is_created());
}

pub(super) async fn a_key_of_a_period_outlives_its_job_and_ends_with_the_period<S: SqlBench>(
    w: &World<S>,
) {
    // A period that does not end during the test.
    let century = Duration::from_secs(100 * 365 * 86_400);
    let yearly = || work().unique(UniqueKey::new("k").once_per(century));
    let hint = w.one(yearly()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(create(w, yearly()).await, Creation::Existing(hint.id));
    assert_taken(w, hint.id).await;
    let end = "UPDATE {s}unique_job SET held_until = {now}";
    assert_eq!(w.store.execute(end).await, 1);
    let next = create(w, yearly()).await;
    assert!(next.is_created());
    assert_eq!(w.store.execute(end).await, 1);
    // It is still pending, and the period has ended.
    assert!(create(w, yearly()).await.is_created());
}

pub(super) async fn a_dead_letter_whose_key_another_job_has_is_not_revived<S: SqlBench>(
    w: &World<S>,
) {
    let dead = w.one(work().unique("k")).await;
    kill(w, &dead).await;
    let bystander = w.one(work().unique("other")).await;
    kill(w, &bystander).await;
    // The row of a dead letter is not pruned.
    let old = "UPDATE {s}unique_job SET seen_at = seen_at - 3601 * {second}";
    w.store.execute(old).await;
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 2);
    assert_eq!(w.rows("unique_job").await, 2);
    let next = w.one(work().unique("k")).await;
    let both = [dead.id, bystander.id];
    let retried = w.store.retry_many(&both, 1).await.unwrap();
    assert_eq!(retried.operated, [(bystander.id, Operated::Done)]);
    assert_eq!(retried.refused.len(), 1);
    assert_eq!(retried.refused[0].0, dead.id);
    // It names the job that has the key.
    let told = format!("job {} has the unique key of job {}", next.id, dead.id);
    let why = &retried.refused[0].1;
    assert!(why.contains(&told), "{why}");
    let error = w.store.retry(dead.id, 1).await.unwrap_err();
    assert!(error.to_string().contains(&told), "{error}");
    assert!(error.is_row_fault() && error.changed_nothing());
    assert_eq!(w.state(dead.id).await, Some(JobState::DeadLetter));
    assert_taken(w, next.id).await;
    // The other one dies, too. One of the two can be revived, and takes the key back.
    kill(w, &next).await;
    let done = w.store.retry_many(&[dead.id], 1).await.unwrap();
    assert_eq!(done.operated, [(dead.id, Operated::Done)]);
    assert_taken(w, dead.id).await;
    let refused = w.store.retry_many(&[next.id], 1).await.unwrap().refused;
    assert_eq!(refused.len(), 1);
    // Deleted dead letters leave nothing.
    w.store.delete(next.id).await.unwrap();
    assert_eq!(w.rows("unique_dead_letter").await, 0);
    assert_taken(w, dead.id).await;
}

pub(super) async fn free_keys_are_pruned_and_taken_ones_stay<S: SqlBench>(w: &World<S>) {
    let worker = node();
    let mut taken = HashSet::new();
    for n in 0..10 {
        let hint = w.one(work().unique(format!("k{n}"))).await;
        if n % 2 == 0 {
            let job = w.hold(worker, &hint).await;
            w.complete(worker, &job, &Handoff::Hint).await;
        } else {
            taken.insert(hint.id);
        }
    }
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 0);
    let old = "UPDATE {s}unique_job SET seen_at = seen_at - 3601 * {second}";
    w.store.execute(old).await;
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 4);
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 4);
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 2);
    assert_eq!(w.store.prune_history(DAY, 4).await.unwrap(), 0);
    assert_eq!(w.rows("unique_job").await, 5);
    for n in [1, 3, 5, 7, 9] {
        let again = create(w, work().unique(format!("k{n}"))).await;
        assert!(taken.contains(&again.id()));
    }
    assert!(create(w, work().unique("k0")).await.is_created());
}

pub(super) async fn of_many_creators_at_once_one_creates_the_job<S: SqlBench>(w: &World<S>) {
    for round in 0..10 {
        let creators = (0..8).map(|_| {
            let client = Client::without_hints(w.store.clone());
            tokio::spawn(async move {
                let job = || work().unique(format!("k{round}"));
                client.create_unique(job()).await.unwrap()
            })
        });
        let mut created = HashSet::new();
        let mut ids = HashSet::new();
        for creator in creators.collect::<Vec<_>>() {
            let creation = creator.await.unwrap();
            ids.insert(creation.id());
            if creation.is_created() {
                created.insert(creation.id());
            }
        }
        assert_eq!((created.len(), ids.len()), (1, 1));
    }
    assert_eq!(w.rows("job").await, 10);
}

/// Creators and workers at once: no key has two jobs at any time, and no creator is told of a job
/// that was gone before it asked.
pub(super) async fn the_next_creator_follows_the_end_of_a_job_at_once<S: SqlBench>(w: &World<S>) {
    let pending: Arc<Mutex<HashMap<usize, JobId>>> = Arc::default();
    let creators = (0..8).map(|_| {
        let (store, pending) = (w.store.clone(), pending.clone());
        tokio::spawn(async move {
            let client = Client::without_hints(store.clone());
            let worker = node();
            let mut created = 0;
            for _ in 0..25 {
                let key = rand::rng().random_range(0..3);
                let job = work().unique(key.to_string());
                let Creation::Created(id) = client.create_unique(job).await.unwrap() else {
                    continue;
                };
                created += 1;
                let other = pending.lock().unwrap().insert(key, id);
                assert_eq!(other, None, "two jobs of key {key}");
                let hint = Hint::new(id);
                let terms = super::world::terms(worker);
                let locked = store.lock(&terms, &[hint]).await.unwrap();
                pending.lock().unwrap().remove(&key);
                let outcome = store
                    .complete(worker, &[done(&locked.jobs[0])], &Handoff::Hint)
                    .await;
                assert_eq!(outcome.unwrap().applied, [id]);
                let again = work().unique(format!("after-{id}"));
                assert!(client.create_unique(again).await.unwrap().is_created());
            }
            created
        })
    });
    let mut created = 0;
    for creator in creators.collect::<Vec<_>>() {
        created += creator.await.unwrap();
    }
    assert!(created >= 8, "{created}");
    let left = "SELECT count(*) FROM {s}job WHERE type = 'work'";
    assert_eq!(w.store.number(left).await, created);
}

async fn by_sql(store: &PgStore, arguments: &str) -> Result<(JobId, bool), String> {
    let sql = format!("SELECT id, created FROM jobwire.create_unique_job({arguments})");
    let row: Result<(uuid::Uuid, bool), sqlx::Error> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .fetch_one(store.pool())
        .await;
    row.map(|(id, created)| (JobId::from_uuid(id), created))
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn sql_creates_the_unique_job_of_the_library() {
    let w = World::<PgStore>::open().await;
    let (id, created) = by_sql(&w.store, "type => 'work', unique_key => 'k', tenant => 't'")
        .await
        .unwrap();
    assert!(created);
    let of_tenant = || work().tenant("t").unique("k");
    assert_eq!(create(&w, of_tenant()).await, Creation::Existing(id));
    assert!(create(&w, work().unique("k")).await.is_created());
    let again = by_sql(&w.store, "'work', 'k', tenant => 't'")
        .await
        .unwrap();
    assert_eq!(again, (id, false));
    w.store.delete(id).await.unwrap();
    let (next, created) = by_sql(&w.store, "'work', 'k', tenant => 't'")
        .await
        .unwrap();
    assert!(created && next != id);
    // Both count the same periods, and share global keys.
    let daily = UniqueKey::new("d").once_per(DAY).global();
    let daily = create(&w, work().unique(daily)).await;
    let lasting = UniqueKey::new("l").and_dead_letters();
    let lasting = create(&w, work().unique(lasting)).await;
    let options = "unique_period => '1 day', unique_global => true, unique_key";
    let same = by_sql(&w.store, &format!("'other-work', {options} => 'd'")).await;
    assert_eq!(same.unwrap(), (daily.id(), false));
    by_sql(&w.store, &format!("'other-work', {options} => 'e'"))
        .await
        .unwrap();
    let periods = "SELECT count(DISTINCT held_until) FROM {s}unique_job";
    assert_eq!(w.store.number(periods).await, 1);
    let midnight = "SELECT count(*) FROM {s}unique_job WHERE held_until = date_trunc('day', clock_timestamp(), 'UTC') + interval '1 day'";
    assert_eq!(w.store.number(midnight).await, 2);
    let same = by_sql(&w.store, "'work', 'l', unique_dead_letters => true").await;
    assert_eq!(same.unwrap(), (lasting.id(), false));
    for (arguments, problem) in [
        ("'work', ''", "`unique_key` is empty"),
        ("'work', NULL", "`unique_key` is empty"),
        ("'work', repeat('k', 513)", "`unique_key` has 513 bytes"),
        ("'', 'k'", "`type` is empty"),
        (
            "'work', 'n', unique_period => '1 ms'",
            "`unique_period` is not between",
        ),
        (
            "'work', 'n', unique_period => '101 years'",
            "`unique_period` is not between",
        ),
    ] {
        let refused = by_sql(&w.store, arguments).await.unwrap_err();
        assert!(refused.contains(problem), "{refused}");
    }
}

#[tokio::test]
async fn of_many_sql_creators_at_once_one_creates_the_job() {
    let w = World::<PgStore>::open().await;
    for round in 0..10 {
        let creators = (0..8).map(|n| {
            let store = w.store.clone();
            tokio::spawn(async move {
                if n % 2 == 0 {
                    return by_sql(&store, &format!("'work', 'k{round}'"))
                        .await
                        .unwrap();
                }
                let client = Client::without_hints(store);
                let job = work().unique(format!("k{round}"));
                let creation = client.create_unique(job).await.unwrap();
                (creation.id(), creation.is_created())
            })
        });
        let mut created = 0;
        let mut ids = HashSet::new();
        for creator in creators.collect::<Vec<_>>() {
            let (id, is_created) = creator.await.unwrap();
            ids.insert(id);
            created += i32::from(is_created);
        }
        assert_eq!((created, ids.len()), (1, 1));
    }
}

/// Waits until a statement of this database waits for a lock.
async fn someone_waits(w: &World<PgStore>) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'";
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while w.store.number(waiting).await == 0 {
        assert!(tokio::time::Instant::now() < until, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Neither sees what the other has not committed yet.
#[tokio::test]
async fn a_revival_and_a_creator_at_once_make_one_job() {
    let w = World::<PgStore>::open().await;
    let revive = |id: JobId| {
        format!(
            "WITH letter AS (DELETE FROM jobwire.dead_letter_job WHERE id = '{id}' RETURNING *)
             INSERT INTO jobwire.job SELECT * FROM letter"
        )
    };
    // The revival is first.
    let dead = w.one(work().unique("k")).await;
    kill(&w, &dead).await;
    let mut tx = w.store.pool().begin().await.unwrap();
    let sql = sqlx::AssertSqlSafe(revive(dead.id));
    sqlx::query(sql).execute(&mut *tx).await.unwrap();
    let client = Client::without_hints(w.store.clone());
    let creator = tokio::spawn(async move { client.create_unique(work().unique("k")).await });
    someone_waits(&w).await;
    tx.commit().await.unwrap();
    let creation = creator.await.unwrap().unwrap();
    assert_eq!(creation, Creation::Existing(dead.id));
    // The creator is first.
    kill(&w, &dead).await;
    let client = Client::without_hints(w.store.clone());
    let mut tx = client.begin().await.unwrap();
    let next = tx.create_unique(work().unique("k")).await.unwrap();
    assert!(next.is_created());
    let store = w.store.clone();
    let sql = sqlx::AssertSqlSafe(revive(dead.id));
    let revival = tokio::spawn(async move { sqlx::query(sql).execute(store.pool()).await });
    someone_waits(&w).await;
    tx.commit().await.unwrap();
    let refused = revival.await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("has the unique key"), "{refused}");
    assert_eq!(w.state(dead.id).await, Some(JobState::DeadLetter));
    // A dead letter that is deleted while its key is taken leaves nothing for ever.
    let mut tx = w.store.pool().begin().await.unwrap();
    let row = format!(
        "INSERT INTO jobwire.unique_dead_letter VALUES ('{}', 'work', '', 'k')",
        next.id()
    );
    sqlx::query(sqlx::AssertSqlSafe(row))
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    w.store.prune_history(DAY, 10).await.unwrap();
    assert_eq!(w.rows("unique_dead_letter").await, 1);
}

/// A role that may insert jobs, and no more, creates unique ones through the library.
#[tokio::test]
async fn who_may_create_jobs_may_create_unique_ones() {
    let w = World::<PgStore>::open().await;
    w.store.down_to(6).await;
    let role = format!("creator_{}", uuid::Uuid::new_v4().simple());
    for sql in [
        format!("CREATE ROLE {role}"),
        format!("GRANT USAGE ON SCHEMA jobwire TO {role}"),
        format!("GRANT INSERT ON jobwire.job, jobwire.timer_job TO {role}"),
        format!("GRANT SELECT ON jobwire.lane_rule TO {role}"),
        format!("GRANT USAGE ON SEQUENCE jobwire.job_seq TO {role}"),
        format!("GRANT SELECT (id, due_at) ON jobwire.timer_job TO {role}"),
    ] {
        w.store.execute(&sql).await;
    }
    w.store.up().await;
    let client = Client::without_hints(w.store.clone());
    let mut ids = HashSet::new();
    for _ in 0..2 {
        let mut tx = client.begin().await.unwrap();
        let become_role = format!("SET LOCAL ROLE {role}");
        sqlx::query(sqlx::AssertSqlSafe(become_role))
            .execute(&mut *tx)
            .await
            .unwrap();
        ids.insert(tx.create(work().unique("k")).await.unwrap());
        tx.commit().await.unwrap();
    }
    assert_eq!(ids.len(), 1);
    for sql in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        w.store.execute(&sql).await;
    }
}

/// A creator with an older snapshot does not see that the dead letter is revived.
#[tokio::test]
async fn a_creator_with_an_old_snapshot_takes_no_key_of_a_revived_job() {
    let w = World::<PgStore>::open().await;
    let dead = w.one(work().unique("k")).await;
    kill(&w, &dead).await;
    let client = Client::without_hints(w.store.clone());
    let mut tx = client.begin().await.unwrap();
    for sql in [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SELECT count(*) FROM jobwire.job",
    ] {
        sqlx::query(sql).execute(&mut *tx).await.unwrap();
    }
    client.retry(dead.id, 3).await.unwrap();
    let refused = tx.create_unique(work().unique("k")).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("serialize"), "{refused}");
    drop(tx);
    assert_eq!(w.state(dead.id).await, Some(JobState::Executable));
    assert_eq!(w.rows("job").await, 1);
}
