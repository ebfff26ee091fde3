//! The publication of the tap for Camunda.
//!
//! The engine updates jobs in place, so the publication has updates, too. Therefore it names the
//! key among its columns and selects no rows: otherwise the server would refuse the engine's
//! updates. This module finds the ready jobs among the streamed rows.

use chrono::{DateTime, Utc};
use jobwire_core::store::Committed;
use jobwire_tap::{Changes, PgPublication, PublishedTable, Rows};

use crate::id::job_id;
use crate::tap::local;

const JOBS: &str = "act_ru_job";
const COLUMNS: [&str; 5] = [
    "id_",
    "duedate_",
    "lock_exp_time_",
    "retries_",
    "suspension_state_",
];

/// Returns the publication.
pub(super) fn publication(name: String, schema: &str, selects: bool) -> PgPublication {
    let mut jobs = PublishedTable::new(schema, JOBS);
    if selects {
        jobs = jobs.columns(COLUMNS);
    }
    PgPublication::new(name, Changes::InsertsAndUpdates).table(jobs)
}

/// Adds the rows. Returns false for rows of an unknown table.
pub(super) fn committed(rows: &Rows, ahead: chrono::Duration, committed: &mut Committed) -> bool {
    if rows.table.name != JOBS {
        return false;
    }
    let [id, due, lock, retries, suspension] = COLUMNS.map(|name| rows.table.column(name));
    for row in &rows.rows {
        let text = |column: Option<usize>| column.and_then(|at| row.text(at));
        let has_attempts = text(retries).and_then(|text| text.parse::<i32>().ok()) > Some(0);
        if text(lock).is_some() || !has_attempts || text(suspension) != Some("1") {
            continue;
        }
        let due: Option<DateTime<Utc>> = match text(due) {
            None => None,
            Some(due) => match local(due) {
                Some(due) => Some(due.and_utc() - ahead),
                // No timer has such a date. The sweeper finds the job if it is ready.
                None => continue,
            },
        };
        match due.filter(|due| *due > committed.now) {
            Some(due) => {
                committed.timers += 1;
                committed.due = committed.due.into_iter().chain([due]).min();
            }
            None => committed
                .jobs
                .extend(text(id).and_then(|id| job_id(id).ok())),
        }
    }
    true
}
