use std::time::Duration;

use chrono::DateTime;
use jobwire_core::store::{Fate, Origin, Refusal, SCHEMA_VERSION, SchemaStatus};
use jobwire_core::{JobId, JobKind, JobQuery, JobState, NewJob, StoreError};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::world::{Bench, SqlBench, World, ids, node, why, work};

pub(super) async fn a_created_job_is_locked_once<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let (first, second) = (node(), node());
    let job = w.hold(first, &hint).await;
    assert_eq!((job.job.id, job.strikes), (hint.id, 0));
    assert_eq!(w.refusal(second, &hint).await, Some(Refusal::Locked));
    assert_eq!(w.refusal(first, &hint).await, Some(Refusal::Locked));
}

pub(super) async fn a_rolled_back_job_is_gone<S: SqlBench>(w: &World<S>) {
    let mut tx = w.store.begin().await.unwrap();
    let created = w.store.insert(&mut tx, vec![work()], Origin::Hook).await;
    tx.rollback().await.unwrap();
    let created = created.unwrap();
    if let Some(transaction) = &created.transaction {
        let fate = w.store.committed(transaction).await.unwrap();
        assert_eq!(fate, Fate::RolledBack);
    }
    let refusal = w.refusal(node(), &created.ready[0].hint).await;
    assert_eq!(refusal, Some(Refusal::Gone));
    assert_eq!(w.rows("job").await, 0);
}

pub(super) async fn an_invalid_job_is_refused_before_anything_is_written<S: SqlBench>(
    w: &World<S>,
) {
    let mut tx = w.store.begin().await.unwrap();
    let invalid = NewJob::of("", &());
    let id = invalid.id();
    let error = w
        .store
        .insert(&mut tx, vec![work(), invalid], Origin::Hook)
        .await;
    assert!(matches!(error, Err(StoreError::InvalidJob { id: which, .. }) if which == id));
    // The transaction belongs to the caller and continues.
    w.store
        .insert(&mut tx, vec![work()], Origin::Hook)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(w.rows("job").await, 1);
}

pub(super) async fn every_field_comes_back<S: Bench>(w: &World<S>) {
    let payload = serde_json::json!({ "text": "Grüße \"\u{1}\\ 😀", "n": 9_007_199_254_740_993_i64, "none": null });
    let new = NewJob::of("work", &payload)
        .instance("order-17")
        .execution("execution-3")
        .process_definition("orders:4")
        .element("send")
        .tenant("north")
        .category("mail")
        .deployment("spring")
        .retry_policy_text("R5/PT5M")
        .repeat_text("R3/PT10M")
        .priority(i64::MAX)
        .lane("fast")
        .trace_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .custom_values(RawValue::from_string("{\"a\": [1, 2]}".to_owned()).unwrap());
    let id = new.id();
    let hint = w.one(new).await;
    assert_eq!(hint.instance.as_deref(), Some("order-17"));
    let mut read = vec![w.hold(node(), &hint).await.job];
    read.push(w.store.get(id).await.unwrap().unwrap().1.into());
    for job in read {
        assert_eq!(job.decode::<serde_json::Value>().unwrap(), payload);
        assert_eq!(job.kind, JobKind::Timer);
        assert_eq!(job.process_instance.as_deref(), Some("order-17"));
        assert_eq!(job.execution.as_deref(), Some("execution-3"));
        assert_eq!(job.process_definition.as_deref(), Some("orders:4"));
        assert_eq!(job.element.as_deref(), Some("send"));
        assert_eq!(job.tenant.as_deref(), Some("north"));
        assert_eq!(job.category.as_deref(), Some("mail"));
        assert_eq!(job.deployment.as_deref(), Some("spring"));
        assert_eq!((job.retries, job.failures), (5, 0));
        assert_eq!(job.retry_policy.as_deref(), Some("R5/PT5M"));
        assert_eq!(job.repeat.as_deref(), Some("R3/PT10M"));
        assert_eq!(job.priority, i64::MAX);
        assert_eq!(job.lane.as_str(), "fast");
        assert_eq!(job.correlation_id, id.uuid());
        assert_eq!(job.trace_parent, hint.trace_parent);
        assert_eq!(job.custom_values.as_ref().unwrap().get(), "{\"a\": [1, 2]}");
        assert!(job.exclusive && job.due_at.is_none() && job.exception_message.is_none());
        assert!((job.ready_at - job.created_at).num_seconds().abs() < 60);
    }
}

/// Jobs that are alike may be created by a statement that has one value for all of them.
pub(super) async fn a_job_that_differs_in_one_field_keeps_it_beside_others<S: Bench>(w: &World<S>) {
    let differing: [fn() -> NewJob; 18] = [
        || NewJob::of("other-work", &()),
        || work().instance("order-17"),
        || work().instance("order-18").concurrent(),
        || work().execution("execution-3"),
        || work().process_definition("orders:4"),
        || work().element("send"),
        || work().tenant("north"),
        || work().category("mail"),
        || work().deployment("spring"),
        || work().priority(9),
        || work().max_attempts(7),
        || work().retry_policy_text("R5/PT5M"),
        || work().repeat_text("R3/PT10M"),
        || work().lane("fast"),
        || work().correlation_id(Uuid::from_u128(7)),
        || work().trace_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        || work().custom_values(RawValue::from_string("{\"a\":1}".to_owned()).unwrap()),
        || work().due(DateTime::UNIX_EPOCH),
    ];
    // Without the values that differ from job to job.
    let read = async |id: JobId| {
        let mut job = w.store.get(id).await.unwrap().unwrap().1;
        if job.correlation_id == id.uuid() {
            job.correlation_id = Uuid::nil();
        }
        (job.seq, job.revision) = (0, 0);
        (job.ready_at, job.created_at) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH);
        format!("{job:?}").replace(&id.to_string(), "id")
    };
    let plain = work();
    let plain_id = plain.id();
    w.create(vec![plain]).await;
    let plain = read(plain_id).await;
    for differs in differing {
        let (alone, between) = (differs(), differs());
        let (before, after) = (work(), work());
        let all = [alone.id(), before.id(), between.id(), after.id()];
        w.create(vec![alone]).await;
        let created = w.create(vec![before, between, after]).await;
        assert_eq!(ids(&created.ready), all[1..]);
        let expected = read(all[0]).await;
        assert_ne!(expected, plain);
        assert_eq!(read(all[2]).await, expected);
        for other in [all[1], all[3]] {
            assert_eq!(read(other).await, plain, "beside {expected}");
        }
    }
}

pub(super) async fn a_job_with_a_future_due_date_waits_and_one_with_a_past_one_does_not<
    S: Bench,
>(
    w: &World<S>,
) {
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let minute = Duration::from_secs(60);
    let (soon, late, past) = (
        work().due(now + minute),
        work().due(now + 2 * minute),
        work().due(now - minute),
    );
    let (soon_id, past_id) = (soon.id(), past.id());
    let created = w.create(vec![late, soon, past]).await;
    assert_eq!(ids(&created.ready), [past_id]);
    assert_eq!(created.timer, Some(now + minute));
    assert_eq!(w.state(past_id).await, Some(JobState::Executable));
    assert_eq!(w.state(soon_id).await, Some(JobState::Timer));
    assert_eq!(w.rows("timer_job").await, 2);
}

pub(super) async fn ten_thousand_jobs_fit_into_one_transaction<S: SqlBench>(w: &World<S>) {
    const JOBS: usize = 10_000;
    let on_postgres = w.store.name() == "postgres";
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s
                 JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()";
    let mut before = 0;
    if on_postgres {
        w.store.execute("CREATE EXTENSION pg_stat_statements").await;
        before = w.store.number(calls).await;
    }
    let hints = w.ready((0..JOBS).map(|_| work()).collect()).await;
    if on_postgres {
        // The query before counts itself.
        let statements = w.store.number(calls).await - before - 1;
        assert!((3..=10).contains(&statements), "{statements} statements");
    }
    // Creation order is the order in which the jobs were given.
    let made: Vec<JobId> = hints.iter().map(|h| h.id).collect();
    let all = JobQuery::default().limit(JOBS as i64);
    assert!(w.find(all).await == made);
    let last = &hints[JOBS - 1..];
    let locked = w.lock(node(), last).await;
    assert!(why(&locked, last[0].id).is_none());
    let status = w.store.check().await.unwrap();
    assert!(matches!(
        status,
        SchemaStatus::Ready {
            version: SCHEMA_VERSION,
            ..
        }
    ));
}
