//! When jobs were committed and when they started, as the database recorded them.

use std::collections::HashMap;

use sqlx::PgPool;

use crate::Postgres;
use crate::engine_bench::load::Started;

/// Records each job of an instance in a row of the transaction that inserts it. Its commit
/// timestamp is found by the row's xmin, since the row never changes.
const RECORD: &str = "
CREATE TABLE engine_bench_job (instance text NOT NULL);
CREATE INDEX engine_bench_job_instance ON engine_bench_job (instance);
CREATE FUNCTION engine_bench_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO engine_bench_job VALUES (NEW.process_instance_id_);
    RETURN NULL;
END $$;
CREATE TRIGGER engine_bench AFTER INSERT ON act_ru_job FOR EACH ROW
    WHEN (NEW.process_instance_id_ IS NOT NULL) EXECUTE FUNCTION engine_bench_record();";

/// Selects the commits and the starts of instances, in microseconds since 1970.
const MOMENTS: &str = "
SELECT e.instance, (extract(epoch FROM pg_xact_commit_timestamp(j.xmin)) * 1000000)::bigint,
    (extract(epoch FROM e.at) * 1000000)::bigint
FROM jobwire_effect e JOIN engine_bench_job j ON j.instance = e.instance
WHERE e.instance = ANY ($1)";

/// The job of an instance, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    /// Its commit, or the request to execute it.
    pub(super) since: i64,
    /// The start of its delegate.
    pub(super) started: i64,
}

/// Begins to record commits in the database of an engine.
pub(super) async fn record(pool: &PgPool) {
    let recording = sqlx::raw_sql(RECORD).execute(pool).await;
    recording.unwrap_or_else(|error| panic!("the record of the bench: {error}"));
}

/// Returns the moments of these instances.
///
/// # Panics
/// If a job did not start exactly once.
pub(super) async fn of(pool: &PgPool, started: &[Started]) -> Vec<Moments> {
    let instances: Vec<&str> = started.iter().map(|it| &*it.instance).collect();
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(MOMENTS)
        .bind(instances)
        .fetch_all(pool)
        .await
        .unwrap_or_else(|error| panic!("the moments of jobs: {error}"));
    let mut runs: HashMap<&str, Vec<(i64, i64)>> = HashMap::new();
    for (instance, committed, at) in &rows {
        runs.entry(instance).or_default().push((*committed, *at));
    }
    let moments = started.iter().map(|started| {
        let runs = runs.get(&*started.instance).map_or(&[][..], Vec::as_slice);
        let &[(committed, at)] = runs else {
            panic!(
                "the job of instance {} ran {} times",
                started.instance,
                runs.len()
            );
        };
        Moments {
            since: started.requested.unwrap_or(committed),
            started: at,
        }
    });
    moments.collect()
}

/// Returns the version of a server.
pub(super) async fn server_version(postgres: &Postgres) -> String {
    let version = async {
        let pool = PgPool::connect(&postgres.url("postgres")).await?;
        sqlx::query_scalar("SHOW server_version")
            .fetch_one(&pool)
            .await
    };
    let version = version.await;
    version.unwrap_or_else(|error: sqlx::Error| panic!("the version of the server: {error}"))
}
