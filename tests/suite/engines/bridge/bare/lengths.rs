//! The length of locks beside engine nodes that poll: such a node clears an expired lock although the
//! engine may still execute the job.

use std::time::Duration;

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::quick;
use crate::engines::rows::{JOB, JobRow};

/// Far longer than the lease of [`quick`], and than the time for which a lock without an answer stays.
const LENGTH: Duration = Duration::from_secs(3_600);

const INSTANCE: &str = "
SELECT count(*) FROM act_ru_execution e JOIN act_ru_job j ON j.process_instance_id_ = e.id_
WHERE j.id_ = $1 AND e.lock_time_ > (clock_timestamp() AT TIME ZONE 'UTC') + interval '59 minutes'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_flowable_has_its_least_length_at_its_begin_its_renewal_and_its_end() {
    locked_for_the_length(Engine::Flowable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_activiti_has_its_least_length_at_its_begin_its_renewal_and_its_end() {
    locked_for_the_length(Engine::Activiti).await;
}

/// Nothing extends the lock of Camunda.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_camunda_over_the_endpoint_has_its_length_at_its_begin_and_its_end() {
    locked_for_the_length(Engine::Camunda).await;
}

async fn assert_length(bare: &Bare, id: &str, owner: Option<&str>) -> JobRow {
    let row = bare.find(JOB, id).await.expect("the job");
    if owner.is_some() {
        assert_eq!(row.owner.as_deref(), owner);
    }
    let left = row.expiry.expect("a lock") - bare.clock().await;
    assert!(left.num_minutes() >= 59, "{left}");
    if bare.engine == Engine::Flowable {
        assert_eq!(bare.rows.count(INSTANCE, id).await, 1, "its instance");
    }
    row
}

async fn locked_for_the_length(engine: Engine) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let options = bare.options(application.url()).lock_for(LENGTH);
    let node = quick().shutdown_timeout(Duration::from_secs(1));
    let bridge = bare.bridge(options, node).await;
    let id = bare.job().await;
    let execution = application.execution().await;
    let lock = assert_length(&bare, &id, execution.owner.as_deref()).await;
    bare.until_held(&lock, Duration::from_secs(2)).await;
    assert_length(&bare, &id, lock.owner.as_deref()).await;
    // The job still runs when its node has stopped.
    bridge.stop().await;
    assert_length(&bare, &id, lock.owner.as_deref()).await;
    application.assert_no_other();
}
