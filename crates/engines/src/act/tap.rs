//! The publication of the tap for Flowable and Activiti.
//!
//! The publication has inserts only, so it has no effect on the engine's updates and deletions. It
//! streams the ids of jobs and the due dates of timers. It leaves out rows that an engine node
//! inserts with a lock, for itself.

use jobwire_core::store::Committed;
use jobwire_tap::{Changes, PgPublication, PublishedTable, Rows};

use crate::id::job_id;
use crate::tap::local;

const JOBS: &str = "act_ru_job";
const TIMERS: &str = "act_ru_timer_job";

/// Returns the publication.
pub(super) fn publication(name: String, schema: &str, selects: bool) -> PgPublication {
    let mut jobs = PublishedTable::new(schema, JOBS);
    let mut timers = PublishedTable::new(schema, TIMERS);
    if selects {
        jobs = jobs.columns(["id_"]).rows("lock_exp_time_ IS NULL");
        timers = timers.columns(["duedate_"]);
    }
    PgPublication::new(name, Changes::Inserts)
        .table(jobs)
        .table(timers)
}

/// Adds the rows. Returns false for rows of an unknown table.
pub(super) fn committed(rows: &Rows, ahead: chrono::Duration, committed: &mut Committed) -> bool {
    match &*rows.table.name {
        JOBS => committed.jobs = rows.texts("id_").filter_map(|id| job_id(id).ok()).collect(),
        TIMERS => {
            committed.timers = rows.rows.len();
            let due = rows.texts("duedate_").filter_map(local);
            committed.due = due.min().map(|due| due.and_utc() - ahead);
        }
        _ => return false,
    }
    true
}
