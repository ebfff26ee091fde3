//! Arguments and results of the statements about periodic jobs.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;
use crate::job::calendar::Calendars;
use crate::job::new_job::InvalidJob;
use crate::job::periodic::{Missed, Row};

/// A periodic job, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodicView {
    /// The name.
    pub name: String,
    /// The version of the declaration that is in effect.
    pub version: i64,
    /// The schedule, as text.
    pub schedule: String,
    /// The fields of the jobs that it creates, as a JSON object.
    pub template: String,
    /// Whether it is paused.
    pub paused: bool,
    /// The next due date; `None` if the schedule has ended. A paused schedule gets another one when
    /// it is resumed.
    pub next_due: Option<DateTime<Utc>>,
    /// The last due date that has passed.
    pub last_due: Option<DateTime<Utc>>,
    /// The time of the first declaration.
    pub created_at: DateTime<Utc>,
    /// The time of the last change by a declaration or an operator.
    pub changed_at: DateTime<Utc>,
}

impl PeriodicView {
    /// Returns why this periodic job creates no jobs: this program can't read its row, or another
    /// program has stopped it. `None` if it creates jobs, is paused, or has ended.
    #[must_use]
    pub fn fault(&self, calendars: &Calendars) -> Option<InvalidJob> {
        let row = Row {
            version: self.version,
            schedule: self.schedule.clone(),
            template: self.template.clone(),
            next_due: self.next_due,
        };
        if let Some(fault) = row.fault() {
            return Some(fault);
        }
        if self.paused || self.next_due.is_some() {
            return None;
        }
        let has_dates = matches!(row.resumed(Utc::now(), calendars), Ok(Some(_)));
        has_dates.then(|| {
            InvalidJob::new(
                "next_due",
                "is empty although the schedule has dates: another program has stopped this periodic job",
                "declare it again, or resume it (`jobwire periodic resume`)",
            )
        })
    }
}

/// A place in the order of the periodic jobs that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuePlace {
    /// The due date.
    pub due: DateTime<Utc>,
    /// The name.
    pub name: String,
}

/// The periodic jobs that are due.
#[derive(Clone, Debug, Default)]
pub struct DuePeriodicJobs {
    /// Their names, the longest due first.
    pub names: Vec<String>,
    /// A text for each of them that is another one after a change by a declaration or an operator.
    pub changed: Vec<String>,
    /// The place of the last of them.
    pub last: Option<DuePlace>,
    /// The next due date of the others.
    pub next_due: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// The jobs that a periodic job created.
#[derive(Clone, Debug, Default)]
pub struct Fired {
    /// Jobs to hint.
    pub ready: Vec<Ready>,
    /// Whether the schedule has advanced. False if it was not due, or if another node has locked
    /// it.
    pub advanced: bool,
    /// Its next due date, if it has advanced and has one.
    pub next: Option<DateTime<Utc>>,
    /// Whether its row was locked.
    pub busy: bool,
    /// The dates that have passed and wait for the next leader cycle.
    pub missed: Option<Missed>,
}

impl Fired {
    /// Returns the result for a row that is locked, or gone.
    #[must_use]
    pub fn busy() -> Self {
        Self {
            busy: true,
            ..Self::default()
        }
    }
}

/// The time by which the last date of a periodic job lies ahead of the database's clock at least if the
/// clock was set back. Clocks that are adjusted in small steps, and those of standbys, differ by less.
pub(super) const SET_BACK: Duration = Duration::from_secs(600);

/// Returns the texts by which a schedule names one of these calendars.
pub(super) fn suffixes(calendars: &Calendars) -> Vec<String> {
    let names = calendars.names();
    names.map(|name| format!("[calendar={name}]")).collect()
}

/// The job that an operator's request created.
#[derive(Clone, Debug)]
pub struct Triggered {
    /// The job.
    pub job: JobId,
    /// Its hint.
    pub ready: Vec<Ready>,
}
