//! Hints due timers. A timer stays in its row, and becomes ready when it is due.
//!
//! No column records that a timer was hinted. The leader remembers the due date up to which it has
//! hinted: a timer that was visible and due by then has its hint. A job that appears later with an
//! earlier due date is new, so the [look](super::look) reports it. A new leader begins a few
//! minutes back and hints some timers twice. Timers that became due while no node led are orphans,
//! which the sweeper finds.
//!
//! No timer is hinted before it is due by the database's clock in the engine's zone, and the lock
//! statement checks that again. While the configured zone seems to be wrong, a timer counts as due when
//! it is due in every zone ([`zone`](crate::zone)).

use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, NaiveDateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::MovedTimers;
use sqlx::{PgPool, Row};

use super::Camunda;
use super::sql::{runnable, unlocked};
use crate::dialect::Dialect;

/// Due dates up to which timers have been hinted, by due date and id.
#[derive(Debug, Default)]
pub(super) struct Reached(Mutex<Option<(NaiveDateTime, String)>>);

impl Reached {
    fn get(&self) -> Option<(NaiveDateTime, String)> {
        let reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reached.clone()
    }

    fn set(&self, due: NaiveDateTime, id: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((due, id));
    }
}

/// Selects timers that became due. `$1`: the zone of due dates, `$2` and `$3`: the due date and the
/// id up to which timers were hinted, `$4`: maximum number. Without date and id, or after the local clock
/// was set back, begins five minutes back.
const DUE: &str = concat!(
    "
WITH clock AS MATERIALIZED (
    SELECT now_, CASE WHEN $2::timestamp <= now_ THEN $2 ELSE now_ - interval '5 minutes' END AS due,
        CASE WHEN $2 <= now_ THEN $3 ELSE '' END AS id
    FROM (SELECT statement_timestamp() AT TIME ZONE $1 AS now_) c
)
SELECT statement_timestamp() AS at, c.now_,
    (SELECT min(j.duedate_) AT TIME ZONE $1 FROM act_ru_job j WHERE j.duedate_ > c.now_ AND j.duedate_ < '9999-01-01' AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    ") AS next_due, d.*
FROM clock c LEFT JOIN LATERAL (
    SELECT j.id_, j.process_instance_id_, j.handler_type_, j.duedate_ FROM act_ru_job j
    WHERE (j.duedate_, j.id_) > (c.due, c.id) AND j.duedate_ <= c.now_ AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    "
    ORDER BY j.duedate_, j.id_ LIMIT $4
) d ON true"
);

impl Camunda {
    /// Returns the timers that became due, at most `at_most`.
    pub(super) async fn hint_due_timers(
        &self,
        pool: &PgPool,
        at_most: i64,
    ) -> Result<MovedTimers, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let (due, id) = self.timers.get().unzip();
        let rows = sqlx::query(DUE)
            .bind(self.zone.judged())
            .bind(due)
            .bind(id)
            .bind(at_most)
            .fetch_all(pool)
            .await?;
        let mut moved = MovedTimers::default();
        let mut reached = None;
        for row in &rows {
            moved.now = row.try_get("at")?;
            moved.next_due = row.try_get::<Option<DateTime<Utc>>, _>("next_due")?;
            self.offset.read(row.try_get("now_")?, moved.now);
            let Some(id) = row.try_get::<Option<String>, _>("id_")? else {
                reached = Some((row.try_get("now_")?, String::new()));
                continue;
            };
            moved.ready.extend(self.decoder.ready_row(row)?);
            reached = Some((row.try_get("duedate_")?, id));
        }
        if i64::try_from(rows.len()).is_ok_and(|count| count >= at_most) && !moved.ready.is_empty()
        {
            // A full page: the rest follows at once.
            moved.next_due = Some(moved.now);
        } else if let Some(row) = rows.first() {
            reached = Some((row.try_get("now_")?, String::new()));
        }
        if let Some((due, id)) = reached {
            self.timers.set(due, id);
        }
        Ok(moved)
    }
}
