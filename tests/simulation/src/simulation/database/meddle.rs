//! Changes that a test makes around the store: the conformance suite lets time pass by moving
//! stored times.

use std::time::Duration;

use jobwire_core::JobId;

use super::{Database, span};

impl Database {
    /// Makes a job's lease end a second ago. Returns false if it has none.
    pub fn expire(&mut self, id: JobId) -> bool {
        let ended = self.now() - span(Duration::from_secs(1));
        let lease = self.leases.get_mut(&id);
        lease.map(|lease| lease.expires_at = ended).is_some()
    }

    /// Makes a waiting job due since `ago`. Returns false if it does not wait.
    pub fn make_due(&mut self, id: JobId, ago: Duration) -> bool {
        let due = self.now() - span(ago);
        let row = self.timers.get_mut(&id);
        row.map(|row| row.job.due_at = Some(due)).is_some()
    }

    /// Makes executable jobs ready for `by` longer.
    pub fn make_old(&mut self, by: Duration) {
        for row in self.executable.values_mut() {
            row.job.ready_at -= span(by);
        }
    }

    /// Returns the number of rows of a table, by its name in the real databases.
    #[must_use]
    pub fn rows(&self, table: &str) -> Option<usize> {
        match table {
            "job" => Some(self.executable.len()),
            "timer_job" => Some(self.timers.len()),
            "suspended_job" => Some(self.suspended.len()),
            "dead_letter_job" => Some(self.dead.len()),
            "job_lease" => Some(self.leases.len()),
            "instance_lock" => Some(self.doors.len()),
            "suspension" => Some(self.suspensions.len()),
            "job_exception" => Some(self.stacks.len()),
            _ => None,
        }
    }
}
