//! Rescue: clears locks whose holder is dead.
//!
//! | lock | cleared |
//! | --- | --- |
//! | of a Jobwire node | after its expiry, if its node has been silent for 90 s |
//! | of an engine node | a minute after its expiry: another engine node that polls comes first |
//!
//! A living node determines the fate of its execution itself. It has the time `takeover_patience`
//! for that, from the end of its lock.
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
use sqlx::{PgPool, Row};

use super::Camunda;
use super::sql::{due, local_now, runnable};
use crate::activity::other_transactions;
use crate::dialect::Dialect;
use crate::freed::Freed;
use crate::walk::in_page;
use crate::zone::{end_of_lock, may_be_lost, now_of_lock, owner_lives};

/// Clears expired locks of jobs. Skips locked rows, because a transaction of the engine works on
/// them. `$1`: the zone, `$2`: maximum number, `$3`: patience, `$4` and `$5`: the page of the
/// table, `$6`: the zone of due dates and of locks of engine nodes.
const FREE_EXPIRED: &str = concat!(
    "
WITH late AS MATERIALIZED (
    SELECT j.id_, j.lock_owner_ FROM (
        SELECT j.id_, j.lock_owner_, j.lock_exp_time_ FROM act_ru_job j WHERE ",
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
    ")
        AND NOT ",
    owner_lives!("j.lock_owner_"),
    ")
      AND ",
    may_be_lost!("j.lock_exp_time_", "j.lock_owner_", "$6"),
    "
    ORDER BY j.id_ LIMIT $2
), jobs AS MATERIALIZED (
    SELECT j.id_, j.lock_owner_ FROM act_ru_job j
    WHERE j.id_ = ANY (ARRAY(SELECT id_ FROM late))
      AND EXISTS (SELECT FROM late WHERE late.id_ = j.id_ AND late.lock_owner_ IS NOT DISTINCT FROM j.lock_owner_)
      AND j.lock_exp_time_ < ",
    now_of_lock!("j.lock_owner_", "$6"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE OF j SKIP LOCKED
), freed AS (
    UPDATE act_ru_job j SET lock_owner_ = NULL, lock_exp_time_ = NULL FROM jobs WHERE j.id_ = jobs.id_
    RETURNING j.id_, j.process_instance_id_, j.handler_type_, jobs.lock_owner_, ",
    runnable!("j"),
    " AND ",
    due!("j", "$6"),
    " AS is_ready
)
SELECT * FROM freed ORDER BY id_"
);

impl Camunda {
    /// Clears expired locks of jobs. Returns the ready jobs; the others become new or due.
    pub(super) async fn free_expired_locks(
        &self,
        pool: &PgPool,
        at_most: i64,
    ) -> Result<Vec<Freed>, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let page = self.rescues.page();
        let rows = sqlx::query(FREE_EXPIRED)
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
            if row.try_get::<Option<bool>, _>("is_ready")? == Some(true) {
                freed.extend(Freed::of(&self.decoder, row)?);
            }
        }
        Ok(freed)
    }
}
