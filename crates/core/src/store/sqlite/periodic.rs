//! Periodic jobs: declaring, listing, pausing and removing them, and creating their jobs.

use chrono::{DateTime, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{SqliteStore, decode, insert, pending, unnamed};
use crate::job::calendar::Calendars;
use crate::job::periodic::{Declaration, Declared, Row};
use crate::job::query::PendingJobs;
use crate::store::error::StoreError;
use crate::store::periodic::{SET_BACK, suffixes};
use crate::store::statements::Periodic;
use crate::store::{DuePeriodicJobs, DuePlace, Fired, Origin, PeriodicView, Result, Triggered};

const CREATE: &str = "
INSERT INTO periodic_job (name, version, schedule, template, next_due, created_at, changed_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)";

const READ: &str = "
SELECT version, schedule, template, next_due, paused FROM periodic_job WHERE name = ?1";

const CHANGE: &str = "
UPDATE periodic_job SET version = ?2, schedule = ?3, template = ?4, next_due = ?5, changed_at = ?6 WHERE name = ?1";

const DUE: &str = "
SELECT name, next_due, changed_at FROM periodic_job
WHERE NOT paused AND next_due <= ?1 AND (?2 IS NULL OR next_due >= ?2 AND (next_due, name) > (?2, ?3))
    AND (instr(schedule, '[calendar=') = 0 OR EXISTS (SELECT 1 FROM json_each(?4) WHERE instr(schedule, value) > 0))
ORDER BY next_due, name LIMIT ?5";

/// Another program may have written any date.
const NEXT: &str = "
SELECT min(min(next_due), 253402300799999999) FROM periodic_job WHERE NOT paused AND next_due > ?1";

const ADVANCE: &str =
    "UPDATE periodic_job SET next_due = ?2, last_due = coalesce(?3, last_due) WHERE name = ?1";

/// In any order, so that schedules that this program can't read hide no others.
const AHEAD: &str = "
SELECT CAST(name AS BLOB) FROM periodic_job WHERE NOT paused AND last_due > ?2 ORDER BY random() LIMIT ?1";

const REVISE: &str = "
UPDATE periodic_job SET next_due = ?2, last_due = NULL WHERE name = ?1 AND NOT paused AND last_due > ?3";

const PAUSE: &str =
    "UPDATE periodic_job SET paused = ?2, next_due = ?3, changed_at = ?4 WHERE name = ?1";

const LIST: &str = "
SELECT name, version, schedule, template, paused, next_due, last_due, created_at, changed_at
FROM periodic_job ORDER BY name";

const TEMPLATES: &str =
    "SELECT name, template FROM periodic_job WHERE name IN (SELECT value FROM json_each(?1))";

const REMOVE: &str = "DELETE FROM periodic_job WHERE name = ?1";

/// Returns the row of a schedule, and whether it is paused.
async fn find(connection: &mut SqliteConnection, name: &str) -> Result<Option<(Row, bool)>> {
    let row = sqlx::query(READ).bind(name);
    let row = row.fetch_optional(connection).await?;
    row.map(|row| {
        let found = Row {
            version: row.try_get(0)?,
            schedule: decode::text(&row, 1)?,
            template: decode::text(&row, 2)?,
            next_due: row.try_get::<Option<_>, _>(3)?.map(decode::shown),
        };
        Ok((found, row.try_get(4)?))
    })
    .transpose()
}

async fn write(
    connection: &mut SqliteConnection,
    statement: &'static str,
    declaration: &Declaration,
    next_due: Option<DateTime<Utc>>,
    now: i64,
) -> Result<()> {
    sqlx::query(statement)
        .bind(&declaration.name)
        .bind(declaration.version)
        .bind(&declaration.schedule)
        .bind(&declaration.template)
        .bind(next_due.map(decode::micros))
        .bind(now)
        .execute(connection)
        .await?;
    Ok(())
}

/// Declares one periodic job.
async fn declare(
    connection: &mut SqliteConnection,
    declaration: &Declaration,
    now: i64,
    calendars: &Calendars,
) -> Result<Declared> {
    let undated = |bad| StoreError::periodic(&declaration.name)(bad);
    let moment = decode::moment(now)?;
    let Some((row, _)) = find(connection, &declaration.name).await? else {
        let first = declaration.first(moment, calendars).map_err(undated)?;
        write(connection, CREATE, declaration, first, now).await?;
        return Ok(Declared::Created);
    };
    let against = declaration.against(&row, moment, calendars);
    let (declared, next) = against.map_err(undated)?;
    if declared == Declared::Changed {
        write(connection, CHANGE, declaration, next, now).await?;
    }
    Ok(declared)
}

fn view(row: &SqliteRow) -> Result<PeriodicView> {
    Ok(PeriodicView {
        name: decode::text(row, "name")?,
        version: row.try_get("version")?,
        schedule: decode::text(row, "schedule")?,
        template: decode::text(row, "template")?,
        paused: row.try_get("paused")?,
        next_due: row.try_get::<Option<_>, _>("next_due")?.map(decode::shown),
        last_due: row.try_get::<Option<_>, _>("last_due")?.map(decode::shown),
        created_at: decode::shown(row.try_get("created_at")?),
        changed_at: decode::shown(row.try_get("changed_at")?),
    })
}

impl Periodic for SqliteStore {
    async fn declare_all(&self, declarations: &[Declaration]) -> Result<Vec<Declared>> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let mut declared = Vec::with_capacity(declarations.len());
        for declaration in declarations {
            declared.push(declare(&mut tx, declaration, now, &self.calendars).await?);
        }
        tx.commit().await?;
        Ok(declared)
    }

    async fn list_periodic(&self) -> Result<Vec<PeriodicView>> {
        let rows = sqlx::query(LIST).fetch_all(&self.readers).await?;
        rows.iter().map(view).collect()
    }

    async fn templates(&self, names: &[String]) -> Result<Vec<(String, String)>> {
        let rows = sqlx::query(TEMPLATES).bind(decode::array(names)?);
        let rows = rows.fetch_all(&self.readers).await?;
        // Another program may have written values of any type.
        let text = |row: &SqliteRow| Some((decode::text(row, 0).ok()?, decode::text(row, 1).ok()?));
        Ok(rows.iter().filter_map(text).collect())
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<bool> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let Some((row, was)) = find(&mut tx, name).await? else {
            return Ok(false);
        };
        // A schedule without a date may be one that another program has stopped.
        if was != paused || !paused && row.next_due.is_none() {
            let next = if paused {
                row.next_due
            } else {
                let resumed = row.resumed(decode::moment(now)?, &self.calendars);
                resumed.map_err(StoreError::periodic(name))?
            };
            sqlx::query(PAUSE)
                .bind(name)
                .bind(paused)
                .bind(next.map(decode::micros))
                .bind(now)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
        }
        Ok(true)
    }

    async fn delete_periodic(&self, name: &str) -> Result<bool> {
        let mut tx = self.write().await?;
        let removed = sqlx::query(REMOVE).bind(name).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(removed.rows_affected() > 0)
    }

    async fn trigger(&self, name: &str, origin: Origin) -> Result<Option<Triggered>> {
        let mut tx = self.write().await?;
        let Some((row, _)) = find(&mut tx, name).await? else {
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
        let now = decode::now_micros();
        let suffixes = decode::array(suffixes(&self.calendars))?;
        let page = loop {
            let rows: Vec<(Vec<u8>, i64, i64)> = sqlx::query_as(DUE)
                .bind(now)
                .bind(after.map(|place| decode::micros(place.due)))
                .bind(after.map(|place| place.name.as_str()))
                .bind(&suffixes)
                .bind(at_most)
                .fetch_all(&self.readers)
                .await?;
            if let Some(page) = unnamed::named(self, rows).await? {
                break page;
            }
        };
        let next: Option<i64> = sqlx::query_scalar(NEXT)
            .bind(now)
            .fetch_one(&self.readers)
            .await?;
        let last = page.last().map(|(name, due, _)| DuePlace {
            due: decode::shown(*due),
            name: name.clone(),
        });
        Ok(DuePeriodicJobs {
            changed: page.iter().map(|(.., at)| at.to_string()).collect(),
            names: page.into_iter().map(|(name, ..)| name).collect(),
            last,
            next_due: decode::maybe_moment(next)?,
            now: decode::moment(now)?,
        })
    }

    async fn count_pending(&self, limit: i64) -> Result<Vec<PendingJobs>> {
        pending::count(&self.readers, limit).await
    }

    async fn find_ahead(&self, at_most: i64) -> Result<Vec<String>> {
        let ahead = sqlx::query_scalar(AHEAD).bind(at_most);
        let ahead = ahead.bind(decode::micros(Utc::now() + SET_BACK));
        let names: Vec<Vec<u8>> = ahead.fetch_all(&self.readers).await?;
        // One whose name is not UTF-8 is stopped when it is due.
        let names = names.into_iter();
        Ok(names.flat_map(String::from_utf8).collect())
    }

    async fn revise(&self, name: &str) -> Result<bool> {
        let mut tx = self.write().await?;
        let Some((row, _)) = find(&mut tx, name).await? else {
            return Ok(false);
        };
        let now = decode::moment(decode::now_micros())?;
        let next = row.resumed(now, &self.calendars);
        let next = next.map_err(StoreError::periodic(name))?;
        let revise = sqlx::query(REVISE)
            .bind(name)
            .bind(next.map(decode::micros))
            .bind(decode::micros(now + SET_BACK));
        let revised = revise.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(revised > 0)
    }

    async fn fire(&self, name: &str) -> Result<Fired> {
        let mut tx = self.write().await?;
        let Some((row, false)) = find(&mut tx, name).await? else {
            return Ok(Fired::default());
        };
        let now = decode::moment(decode::now_micros())?;
        if row.next_due.is_none_or(|due| due > now) {
            return Ok(Fired::default());
        }
        // One that this program can't read stays due: another program may read it.
        let firing = row.fire(now, &self.calendars);
        let firing = firing.map_err(StoreError::periodic(name))?;
        let created = insert::insert(&mut tx, firing.jobs, Origin::Hook).await?;
        sqlx::query(ADVANCE)
            .bind(name)
            .bind(firing.next.map(decode::micros))
            .bind(firing.last.map(decode::micros))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Fired {
            ready: created.ready,
            advanced: true,
            next: firing.next,
            missed: firing.missed,
            ..Fired::default()
        })
    }
}
