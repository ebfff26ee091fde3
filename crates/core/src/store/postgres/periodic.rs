//! Periodic jobs: declaring, listing, pausing and removing them, and creating their jobs.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use super::begin::begin_impatiently;
use super::{PgStore, insert, pending};
use crate::job::calendar::Calendars;
use crate::job::periodic::{Declaration, Declared, Row};
use crate::job::query::PendingJobs;
use crate::store::error::StoreError;
use crate::store::periodic::{SET_BACK, suffixes};
use crate::store::statements::Periodic;
use crate::store::{DuePeriodicJobs, DuePlace, Fired, Origin, PeriodicView, Result, Triggered};

const CREATE: &str = "
INSERT INTO jobwire.periodic_job (name, version, schedule, template, next_due) VALUES ($1, $2, $3, $4::json, $5)
ON CONFLICT (name) DO NOTHING";

macro_rules! read {
    ($lock:literal) => {
        concat!(
            "SELECT version, schedule, template::text, next_due, clock_timestamp(), paused
FROM jobwire.periodic_job WHERE name = $1",
            $lock
        )
    };
}

const READ: &str = read!("");
const LOCK: &str = read!(" FOR UPDATE");
const TRY_LOCK: &str = read!(" FOR UPDATE SKIP LOCKED");

const CHANGE: &str = "
UPDATE jobwire.periodic_job SET version = $2, schedule = $3, template = $4::json, next_due = $5, changed_at = clock_timestamp()
WHERE name = $1";

/// All times are those of one moment, so no schedule is neither due nor next.
const DUE: &str = "
WITH page AS (
    SELECT name, next_due, changed_at FROM jobwire.periodic_job
    WHERE NOT paused AND next_due <= statement_timestamp()
        AND ($1::timestamptz IS NULL OR next_due >= $1 AND (next_due, name) > ($1, $2))
        AND (strpos(schedule, '[calendar=') = 0 OR EXISTS (SELECT FROM unnest($3::text[]) known WHERE strpos(schedule, known) > 0))
    ORDER BY next_due, name LIMIT $4
)
SELECT ARRAY(SELECT name FROM page ORDER BY next_due, name),
    (SELECT max(next_due) FROM page),
    (SELECT min(next_due) FROM jobwire.periodic_job WHERE NOT paused AND next_due > statement_timestamp()),
    statement_timestamp(), ARRAY(SELECT changed_at::text FROM page ORDER BY next_due, name)";

const ADVANCE: &str = "UPDATE jobwire.periodic_job SET next_due = $2, last_due = coalesce($3, last_due) WHERE name = $1";

/// In any order, so that schedules that this program can't read hide no others.
const AHEAD: &str = "
SELECT name FROM jobwire.periodic_job WHERE NOT paused AND last_due > clock_timestamp() + $2 ORDER BY random() LIMIT $1";

const REVISE: &str = "
UPDATE jobwire.periodic_job SET next_due = $2, last_due = NULL
WHERE name = $1 AND NOT paused AND last_due > clock_timestamp() + $3";

const PAUSE: &str = "
UPDATE jobwire.periodic_job SET paused = $2, next_due = $3, changed_at = clock_timestamp() WHERE name = $1";

/// Another program may have written dates that no program can read.
const LIST: &str = "
SELECT name, version, schedule, template::text AS template, paused, next_due, last_due,
    CASE WHEN created_at BETWEEN '0001-01-01' AND '9999-12-31' THEN created_at ELSE '0001-01-01' END AS created_at,
    CASE WHEN changed_at BETWEEN '0001-01-01' AND '9999-12-31' THEN changed_at ELSE '0001-01-01' END AS changed_at
FROM jobwire.periodic_job ORDER BY name";

const TEMPLATES: &str =
    "SELECT name, template::text FROM jobwire.periodic_job WHERE name = ANY($1)";

const REMOVE: &str = "DELETE FROM jobwire.periodic_job WHERE name = $1";

/// The row of a schedule, the database's clock, and whether it is paused.
type Found = (Row, DateTime<Utc>, bool);

async fn find(
    connection: &mut PgConnection,
    statement: &'static str,
    name: &str,
) -> Result<Option<Found>> {
    let row = sqlx::query(statement).bind(name);
    let row = row.fetch_optional(connection).await?;
    row.map(|row| {
        let found = Row {
            version: row.try_get(0)?,
            schedule: row.try_get(1)?,
            template: row.try_get(2)?,
            next_due: row.try_get(3)?,
        };
        Ok((found, row.try_get(4)?, row.try_get(5)?))
    })
    .transpose()
}

async fn write(
    connection: &mut PgConnection,
    statement: &'static str,
    declaration: &Declaration,
    next_due: Option<DateTime<Utc>>,
) -> Result<bool> {
    let write = sqlx::query(statement)
        .bind(&declaration.name)
        .bind(declaration.version)
        .bind(&declaration.schedule)
        .bind(&declaration.template)
        .bind(next_due);
    Ok(write.execute(connection).await?.rows_affected() > 0)
}

/// Declares one periodic job.
async fn declare(
    connection: &mut PgConnection,
    declaration: &Declaration,
    now: DateTime<Utc>,
    calendars: &Calendars,
) -> Result<Declared> {
    let undated = |bad| StoreError::periodic(&declaration.name)(bad);
    // Another node may create or remove the row at this moment.
    for _ in 0..3 {
        // Without a lock at first: a row that stays locked stops no node that changes nothing.
        for statement in [READ, LOCK] {
            let Some((row, now, _)) = find(connection, statement, &declaration.name).await? else {
                break;
            };
            let against = declaration.against(&row, now, calendars);
            let (declared, next) = against.map_err(undated)?;
            let changed = declared == Declared::Changed;
            if changed && statement == READ {
                continue;
            }
            if changed {
                write(connection, CHANGE, declaration, next).await?;
            }
            return Ok(declared);
        }
        let first = declaration.first(now, calendars).map_err(undated)?;
        if write(connection, CREATE, declaration, first).await? {
            return Ok(Declared::Created);
        }
    }
    Err(StoreError::Config(format!(
        "periodic job `{}` is created and removed again and again; stop removing it, and try again",
        declaration.name
    )))
}

fn view(row: &PgRow) -> Result<PeriodicView> {
    Ok(PeriodicView {
        name: row.try_get("name")?,
        version: row.try_get("version")?,
        schedule: row.try_get("schedule")?,
        template: row.try_get("template")?,
        paused: row.try_get("paused")?,
        next_due: row.try_get("next_due")?,
        last_due: row.try_get("last_due")?,
        created_at: row.try_get("created_at")?,
        changed_at: row.try_get("changed_at")?,
    })
}

impl Periodic for PgStore {
    async fn declare_all(&self, declarations: &[Declaration]) -> Result<Vec<Declared>> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let now: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(&mut *tx)
            .await?;
        let mut declared = Vec::with_capacity(declarations.len());
        for declaration in declarations {
            declared.push(declare(&mut tx, declaration, now, &self.calendars).await?);
        }
        tx.commit().await?;
        Ok(declared)
    }

    async fn list_periodic(&self) -> Result<Vec<PeriodicView>> {
        let rows = sqlx::query(LIST).fetch_all(&self.pool.inner).await?;
        rows.iter().map(view).collect()
    }

    async fn templates(&self, names: &[String]) -> Result<Vec<(String, String)>> {
        let query = sqlx::query_as(TEMPLATES).bind(names);
        Ok(query.fetch_all(&self.pool.inner).await?)
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<bool> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let Some((row, now, was)) = find(&mut tx, LOCK, name).await? else {
            return Ok(false);
        };
        // A schedule without a date may be one that another program has stopped.
        if was != paused || !paused && row.next_due.is_none() {
            let next = if paused {
                row.next_due
            } else {
                let resumed = row.resumed(now, &self.calendars);
                resumed.map_err(StoreError::periodic(name))?
            };
            let pause = sqlx::query(PAUSE).bind(name).bind(paused).bind(next);
            pause.execute(&mut *tx).await?;
            tx.commit().await?;
        }
        Ok(true)
    }

    async fn delete_periodic(&self, name: &str) -> Result<bool> {
        let removed = sqlx::query(REMOVE).bind(name);
        let removed = removed.execute(&self.pool.inner).await?;
        Ok(removed.rows_affected() > 0)
    }

    async fn trigger(&self, name: &str, origin: Origin) -> Result<Option<Triggered>> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let Some((row, ..)) = find(&mut tx, READ, name).await? else {
            return Ok(None);
        };
        let job = row.job().map_err(StoreError::periodic(name))?;
        let id = job.id();
        let created = insert::insert(&mut tx, vec![job], origin).await?;
        tx.commit().await?;
        Ok(Some(Triggered {
            job: id,
            ready: created.ready,
        }))
    }

    async fn due_schedules(
        &self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> Result<DuePeriodicJobs> {
        let row = sqlx::query(DUE)
            .bind(after.map(|place| place.due))
            .bind(after.map(|place| place.name.as_str()))
            .bind(suffixes(&self.calendars))
            .bind(at_most)
            .fetch_one(&self.pool.inner)
            .await?;
        let names: Vec<String> = row.try_get(0)?;
        let due: Option<DateTime<Utc>> = row.try_get(1)?;
        let last = due.zip(names.last().cloned());
        Ok(DuePeriodicJobs {
            names,
            last: last.map(|(due, name)| DuePlace { due, name }),
            next_due: row.try_get(2)?,
            now: row.try_get(3)?,
            changed: row.try_get(4)?,
        })
    }

    async fn count_pending(&self, limit: i64) -> Result<Vec<PendingJobs>> {
        pending::count(&self.pool.inner, limit).await
    }

    async fn find_ahead(&self, at_most: i64) -> Result<Vec<String>> {
        let ahead = sqlx::query_scalar(AHEAD).bind(at_most).bind(SET_BACK);
        Ok(ahead.fetch_all(&self.pool.inner).await?)
    }

    async fn revise(&self, name: &str) -> Result<bool> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let Some((row, now, _)) = find(&mut tx, TRY_LOCK, name).await? else {
            return Ok(false);
        };
        let next = row.resumed(now, &self.calendars);
        let next = next.map_err(StoreError::periodic(name))?;
        let revise = sqlx::query(REVISE).bind(name).bind(next).bind(SET_BACK);
        let revised = revise.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(revised > 0)
    }

    async fn fire(&self, name: &str) -> Result<Fired> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let Some((row, now, paused)) = find(&mut tx, TRY_LOCK, name).await? else {
            return Ok(Fired::busy());
        };
        if paused || row.next_due.is_none_or(|due| due > now) {
            return Ok(Fired::default());
        }
        // One that this program can't read stays due: another program may read it.
        let firing = row.fire(now, &self.calendars);
        let firing = firing.map_err(StoreError::periodic(name))?;
        let created = insert::insert(&mut tx, firing.jobs, Origin::Hook).await?;
        let advance = sqlx::query(ADVANCE)
            .bind(name)
            .bind(firing.next)
            .bind(firing.last);
        advance.execute(&mut *tx).await?;
        crash_point!("periodic-uncommitted");
        tx.commit().await?;
        crash_point!("periodic-committed");
        Ok(Fired {
            ready: created.ready,
            advanced: true,
            next: firing.next,
            missed: firing.missed,
            ..Fired::default()
        })
    }
}
