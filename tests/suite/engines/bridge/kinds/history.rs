//! Jobs of asynchronous history: the open-source engine writes none, and the doctor tells of those
//! of others.

use jobwire_engines::examine::{Level, examine};
use jobwire_tests::EngineSettings;

use crate::engines::bridge::flowable::{Bridge, options, quick, store, until_ended};
use crate::engines::rows::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable_writes_no_history_jobs_and_the_doctor_tells_of_those_of_others() {
    let world = World::start(|database| {
        let settings = EngineSettings::flowable7(database);
        settings
            .property("flowable.process.async-history.enable", "true")
            .property("flowable.async-history-executor-activate", "false")
    })
    .await;
    let rows = world.connect().await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    let instances = world.engine.start_instances("chain", 2, &[]).await;
    until_ended(&rows, &instances).await;
    bridge.stop().await;
    let written = "SELECT count(*) FROM act_ru_history_job WHERE $1 = ''";
    assert_eq!(rows.count(written, "").await, 0);
    let ended =
        "SELECT count(*) FROM act_hi_procinst WHERE end_time_ IS NOT NULL AND proc_inst_id_ = $1";
    for instance in &instances {
        assert_eq!(
            rows.count(ended, instance).await,
            1,
            "history is written at once"
        );
    }
    let store = store(&world, options(&world.engine)).await;
    let told = || async {
        let findings = examine(&store).await.unwrap();
        let of_history = findings.into_iter().find(|found| found.about == "history");
        of_history.map(|found| (found.level, found.found))
    };
    assert_eq!(told().await, None);
    let insert = "INSERT INTO act_ru_history_job (id_, rev_, retries_) VALUES ($1, 1, 3)";
    rows.change(insert, "0198c0de-7777-7000-8000-000000000001")
        .await;
    let (level, found) = told().await.expect("told");
    assert_eq!(level, Level::Remark);
    assert!(found.contains("1 jobs of asynchronous history"), "{found}");
}
