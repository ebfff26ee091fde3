//! The rows that show a wrong zone: the first ones of an engine, and the last ones of a large table.
//! What a leader in the right zone does with the locks of a node in a wrong one.

use super::*;

/// Creates rows without a time in their ids before those of the test.
const NUMBERED: &str = "INSERT INTO TABLE_ (id_, TIME_)
    SELECT n::text, clock_timestamp() AT TIME ZONE $1 FROM generate_series(1, 5000) AS n";

/// Asserts that the first timer of an engine waits, on a leader and on a node that gets its hint.
async fn the_first_timer(tables: &str, job: &'static str, timers: &str) {
    let tables = Tables::create(tables, job).await;
    let leader = tables.connect("UTC").await;
    let node = tables.connect("UTC").await;
    assert_eq!((leader.failing_part(), node.failing_part()), (None, None));
    let timer = tables.timer(timers, 60).await;
    let early = leader.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&early), HashSet::new());
    assert_eq!(leader.failing_part().map(|(part, _)| part), Some("zone"));
    let hints = [hint(&timer.job)];
    let locked = node.lock(&terms(NodeId::generate()), &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 0, "{locked:?}");
    for store in [leader, node] {
        Store::close(&store).await;
    }
}

#[tokio::test]
async fn the_first_timer_of_flowable_in_a_wrong_zone_is_not_early() {
    the_first_timer(FLOWABLE, JOB_OF_FLOWABLE, TIMERS).await;
}

#[tokio::test]
async fn the_first_timer_of_camunda_in_a_wrong_zone_is_not_early() {
    the_first_timer(CAMUNDA, JOB_OF_CAMUNDA, JOBS).await;
}

#[tokio::test]
async fn the_first_lock_of_an_engine_node_in_a_wrong_zone_is_not_cleared() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let store = tables.connect("UTC").await;
    // A cycle has read the empty tables; the next read is a minute later.
    tables.cycle(&store).await;
    let running = tables.job(JOBS, ENGINES).await;
    let lock = LOCK.replace("TABLE_", JOBS);
    tables
        .lock(&lock, &running.job, ENGINES, ("engine", 5))
        .await;
    assert_eq!(rescued(&tables.cycle(&store).await), HashSet::new());
    let owner = tables.owner(JOBS, &running.job).await;
    assert_eq!(owner.as_deref(), Some("engine"));
    Store::close(&store).await;
}

/// Asserts that the rows at the end of large tables decide.
async fn the_end_of_a_table(tables: &str, job: &'static str, large: &[(&str, &str)]) {
    let tables = Tables::create(tables, job).await;
    for (table, time) in large {
        let numbered = NUMBERED.replace("TABLE_", table).replace("TIME_", time);
        let numbered = sqlx::query(AssertSqlSafe(numbered)).bind(ENGINES);
        numbered.execute(&tables.pool).await.unwrap();
    }
    tables.job(JOBS, ENGINES).await;
    let store = tables.connect("UTC").await;
    assert_told(&store).await;
    Store::close(&store).await;
}

#[tokio::test]
async fn the_last_rows_of_large_tables_show_a_wrong_zone_of_flowable() {
    let large = [
        (JOBS, "create_time_"),
        (TIMERS, "create_time_"),
        ("act_ru_execution", "start_time_"),
    ];
    the_end_of_a_table(FLOWABLE, JOB_OF_FLOWABLE, &large).await;
}

#[tokio::test]
async fn the_last_rows_of_a_large_table_show_a_wrong_zone_of_camunda() {
    the_end_of_a_table(CAMUNDA, JOB_OF_CAMUNDA, &[(JOBS, "create_time_")]).await;
}

/// Asserts that a leader in the right zone leaves the lock of a living node that writes locks in a zone
/// three hours behind, and clears a lock that this node has lost.
async fn a_living_node(tables: &str, job: &'static str) {
    let tables = Tables::create(tables, job).await;
    // The empty tables show nothing yet.
    let wrong = tables.connect("Etc/GMT+8").await;
    let running = tables.job(JOBS, ENGINES).await;
    let node = NodeId::generate();
    let hints = [hint(&running.job)];
    let locked = wrong.lock(&terms(node), &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    wrong.write_node(&row_of(node)).await.unwrap();
    let lost = tables.job(JOBS, ENGINES).await;
    let lock = LOCK.replace("TABLE_", JOBS);
    let owner = format!("jobwire:{node}:7");
    tables.lock(&lock, &lost.job, ENGINES, (&owner, -62)).await;
    let right = tables.connect(ENGINES).await;
    assert_eq!(right.failing_part(), None);
    assert_eq!(rescued(&tables.cycle(&right).await), ids([&lost]));
    let owner = tables.owner(JOBS, &running.job).await.unwrap_or_default();
    assert!(owner.contains(&node.to_string()), "{owner}");
    // When that node is gone, its job is taken over.
    wrong.remove_node(node).await.unwrap();
    assert_eq!(rescued(&tables.cycle(&right).await), ids([&running]));
    for store in [right, wrong] {
        Store::close(&store).await;
    }
}

#[tokio::test]
async fn a_lock_of_flowable_of_a_living_node_with_a_wrong_zone_stays() {
    a_living_node(FLOWABLE, JOB_OF_FLOWABLE).await;
}

#[tokio::test]
async fn a_lock_of_camunda_of_a_living_node_with_a_wrong_zone_stays() {
    a_living_node(CAMUNDA, JOB_OF_CAMUNDA).await;
}

#[tokio::test]
async fn the_doctor_names_an_unknown_zone_among_its_other_findings() {
    for (tables, job) in [(FLOWABLE, JOB_OF_FLOWABLE), (CAMUNDA, JOB_OF_CAMUNDA)] {
        let tables = Tables::create(tables, job).await;
        tables.job(JOBS, ENGINES).await;
        let zone = "Europe/Atlantis".to_owned();
        let store = if job == JOB_OF_CAMUNDA {
            EngineStore::camunda(&tables.database, EngineOptions::camunda(URL).zone(zone)).await
        } else {
            EngineStore::flowable(&tables.database, EngineOptions::new(URL).zone(zone)).await
        };
        let store = store.unwrap();
        let findings = store.examine().await.unwrap();
        let mut found = findings.iter().map(|finding| &finding.found);
        assert!(
            found.any(|found| found.contains("knows no time zone `Europe/Atlantis`")),
            "{findings:#?}"
        );
        assert!(findings.iter().any(|finding| finding.about == "rights"));
        Store::close(&store).await;
    }
}
