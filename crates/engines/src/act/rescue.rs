//! Rescue: clears locks whose holder is dead.
//!
//! | lock | cleared |
//! | --- | --- |
//! | of a Jobwire node, on a job | after its expiry, since a living node renews it |
//! | of an engine node, on a job or a timer | a minute after its expiry: the engine's own reset comes first |
//! | of an instance for which a job or a timer waits, without a locked job | after its expiry |
//!
//! The engine continues an execution after the death of its caller. So an expired lock stays while
//! a transaction is open that began before the expiry: it may be the execution. Such a job is taken
//! over when the transaction has ended, or after `takeover_patience`. Transactions of backups and
//! consoles do not count. If the role can't see the transactions of others (`pg_read_all_stats`),
//! only the expiry decides.
//!
//! While the configured zone seems to be wrong ([`zone`](crate::zone)), a lock of an engine node counts
//! as expired when it has expired in every zone. A lock of Jobwire counts by the configured zone, in which it
//! was written, and stays while its node lives: that node may have another zone. In the right zone, a lock of a
//! living node stays while it may be in force in another zone.

use jobwire_core::StoreError;
use sqlx::PgPool;

use super::Act;
use super::sql::{local_now, unlocked};
use crate::activity::other_transactions;
use crate::dialect::Dialect;
use crate::freed::{Freed, FreedInstances};
use crate::walk::in_page;
use crate::zone::{end_of_lock, may_be_lost, now_of_lock};

/// Clears expired locks of jobs. Skips locked rows, because a transaction of the engine works on
/// them. `$1`: the zone, `$2`: maximum number, `$3`: patience, `$4` and `$5`: the page of the
/// table, `$6`: the zone of locks of engine nodes.
pub(super) const FREE_EXPIRED: &str = concat!(
    "
WITH late AS MATERIALIZED (
    SELECT j.id_, j.process_instance_id_, j.lock_owner_,
        (SELECT e.lock_time_ FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_) AS instance_lock
    FROM (
        SELECT j.id_, j.process_instance_id_, j.lock_owner_, j.lock_exp_time_ FROM act_ru_job j WHERE ",
    in_page!("j", "$4", "$5"),
    " AND j.lock_exp_time_ < ",
    local_now!(),
    " OFFSET 0
    ) j
    WHERE j.lock_exp_time_ < ",
    now_of_lock!("j.lock_owner_", "$6"),
    " - CASE WHEN starts_with(j.lock_owner_, 'jobwire:') THEN interval '0' ELSE interval '1 minute' END
      AND (j.lock_exp_time_ < ",
    now_of_lock!("j.lock_owner_", "$6"),
    " - $3 OR NOT EXISTS (SELECT FROM ",
    other_transactions!(),
    " AND a.xact_start < ",
    end_of_lock!("j.lock_exp_time_", "j.lock_owner_", "$6"),
    "))
      AND ",
    may_be_lost!("j.lock_exp_time_", "j.lock_owner_", "$6"),
    "
    ORDER BY j.id_ LIMIT $2
), insts AS MATERIALIZED (
    SELECT e.id_ FROM act_ru_execution e WHERE e.id_ IN (SELECT process_instance_id_ FROM late)
    ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), jobs AS MATERIALIZED (
    SELECT j.id_, j.lock_owner_ FROM act_ru_job j
    WHERE j.id_ = ANY (ARRAY(SELECT id_ FROM late))
      AND EXISTS (SELECT FROM late WHERE late.id_ = j.id_ AND late.lock_owner_ IS NOT DISTINCT FROM j.lock_owner_)
      AND (j.process_instance_id_ IS NULL OR j.process_instance_id_ IN (SELECT id_ FROM insts)) AND j.lock_exp_time_ < ",
    now_of_lock!("j.lock_owner_", "$6"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE OF j SKIP LOCKED
), freed_instance AS (
    UPDATE act_ru_execution e SET {no instance lock}
    FROM late JOIN jobs ON jobs.id_ = late.id_
    WHERE e.id_ = late.process_instance_id_ AND {expired instance}
), freed AS (
    UPDATE act_ru_job j SET lock_owner_ = NULL, lock_exp_time_ = NULL FROM jobs WHERE j.id_ = jobs.id_
    RETURNING j.id_, j.process_instance_id_, j.handler_type_, jobs.lock_owner_
)
SELECT * FROM freed ORDER BY id_"
);

/// True if the lock of the instance is that of the job, or has expired.
pub(super) const OUR_INSTANCE: &str = concat!(
    "(e.lock_owner_ = late.lock_owner_ OR e.lock_time_ < ",
    now_of_lock!("e.lock_owner_", "$6"),
    ")"
);

/// True if the engine that executed the job left the lock of the instance behind: no other job of
/// the instance is locked, and its lock is that of the snapshot.
pub(super) const LEFT_INSTANCE: &str = "e.lock_time_ = late.instance_lock AND NOT EXISTS (
        SELECT FROM act_ru_job s WHERE s.process_instance_id_ = e.id_ AND s.id_ <> late.id_ AND s.lock_exp_time_ IS NOT NULL)
        AND {no external job}";

/// Clears expired locks of instances with an unlocked job or timer: their holder died after the engine
/// had executed its job. A timer alone is enough: no due timer of a locked instance moves. `$1`: the zone, `$2`: patience, `$3` and `$4`: the page of the table of
/// executions, `$5`: the zone of locks of engine nodes.
///
/// `OFFSET 0` keeps the planner from reading the table by its key, and the subqueries for one value
/// keep it from joining whole tables: few instances have an expired lock.
pub(super) const FREE_WAITED_FOR: &str = concat!(
    "
WITH left_over AS MATERIALIZED (
    SELECT e.id_ FROM (
        SELECT e.id_, e.lock_time_, {e.lock_owner_} AS lock_owner_ FROM act_ru_execution e WHERE ",
    in_page!("e", "$3", "$4"),
    " AND (e.lock_time_ < ",
    local_now!(),
    " OR (e.lock_time_ IS NULL AND {e.lock_owner_} IS NOT NULL)) OFFSET 0
    ) e
    WHERE ((SELECT true FROM act_ru_job j WHERE j.process_instance_id_ = e.id_ AND ",
    unlocked!("j"),
    " LIMIT 1) OR (SELECT true FROM act_ru_timer_job t WHERE t.process_instance_id_ = e.id_ AND ",
    unlocked!("t"),
    " LIMIT 1))
      AND (SELECT true FROM act_ru_job s WHERE s.process_instance_id_ = e.id_ AND s.lock_exp_time_ >= (clock_timestamp() AT TIME ZONE $5) LIMIT 1) IS NULL
      AND (e.lock_time_ IS NULL OR e.lock_time_ < ",
    now_of_lock!("e.lock_owner_", "$5"),
    ")
      AND (e.lock_time_ < ",
    now_of_lock!("e.lock_owner_", "$5"),
    " - $2 OR NOT EXISTS (SELECT FROM ",
    other_transactions!(),
    " AND a.xact_start < ",
    end_of_lock!("e.lock_time_", "e.lock_owner_", "$5"),
    "))
      AND ",
    may_be_lost!("e.lock_time_", "e.lock_owner_", "$5"),
    "
    LIMIT 1000
), held AS MATERIALIZED (
    SELECT e.id_ FROM act_ru_execution e WHERE e.id_ = ANY (ARRAY(SELECT id_ FROM left_over)) AND (e.lock_time_ < ",
    now_of_lock!("{e.lock_owner_}", "$5"),
    " OR (e.lock_time_ IS NULL AND {e.lock_owner_} IS NOT NULL))
    ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE act_ru_execution e SET {no instance lock} FROM held WHERE e.id_ = held.id_ RETURNING e.id_"
);

/// Maximum number of instances that [`FREE_WAITED_FOR`] frees.
const MOST: usize = 1_000;

/// Clears expired locks of engine nodes on timers. `$1`: the zone of locks of engine nodes.
const FREE_TIMERS: &str = concat!(
    "
UPDATE act_ru_timer_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ IN (
    SELECT id_ FROM act_ru_timer_job WHERE lock_exp_time_ < ",
    local_now!(),
    " - interval '1 minute' ORDER BY id_ LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED)"
);

/// Cancels statements of the engine that have waited for two seconds for a lock of an idle
/// transaction of the same role and program. Such a transaction is the engine's, too: the engine
/// records a failure over a second connection before the first one has rolled back.
const CANCEL_HUNG: &str = "
SELECT count(*) FROM (
    SELECT pg_cancel_backend(w.pid) FROM pg_stat_activity w
    WHERE w.datname = current_database() AND w.application_name <> 'jobwire' AND w.wait_event_type = 'Lock'
      AND w.query_start < clock_timestamp() - interval '2 seconds'
      AND EXISTS (SELECT FROM unnest(pg_blocking_pids(w.pid)) AS b(pid) JOIN pg_stat_activity i ON i.pid = b.pid
          WHERE i.state = 'idle in transaction' AND i.usename = w.usename AND i.application_name = w.application_name
            AND i.state_change < clock_timestamp() - interval '2 seconds')
    LIMIT 100) AS cancelled";

/// Cancels hung statements. Returns their number.
pub(super) async fn cancel_hung(pool: &PgPool) -> Result<u64, StoreError> {
    let cancelled: i64 = sqlx::query_scalar(CANCEL_HUNG).fetch_one(pool).await?;
    Ok(u64::try_from(cancelled).unwrap_or_default())
}

impl Act {
    /// Clears expired locks of jobs.
    pub(super) async fn free_expired_locks(
        &self,
        pool: &PgPool,
        at_most: i64,
    ) -> Result<Vec<Freed>, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let page = self.rescues.page();
        let rows = sqlx::query(self.sql.free_expired)
            .bind(self.zone.name())
            .bind(at_most)
            .bind(self.patience)
            .bind(&page.from)
            .bind(&page.to)
            .bind(self.zone.judged())
            .fetch_all(pool)
            .await?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|rows| rows >= at_most);
        if !is_full {
            self.rescues.passed(&page, pool, "act_ru_job").await?;
        }
        let mut freed = Vec::new();
        for row in &rows {
            freed.extend(Freed::of(&self.decoder, row)?);
        }
        Ok(freed)
    }

    /// Clears expired locks of engine nodes on timers.
    pub(super) async fn free_expired_timers(&self, pool: &PgPool) -> Result<u64, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let freed = sqlx::query(FREE_TIMERS)
            .bind(self.zone.judged())
            .execute(pool);
        Ok(freed.await?.rows_affected())
    }

    /// Clears expired locks of instances for which jobs or timers wait.
    pub(super) async fn free_left_instances(
        &self,
        pool: &PgPool,
    ) -> Result<FreedInstances, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let page = self.instances.page();
        let mut tx = pool.begin().await?;
        let freed: Vec<String> = sqlx::query_scalar(self.sql.free_waited_for)
            .bind(self.zone.name())
            .bind(self.patience)
            .bind(&page.from)
            .bind(&page.to)
            .bind(self.zone.judged())
            .fetch_all(&mut *tx)
            .await?;
        let (is_whole, count) = (freed.len() < MOST, freed.len() as u64);
        let ready = if freed.is_empty() {
            Vec::new()
        } else {
            self.next_of(&mut tx, freed).await?
        };
        tx.commit().await?;
        if is_whole {
            self.instances
                .passed(&page, pool, "act_ru_execution")
                .await?;
        }
        Ok(FreedInstances { count, ready })
    }
}
