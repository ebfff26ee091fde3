//! Suspending and activating (protocol rule 27).

use super::sql::{in_scope, moved_columns, ready_columns, unlocked};
use super::{SqliteStore, row};
use crate::error::StoreError;
use crate::hint::Ready;
use crate::store::SuspensionScope;

const NOTE: &str = "
INSERT INTO suspension (scope, value, since) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

/// What is locked goes on; its outcome is put aside when it fails.
const PUT_ASIDE: [&str; 5] = [
    concat!(
        "INSERT INTO suspended_job (",
        moved_columns!(),
        ") SELECT ",
        moved_columns!(),
        " FROM job j WHERE ",
        in_scope!("j"),
        " AND ",
        unlocked!("j")
    ),
    // A lease without an owner goes with its job.
    concat!(
        "DELETE FROM job_lease WHERE job_id IN (SELECT j.id FROM job j WHERE ",
        in_scope!("j"),
        " AND ",
        unlocked!("j"),
        ")"
    ),
    concat!(
        "DELETE FROM job AS j WHERE ",
        in_scope!("j"),
        " AND ",
        unlocked!("j")
    ),
    concat!(
        "INSERT INTO suspended_job (",
        moved_columns!(),
        ") SELECT ",
        moved_columns!(),
        " FROM timer_job j WHERE ",
        in_scope!("j")
    ),
    concat!("DELETE FROM timer_job AS j WHERE ", in_scope!("j")),
];

const FORGET: &str = "DELETE FROM suspension WHERE scope = ?1 AND value = ?2";

/// What waited in the executable table, refused, is hinted again.
const WAITED: &str = concat!(
    "UPDATE job AS j SET ready_at = ?3, hints = min(hints, 999999999) + 1 WHERE ",
    in_scope!("j"),
    " AND ",
    unlocked!("j"),
    " RETURNING ",
    ready_columns!(),
    ", seq"
);

/// What was put aside, unless something else that it belongs to is still suspended.
macro_rules! back {
    () => {
        concat!(
            in_scope!("j"),
            " AND NOT EXISTS (SELECT 1 FROM suspension s WHERE
    (s.scope = 'process_instance' AND s.value = j.process_instance)
 OR (s.scope = 'process_definition' AND s.value = j.process_definition)
 OR (s.scope = 'type' AND s.value = j.type)
 OR (s.scope = 'tenant' AND s.value = j.tenant))"
        )
    };
}

const BACK_TO_TIMERS: &str = concat!(
    "INSERT INTO timer_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM suspended_job j WHERE j.due_at > ?3 AND ",
    back!()
);
const BACK_TO_JOBS: &str = concat!(
    "
INSERT INTO job (",
    moved_columns!(),
    ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?3, min(hints, 999999999) + 1
FROM suspended_job j WHERE coalesce(j.due_at, 0) <= ?3 AND ",
    back!(),
    " RETURNING ",
    ready_columns!(),
    ", seq"
);
const NOT_ASIDE: &str = concat!("DELETE FROM suspended_job AS j WHERE ", back!());

impl SqliteStore {
    pub(super) async fn suspend_scope(&self, scope: &SuspensionScope) -> Result<u64, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        let now = row::now_micros();
        let mut changed = 0;
        for statement in std::iter::once(NOTE).chain(PUT_ASIDE) {
            let result = sqlx::query(statement)
                .bind(kind)
                .bind(value)
                .bind(now)
                .execute(&mut *tx)
                .await?;
            if statement.starts_with("INSERT INTO suspended_job") {
                changed += result.rows_affected();
            }
        }
        tx.commit().await?;
        Ok(changed)
    }

    /// Back to where they came from. What was created meanwhile is hinted too.
    pub(super) async fn activate_scope(
        &self,
        scope: &SuspensionScope,
    ) -> Result<Vec<Ready>, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        let now = row::now_micros();
        let gone = sqlx::query(FORGET)
            .bind(kind)
            .bind(value)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let mut ready = Vec::new();
        if gone > 0 {
            for statement in [WAITED, BACK_TO_TIMERS, BACK_TO_JOBS, NOT_ASIDE] {
                let rows = sqlx::query(statement)
                    .bind(kind)
                    .bind(value)
                    .bind(now)
                    .fetch_all(&mut *tx)
                    .await?;
                ready.extend(row::ready_in_order(&rows)?);
            }
        }
        tx.commit().await?;
        Ok(ready)
    }
}
