//! Outcomes of pages, put together from their parts.

use chrono::Duration;

use super::search;
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::created::earliest;
use crate::store::{
    BatchOutcome, CycleOutcome, MovedPage, MovedTimers, OperatedJobs, OrphanPage, Suspended,
};

/// The wait before timers behind a refused one are moved, to avoid a busy loop.
const PAUSE: Duration = Duration::milliseconds(200);

/// The outcome of a page.
pub(in crate::store) trait Outcome: Send {
    /// Whether the outcome names the rows that were left unchanged. If not, a page of which nothing
    /// commits is an error.
    const TELLS_WHAT_IS_LEFT: bool = false;

    /// Whether a page of which nothing commits still has an outcome and is no error. True for the
    /// leader cycle: leading does not depend on the rows that the cycle marks.
    const STANDS_WITHOUT_ROWS: bool = false;

    /// Whether the operation repeats by itself, so that rows that were refused a short while ago
    /// are passed over.
    const PASSES_OVER: bool = true;

    /// Maximum number of parts to try while nothing commits and no row is at fault. After that all
    /// rows count as refused.
    const HOPELESS: usize = search::HOPELESS;

    /// Whether a page is one of several, so that a row that is not in it may be in another one.
    const IS_PAGED: bool = false;

    /// Returns whether rows were changed. A part that had nothing to do does not show that the
    /// database accepts rows.
    fn changed_rows(&self) -> bool;
    /// Adds a part of the page that committed.
    fn add(&mut self, part: Self);
    /// Records that a row became a dead letter, which made the `ready` jobs ready.
    fn set_aside(&mut self, id: JobId, ready: Vec<Ready>);
    /// Records that a row was left unchanged.
    fn left(&mut self, id: JobId);
    /// Records the row up to which the search looked, if there may be more behind it.
    fn looked_at(&mut self, _last: Option<JobId>) {}
    /// Records that untried rows wait, and that the next page commits some of them.
    fn has_more(&mut self) {}
}

impl Outcome for BatchOutcome {
    const TELLS_WHAT_IS_LEFT: bool = true;

    fn changed_rows(&self) -> bool {
        !self.applied.is_empty()
    }

    fn add(&mut self, part: Self) {
        self.applied.extend(part.applied);
        self.cancelled.extend(part.cancelled);
        self.set_aside.extend(part.set_aside);
        self.created.extend(part.created);
        self.next.extend(part.next);
        self.ready.extend(part.ready);
        self.left.extend(part.left);
        self.timer = earliest(self.timer, part.timer);
    }

    fn set_aside(&mut self, id: JobId, ready: Vec<Ready>) {
        self.applied.push(id);
        self.set_aside.push(id);
        self.ready.extend(ready);
    }

    fn left(&mut self, id: JobId) {
        self.left.push(id);
    }
}

impl Outcome for MovedTimers {
    fn changed_rows(&self) -> bool {
        !(self.ready.is_empty() && self.locked.is_empty())
    }

    fn add(&mut self, part: Self) {
        self.ready.extend(part.ready);
        self.locked.extend(part.locked);
        self.next_due = part.next_due;
        self.now = self.now.max(part.now);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.ready.extend(ready);
    }

    fn left(&mut self, _: JobId) {
        self.next_due = Some(self.now + PAUSE);
    }
}

impl Outcome for CycleOutcome {
    const STANDS_WITHOUT_ROWS: bool = true;

    fn changed_rows(&self) -> bool {
        matches!(self, Self::Leads(report) if !(report.rescued.is_empty() && report.unhinted.is_empty() && report.cancelled.is_empty()))
    }

    fn add(&mut self, part: Self) {
        match (self, part) {
            (Self::Leads(all), Self::Leads(mut part)) => {
                part.rescued.splice(..0, std::mem::take(&mut all.rescued));
                part.unhinted.splice(..0, std::mem::take(&mut all.unhinted));
                part.cancelled
                    .splice(..0, std::mem::take(&mut all.cancelled));
                part.freed.splice(..0, std::mem::take(&mut all.freed));
                part.now = all.now;
                *all = part;
            }
            // This node has to hint the jobs that the earlier parts marked. Its next cycle shows
            // which node leads.
            (Self::Leads(_), Self::Follows { .. }) => {}
            (all, part) => *all = part,
        }
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        if let Self::Leads(report) = self {
            report.unhinted.extend(ready);
        }
    }

    fn left(&mut self, _: JobId) {}

    fn looked_at(&mut self, last: Option<JobId>) {
        if last.is_some() && self.changed_rows() {
            self.has_more();
        }
    }

    fn has_more(&mut self) {
        if let Self::Leads(report) = self {
            report.has_more = true;
        }
    }
}

impl Outcome for Vec<Ready> {
    fn changed_rows(&self) -> bool {
        !self.is_empty()
    }

    fn add(&mut self, part: Self) {
        self.extend(part);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.extend(ready);
    }

    fn left(&mut self, _: JobId) {}
}

impl Outcome for OrphanPage {
    const IS_PAGED: bool = true;

    fn changed_rows(&self) -> bool {
        !self.ready.is_empty()
    }

    fn add(&mut self, part: Self) {
        self.ready.extend(part.ready);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.ready.extend(ready);
    }

    fn left(&mut self, _: JobId) {}

    fn looked_at(&mut self, last: Option<JobId>) {
        self.next = last;
    }
}

/// A step towards the end of a suspension.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct Activated {
    /// Whether there was such a suspension.
    pub(in crate::store) was_there: bool,
    /// Whether the jobs were brought back in parts, in the search for a refused row.
    pub(in crate::store) in_parts: bool,
    /// Whether the suspension has ended.
    pub(in crate::store) ended: bool,
    /// Number of jobs that were brought back.
    pub(in crate::store) moved: u64,
}

impl Outcome for Activated {
    const PASSES_OVER: bool = false;

    fn changed_rows(&self) -> bool {
        self.moved > 0
    }

    fn add(&mut self, part: Self) {
        self.was_there |= part.was_there;
        self.in_parts |= part.in_parts;
        self.ended |= part.ended;
        self.moved += part.moved;
    }

    fn set_aside(&mut self, _: JobId, _: Vec<Ready>) {}

    fn left(&mut self, _: JobId) {}
}

impl Outcome for MovedPage {
    const PASSES_OVER: bool = false;

    fn changed_rows(&self) -> bool {
        self.moved > 0
    }

    fn add(&mut self, part: Self) {
        self.moved += part.moved;
        self.ready.extend(part.ready);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.ready.extend(ready);
    }

    fn left(&mut self, _: JobId) {}
}

/// An outcome that names the refused jobs to the caller.
pub(in crate::store) trait Told: Outcome + Default {
    /// Adds jobs that were refused and stay as they were.
    fn refused(&mut self, jobs: Vec<(JobId, String)>);
}

impl Outcome for OperatedJobs {
    const PASSES_OVER: bool = false;

    /// No limit: its pages are small, and each job is named.
    const HOPELESS: usize = usize::MAX;

    fn changed_rows(&self) -> bool {
        !self.ready.is_empty() || !self.operated.is_empty()
    }

    fn add(&mut self, part: Self) {
        self.operated.extend(part.operated);
        self.refused.extend(part.refused);
        self.cancelled.extend(part.cancelled);
        self.ready.extend(part.ready);
        self.timer = earliest(self.timer, part.timer);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.ready.extend(ready);
    }

    fn left(&mut self, _: JobId) {}
}

impl Told for OperatedJobs {
    fn refused(&mut self, jobs: Vec<(JobId, String)>) {
        self.refused.extend(jobs);
    }
}

impl Outcome for Suspended {
    const PASSES_OVER: bool = false;

    fn changed_rows(&self) -> bool {
        self.moved > 0
    }

    fn add(&mut self, part: Self) {
        self.moved += part.moved;
        self.ready.extend(part.ready);
        self.refused.extend(part.refused);
    }

    fn set_aside(&mut self, _: JobId, ready: Vec<Ready>) {
        self.ready.extend(ready);
    }

    fn left(&mut self, _: JobId) {}
}

impl Told for Suspended {
    fn refused(&mut self, jobs: Vec<(JobId, String)>) {
        self.refused.extend(jobs);
    }
}
