//! Purges: removing every trace of an instance or a tenant. The statements of both databases are
//! here, because they differ in names only.

use crate::job::{JobId, JobState};
use crate::store::error::StoreError;
use crate::store::permits::fitting;

/// The jobs whose traces are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PurgeScope {
    /// A process instance.
    ProcessInstance(String),
    /// A tenant.
    Tenant(String),
}

impl PurgeScope {
    /// Returns the name of the instance or the tenant.
    #[must_use]
    pub fn value(&self) -> &str {
        let (Self::ProcessInstance(value) | Self::Tenant(value)) = self;
        value
    }

    /// Returns the key by which a limit counts the jobs of this tenant, or a fair limit lets them take
    /// turns.
    pub(super) fn permit_key(&self) -> Option<String> {
        match self {
            Self::ProcessInstance(_) => None,
            Self::Tenant(tenant) => Some(fitting(tenant.clone())),
        }
    }

    /// Returns the statements of this scope.
    pub(super) fn of<'a>(&self, [instance, tenant]: [&'a Statements; 2]) -> &'a Statements {
        match self {
            Self::ProcessInstance(_) => instance,
            Self::Tenant(_) => tenant,
        }
    }
}

/// A job of a purge, and what is stored beside it and goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeableJob {
    /// The job.
    pub id: JobId,
    /// Its state.
    pub state: JobState,
    /// Whether it has a stack.
    pub has_stack: bool,
    /// Whether it has a progress or a checkpoint.
    pub has_progress: bool,
}

/// A number of rows of a table.
pub type TableCount = (&'static str, u64);

/// The tables of a purge, as [`TableCount`] and its output name them.
pub const PURGED_TABLES: [&str; 18] = [
    "job",
    "timer_job",
    "suspended_job",
    "dead_letter_job",
    "job_lease",
    "job_exception",
    "job_progress",
    "waiting_job",
    "attempt",
    "incident",
    "unique_job",
    "unique_dead_letter",
    "event_log",
    "suspension",
    "batch",
    "batch_member",
    "event",
    "permit_key",
];

/// Returns the count of a table, with its name as it is in [`PURGED_TABLES`].
pub(super) fn count_of(name: &str, count: i64) -> Option<TableCount> {
    let table = PURGED_TABLES.into_iter().find(|table| *table == name)?;
    Some((table, count.unsigned_abs()))
}

/// Returns the state of the jobs in a table.
pub(super) fn state_of(table: &str) -> Result<JobState, StoreError> {
    let mut states = JobState::ALL.iter().copied();
    let found = states.find(|state| table_of(*state) == table);
    found.ok_or_else(|| StoreError::BadRow(format!("unknown table `{table}`")))
}

/// Returns the table of a state.
#[must_use]
pub fn table_of(state: JobState) -> &'static str {
    match state {
        JobState::Executable => "job",
        JobState::Timer => "timer_job",
        JobState::Suspended => "suspended_job",
        JobState::DeadLetter => "dead_letter_job",
    }
}

/// The statements of a scope, with the name as `$1`.
pub(super) struct Statements {
    /// Counts the rows of each table.
    pub(super) count: &'static str,
    /// Selects the jobs after the id `$2`, at most `$3`: id, table, stack, progress.
    pub(super) page: &'static str,
    /// Delete records, at most `$2` of each table, and return their jobs.
    pub(super) records: [(&'static str, &'static str); 2],
    /// Selects batches whose jobs at the end belong to the scope, at most `$2`, and locks them: open
    /// ones, and those that an interrupted purge has closed.
    pub(super) batches: &'static str,
    /// Select the jobs of keys whose jobs are gone, at most `$2`, and lock the rows. Delete those of
    /// these jobs, in a later statement: one that waits for the lock of a creator sees no job that the
    /// creator has committed meanwhile. Each with its table.
    pub(super) keys: &'static [(&'static str, &'static str, &'static str)],
    /// Deletes events of the stream that name the scope, at most `$2`. Run last, since deletions of jobs
    /// write some.
    pub(super) events: &'static str,
    /// Delete what names the scope, each with its table. Run when no job of the scope is left.
    pub(super) rest: &'static [(&'static str, &'static str)],
}

/// Deletes from the traces of these jobs, each with its table. A key whose job still exists stays.
pub(super) type OfJobs = [(&'static str, &'static str); 6];

/// Maximum number of keys that one transaction locks. Each page looks for the keys of the tenant anew, so
/// small pages would read the table often.
pub(super) const KEYS: i64 = 10_000;

/// Maximum number of events that one transaction deletes.
pub(super) const EVENTS: i64 = 5_000;

/// The statements of the keys of limits, with the key as `$1`.
pub(super) struct OfPermits {
    /// Counts the rows of a table, and deletes them: those of jobs that are gone, and keys of which no
    /// node has a permit and no job waits. A node that needs such a key writes its row again.
    pub(super) rows: [(&'static str, &'static str, &'static str); 2],
    /// Selects the limits of which nodes hold permits.
    pub(super) held: &'static str,
}

/// Maximum number of batches that one transaction closes.
pub(super) const BATCHES: i64 = 10;

/// The statements of batches.
pub(super) struct OfBatches {
    /// Closes these batches, so that they create no job and get no further member. Keeps the template,
    /// by which an interrupted purge finds them again. The row goes with its last member, so its time
    /// does not matter.
    pub(super) close: &'static str,
    /// Deletes members of these batches, at most `$2`.
    pub(super) members: &'static str,
    /// Deletes those of these batches that have no member.
    pub(super) batches: &'static str,
}

/// True if a suspension is that of the tenant `$1`, or that of a definition key of the tenant. Without its
/// leading characters other than colons, the value of a key begins at its colon, behind which the tenant
/// stands.
macro_rules! of_tenant {
    () => {
        "(scope = 'tenant' AND value = $1 \
          OR scope = 'definition_key' AND ltrim(value, replace(value, ':', '')) = ':' || $1)"
    };
}

/// The statements of a database: the prefix of its tables, the first id of all, the condition that a
/// value is one of `$1`, what stands before and after the name of a field to read it from the
/// template of a batch, and the lock of a row.
macro_rules! statements {
    ($s:literal, $first:literal, $these:literal, $of:literal, $end:literal, $lock:literal) => {
        /// The statements of an instance and of a tenant.
        const SCOPES: [&$crate::store::purging::Statements; 2] = [
            &$crate::store::purging::Statements {
                count: statements!(@count $s, $of, $end, "process_instance", "", "process_instance = $1",
                    "scope = 'process_instance' AND value = $1"),
                page: statements!(@page $s, $first, "process_instance"),
                records: statements!(@records $s, "process_instance"),
                batches: concat!("SELECT id FROM ", statements!(@batches $s, $of, $end, "process_instance"),
                    " ORDER BY id LIMIT $2", $lock),
                keys: &[],
                events: statements!(@events $s, "process_instance"),
                rest: &[
                    ("event_log", concat!("DELETE FROM ", $s, "event_log WHERE process_instance = $1")),
                    ("suspension", concat!("DELETE FROM ", $s,
                        "suspension WHERE scope = 'process_instance' AND value = $1")),
                ],
            },
            &$crate::store::purging::Statements {
                count: statements!(@count $s, $of, $end, "tenant", "tenant = $1 OR ", "job_id IN (SELECT id FROM known)",
                    $crate::store::purging::of_tenant!()),
                page: statements!(@page $s, $first, "tenant"),
                records: statements!(@records $s, "tenant"),
                batches: concat!("SELECT id FROM ", statements!(@batches $s, $of, $end, "tenant"),
                    " ORDER BY id LIMIT $2", $lock),
                keys: &[
                    ("unique_job", concat!("SELECT job_id FROM ", $s, "unique_job AS u WHERE tenant = $1 AND ",
                        statements!(@gone $s, "u"), " LIMIT $2", $lock), statements!(@keys $s, $these, "unique_job")),
                    ("unique_dead_letter", concat!("SELECT job_id FROM ", $s, "unique_dead_letter AS u WHERE tenant = $1 AND ",
                        statements!(@gone $s, "u"), " LIMIT $2", $lock), statements!(@keys $s, $these, "unique_dead_letter")),
                ],
                events: statements!(@events $s, "tenant"),
                rest: &[
                    ("suspension", concat!("DELETE FROM ", $s, "suspension WHERE ",
                        $crate::store::purging::of_tenant!())),
                ],
            },
        ];

        // A key without a permit counts, also if jobs wait for one: those of the scope are deleted before.
        const OF_PERMITS: $crate::store::purging::OfPermits = $crate::store::purging::OfPermits {
            rows: [
                ("waiting_job", concat!("SELECT count(*) FROM ", statements!(@waiting $s)),
                    concat!("DELETE FROM ", statements!(@waiting $s))),
                ("permit_key", concat!("SELECT count(*) FROM ", statements!(@unheld $s)),
                    concat!("DELETE FROM ", $s, "permit_key WHERE (limit_name, key) IN (SELECT k.limit_name, k.key FROM ",
                        statements!(@unheld $s), " AND NOT EXISTS (SELECT 1 FROM ", $s, "waiting_job w
                            WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
                        ORDER BY k.limit_name, k.key", $lock, ")")),
            ],
            held: concat!("SELECT DISTINCT limit_name FROM ", $s, "permit WHERE key = $1 ORDER BY limit_name"),
        };

        const OF_BATCHES: $crate::store::purging::OfBatches = $crate::store::purging::OfBatches {
            close: concat!("UPDATE ", $s, "batch SET ended_at = created_at, cancelled = true WHERE ended_at IS NULL AND id ",
                $these),
            members: concat!("DELETE FROM ", $s, "batch_member WHERE (batch_id, job_id) IN (SELECT batch_id, job_id FROM ",
                $s, "batch_member WHERE batch_id ", $these, " LIMIT $2)"),
            batches: concat!("DELETE FROM ", $s, "batch AS b WHERE NOT EXISTS (SELECT 1 FROM ", $s,
                "batch_member m WHERE m.batch_id = b.id) AND id ", $these),
        };

        const OF_JOBS: $crate::store::purging::OfJobs = [
            ("waiting_job", concat!("DELETE FROM ", $s, "waiting_job WHERE job_id ", $these)),
            ("attempt", concat!("DELETE FROM ", $s, "attempt WHERE job_id ", $these)),
            ("incident", concat!("DELETE FROM ", $s, "incident WHERE job_id ", $these)),
            ("unique_job", statements!(@keys $s, $these, "unique_job")),
            ("unique_dead_letter", statements!(@keys $s, $these, "unique_dead_letter")),
            ("event_log", concat!("DELETE FROM ", $s, "event_log WHERE job_id ", $these)),
        ];
    };
    (@jobs $s:literal, $column:literal) => {
        concat!(
            "SELECT id, 'job' AS source FROM ", $s, "job WHERE ", $column, " = $1
             UNION ALL SELECT id, 'timer_job' FROM ", $s, "timer_job WHERE ", $column, " = $1
             UNION ALL SELECT id, 'suspended_job' FROM ", $s, "suspended_job WHERE ", $column, " = $1
             UNION ALL SELECT id, 'dead_letter_job' FROM ", $s, "dead_letter_job WHERE ", $column, " = $1"
        )
    };
    (@events $s:literal, $column:literal) => {
        concat!("DELETE FROM ", $s, "event WHERE seq IN (SELECT seq FROM ", $s, "event WHERE ", $column, " = $1 LIMIT $2)")
    };
    (@waiting $s:literal) => {
        concat!($s, "waiting_job AS w WHERE (w.key = $1 OR w.fair_key = $1) AND ", statements!(@gone $s, "w"))
    };
    (@unheld $s:literal) => {
        concat!($s, "permit_key AS k WHERE k.key = $1 AND NOT EXISTS (SELECT 1 FROM ", $s,
            "permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)")
    };
    // A template is kept until the end of its batch. A batch that was closed and has one is that of an
    // interrupted purge.
    (@batches $s:literal, $of:literal, $end:literal, $column:literal) => {
        concat!($s, "batch WHERE (ended_at IS NULL OR cancelled) AND callback IS NOT NULL AND ", $of, $column, $end, " = $1")
    };
    (@count $s:literal, $of:literal, $end:literal, $column:literal, $unique:literal, $events:literal, $gates:expr) => {
        concat!(
            "WITH jobs AS MATERIALIZED (", statements!(@jobs $s, $column), "),
            known AS MATERIALIZED (SELECT id FROM jobs UNION SELECT job_id FROM ", $s, "attempt WHERE ", $column,
            " = $1 UNION SELECT job_id FROM ", $s, "incident WHERE ", $column, " = $1)
            SELECT source, count(*) FROM jobs GROUP BY source
            UNION ALL SELECT 'job_lease', count(*) FROM ", $s, "job_lease WHERE job_id IN (SELECT id FROM jobs)
            UNION ALL SELECT 'job_exception', count(*) FROM ", $s, "job_exception WHERE job_id IN (SELECT id FROM jobs)
            UNION ALL SELECT 'job_progress', count(*) FROM ", $s, "job_progress WHERE job_id IN (SELECT id FROM jobs)
            UNION ALL SELECT 'waiting_job', count(*) FROM ", $s, "waiting_job WHERE job_id IN (SELECT id FROM jobs)
            UNION ALL SELECT 'attempt', count(*) FROM ", $s, "attempt WHERE ", $column, " = $1
            UNION ALL SELECT 'incident', count(*) FROM ", $s, "incident WHERE ", $column, " = $1
            UNION ALL SELECT 'unique_job', count(*) FROM ", $s, "unique_job WHERE ", $unique,
            "job_id IN (SELECT id FROM known)
            UNION ALL SELECT 'unique_dead_letter', count(*) FROM ", $s, "unique_dead_letter WHERE ", $unique,
            "job_id IN (SELECT id FROM known)
            UNION ALL SELECT 'event_log', count(*) FROM ", $s, "event_log WHERE ", $events, "
            UNION ALL SELECT 'suspension', count(*) FROM ", $s, "suspension WHERE ", $gates, "
            UNION ALL SELECT 'batch', count(*) FROM ", statements!(@batches $s, $of, $end, $column), "
            UNION ALL SELECT 'batch_member', count(*) FROM ", $s, "batch_member WHERE batch_id IN (SELECT id FROM ",
            statements!(@batches $s, $of, $end, $column), ")
            UNION ALL SELECT 'event', count(*) FROM ", $s, "event WHERE ", $column, " = $1"
        )
    };
    (@page $s:literal, $first:literal, $column:literal) => {
        concat!(
            "SELECT j.id, j.source,
                EXISTS (SELECT 1 FROM ", $s, "job_exception x WHERE x.job_id = j.id) AS stack,
                EXISTS (SELECT 1 FROM ", $s, "job_progress p WHERE p.job_id = j.id) AS progress
            FROM (", statements!(@jobs $s, $column), ") j
            WHERE j.id > coalesce($2, ", $first, ") ORDER BY j.id LIMIT $3"
        )
    };
    (@records $s:literal, $column:literal) => {
        [
            ("attempt", concat!("DELETE FROM ", $s, "attempt WHERE fence IN (SELECT fence FROM ", $s,
                "attempt WHERE ", $column, " = $1 LIMIT $2) RETURNING job_id")),
            ("incident", concat!("DELETE FROM ", $s, "incident WHERE (job_id, opened_at) IN (SELECT job_id, opened_at FROM ",
                $s, "incident WHERE ", $column, " = $1 LIMIT $2) RETURNING job_id")),
        ]
    };
    (@keys $s:literal, $these:literal, $table:literal) => {
        concat!("DELETE FROM ", $s, $table, " AS u WHERE job_id ", $these, " AND ", statements!(@gone $s, "u"))
    };
    (@gone $s:literal, $row:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM ", $s, "job j WHERE j.id = ", $row, ".job_id)
            AND NOT EXISTS (SELECT 1 FROM ", $s, "timer_job j WHERE j.id = ", $row, ".job_id)
            AND NOT EXISTS (SELECT 1 FROM ", $s, "suspended_job j WHERE j.id = ", $row, ".job_id)
            AND NOT EXISTS (SELECT 1 FROM ", $s, "dead_letter_job j WHERE j.id = ", $row, ".job_id)"
        )
    };
}
pub(super) use {of_tenant, statements};
