//! The examination of an engine, for `jobwire doctor`: finds problems and names their remedies.
//!
//! The examination changes nothing, neither in the database nor in the engine.

use std::time::Duration;

use futures_util::future::join_all;
use jobwire_core::StoreError;
use jobwire_core::job::scope::{Group, Services};
use jobwire_core::store::SchemaStatus;
use sqlx::{PgPool, Row};

use crate::EngineStore;
use crate::coordination::schema;
use crate::decode::OTHER;
use crate::executing::Executing as _;
pub use crate::finding::{Finding, Level};
use crate::http::{Answer, Rest};
use crate::options::Execution;
use crate::routing::question::{Report, Silent};
use crate::zone::is_moment;
use crate::{probing, unserved};

/// Examines an engine: its tables, rights, connections, publications and REST interface.
///
/// # Errors
/// The database's error.
pub async fn examine(store: &EngineStore) -> Result<Vec<Finding>, StoreError> {
    let pool = store.pool();
    let (mut findings, are_there) = store.dialect().examine(pool).await?;
    if !are_there {
        return Ok(findings);
    }
    // The probe names an unknown zone. What reads local times is left out then.
    let knows_zone = probing::knows_zone(pool, &store.options().zone).await?;
    if knows_zone {
        store
            .dialect()
            .zone()
            .read(store.dialect().stamps(), pool)
            .await?;
    }
    if let Some(found) = store.dialect().zone().finding() {
        // This finding has a proof. It replaces the remark about the age of the newest entry.
        findings.retain(|finding| finding.about != found.about);
        findings.push(found);
    }
    findings.push(rights(store).await?);
    findings.push(coordination(pool).await);
    findings.push(lock_timeout(store).await?);
    findings.extend(watchdog(store).await?);
    findings.push(statistics(pool).await?);
    findings.extend(publications(pool).await?);
    findings.extend(tap(store).await?);
    findings.extend(addresses(store).await);
    findings.extend(reach(store, knows_zone).await?);
    if knows_zone && store.dialect().tells_age() {
        findings.extend(waiting(pool, &store.options().zone).await?);
    }
    Ok(findings)
}

const RIGHTS: &str = "
SELECT string_agg(r.right_ || ' on ' || r.name, ', ') FROM unnest($1::text[], $2::text[]) AS r(name, right_)
WHERE NOT has_table_privilege(r.name, r.right_)";

async fn rights(store: &EngineStore) -> Result<Finding, StoreError> {
    let (tables, rights): (Vec<&str>, Vec<&str>) = store.dialect().rights().iter().copied().unzip();
    let missing: Option<String> = sqlx::query_scalar(RIGHTS)
        .bind(tables)
        .bind(rights)
        .fetch_one(store.pool())
        .await?;
    Ok(match missing {
        None => Finding::fine("rights", "the role may do what a node does"),
        Some(missing) => Finding::bad(
            Level::Wrong,
            "rights",
            format!("the role lacks {missing}"),
            "GRANT these rights, or use the engine's own role",
        ),
    })
}

async fn coordination(pool: &PgPool) -> Finding {
    match schema::status(pool).await {
        Ok(SchemaStatus::Ready { version, .. }) => Finding::fine(
            "coordination",
            format!("the schema `jobwire_engine` has version {version}"),
        ),
        Ok(_) => Finding::fine("coordination", "the schema `jobwire_engine` is there"),
        Err(StoreError::Schema(said)) => Finding::bad(
            Level::Remark,
            "coordination",
            said,
            "no action is needed until you use Jobwire",
        ),
        Err(error) => Finding {
            about: "coordination",
            level: Level::Wrong,
            found: error.to_string(),
            remedy: None,
        },
    }
}

/// Selects the lock timeouts of the database and of the roles that use it now. The settings of
/// another session are not visible.
const LOCK_TIMEOUT: &str = "
SELECT EXISTS (
    SELECT FROM pg_db_role_setting s, unnest(s.setconfig) AS c(text)
    WHERE starts_with(c.text, 'lock_timeout=') AND c.text NOT IN ('lock_timeout=0', 'lock_timeout=0s')
      AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
      AND (s.setrole = 0 OR s.setrole IN (
          SELECT a.usesysid FROM pg_stat_activity a
          WHERE a.datname = current_database() AND a.application_name NOT LIKE 'jobwire%'))),
  (SELECT max(extract(epoch FROM clock_timestamp() - a.query_start))::double precision FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.application_name <> 'jobwire' AND a.wait_event_type = 'Lock')";

/// The wait after which a statement of the engine proves that no timeout is set.
const WAITED: Duration = Duration::from_secs(30);

async fn lock_timeout(store: &EngineStore) -> Result<Finding, StoreError> {
    let row = sqlx::query(LOCK_TIMEOUT).fetch_one(store.pool()).await?;
    let (set, waits): (bool, Option<f64>) = (row.try_get(0)?, row.try_get(1)?);
    let about = "lock_timeout";
    let is_needed = store.dialect().can_wait_for_itself();
    let remedy = match is_needed {
        true => {
            "append `?options=-c%20lock_timeout=2s` to the engine's JDBC URL: without it, two \
             transactions of the engine can wait for each other without an end"
        }
        false => "find the transaction for which it waits: `pg_blocking_pids` names its session",
    };
    Ok(match waits {
        Some(seconds) if seconds > WAITED.as_secs_f64() => Finding::bad(
            Level::Wrong,
            about,
            format!("a statement of the engine has waited for a lock for {seconds:.0} s"),
            remedy,
        ),
        _ if !is_needed => Finding::fine(
            about,
            "not needed: the engine records a failure after the transaction of the job has ended",
        ),
        _ if set => Finding::fine(
            about,
            "set for the database, or for a role that uses it now",
        ),
        _ => Finding::bad(
            Level::Remark,
            about,
            "not set for the role or the database; the settings of the engine's connections can't \
             be seen",
            remedy,
        ),
    })
}

/// Selects whether the role may cancel the statements of the roles that use the database now and may
/// change the engine's jobs.
const SIGNALS: &str = "
SELECT pg_has_role(current_user, 'pg_signal_backend', 'USAGE') OR NOT EXISTS (SELECT FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND NOT pg_has_role(current_user, a.usesysid, 'USAGE')
      AND has_table_privilege(a.usesysid, 'act_ru_job', 'UPDATE'))";

/// Checks the right of the watchdog, if it is on and the engine needs it.
async fn watchdog(store: &EngineStore) -> Result<Option<Finding>, StoreError> {
    if !store.options().watchdog || !store.dialect().can_wait_for_itself() {
        return Ok(None);
    }
    let about = "watchdog";
    let may: bool = sqlx::query_scalar(SIGNALS).fetch_one(store.pool()).await?;
    Ok(Some(if may {
        Finding::fine(about, "the role may cancel statements of the engine")
    } else {
        Finding::bad(
            Level::Remark,
            about,
            "the role may not cancel statements of other roles, so `engine_watchdog` ends no wait of \
             an engine that has another role",
            "GRANT pg_signal_backend to the role, or use the engine's own role",
        )
    }))
}

const STATISTICS: &str = "
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
    OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = current_database() AND a.usename <> current_user)";

async fn statistics(pool: &PgPool) -> Result<Finding, StoreError> {
    let visible: bool = sqlx::query_scalar(STATISTICS).fetch_one(pool).await?;
    Ok(if visible {
        Finding::fine("statistics", "the engine's transactions are visible")
    } else {
        Finding::bad(
            Level::Remark,
            "statistics",
            "transactions of other roles are hidden, so a job of a dead node is taken over \
             although the engine may still execute it",
            "GRANT pg_read_all_stats to the role, or use the engine's own role",
        )
    })
}

/// Selects publications that make the engine's updates of its tables fail, because they publish
/// updates without the key or with a condition.
const PUBLICATIONS: &str = "
SELECT p.pubname::text, c.relname::text FROM pg_publication p
    JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid
JOIN pg_class t ON t.relnamespace = c.relnamespace AND t.oid = to_regclass('act_ru_execution')
WHERE starts_with(c.relname::text, 'act_')
  AND (p.pubupdate OR p.pubdelete)
  AND (EXISTS (SELECT FROM pg_attribute o WHERE o.attrelid = c.oid AND o.attnum > 0 AND NOT o.attisdropped
          AND o.attname <> 'id_' AND pg_get_expr(r.prqual, r.prrelid) ~ ('\\m' || o.attname || '\\M')) OR (r.prattrs IS NOT NULL AND NOT (
      (SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'id_') = ANY (r.prattrs::smallint[]))))
ORDER BY 1, 2";

async fn publications(pool: &PgPool) -> Result<Vec<Finding>, StoreError> {
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::integer")
        .fetch_one(pool)
        .await?;
    // Older servers have neither columns nor conditions.
    if version < 150_000 {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(PUBLICATIONS).fetch_all(pool).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let (publication, table): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        findings.push(Finding::bad(
            Level::Wrong,
            "publication",
            format!(
                "the publication `{publication}` makes the engine's changes of `{table}` fail: it \
                 publishes updates with a condition on other columns than `id_`, or without the column `id_`"
            ),
            "publish inserts only, or add `id_` and remove the condition",
        ));
    }
    Ok(findings)
}

async fn tap(store: &EngineStore) -> Result<Vec<Finding>, StoreError> {
    let missing = store.examine_tap().await?;
    if missing.is_empty() {
        return Ok(vec![Finding::fine("tap", "the commit tap can be used")]);
    }
    // Without a tap the leader looks for new jobs every second.
    let told = missing.into_iter();
    Ok(told
        .map(|missing| Finding::bad(Level::Remark, "tap", missing.found, missing.remedy))
        .collect())
}

/// Sends a request to every address.
async fn addresses(store: &EngineStore) -> Vec<Finding> {
    let routes = store.parts().routes.all();
    join_all(routes.iter().map(|route| address(store, route.rest()))).await
}

async fn address(store: &EngineStore, rest: &Rest) -> Finding {
    let url = rest.url_shown();
    let is_endpoint = store.options().execution == Execution::Endpoint;
    let about = if is_endpoint { "endpoint" } else { "rest" };
    match rest.ask(&store.dialect().about()).await {
        Answer::Executed => Finding::fine(about, format!("{url} answers")),
        Answer::Missing(_) if is_endpoint => Finding::bad(
            Level::Wrong,
            about,
            format!("{url} answers, and has no execution endpoint below it"),
            "add the endpoint to the engine's application, and give the URL where it stands, such \
             as …/jobwire",
        ),
        Answer::Missing(_) => Finding::bad(
            Level::Wrong,
            about,
            format!(
                "{url} answers, and has no path `{}` below it",
                store.dialect().about()
            ),
            "give the URL below which the REST interface for processes stands, such as \
             …/process-api or …/engine-rest",
        ),
        other => match other.problem() {
            Some(said) => Finding {
                about,
                level: Level::Wrong,
                found: format!("{url}: {said}"),
                remedy: None,
            },
            None => Finding::bad(
                Level::Wrong,
                about,
                format!("{url} answers, and is not the REST interface of the engine"),
                "give the URL below which the REST interface for processes stands, such as \
                 …/process-api or …/engine-rest",
            ),
        },
    }
}

/// Reports the jobs that each address can run, and the jobs that no address can run.
async fn reach(store: &EngineStore, knows_zone: bool) -> Result<Vec<Finding>, StoreError> {
    let routes = &store.parts().routes;
    let Some(question) = routes.question() else {
        return Ok(Vec::new());
    };
    let about = "reach";
    let (mut findings, mut groups) = (Vec::new(), Vec::new());
    let asked = routes.all().iter().map(|route| question.ask(route.rest()));
    for (route, said) in routes.all().iter().zip(join_all(asked).await) {
        let url = route.rest().url_shown();
        match said {
            Ok(Report { scope, .. }) => {
                let names = scope
                    .deployments
                    .as_ref()
                    .map(|names| (names, "deployments"));
                let names = names.or(scope.categories.as_ref().map(|names| (names, "categories")));
                let told = match names {
                    Some((names, of)) => format!("{url} runs the jobs of {} {of}", names.len()),
                    None => format!("{url} runs all jobs"),
                };
                findings.push(Finding::fine(about, told));
                groups.push(Group {
                    types: vec![OTHER.to_owned()],
                    scope,
                });
            }
            Err(Silent {
                reason,
                is_old: true,
                ..
            }) => findings.push(Finding::bad(
                Level::Wrong,
                "endpoint",
                format!("{url}: {reason}"),
                "nodes send it no jobs",
            )),
            Err(Silent { reason, .. }) => findings.push(Finding::bad(
                Level::Wrong,
                about,
                format!("{url} does not say which jobs it can run: {reason}"),
                "until it does, it gets only jobs with neither a deployment nor a category",
            )),
        }
    }
    if groups.is_empty() || !knows_zone {
        return Ok(findings);
    }
    let services = Services::of(groups);
    let unserved = unserved::count(store.dialect(), store.pool(), &services).await?;
    if unserved.jobs() > 0 {
        findings.push(Finding::bad(
            Level::Wrong,
            about,
            format!(
                "{} jobs wait, and no address has their deployment or category: {}",
                unserved.jobs(),
                unserved.needs()
            ),
            "start the engine node that has it, or deploy the process there again; the jobs wait, and lose no attempt",
        ));
    }
    Ok(findings)
}

/// The waiting times of unlocked jobs.
const WAITING: &str = concat!(
    "
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY age), percentile_cont(0.99) WITHIN GROUP (ORDER BY age)
FROM (SELECT CASE WHEN ",
    is_moment!("greatest(create_time_, duedate_)"),
    " THEN greatest(extract(epoch FROM (clock_timestamp() AT TIME ZONE $1) - greatest(create_time_, duedate_)), 0)::double precision END AS age
    FROM act_ru_job WHERE lock_exp_time_ IS NULL AND (duedate_ IS NULL OR duedate_ <= clock_timestamp() AT TIME ZONE $1)
    LIMIT 100000) j"
);

async fn waiting(pool: &PgPool, zone: &str) -> Result<Option<Finding>, StoreError> {
    let row = sqlx::query(WAITING).bind(zone).fetch_one(pool).await?;
    let jobs: i64 = row.try_get(0)?;
    let (Some(p50), Some(p99)) = (
        row.try_get::<Option<f64>, _>(1)?,
        row.try_get::<Option<f64>, _>(2)?,
    ) else {
        return Ok(None);
    };
    Ok(Some(Finding::fine(
        "waiting",
        format!("{jobs} jobs wait unlocked, for {p50:.1} s (p50) and {p99:.1} s (p99) so far"),
    )))
}
