//! Purges: every trace of an instance or a tenant is removed.

use std::time::Duration;

use jobwire_core::store::purging::{PURGED_TABLES, PurgeScope};
use jobwire_core::store::{DefinitionKey, Handoff, SuspensionScope};
use jobwire_core::{
    Batch, Client, CommitHook, JobId, JobState, NewJob, PgStore, Purge, Store, StoreError,
};
use jobwire_harness::eventually;
use jobwire_harness::world::SOON;

use super::world::{SqlBench, World, give_up, node, retry_after, work};

/// Creates jobs of every state with every trace, of this instance and tenant. Returns the number of
/// jobs.
pub(super) async fn fill<S: SqlBench>(w: &World<S>, instance: &str, tenant: &str) -> u64 {
    let job = || work().instance(instance).concurrent().tenant(tenant);
    let worker = node();
    // An executable one, with a unique key.
    w.create(vec![job().unique(format!("key of {instance}"))])
        .await;
    // A timer that has failed, with a stack and a checkpoint.
    let hint = w.one(job()).await;
    let held = w.hold(worker, &hint).await;
    let saved = w.store.save_checkpoint(worker, &held.held(), "1").await;
    assert!(saved.unwrap());
    w.fail(worker, retry_after(&held, Duration::from_secs(60)))
        .await;
    // A dead letter, with an incident.
    let hint = w.one(job()).await;
    let held = w.hold(worker, &hint).await;
    w.fail(worker, give_up(&held)).await;
    // A timer that waits, and the records of a job that is gone.
    w.create(vec![job().delay(Duration::from_secs(60))]).await;
    let gone = JobId::generate();
    for sql in [
        format!(
            "INSERT INTO {{s}}attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, \
             outcome, keep_until) SELECT coalesce(max(fence), 1000000) + 1, '{gone}', 'work', '{instance}', \
             '{tenant}', '{gone}', {{now}}, {{now}}, 'done', {{now}} FROM {{s}}attempt"
        ),
        format!(
            "INSERT INTO {{s}}unique_job (type, tenant, key, job_id, dead_letters, seen_at) \
             VALUES ('work', '{tenant}', 'gone of {instance}', '{gone}', false, {{now}})"
        ),
        format!(
            "INSERT INTO {{s}}event_log (job_id, process_instance, activity, position, fence, node, started_at, \
             ended_at) VALUES ('{gone}', '{instance}', 'a', 1, 1, '{gone}', {{now}}, {{now}})"
        ),
    ] {
        w.store.execute(&sql).await;
    }
    4
}

async fn rows<S: SqlBench>(w: &World<S>) -> Vec<(&'static str, i64)> {
    let mut rows = Vec::new();
    for table in PURGED_TABLES {
        rows.push((table, w.rows(table).await));
    }
    rows
}

async fn purge<S: SqlBench>(w: &World<S>, purge: &Purge) -> jobwire_core::Purged {
    purge
        .run(&w.store, &CommitHook::disconnected())
        .await
        .unwrap()
}

pub(super) async fn no_row_of_a_tenant_or_an_instance_is_left_and_others_stay<S: SqlBench>(
    w: &World<S>,
) {
    let invoice = |tenant: &str| {
        let key = DefinitionKey::new("invoice").unwrap().of_tenant(tenant);
        SuspensionScope::DefinitionKey(key)
    };
    fill(w, "other", "other").await;
    for tenant in ["", "acme2", "b:acme"] {
        w.store.suspend(&invoice(tenant)).await.unwrap();
    }
    let before = rows(w).await;
    for by_tenant in [true, false] {
        let jobs = fill(w, "order-1", "acme").await;
        if by_tenant {
            w.store.suspend(&invoice("acme")).await.unwrap();
        }
        let scope = |suspension: bool| match (by_tenant, suspension) {
            (true, _) => SuspensionScope::Tenant("acme".to_owned()),
            (false, _) => SuspensionScope::ProcessInstance("order-1".to_owned()),
        };
        w.store.suspend(&scope(true)).await.unwrap();
        let plan = if by_tenant {
            Purge::tenant("acme")
        } else {
            Purge::instance("order-1")
        };
        let counted = plan.count(&w.store).await.unwrap();
        let of = |table: &str| counted.get(table).copied().unwrap_or_default();
        assert_eq!(
            of("job") + of("timer_job") + of("suspended_job") + of("dead_letter_job"),
            jobs,
            "{counted:?}"
        );
        for table in [
            "job_exception",
            "job_progress",
            "attempt",
            "incident",
            "unique_job",
        ] {
            assert!(of(table) > 0, "{table}: {counted:?}");
        }
        assert_ne!(rows(w).await, before, "a dry run changes nothing");
        let purged = purge(w, &plan).await;
        assert!(purged.is_complete());
        assert_eq!(rows(w).await, before, "{purged:?}");
        assert_eq!(purged.rows, counted);
        assert!(purge(w, &plan).await.rows.is_empty());
    }
    let empty = Purge::tenant("").count(&w.store).await.unwrap_err();
    assert!(empty.to_string().contains("is empty"), "{empty}");
}

/// Otherwise the leader would create the job at the end after the purge.
pub(super) async fn a_batch_of_the_scope_creates_no_job_after_a_purge<S: SqlBench>(w: &World<S>) {
    let client = Client::without_hints(w.store.clone());
    // PostgreSQL reads the second in no text, and the third looks like another such escape.
    let odd = ["\"x\"", "\"\\ud800\"", "\"\\\\u0000\""];
    for by_tenant in [true, false] {
        let its = |payload: &str| {
            let payload = serde_json::value::RawValue::from_string(payload.to_owned()).unwrap();
            let job = NewJob::of("at-end", &payload);
            job.tenant("acme").instance("order-1")
        };
        for payload in odd {
            let batch = Batch::named("its").job(its("1")).job(work());
            client.create_batch(batch.then(its(payload))).await.unwrap();
        }
        let other = Batch::named("other").job(its("1"));
        let other = other.then(NewJob::of("at-end", &1).tenant("other"));
        let other = client.create_batch(other).await.unwrap();
        let plan = match by_tenant {
            true => Purge::tenant("acme"),
            false => Purge::instance("order-1"),
        };
        let counted = plan.count(&w.store).await.unwrap();
        assert_eq!((counted["batch"], counted["batch_member"]), (3, 6));
        let purged = purge(w, &plan).await;
        assert_eq!(purged.rows, counted);
        assert_eq!((w.rows("batch").await, w.rows("job").await), (1, 3));
        assert!(w.store.end_batch(other, &[]).await.unwrap().is_some());
        for left in ["batch", "job"] {
            w.store.execute(&format!("DELETE FROM {{s}}{left}")).await;
        }
    }
}

pub(super) async fn a_purged_batch_is_closed_while_its_members_are_deleted<S: SqlBench>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    let batch = Batch::named("its").jobs([work(), work(), work()]);
    let batch = batch.then(NewJob::of("at-end", &1).tenant("acme"));
    let batch = client.create_batch(batch).await.unwrap();
    let scope = PurgeScope::Tenant("acme".to_owned());
    let purge = async || w.store.purge_batches(&scope, 2).await.unwrap();
    assert_eq!(purge().await, [("batch_member", 2), ("batch", 0)]);
    // The purge is interrupted here.
    w.store.execute("DELETE FROM {s}job").await;
    assert!(w.store.end_batch(batch, &[]).await.unwrap().is_none());
    let late = client.create(work().batch(batch)).await;
    assert!(matches!(late, Err(StoreError::BatchEnded(_))));
    let counted = Purge::tenant("acme").count(&w.store).await.unwrap();
    assert_eq!((counted["batch"], counted["batch_member"]), (1, 1));
    assert_eq!(purge().await, [("batch_member", 1), ("batch", 1)]);
    assert_eq!(purge().await, []);
    assert_eq!(w.rows("job").await, 0);
}

pub(super) async fn a_running_job_is_named_or_cancelled_and_keeps_its_rows<S: SqlBench>(
    w: &World<S>,
) {
    let worker = node();
    let job = || work().tenant("acme").unique("key");
    let hint = w.one(job()).await;
    let held = w.hold(worker, &hint).await;
    w.create(vec![work().tenant("acme")]).await;
    let named = purge(w, &Purge::tenant("acme")).await;
    assert_eq!(named.running, [hint.id]);
    assert_eq!(named.rows.get("job"), Some(&1));
    assert_eq!(w.rows("unique_job").await, 1, "its key is still taken");
    let renewed = w
        .store
        .renew(worker, Duration::from_secs(60), &[held.held()])
        .await
        .unwrap();
    assert!(renewed.cancelled.is_empty());
    let cancelled = purge(w, &Purge::tenant("acme").cancel_running()).await;
    assert_eq!(cancelled.running, [hint.id]);
    let renewed = w
        .store
        .renew(worker, Duration::from_secs(60), &[held.held()])
        .await
        .unwrap();
    assert_eq!(renewed.cancelled, [held.held().id]);
    w.complete(worker, &held, &Handoff::Hint).await;
    let purged = purge(w, &Purge::tenant("acme")).await;
    assert!(purged.is_complete());
    assert_eq!(w.rows("unique_job").await, 0);
    assert_eq!(w.state(hint.id).await, None);
}

pub(super) async fn more_jobs_than_a_slice_are_purged<S: SqlBench>(w: &World<S>) {
    let jobs = (0..1_201).map(|n| {
        work()
            .instance("big")
            .tenant(if n % 2 == 0 { "a" } else { "b" })
    });
    w.create(jobs.collect()).await;
    let scope = PurgeScope::ProcessInstance("big".to_owned());
    let page = w.store.purge_page(&scope, None, 10).await.unwrap();
    let next = w
        .store
        .purge_page(&scope, Some(page[9].id), 10)
        .await
        .unwrap();
    assert!(page.len() == 10 && next.len() == 10 && next[0].id > page[9].id);
    assert!(page.iter().all(|job| job.state == JobState::Executable));
    let purged = purge(w, &Purge::instance("big")).await;
    assert_eq!(purged.rows.get("job"), Some(&1_201));
    assert_eq!(w.rows("job").await, 0);
}

pub(super) async fn tags_are_filtered_and_follow_a_job_through_its_states<S: SqlBench>(
    w: &World<S>,
) {
    let tags = |tags: &[&str]| NewJob::of("work", &17).tags(tags.iter().copied());
    let hint = w
        .one(tags(&["red", "a \"b\""]).custom_values(values()))
        .await;
    let other = w.one(tags(&["red"])).await;
    w.one(work()).await;
    let filter = |tags: &[&str]| {
        let all = jobwire_core::JobQuery::default();
        tags.iter().fold(all, |filter, tag| filter.tag(*tag))
    };
    assert_eq!(w.find(filter(&["red"])).await, [hint.id, other.id]);
    assert_eq!(w.find(filter(&["red", "a \"b\""])).await, [hint.id]);
    assert!(w.find(filter(&["re"])).await.is_empty());
    assert!(w.find(filter(&["b"])).await.is_empty());
    let worker = node();
    let held = w.hold(worker, &hint).await;
    assert_eq!(held.job.tags(), ["red", "a \"b\""]);
    w.fail(worker, give_up(&held)).await;
    let view = w.view(hint.id).await.unwrap();
    assert_eq!(view.tags, ["red", "a \"b\""]);
    assert_eq!(w.find(filter(&["a \"b\""])).await, [hint.id]);
    let (_, job, _) = w.store.get(hint.id).await.unwrap().unwrap();
    assert!(job.custom_values.unwrap().get().contains("\"n\""));
    // Plain SQL sets them in the custom values. Values of another form have none, and harm no list.
    let mut written = Vec::new();
    for custom in [
        r#"'{"$tags": ["red", "\u0062lue"]}'"#,
        r#"'{"$tags": "red"}'"#,
        r#"'{"$tags": {"red": 1}}'"#,
        r#"'["red"]'"#,
        r#"'{"$tags": ["red", "\u0000"]}'"#,
    ] {
        let id = w.store.put("job", &[("custom_values", custom)]).await;
        written.push(id.unwrap());
    }
    let found = w.find(filter(&["blue"])).await;
    assert_eq!(found, written[..1]);
    let red = w.find(filter(&["red"])).await;
    assert!(red.contains(&hint.id) && red.contains(&written[0]));
    for id in &written[1..4] {
        assert!(!red.contains(id));
        assert!(w.view(*id).await.unwrap().tags.is_empty());
    }
}

fn values() -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(&serde_json::json!({"n": 1})).unwrap()
}

/// The creator takes the key of a job that is gone, and commits while the purge waits for the row.
#[tokio::test]
async fn a_purge_keeps_the_key_of_a_job_that_is_committed_meanwhile() {
    let w = &World::<PgStore>::open().await;
    let keys = "INSERT INTO jobwire.unique_job (type, tenant, key, job_id, dead_letters, seen_at) \
                SELECT 'work', 'acme', n::text, gen_random_uuid(), false, now() FROM generate_series(1, 1200) n";
    sqlx::query(keys).execute(w.store.pool()).await.unwrap();
    let mut creator = w.store.pool().begin().await.unwrap();
    let take = "UPDATE jobwire.unique_job SET job_id = jobwire.create_job(type => 'work', tenant => 'acme') \
                WHERE key = '1'";
    sqlx::query(take).execute(&mut *creator).await.unwrap();
    let purge = {
        let store = w.store.clone();
        tokio::spawn(async move {
            store
                .purge_rest(&PurgeScope::Tenant("acme".to_owned()))
                .await
        })
    };
    eventually("a purge that waits", SOON, async || {
        let waits = "SELECT count(*) FROM pg_stat_activity \
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let waits: i64 = sqlx::query_scalar(waits)
            .fetch_one(w.store.pool())
            .await
            .unwrap();
        (waits > 0).then_some(())
    })
    .await;
    creator.commit().await.unwrap();
    let counts = purge.await.unwrap().unwrap();
    let deleted: u64 = counts.iter().map(|(_, count)| count).sum();
    assert_eq!((deleted, w.rows("unique_job").await), (1_199, 1));
}
