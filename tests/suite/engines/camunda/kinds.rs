//! Jobs of Camunda that belong to no process instance.

use serde_json::{Value, json};
use sqlx::Row;

use crate::engines::camunda::camunda;
use crate::engines::rows::Rows;

/// The jobs with a handler of this type: ids, their process instances, types of the rows.
async fn of_handler(rows: &Rows, handler: &str) -> Vec<(String, Option<String>, String)> {
    let query = "SELECT id_, process_instance_id_, type_ FROM act_ru_job
        WHERE handler_type_ = $1 ORDER BY id_";
    let rows = rows.all(query, handler).await;
    let columns = |row: &sqlx::postgres::PgRow| (row.get(0), row.get(1), row.get(2));
    rows.iter().map(columns).collect()
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_batch_of_camunda_runs_by_its_jobs() {
    let (engine, rows) = camunda().await;
    let instances = engine.start_instances("boundary", 2, &[("wait", "PT1H")]);
    let instances = instances.await;
    let body = json!({ "processInstanceIds": instances, "deleteReason": "a test" }).to_string();
    let answer = engine.rest("POST", "/process-instance/delete", &body);
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let batch: Value = serde_json::from_str(&answer.body).unwrap();
    let batch = batch["id"].as_str().unwrap();
    let batches = "SELECT count(*) FROM act_ru_batch WHERE id_ = $1";
    assert_eq!(rows.count(batches, batch).await, 1);
    // Seeds, the work, and the monitor, which ends the batch; each is a job without an instance.
    for (handler, count) in [
        ("batch-seed-job", 1),
        ("instance-deletion", 2),
        ("batch-monitor-job", 1),
    ] {
        let jobs = of_handler(&rows, handler).await;
        assert_eq!(jobs.len(), count, "{handler}");
        for (job, instance, _) in jobs {
            assert_eq!(instance, None, "{handler}");
            let answer = engine.execute(&job).await;
            assert_eq!(answer.status, 204, "{handler}: {}", answer.body);
        }
    }
    for instance in &instances {
        assert!(rows.ended(instance).await);
    }
    assert_eq!(rows.count(batches, batch).await, 0);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_cleanup_of_camunda_keeps_its_row() {
    let (engine, rows) = camunda().await;
    let answer = engine.rest("POST", "/history/cleanup?immediatelyDue=true", "{}");
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let jobs = of_handler(&rows, "history-cleanup").await;
    let [(job, instance, kind)] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    assert_eq!((instance, &**kind), (&None, "ever-living"));
    let answer = engine.execute(job).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    assert_eq!(of_handler(&rows, "history-cleanup").await, jobs);
}
