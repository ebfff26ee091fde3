//! The task of the periodic jobs: sleeps until the next due date of a schedule, and creates its
//! jobs. It does not poll.
//!
//! Only the leader creates them. It learns the next due date from its cycles, from this task's own
//! queries, and from declarations of its own process. Each schedule is one transaction, so one that
//! the database refuses holds up no other. Two leaders at once do no harm: the transaction locks
//! the row of the schedule and advances it.
//!
//! The task goes through the due schedules in the order of their dates. If it has left some due, it
//! rests before it begins again: for as long as that pass took, and from [`AGAIN`] to a minute. Meanwhile it looks
//! with each page for those whose dates have just passed. So a schedule with many missed dates, or one
//! whose job can't be created now, holds up no other. A schedule that this program can't read stays due,
//! as does one whose job the database refuses: a newer program may read it, and a new constraint may
//! refuse all jobs. It is tried again with a growing wait.
//!
//! An error of a full disk may also be one that a trigger of the application raises for one schedule. So such
//! an error is judged at the end of the page: it is the schedule's own if another one got its job, and the
//! database's otherwise. Then no wait begins. If more pages may follow, the task goes on behind this one after
//! a pause, so a page of such schedules holds up no other.
//!
//! If the database's clock is set ahead for a while and then back, schedules have dates far in the future.
//! So the leader looks once a minute for those whose last date has not come yet, and gives them their next
//! date from now on.
//!
//! A leader may not know the [calendar](crate::calendar) of a schedule. So a node with calendars
//! looks from time to time for schedules that stay due, and creates their jobs itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::waits::Waits;
use crate::job::periodic::Missed;
use crate::producer::commit_hook::Cause;
use crate::store::{DuePlace, Fired, StoreError};
use crate::telemetry::plain::one_line;
use crate::worker::context::NodeContext;
use crate::worker::next_timer::Asker;

/// Maximum number of schedules in one query.
const PAGE: i64 = 100;
/// The pause before the next attempt if another transaction has locked a schedule.
const BUSY_PAUSE: Duration = Duration::from_millis(25);
/// The number of these attempts.
const BUSY_ATTEMPTS: usize = 3;
/// The time between two attempts with a schedule that stays due: the longest time between two
/// leader cycles of a busy fleet.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest of these times, with a schedule that fails each time. They double.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of schedules whose waits are kept. Those beyond are tried with each pass.
const MOST_WAITS: usize = 10_000;
/// A declaration may be committed this long after its first date.
const LATE: Duration = Duration::from_secs(1);

/// A schedule that is due: its name, and a text that is another one after a change of the schedule. One that
/// was corrected does not wait.
type Due = (String, String);

/// The way through the schedules that are due.
struct Pass {
    /// The time of its begin.
    began: Instant,
    /// The last place.
    after: Option<DuePlace>,
    /// The last place among the dates that have just passed. `None` if no schedule is left due.
    recent: Option<DuePlace>,
    /// Whether it has left a schedule due.
    leaves: bool,
    /// The time from which the task begins again. `None` before the end, and if no schedule is left due.
    again: Option<Instant>,
    /// Whether the last page was full.
    goes_on: bool,
    /// The schedules that wait: those that failed, and those with more missed dates.
    waits: Waits<Due>,
    /// The earliest of the dates that schedules got with this page.
    next: Option<DateTime<Utc>>,
    /// Whether a schedule has got its job with this page.
    creates: bool,
    /// The schedules of this page whose error may be the database's.
    undecided: Vec<(Due, StoreError)>,
}

impl Pass {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            after: None,
            recent: None,
            leaves: false,
            again: None,
            goes_on: false,
            waits: Waits::new(AGAIN, LONGEST_WAIT, MOST_WAITS),
            next: None,
            creates: false,
            undecided: Vec::new(),
        }
    }

    /// Begins again with the first schedule.
    fn begin(&mut self) {
        self.began = Instant::now();
        (self.after, self.again, self.leaves) = (None, None, false);
        self.waits.begin();
    }

    /// Gives the pass up: the next page is the first of a new one.
    fn give_up(&mut self) {
        (self.goes_on, self.again) = (false, None);
    }

    /// Judges the errors of this page that may be the database's. Returns the first of them if they are.
    fn judge(&mut self, node: &NodeContext) -> Option<StoreError> {
        let undecided = std::mem::take(&mut self.undecided);
        self.leaves |= !undecided.is_empty();
        if !self.creates {
            return undecided.into_iter().next().map(|(_, error)| error);
        }
        for (schedule, error) in undecided {
            tell_refused(node, &schedule.0, &error);
            self.waits.fails(schedule);
        }
        None
    }

    /// Ends with the last schedule. The rest is as long as the pass, a minute at most.
    fn end(&mut self) {
        self.waits.end();
        if self.leaves {
            let now = Instant::now();
            self.again = Some(now + (now - self.began).clamp(AGAIN, LONGEST_WAIT));
        } else {
            self.recent = None;
        }
    }
}

/// The result of creating the jobs of the schedules that are due.
struct Page {
    next_due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    /// The error of the database, if no schedule got its job. More pages follow.
    error: Option<StoreError>,
}

/// The time between two looks of a node with calendars that does not lead, and the time from which a
/// schedule stays due.
const LOOK: Duration = Duration::from_secs(10);

/// Creates the jobs of schedules that stay due, while this node does not lead. They are those whose
/// calendars the leader does not know.
pub(crate) async fn create_left_jobs(node: Arc<NodeContext>) {
    let (mut before, mut after) = (BTreeSet::new(), None);
    loop {
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        if *node.leadership.leads.borrow() {
            (before, after) = (BTreeSet::new(), None);
            continue;
        }
        match node.store.due_periodic_jobs(after.as_ref(), PAGE).await {
            Ok(page) => {
                let is_full = is_full(&page.names);
                let due: BTreeSet<String> = page.names.into_iter().collect();
                create_those_left(&node, due.intersection(&before)).await;
                // All of a full page stay due, whatever this node does: others may wait behind it.
                if is_full && due.is_subset(&before) {
                    (before, after) = (BTreeSet::new(), page.last);
                } else {
                    before = due;
                    after = after.filter(|_| is_full);
                }
            }
            Err(error) => tracing::debug!(%error, "could not look for schedules that stay due"),
        }
    }
}

/// Creates the jobs of these schedules. The leader meets the same errors and reports them.
async fn create_those_left(node: &NodeContext, names: impl Iterator<Item = &String>) {
    for name in names {
        if node.signals.draining.is_cancelled() || *node.leadership.leads.borrow() {
            return;
        }
        match node.store.fire_periodic_job(name).await {
            Ok(fired) => node.hint_created(Cause::Timer, fired.ready),
            Err(error) => {
                let name = one_line(name, 256);
                tracing::debug!(%error, name, "could not create the jobs of a schedule that stays due");
                // The server is away, or can't run any statement now.
                if error.fails_others() {
                    return;
                }
            }
        }
    }
}

/// The time between two looks for schedules whose last date lies in the future.
const LOOK_AHEAD: Duration = Duration::from_secs(60);

/// Corrects the dates of schedules after the database's clock was set back, while this node leads. A
/// node with calendars always does: the leader may not know them.
pub(crate) async fn correct_dates(node: Arc<NodeContext>) {
    let mut leads = node.leadership.leads.subscribe();
    let mut pause = Duration::ZERO;
    let has_calendars = !node.store.calendars().is_empty();
    loop {
        let is_leader = *leads.borrow_and_update();
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            changed = leads.changed() => {
                if changed.is_err() {
                    return;
                }
                pause = Duration::ZERO;
                continue;
            }
            () = tokio::time::sleep(pause), if is_leader || has_calendars => {}
        }
        pause = LOOK_AHEAD;
        match node.store.revise_periodic_jobs(PAGE).await {
            Ok(revised) => {
                if let Some(name) = revised.first() {
                    tracing::warn!(
                        number = revised.len(),
                        name = one_line(name, 256),
                        "the database's clock was set back; periodic jobs had created jobs of later dates, \
                         and get their next dates from now on"
                    );
                }
                if is_full(&revised) {
                    pause = AGAIN;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "could not look for schedules ahead of the clock")
            }
        }
    }
}

fn is_full(page: &[String]) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found >= PAGE)
}

/// Creates the jobs of due schedules while this node leads.
pub(crate) async fn create_jobs(node: Arc<NodeContext>) {
    let mut pause = Duration::from_millis(100);
    let mut pass = Pass::new();
    let (leadership, draining) = (&node.leadership, &node.signals.draining);
    while leadership
        .until_due(&leadership.next_periodic, draining)
        .await
    {
        node.leadership.next_periodic.asks(Asker::Mover);
        let sent = Instant::now();
        let error = match create_due(&node, &mut pass).await {
            Ok(page) => {
                let next = &node.leadership.next_periodic;
                next.answered(Asker::Mover, sent, page.now, page.next_due);
                if !*leadership.leads.borrow() {
                    pass.give_up();
                }
                page.error
            }
            Err(error) => {
                pass.give_up();
                Some(error)
            }
        };
        let Some(error) = error else {
            pause = Duration::from_millis(100);
            continue;
        };
        tracing::warn!(%error, "could not create periodic jobs; trying again");
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Creates the jobs of a page of due schedules, and of those whose dates have just passed.
async fn create_due(node: &Arc<NodeContext>, pass: &mut Pass) -> Result<Page, StoreError> {
    (pass.next, pass.creates) = (None, false);
    pass.undecided.clear();
    let mut dates = Vec::new();
    if let Some(recent) = pass.recent.clone() {
        let page = create_page(node, Some(&recent), pass).await?;
        dates.extend(page.is_full.then_some(page.now));
        // The clock may have been set back.
        pass.recent = Some(if page.is_full {
            page.end
        } else {
            before(page.now, LATE)
        });
    }
    let rests = pass.again.is_some_and(|again| again > Instant::now());
    // Without a schedule that it left due, it begins again each time: schedules may have older dates.
    if !rests && !pass.goes_on {
        pass.begin();
    }
    let page = create_page(node, pass.after.clone().as_ref(), pass).await?;
    // Those that it left due are tried again in the next pass.
    pass.after = Some(page.end);
    pass.goes_on = page.is_full;
    let error = match pass.judge(node) {
        Some(error) if !pass.goes_on => return Err(error),
        error => error,
    };
    if pass.leaves {
        pass.recent.get_or_insert_with(|| before(page.now, AGAIN));
    }
    if !pass.goes_on && pass.again.is_none() {
        pass.end();
    }
    dates.extend(page.is_full.then_some(page.now));
    dates.extend(pass.again.map(|at| page.now + (at - Instant::now())));
    dates.extend(page.next_due);
    // The queries came before these dates.
    dates.extend(pass.next);
    Ok(Page {
        next_due: dates.into_iter().min(),
        now: page.now,
        error,
    })
}

/// Returns the place of the schedules that were due before this time.
fn before(now: DateTime<Utc>, by: Duration) -> DuePlace {
    DuePlace {
        due: now - by,
        name: String::new(),
    }
}

/// A page of due schedules whose jobs were created.
struct Created {
    /// Whether more schedules may be due behind it.
    is_full: bool,
    /// The place at which the next page begins.
    end: DuePlace,
    /// The next due date of the others.
    next_due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

/// Creates the jobs of the schedules that are due behind a place.
async fn create_page(
    node: &Arc<NodeContext>,
    after: Option<&DuePlace>,
    pass: &mut Pass,
) -> Result<Created, StoreError> {
    let due = node.store.due_periodic_jobs(after, PAGE).await?;
    let is_full = is_full(&due.names);
    let changed = (due.changed.into_iter()).chain(std::iter::repeat_with(String::new));
    let schedules = due.names.into_iter().zip(changed).collect();
    let mut busy = create_each(node, schedules, pass).await?;
    for _ in 0..BUSY_ATTEMPTS {
        if busy.is_empty() || node.signals.draining.is_cancelled() {
            break;
        }
        tokio::time::sleep(BUSY_PAUSE).await;
        busy = create_each(node, busy, pass).await?;
    }
    pass.leaves |= !busy.is_empty();
    Ok(Created {
        is_full,
        end: (due.last.filter(|_| is_full)).unwrap_or_else(|| before(due.now, Duration::ZERO)),
        next_due: due.next_due,
        now: due.now,
    })
}

/// Creates the jobs of these schedules. Returns those whose rows are locked.
async fn create_each(
    node: &Arc<NodeContext>,
    schedules: Vec<Due>,
    pass: &mut Pass,
) -> Result<Vec<Due>, StoreError> {
    let mut busy = Vec::new();
    for schedule in schedules {
        if node.signals.draining.is_cancelled() || !*node.leadership.leads.borrow() {
            break;
        }
        let waits = pass.waits.found(&schedule);
        if waits.is_some_and(|until| until > Instant::now()) {
            pass.leaves = true;
            continue;
        }
        match create(node, &schedule.0).await {
            Ok(fired) if fired.busy => busy.push(schedule),
            Ok(fired) => {
                pass.creates |= fired.advanced;
                if fired.missed.is_none() {
                    pass.waits.forget(&schedule);
                    pass.next = pass.next.into_iter().chain(fired.next).min();
                } else {
                    pass.leaves = true;
                    pass.waits.goes_on_later(schedule);
                }
            }
            // One that has failed before needs no other one to show that the database works.
            Err(error) if error.may_be_raised() && !pass.waits.has_failed(&schedule) => {
                pass.undecided.push((schedule, error));
            }
            // The server is away.
            Err(error) if error.fails_others() => return Err(error),
            // The other schedules go on.
            Err(error) => {
                tell_refused(node, &schedule.0, &error);
                pass.leaves = true;
                pass.waits.fails(schedule);
            }
        }
    }
    Ok(busy)
}

/// Creates the jobs of a schedule. If they can't be created, it stays due.
async fn create(node: &NodeContext, name: &str) -> Result<Fired, StoreError> {
    let mut fired = node.store.fire_periodic_job(name).await?;
    node.hint_created(Cause::Timer, std::mem::take(&mut fired.ready));
    if fired.advanced {
        node.reports.periodic_runs(name);
    }
    if let Some(missed) = fired.missed {
        tell_missed(node, name, missed);
    }
    Ok(fired)
}

/// Tells of a schedule whose job can't be created.
fn tell_refused(node: &NodeContext, name: &str, error: &StoreError) {
    node.reports.periodic_fails(name, &error.to_string());
    if let Some(more) = node.reports.throttled_lines.now("periodic: refused") {
        tracing::warn!(
            %error,
            name = one_line(name, 256),
            more,
            "a periodic job can't be created; register its calendar if one is missing, declare \
             it again, or remove it (`jobwire periodic remove`)"
        );
    }
}

/// Tells of the dates that wait for the next leader cycle.
fn tell_missed(node: &NodeContext, name: &str, missed: Missed) {
    if let Some(more) = node.reports.throttled_lines.now("periodic: missed") {
        tracing::warn!(
            name = one_line(name, 256),
            missed = missed.number,
            since = %missed.since,
            more,
            "a periodic job has many missed dates; each leader cycle creates 100 of its jobs. Declare it \
             without `[catch-up=all]`, or pause and resume it, if the dates are not needed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_schedule_that_was_changed_does_not_wait() {
        let due = |changed: &str| ("nightly".to_owned(), changed.to_owned());
        let mut pass = Pass::new();
        for _ in 0..4 {
            pass.begin();
            pass.waits.fails(due("1"));
            pass.end();
        }
        pass.begin();
        assert!(pass.waits.found(&due("1")).is_some());
        assert_eq!(pass.waits.found(&due("2")), None);
        // The wait of the row as it was is forgotten with the pass that does not find it.
        pass.begin();
        pass.waits.found(&due("2"));
        pass.end();
        assert_eq!(pass.waits.found(&due("1")), None);
    }
}
