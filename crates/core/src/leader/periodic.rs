//! The task of the periodic jobs: sleeps until the next due date of a schedule, and creates its
//! jobs. It does not poll.
//!
//! Only the leader creates them. It learns the next due date from its cycles, from this task's own
//! queries, and from declarations of its own process. Each schedule is one transaction, so one that
//! the database refuses holds up no other. Two leaders at once do no harm: the transaction locks
//! the row of the schedule and advances it.
//!
//! A leader may not know the [calendar](crate::calendar) of a schedule. So a node with calendars
//! looks from time to time for schedules that stay due, and creates their jobs itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::producer::commit_hook::Cause;
use crate::store::StoreError;
use crate::worker::context::NodeContext;
use crate::worker::next_timer::Asker;

/// Maximum number of schedules in one query.
const PAGE: i64 = 100;
/// The pause before the next attempt if other transactions have locked all due schedules.
const BUSY_PAUSE: Duration = Duration::from_millis(25);
/// The time for which a schedule that cannot be read, or whose job the database refuses, is left
/// out.
const ASIDE: Duration = Duration::from_secs(60);
/// Maximum number of schedules that are left out at a time.
const MOST_ASIDE: usize = 1_000;

/// The schedules that are left out, and until when.
#[derive(Default)]
struct Aside(BTreeMap<String, Instant>);

impl Aside {
    fn names(&mut self) -> Vec<String> {
        let now = Instant::now();
        self.0.retain(|_, until| *until > now);
        self.0.keys().cloned().collect()
    }

    /// Returns false if there is no room, so that the schedule stays at the head of the page.
    fn put(&mut self, name: String) -> bool {
        let has_room = self.0.len() < MOST_ASIDE;
        if has_room {
            self.0.insert(name, Instant::now() + ASIDE);
        }
        has_room
    }
}

/// The result of creating the jobs of the schedules that are due.
struct Page {
    next_due: Option<chrono::DateTime<chrono::Utc>>,
    now: chrono::DateTime<chrono::Utc>,
}

/// The time between two looks of a node with calendars that does not lead, and the time from which a
/// schedule stays due.
const LOOK: Duration = Duration::from_secs(10);

/// Creates the jobs of schedules that stay due, while this node does not lead. They are those whose
/// calendars the leader does not know.
pub(crate) async fn create_left_jobs(node: Arc<NodeContext>) {
    let mut before = BTreeSet::new();
    let mut aside = Aside::default();
    loop {
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        if *node.leadership.leads.borrow() {
            before.clear();
            continue;
        }
        match node.store.due_periodic_jobs(&aside.names(), PAGE).await {
            Ok(due) => {
                let due: BTreeSet<String> = due.names.into_iter().collect();
                create_those_left(&node, due.intersection(&before), &mut aside).await;
                before = due;
            }
            Err(error) => tracing::debug!(%error, "could not look for schedules that stay due"),
        }
    }
}

/// Creates the jobs of these schedules. Those that this node can't create are left out for a while,
/// so that they do not fill the page. The leader meets the same errors and reports them.
async fn create_those_left(
    node: &NodeContext,
    names: impl Iterator<Item = &String>,
    aside: &mut Aside,
) {
    for name in names {
        if node.signals.draining.is_cancelled() || *node.leadership.leads.borrow() {
            return;
        }
        match node.store.fire_periodic_job(name).await {
            Ok(fired) => node.hint_created(Cause::Timer, fired.ready),
            Err(error) => {
                let name = crate::telemetry::plain::one_line(name, 256);
                tracing::debug!(%error, name, "could not create the jobs of a schedule that stays due");
                // The server is away, or too slow for any schedule.
                if error.is_transient() && !error.is_answer() {
                    return;
                }
                aside.put(name.clone());
            }
        }
    }
}

/// Creates the jobs of due schedules while this node leads.
pub(crate) async fn create_jobs(node: Arc<NodeContext>) {
    let mut pause = Duration::from_millis(100);
    let mut aside = Aside::default();
    let (leadership, draining) = (&node.leadership, &node.signals.draining);
    while leadership
        .until_due(&leadership.next_periodic, draining)
        .await
    {
        node.leadership.next_periodic.asks(Asker::Mover);
        let sent = Instant::now();
        match create_due(&node, &mut aside).await {
            Ok(page) => {
                pause = Duration::from_millis(100);
                let next = &node.leadership.next_periodic;
                next.answered(Asker::Mover, sent, page.now, page.next_due);
            }
            Err(error) => {
                tracing::warn!(%error, "could not create periodic jobs; trying again");
                tokio::select! {
                    biased;
                    () = node.signals.draining.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// Creates the jobs of a page of due schedules.
async fn create_due(node: &Arc<NodeContext>, aside: &mut Aside) -> Result<Page, StoreError> {
    let left_out = aside.names();
    let due = node.store.due_periodic_jobs(&left_out, PAGE).await?;
    let (mut advanced, mut is_full, found) = (false, false, !due.names.is_empty());
    for name in due.names {
        if node.signals.draining.is_cancelled() || !*node.leadership.leads.borrow() {
            break;
        }
        match node.store.fire_periodic_job(&name).await {
            Ok(fired) => {
                advanced |= fired.advanced;
                node.hint_created(Cause::Timer, fired.ready);
            }
            // The server is away, or too slow for any schedule.
            Err(error) if error.is_transient() && !error.is_answer() => return Err(error),
            // The other schedules go on.
            Err(error) => {
                tracing::warn!(
                    %error,
                    name = crate::telemetry::plain::one_line(&name, 256),
                    wait = ASIDE.as_secs(),
                    "a periodic job can't be created; register its calendar if one is missing, declare \
                     it again, or remove it (`jobwire periodic remove`)"
                );
                if aside.put(name) {
                    advanced = true;
                } else {
                    is_full = true;
                }
            }
        }
    }
    let soon = match (found, advanced) {
        // Nothing but schedules that fail, and more than are remembered.
        (true, false) if is_full => Some(due.now + ASIDE),
        // More may be due: the page was full, or a schedule has many missed occurrences.
        (true, true) => Some(due.now),
        (true, false) => Some(due.now + BUSY_PAUSE),
        (false, _) if !left_out.is_empty() => Some(due.now + ASIDE),
        (false, _) => None,
    };
    Ok(Page {
        next_due: soon.into_iter().chain(due.next_due).min(),
        now: due.now,
    })
}
