//! After a purge, no column of any table of the schema has the name. The database lists the columns, so a
//! table that the purge does not know fails the test.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::event::EventStream;
use jobwire_core::job::LockedJob;
use jobwire_core::store::permits::{Asking, KeyRequest, PermitKey, PermitRequest};
use jobwire_core::{Batch, Client, CommitHook, JobId, LaneRule, NewJob, PeriodicJob, Purge};

use super::purging::fill;
use super::world::{LEASE, SqlBench, World, give_up, node, retry_after, work};

const INSTANCE: &str = "order-4711";
const TENANT: &str = "acme-4711";

fn its() -> NewJob {
    work().instance(INSTANCE).tenant(TENANT)
}

/// Returns the tables that have this text in any column.
async fn tables_with<S: SqlBench>(w: &World<S>, text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (table, column) in w.store.columns().await {
        let rows = format!(
            r#"SELECT count(*) FROM {{s}}"{table}" WHERE CAST("{column}" AS TEXT) LIKE '%{text}%'"#
        );
        if w.store.number(&rows).await > 0 {
            found.insert(table);
        }
    }
    found
}

/// Two jobs of the tenant under a limit of one for each tenant: one has failed, and its node keeps the
/// permit; the other one waits.
async fn borrow<S: SqlBench>(w: &World<S>) {
    let owner = node();
    let hints = w.ready(vec![its().concurrent(), its().concurrent()]).await;
    let held = w.lock(owner, &hints).await.jobs;
    let asking = |job: &LockedJob| Asking {
        held: job.held(),
        job_type: "work".to_owned(),
        seq: job.job.seq,
        fair_key: Some(TENANT.to_owned()),
    };
    let of = KeyRequest {
        key: PermitKey {
            limit: "work".to_owned(),
            key: TENANT.to_owned(),
        },
        size: 1,
        keep: 0,
        spare: 0,
        cool_down: Duration::ZERO,
        cooling: Vec::new(),
        asking: held.iter().map(asking).collect(),
    };
    let request = PermitRequest::new(owner, LEASE, vec![of]);
    let answer = loop {
        match w.store.exchange_permits(&request).await {
            Err(error) if error.is_conflict() => {}
            answer => break answer.unwrap(),
        }
    };
    let granted = answer.keys[0].granted[0];
    assert_eq!(answer.parked.len(), 1);
    let runs = held.iter().find(|job| job.job.id == granted).unwrap();
    w.fail(owner, retry_after(runs, Duration::from_secs(60)))
        .await;
}

/// Fills every table that may name the instance or the tenant.
async fn fill_all<S: SqlBench>(w: &World<S>) {
    let stream = EventStream::new("jobwire/orders");
    w.store.switch_event_stream(Some(&stream)).await.unwrap();
    fill(w, INSTANCE, TENANT).await;
    borrow(w).await;
    // An exclusive job, which takes the row of its instance while it runs.
    let owner = node();
    let hint = w.one(its()).await;
    let held = w.hold(owner, &hint).await;
    w.fail(owner, give_up(&held)).await;
    let named = [
        ("tenant", &*format!("'{TENANT}'")),
        ("process_instance", &*format!("'{INSTANCE}'")),
    ];
    w.store.put("suspended_job", &named).await.unwrap();
    let batch = Batch::named("its").job(its()).then(its());
    let client = Client::without_hints(w.store.clone());
    client.create_batch(batch).await.unwrap();
    let nightly = PeriodicJob::new("nightly", "0 2 * * *", its());
    w.store.declare_periodic_jobs(&[nightly]).await.unwrap();
    let rules = [
        LaneRule::to("other").job_type("other"),
        LaneRule::to("its").tenant(TENANT),
    ];
    w.store.set_lane_rules(&rules).await.unwrap();
    let gone = JobId::generate();
    for sql in [
        format!(
            "INSERT INTO {{s}}unique_dead_letter (job_id, type, tenant, key) \
             VALUES ('{gone}', 'work', '{TENANT}', 'k')"
        ),
        format!(
            "INSERT INTO {{s}}waiting_job (job_id, limit_name, key, type, seq, woken_at, fair_key) \
             VALUES ('{gone}', 'work', '{TENANT}', 'work', 1, {{now}}, '{TENANT}')"
        ),
        format!(
            "INSERT INTO {{s}}suspension (scope, value, since) VALUES ('tenant', '{TENANT}', {{now}}), \
             ('process_instance', '{INSTANCE}', {{now}})"
        ),
    ] {
        w.store.execute(&sql).await;
    }
}

fn set(tables: &[&str]) -> BTreeSet<String> {
    tables.iter().map(ToString::to_string).collect()
}

/// Every table with a column of this name must be filled, so that a later one is not forgotten.
async fn expect_filled<S: SqlBench>(
    w: &World<S>,
    column: &str,
    found: &BTreeSet<String>,
    not: &[&str],
) {
    for (table, of) in w.store.columns().await {
        assert!(
            of != column || found.contains(&table) || not.contains(&&*table),
            "the test has no row in {table}.{of}"
        );
    }
}

pub(super) async fn no_column_of_any_table_names_a_purged_tenant_or_instance<S: SqlBench>(
    w: &World<S>,
) {
    let hook = CommitHook::disconnected();
    fill_all(w).await;
    let before = tables_with(w, TENANT).await;
    expect_filled(w, "tenant", &before, &[]).await;
    let others = [
        "batch",
        "permit",
        "permit_key",
        "periodic_job",
        "suspension",
    ];
    assert!(before.is_superset(&set(&others)), "{before:?}");
    let plan = Purge::tenant(TENANT);
    let counted = plan.count(&w.store).await.unwrap();
    let purged = plan.run(&w.store, &hook).await.unwrap();
    assert!(counted["event"] > 0 && purged.rows["event"] > counted["event"]);
    assert!(!purged.is_complete(), "a node holds a permit");
    assert_eq!(purged.held_limits, ["work"]);
    let left = tables_with(w, TENANT).await;
    let held = set(&["lane_rule", "periodic_job", "permit", "permit_key"]);
    assert_eq!(left, held, "{purged:?}");

    w.store.execute("DELETE FROM {s}permit").await;
    assert_eq!(plan.count(&w.store).await.unwrap()["permit_key"], 1);
    let purged = plan.run(&w.store, &hook).await.unwrap();
    assert!(purged.is_complete(), "{purged:?}");
    assert_eq!(purged.rows["permit_key"], 1);
    let settings = set(&["lane_rule", "periodic_job"]);
    assert_eq!(tables_with(w, TENANT).await, settings);
    assert_eq!(purged.kept, plan.kept(&w.store).await.unwrap());
    assert_eq!(purged.kept.schedules, ["nightly"]);
    assert_eq!(purged.kept.lane_rules, [2]);

    w.store.execute("DELETE FROM {s}suspension").await;
    fill_all(w).await;
    let before = tables_with(w, INSTANCE).await;
    // An instance has its row only while an exclusive job of it runs.
    expect_filled(w, "process_instance", &before, &["instance_lock"]).await;
    let purged = Purge::instance(INSTANCE);
    let purged = purged.run(&w.store, &hook).await.unwrap();
    assert!(purged.is_complete(), "{purged:?}");
    let left = tables_with(w, INSTANCE).await;
    assert_eq!(left, set(&["periodic_job"]), "{purged:?}");
    assert_eq!(purged.kept.schedules, ["nightly"]);
    assert!(purged.kept.lane_rules.is_empty());
}
