//! Settling: reads the fates of executed jobs, releases their locks and hands off their instances.
//!
//! The answer of an execution is only a hint. The rows decide:
//!
//! | rows | meaning |
//! | --- | --- |
//! | in no table | done |
//! | in `ACT_RU_TIMER_JOB` | failed; the engine has counted it and chosen the due date |
//! | in `ACT_RU_DEADLETTER_JOB` | failed for the last time |
//! | in `ACT_RU_SUSPENDED_JOB` | its instance was suspended meanwhile |
//! | in `ACT_RU_JOB`, locked by this node | the engine rolled back without a trace, as after a conflict |
//! | in `ACT_RU_JOB`, unlocked, after the endpoint | the engine gave it back: its instance is locked |
//! | in `ACT_RU_JOB`, otherwise | the lock was lost |
//!
//! Activiti gives a job back under a new id, with the same execution. The search for the next job
//! of the instance finds it again.
//!
//! The second statement locks the next job of each released instance, or finds the first one of each
//! need. Its snapshot is
//! younger than the locks of the rows of the instances ([`lock`](super::lock)).

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::hint::Ready;
use jobwire_core::store::LockTerms;
use sqlx::{PgConnection, PgPool, Row};

use super::Act;
use super::sql::{of_processes, unlocked};
use crate::columns::Columns;
use crate::dialect::Settled;
use crate::fate::Fate;
use crate::id::job_id;
use crate::settling;
use crate::zone::moment_of;

/// Settles jobs. `$1`: the zone, `$2`: ids, `$3`: owners, `$4`: instances, `$5`: ids whose locks
/// stay, `$6`: the least time for which these stay; no lock is shortened. Most jobs are gone, and many
/// have no instance left: `is_here` and `has_instance` save the look-ups of their rows.
pub(super) const SETTLE: &str = concat!(
    "
WITH held AS MATERIALIZED (
    SELECT h.id, h.owner, h.inst, h.id = ANY($5::text[]) AS stays FROM unnest($2::text[], $3::text[], $4::text[]) AS h(id, owner, inst)
), insts AS MATERIALIZED (
    SELECT e.id_ FROM act_ru_execution e WHERE e.id_ IN (SELECT inst FROM held) ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), jobs AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j WHERE j.id_ IN (SELECT id FROM held) ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT h.*, j.id_ IS NOT NULL AS is_here, j.lock_owner_ IS NOT DISTINCT FROM h.owner AS is_ours,
        j.id_ IS NOT NULL AND {is free again} AS is_free, insts.id_ IS NOT NULL AS has_instance, e.lock_time_,
        j.process_instance_id_, j.handler_type_,
        (j.id_ IS NOT NULL AND jobs.id_ IS NULL) OR (e.id_ IS NOT NULL AND insts.id_ IS NULL) AS is_busy
    FROM held h LEFT JOIN act_ru_job j ON j.id_ = h.id LEFT JOIN jobs ON jobs.id_ = h.id
        LEFT JOIN act_ru_execution e ON e.id_ = h.inst LEFT JOIN insts ON insts.id_ = h.inst
), freed AS (
    UPDATE act_ru_job j SET
        lock_owner_ = CASE WHEN s.stays THEN j.lock_owner_ END,
        lock_exp_time_ = CASE WHEN s.stays THEN greatest(j.lock_exp_time_, (clock_timestamp() AT TIME ZONE $1) + $6) END
    FROM seen s WHERE NOT s.is_busy AND s.is_here AND j.id_ = s.id AND j.lock_owner_ = s.owner
), kept AS (
    UPDATE act_ru_execution e SET lock_time_ = greatest(e.lock_time_, (clock_timestamp() AT TIME ZONE $1) + $6)
    FROM seen s WHERE e.id_ = s.inst AND {e.lock_owner_} = s.owner AND NOT s.is_busy AND s.stays AND s.is_here AND s.is_ours
), freed_instance AS (
    UPDATE act_ru_execution e SET {no instance lock}
    FROM seen s WHERE NOT s.is_busy AND s.has_instance AND NOT (s.stays AND s.is_here AND s.is_ours) AND e.id_ = s.inst AND {settled instance}
    RETURNING e.id_
)
SELECT s.id, s.inst, s.stays, s.is_here, s.is_ours, s.is_free, s.is_busy, s.process_instance_id_, s.handler_type_, {is left} AS is_left,
    t.id_ IS NOT NULL AS waits, ",
    moment_of!("t.duedate_"),
    " AS due_at, d.id_ IS NOT NULL AS is_dead, d.exception_msg_, u.id_ IS NOT NULL AS is_suspended
FROM seen s LEFT JOIN freed_instance f ON f.id_ = s.inst LEFT JOIN act_ru_timer_job t ON t.id_ = s.id
    LEFT JOIN act_ru_deadletter_job d ON d.id_ = s.id LEFT JOIN act_ru_suspended_job u ON u.id_ = s.id"
);

/// True if this node has the lock of the instance.
pub(super) const OUR_INSTANCE: &str = "e.lock_owner_ = s.owner";

/// True if the lock of the instance was left behind, and is still that of the snapshot. The engine
/// locks an instance only for a locked job. Only this node's job is locked, and its execution has
/// ended.
pub(super) const LEFT_INSTANCE: &str = "e.lock_time_ = s.lock_time_ AND NOT EXISTS (
        SELECT FROM act_ru_job o WHERE o.process_instance_id_ = s.inst AND o.lock_exp_time_ IS NOT NULL
            AND (o.id_ <> s.id OR o.lock_owner_ IS DISTINCT FROM s.owner)) AND {no external job}";

/// True if the instance may run its next job.
pub(super) const IS_LEFT: &str = "s.has_instance AND NOT (s.stays AND s.is_here AND s.is_ours)";

/// Selects the unlocked jobs of each instance that are the first with their tenant and category: each
/// may need another node, and a node takes the instance by the hint of a job that it serves.
pub(super) const NEXT: &str = concat!(
    "
SELECT i.inst, c.id_, c.handler_type_ FROM unnest($1::text[]) AS i(inst) CROSS JOIN LATERAL (
    SELECT DISTINCT ON (coalesce(j.tenant_id_, ''), coalesce({j.category_}, '')) j.id_, j.handler_type_ FROM act_ru_job j
    WHERE j.process_instance_id_ = i.inst AND ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ")
    ORDER BY coalesce(j.tenant_id_, ''), coalesce({j.category_}, ''), {by_age j}
) c"
);

/// The least time for which a job stays locked after an execution without an answer. Then the leader
/// clears the lock, but not while a transaction is open that may be the execution.
const STAYS: Duration = Duration::from_secs(30);

impl Act {
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
        let rows = sqlx::query(self.sql.settle)
            .bind(self.zone.name())
            .bind(ids)
            .bind(owners)
            .bind(instances)
            .bind(unanswered)
            .bind(self.locked_for(STAYS))
            .fetch_all(&mut *tx)
            .await?;
        let mut busy = HashSet::new();
        let mut fates = Vec::new();
        let mut left = Vec::new();
        let mut ready = Vec::new();
        let mut timer: Option<DateTime<Utc>> = None;
        for row in &rows {
            let text: String = row.try_get("id")?;
            let Ok(id) = job_id(&text) else { continue };
            if row.try_get("is_busy")? {
                busy.insert(text);
                continue;
            }
            let fate = fate(row)?;
            match fate {
                Fate::Retry => {
                    let due: Option<DateTime<Utc>> = row.try_get("due_at")?;
                    timer = timer.into_iter().chain(due).min();
                }
                Fate::Released
                    if row
                        .try_get::<Option<String>, _>("process_instance_id_")?
                        .is_none() =>
                {
                    let handler: Option<String> = row.try_get("handler_type_")?;
                    ready.extend(self.decoder.ready(&text, None, handler.as_deref()));
                }
                Fate::DeadLetter => {
                    let said: Option<String> = row.try_get("exception_msg_")?;
                    let error = said.unwrap_or_default();
                    tracing::warn!(job = %text, error, "the engine made the job a dead letter");
                }
                _ => {}
            }
            if row.try_get("is_left")? {
                left.extend(row.try_get::<Option<String>, _>("inst")?);
            }
            fates.push((id, fate));
        }
        let mut next = Vec::new();
        if !left.is_empty() {
            match take {
                Some(terms) => {
                    next = self.lock_next(&mut tx, terms, left.clone()).await?;
                    let others = settling::for_others(terms, left, &next);
                    if !others.is_empty() {
                        ready.extend(self.next_of(&mut tx, others).await?);
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

    /// Returns the first unlocked job of each need of these instances.
    pub(super) async fn next_of(
        &self,
        connection: &mut PgConnection,
        instances: Vec<String>,
    ) -> Result<Vec<Ready>, StoreError> {
        let rows = sqlx::query(self.sql.next)
            .bind(instances)
            .fetch_all(connection);
        let mut ready = Vec::new();
        for row in &rows.await? {
            let instance: String = row.try_get("inst")?;
            let id: String = row.try_get("id_")?;
            let handler: Option<String> = row.try_get("handler_type_")?;
            ready.extend(self.decoder.ready(&id, Some(instance), handler.as_deref()));
        }
        Ok(ready)
    }
}

fn fate(row: &sqlx::postgres::PgRow) -> Result<Fate, StoreError> {
    let is = |column: &str| row.try_get::<bool, _>(column);
    Ok(if is("is_here")? {
        match (is("is_ours")?, is("stays")?) {
            (true, true) => Fate::Unknown,
            (true, false) => Fate::Released,
            (false, _) if is("is_free")? => Fate::Released,
            (false, _) => Fate::Lost,
        }
    } else if is("waits")? {
        Fate::Retry
    } else if is("is_dead")? {
        Fate::DeadLetter
    } else if is("is_suspended")? {
        Fate::Suspended
    } else {
        Fate::Done
    })
}
