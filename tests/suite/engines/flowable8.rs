//! Flowable 8 with its executor off. It has no REST yet: the endpoint runs its jobs.

use jobwire_tests::{EngineServer, EngineSettings};
use tokio::sync::OnceCell;

use crate::engines::endpoint::endpoint_cases;
use crate::engines::rows::{JOB, Rows, World};

/// The shared engine, and the database.
async fn flowable8() -> (&'static EngineServer, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED
        .get_or_init(|| World::start(EngineSettings::flowable8))
        .await;
    (&world.engine, world.connect().await)
}

endpoint_cases!(
    crate::engines::flowable8::flowable8,
    #[ignore = "long: scripts/test --long engines::"]
);

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_committed_job_of_flowable8_is_unlocked() {
    let (engine, rows) = flowable8().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!((job.revision, job.retries), (1, Some(3)));
    assert!(!job.is_locked(), "{job:?}");
    let version = "SELECT count(*) FROM act_ge_property
        WHERE name_ = $1 AND value_ LIKE '8.%'";
    assert_eq!(rows.count(version, "schema.version").await, 1);
}
