//! A look for new jobs of which a part fails: the jobs that it has found get their hints.

use jobwire_core::NodeId;
use jobwire_core::store::{CycleOutcome, Store};
use sqlx::AssertSqlSafe;

use crate::engines::bridge::flowable::job_id;
use crate::engines::bridge::zone::{CAMUNDA, JOB_OF_CAMUNDA, JOBS, Tables, cycle_of};

/// Takes the table of jobs away when a look has committed, before the look for due timers.
const TAKE_AWAY: &str = "
CREATE FUNCTION take_away() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ALTER TABLE public.act_ru_job RENAME TO act_ru_job_away;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER take_away AFTER UPDATE ON jobwire_engine.leader DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.seen IS DISTINCT FROM NEW.seen) EXECUTE FUNCTION take_away()";

/// The look has remembered its snapshot, so no later look finds the job.
#[tokio::test]
async fn a_look_of_camunda_reports_its_jobs_although_the_look_for_timers_fails() {
    let tables = Tables::create(CAMUNDA, JOB_OF_CAMUNDA).await;
    let store = tables.connect("UTC").await;
    let new = tables.job(JOBS, "UTC").await;
    sqlx::raw_sql(AssertSqlSafe(TAKE_AWAY))
        .execute(&tables.pool)
        .await
        .unwrap();
    let outcome = store
        .run_leader_cycle(&cycle_of(NodeId::generate()))
        .await
        .unwrap();
    let CycleOutcome::Leads(report) = outcome else {
        panic!("{outcome:?}");
    };
    let hints: Vec<_> = report.unhinted.iter().map(|r| r.hint.id).collect();
    assert_eq!(hints, [job_id(&new.job)]);
    Store::close(&store).await;
}
