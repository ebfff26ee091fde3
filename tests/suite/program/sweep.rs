//! `jobwire sweep --dry-run`.

use std::time::Duration;

use jobwire_core::store::SuspensionScope;
use jobwire_core::{NewJob, Store};
use jobwire_tests::{Program, eventually, shared};
use serde_json::{Value, json};

use super::{SOON, fails, jobwire, succeeds};
use crate::fleet::Fleet;

async fn asked(fleet: &Fleet, arguments: &[&str]) -> String {
    let program = Program::jobwire()
        .args(["sweep", "--dry-run"])
        .args(arguments)
        .env("JOBWIRE_DATABASE_URL", &fleet.database)
        .env("JOBWIRE_BROKER_URL", &fleet.space.url)
        .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix)
        .env("JOBWIRE_SWEEP_INTERVAL", "1s")
        .env("JOBWIRE_HINT_MAX_AGE", "100ms")
        .env("JOBWIRE_SUSPECT_AFTER", "100ms")
        .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1s")
        .env("JOBWIRE_LOG", "off");
    succeeds(program).await
}

async fn counted(fleet: &Fleet) -> Value {
    let said = asked(fleet, &["--json", "--wait", "30s"]).await;
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// Creates jobs of every class, on a node whose own sweeper suspects none for an hour. The dry run
/// names them and leaves them as they are.
#[tokio::test]
async fn a_dry_run_names_each_class_and_changes_nothing() {
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    // No lease ends because the machine stood still.
    let patient = [("JOBWIRE_SUSPECT_AFTER", "1h"), ("JOBWIRE_LEASE", "1h")];
    let _node = fleet.node(&patient).await;
    let sleeps = || NewJob::of("sleep", &json!({ "ms": 3_600_000 }));
    let noop = || NewJob::of("noop", &json!({}));
    let types = ["nobody-serves-this", "nobody-serves-that"];
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create(sleeps().instance("one")).await.unwrap();
    tx.create_many(types.map(|of| NewJob::of(of, &json!({}))).into())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    eventually("the first job to run", SOON, || async {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    let tenant = SuspensionScope::Tenant("slow".to_owned());
    fleet.store.suspend(&tenant).await.unwrap();
    // These jobs are committed, and their hints are never published.
    let mut lost = vec![noop(), noop(), noop()];
    let mut ids: Vec<String> = lost.iter().map(|job| job.id().to_string()).collect();
    lost.push(noop().tenant("slow"));
    lost.push(noop().instance("one"));
    let mut tx = fleet.store.pool().begin().await.unwrap();
    let mut hook = fleet.jobs.hook();
    hook.create_many(&mut tx, lost).await.unwrap();
    tx.commit().await.unwrap();
    drop(hook);

    let rows = "SELECT string_agg(j::text || coalesce(l.owner::text, ''), ',' ORDER BY j.id)
         FROM jobwire.job j LEFT JOIN jobwire.job_lease l ON l.job_id = j.id";
    let all = || async {
        let rows: String = sqlx::query_scalar(rows)
            .fetch_one(fleet.store.pool())
            .await
            .unwrap();
        rows
    };
    let before = all().await;
    let found = eventually("the lane to answer", Duration::from_secs(60), || async {
        let found = counted(&fleet).await;
        // Young jobs are not orphans yet.
        (found["lanes"]["default"]["orphans"] == 3).then_some(found)
    })
    .await;
    let number = |class: &str| found[class].as_i64().unwrap();
    assert_eq!(found["nodes"], 1, "{found}");
    assert_eq!(
        (number("running"), number("unserved"), number("suspended")),
        (1, 2, 1),
        "{found}"
    );
    assert_eq!(
        (number("instance_held"), number("ready"), number("expired")),
        (1, 3, 0),
        "{found}"
    );
    let lane = &found["lanes"]["default"];
    assert_eq!(lane["orphans"], 3, "{found}");
    ids.sort_unstable();
    assert_eq!(lane["ids"], json!(ids), "{found}");
    assert_eq!(all().await, before, "nothing is changed");

    let said = eventually("the same in words", SOON, || async {
        let said = asked(&fleet, &["--wait", "30s"]).await;
        let all = said.contains("1 living node found") && said.contains("orphan in default");
        all.then_some(said)
    })
    .await;
    for part in ["would be left alone", "nothing was changed"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[tokio::test]
async fn a_dry_run_without_nodes_or_broker_says_what_it_can_not_know() {
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    fleet.jobs.create(NewJob::of("noop", &())).await.unwrap();
    let said = asked(&fleet, &["--wait", "1s"]).await;
    assert!(said.contains("without a living node"), "{said}");

    let home = jobwire_tests::Scratch::new();
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let said =
        succeeds(jobwire(&home, &["sweep", "--dry-run", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let found: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!((&found["ready"], &found["nodes"]), (&json!(0), &json!(0)));
    // The leader sweeps by itself; a command that sweeps too would only interfere.
    fails(jobwire(&home, &["sweep"]), 2).await;
}
