//! Settling: reads the fates of executed jobs, releases their locks and hands off their instances.
//!
//! The answer of an execution is only a hint. The row decides:
//!
//! | row | meaning |
//! | --- | --- |
//! | gone | done |
//! | locked by this node | the engine rolled back without a trace, as after a conflict; the lock is released |
//! | unlocked, attempts left | the engine has counted a failure, or has run a job that stays, such as the history cleanup |
//! | unlocked, no attempt left | failed for the last time; the engine has created an incident |
//! | suspended | its instance was suspended meanwhile |
//! | locked by another | the lock was lost |
//!
//! An execution may create timers, such as the next one of a cycle. The statement reads the next
//! due date of the instance, so that the leader wakes in time without a look at the table.
//!
//! The second statement locks or finds the next job of each instance ([`lock`](super::lock)).

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use jobwire_core::hint::Ready;
use jobwire_core::store::LockTerms;
use jobwire_core::{JobId, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};

use super::Camunda;
use super::lock::Free;
use super::sql::{by_age, due, runnable, unlocked};
use crate::columns::Columns;
use crate::dialect::Settled;
use crate::fate::{Ended, Fate};
use crate::id::{engine_id, job_id};
use crate::settling;
use crate::zone::moment_of;

/// Settles jobs. `$1`: the zone of due dates, `$2`: ids, `$3`: owners, `$4`: instances, `$5`: ids
/// whose locks stay.
const SETTLE: &str = concat!(
    "
WITH held AS MATERIALIZED (
    SELECT h.id, h.owner, h.inst, h.id = ANY($5::text[]) AS stays FROM unnest($2::text[], $3::text[], $4::text[]) AS h(id, owner, inst)
), insts AS MATERIALIZED (
    SELECT e.id_, e.suspension_state_ FROM act_ru_execution e WHERE e.id_ IN (SELECT inst FROM held)
    ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), jobs AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j WHERE j.id_ IN (SELECT id FROM held) ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT h.*, j.id_ IS NOT NULL AS is_here, j.lock_owner_ IS NOT DISTINCT FROM h.owner AS is_ours, ",
    unlocked!("j"),
    " AS is_unlocked, j.retries_, j.suspension_state_ = 2 AS is_suspended, ",
    due!("j"),
    " AS is_due, ",
    moment_of!("j.duedate_"),
    " AS due_at, j.process_instance_id_, j.handler_type_, j.exception_msg_,
        insts.id_ IS NOT NULL AS is_left, insts.suspension_state_ = 2 AS is_instance_suspended,
        (j.id_ IS NOT NULL AND jobs.id_ IS NULL) OR (e.id_ IS NOT NULL AND insts.id_ IS NULL) AS is_busy
    FROM held h LEFT JOIN act_ru_job j ON j.id_ = h.id LEFT JOIN jobs ON jobs.id_ = h.id
        LEFT JOIN act_ru_execution e ON e.id_ = h.inst LEFT JOIN insts ON insts.id_ = h.inst
), freed AS (
    UPDATE act_ru_job j SET lock_owner_ = NULL, lock_exp_time_ = NULL
    FROM seen s WHERE j.id_ = s.id AND j.lock_owner_ = s.owner AND NOT s.is_busy AND NOT s.stays
)
SELECT s.*, (SELECT min(t.duedate_) AT TIME ZONE $1 FROM act_ru_job t
    WHERE t.process_instance_id_ = s.inst AND t.id_ <> s.id AND t.duedate_ < '9999-01-01' AND ",
    unlocked!("t"),
    " AND ",
    runnable!("t"),
    " AND NOT ",
    due!("t"),
    ") AS next_due FROM seen s"
);

/// Selects the first ready job of each instance of which no job is locked. `$1`: the zone
/// of due dates, `$2`: the instances.
const NEXT: &str = concat!(
    "
SELECT c.id_, c.process_instance_id_, c.handler_type_ FROM unnest($2::text[]) AS i(inst) CROSS JOIN LATERAL (
    SELECT j.id_, j.process_instance_id_, j.handler_type_ FROM act_ru_job j
    WHERE j.process_instance_id_ = i.inst AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND ",
    due!("j"),
    "
    ORDER BY ",
    by_age!("j"),
    " LIMIT 1
) c
WHERE NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = i.inst AND s.lock_exp_time_ IS NOT NULL)"
);

impl Camunda {
    /// Settles the jobs whose rows are not locked. Returns the ids of the others.
    pub(super) async fn settle_rows(
        &self,
        pool: &PgPool,
        (ids, owners, instances): &Columns,
        unanswered: &[String],
        take: Option<&LockTerms>,
        settled: &mut Settled,
    ) -> Result<HashSet<String>, StoreError> {
        let mut tx = pool.begin().await?;
        let rows = sqlx::query(SETTLE)
            .bind(self.zone.judged())
            .bind(ids)
            .bind(owners)
            .bind(instances)
            .bind(unanswered)
            .fetch_all(&mut *tx)
            .await?;
        let mut batch = Batch::default();
        for row in &rows {
            batch.note(self, row)?;
        }
        let Batch {
            busy,
            fates,
            mut ready,
            timer,
            mut left,
        } = batch;
        let mut next = Vec::new();
        if !left.instances.is_empty() {
            match take {
                Some(terms) => {
                    next = self.lock_next(&mut tx, terms, left.clone()).await?;
                    let instances = left.instances;
                    left.instances = settling::for_others(terms, instances, &next);
                    if !left.instances.is_empty() {
                        ready.extend(self.next_of(&mut tx, left).await?);
                    }
                }
                None => ready.extend(self.next_of(&mut tx, left).await?),
            }
        }
        tx.commit().await?;
        settled.fates.extend(fates);
        settled.next.extend(next);
        settled.ready.extend(ready);
        settled.timer = settled.timer.into_iter().chain(timer).min();
        Ok(busy)
    }

    /// Returns the first ready job of each of these instances.
    async fn next_of(
        &self,
        connection: &mut PgConnection,
        mut left: Free,
    ) -> Result<Vec<Ready>, StoreError> {
        left.instances.retain(|id| !left.suspended.contains(id));
        let rows = sqlx::query(NEXT)
            .bind(self.zone.judged())
            .bind(left.instances)
            .fetch_all(connection);
        let mut ready = Vec::new();
        for row in &rows.await? {
            ready.extend(self.decoder.ready_row(row)?);
        }
        Ok(ready)
    }
}

/// The rows of a batch, by fate.
#[derive(Default)]
struct Batch {
    busy: HashSet<String>,
    fates: Vec<(JobId, Fate)>,
    ready: Vec<Ready>,
    timer: Option<DateTime<Utc>>,
    left: Free,
}

impl Batch {
    fn note(&mut self, engine: &Camunda, row: &PgRow) -> Result<(), StoreError> {
        let text: String = row.try_get("id")?;
        let Ok(id) = job_id(&text) else {
            return Ok(());
        };
        if row.try_get("is_busy")? {
            self.busy.insert(text);
            return Ok(());
        }
        let instance: Option<String> = row.try_get("inst")?;
        let next: Option<DateTime<Utc>> = row.try_get("next_due")?;
        self.timer = self.timer.into_iter().chain(next).min();
        let fate = fate(row)?;
        let is_due = row.try_get::<Option<bool>, _>("is_due")? == Some(true);
        match fate {
            Fate::Retry | Fate::Released if !is_due => {
                let due: Option<DateTime<Utc>> = row.try_get("due_at")?;
                self.timer = self.timer.into_iter().chain(due).min();
            }
            Fate::Retry | Fate::Released if instance.is_none() => {
                let handler: Option<String> = row.try_get("handler_type_")?;
                let ready = engine.decoder.ready(&text, None, handler.as_deref());
                self.ready.extend(ready);
            }
            Fate::DeadLetter => {
                let said: Option<String> = row.try_get("exception_msg_")?;
                let error = said.unwrap_or_default();
                tracing::warn!(
                    job = %text,
                    error,
                    "the engine has no attempt left for the job and created an incident"
                );
            }
            _ => {}
        }
        if fate != Fate::Unknown
            && row.try_get("is_left")?
            && let Some(instance) = instance
        {
            if row.try_get::<Option<bool>, _>("is_instance_suspended")? == Some(true) {
                self.left.suspended.push(instance.clone());
            }
            self.left.instances.push(instance);
        }
        self.fates.push((id, fate));
        Ok(())
    }
}

fn fate(row: &PgRow) -> Result<Fate, StoreError> {
    let is = |column: &str| -> Result<bool, StoreError> {
        Ok(row.try_get::<Option<bool>, _>(column)? == Some(true))
    };
    if !is("is_here")? {
        return Ok(Fate::Done);
    }
    let is_ours = is("is_ours")?;
    if !is_ours && !is("is_unlocked")? {
        return Ok(Fate::Lost);
    }
    let retries: Option<i32> = row.try_get("retries_")?;
    Ok(if is_ours && is("stays")? {
        Fate::Unknown
    } else if is("is_suspended")? {
        Fate::Suspended
    } else if retries.unwrap_or_default() <= 0 {
        Fate::DeadLetter
    } else if is_ours {
        Fate::Released
    } else {
        Fate::Retry
    })
}

/// Returns the end of an execution that began with `retries` attempts left and that the engine did
/// not answer with success.
pub(super) async fn ended(
    pool: &PgPool,
    id: JobId,
    owner: &str,
    retries: i32,
) -> Result<Ended, StoreError> {
    let row = sqlx::query(
        "SELECT lock_owner_, lock_exp_time_ IS NULL, retries_, suspension_state_ = 2 FROM act_ru_job WHERE id_ = $1",
    )
    .bind(engine_id(id))
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else {
        return Ok(Ended::Gone);
    };
    let holder: Option<String> = row.try_get(0)?;
    let is_unlocked: bool = row.try_get(1)?;
    let left: Option<i32> = row.try_get(2)?;
    let is_suspended: bool = row.try_get(3)?;
    Ok(if left.unwrap_or_default() < retries {
        Ended::Counted
    } else if is_suspended {
        Ended::Suspended
    } else if holder.as_deref() == Some(owner) || is_unlocked {
        // The engine clears the lock after a conflict at a join.
        Ended::Conflict
    } else {
        Ended::Counted
    })
}
