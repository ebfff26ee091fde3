//! The commit tap of the leader: hints jobs that other programs create by plain SQL, within
//! milliseconds of their commit.
//!
//! ```text
//!                   the store offers a tap                       stands
//!   leader ──────────────────────────────► connecting ─────────────────────► standing
//!      ▲                                       ▲                                 │
//!      │ it cannot stand until a setting or    │          lost: look every       │ report
//!      └─ a right is changed: ask again later ─┴───────── second until it ◄──────┤
//!                                                         stands again           ▼
//!                                                                  mark ─► publish the hint
//! ```
//! * **A reported job is marked, then its hint is published.** One statement marks a batch. The
//!   leader cycle sets the same mark, so a job gets only one hint (protocol rule 20).
//! * **A report may come before the row is visible.** Such a job is tried again after some
//!   milliseconds (`early.rs`). If that fails, the leader cycle finds it.
//! * **While no tap stands**, the leader looks for unhinted jobs every second, and twice more when
//!   it stands again.
//! * **Timers** of plain SQL: the tap tells the timer task their due dates.
//!
//! Only the leader has a tap. It ends with the leadership, and its replication slot with it.

mod early;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::cycle::PAGE;
use crate::job::JobId;
use crate::producer::commit_hook::Cause;
use crate::runtime::alarm;
use crate::store::{CommitTap, Committed, TapMode, TapNews, TapOffer};
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use early::{Early, Reported};

/// Maximum number of jobs in one mark.
const BATCH: usize = 1_000;
/// The time from one look for unhinted jobs to the next, while no tap stands.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which a leader asks for a tap that is not set up.
const NOT_SET_UP: Duration = Duration::from_secs(300);
/// The interval at which a leader asks again for a tap that cannot stand.
const UNUSABLE: Duration = Duration::from_secs(30);
/// The pause while half of the commit hook's buffer is full.
const FULL: Duration = Duration::from_millis(5);

/// Keeps a tap while this node leads.
pub(crate) async fn follow(node: Arc<NodeContext>) {
    let draining = node.signals.draining.clone();
    if node.options.tap == TapMode::Off {
        return draining.cancelled().await;
    }
    let mut term = Term {
        leads: node.leadership.leads.subscribe(),
        draining,
    };
    let mut said = None;
    loop {
        node.gauges.of_node(m::TAP_STANDING).set(0.0);
        tokio::select! {
            biased;
            () = term.draining.cancelled() => return,
            led = term.leads.wait_for(|leads| *leads) => {
                if led.is_err() {
                    return;
                }
            }
        }
        lead(&node, &mut term, &mut said).await;
    }
}

/// The leadership, from the view of the tap.
struct Term {
    leads: watch::Receiver<bool>,
    draining: CancellationToken,
}

impl Term {
    /// Resolves when the node no longer leads, or stops.
    async fn ended(&mut self) {
        tokio::select! {
            () = self.draining.cancelled() => {}
            _ = self.leads.wait_for(|leads| !*leads) => {}
        }
    }

    fn has_ended(&self) -> bool {
        self.draining.is_cancelled() || !*self.leads.borrow()
    }
}

/// Asks for a tap and follows it until the leadership ends. `said` is the last logged reason for a
/// missing tap: each reason is logged once.
async fn lead(node: &Arc<NodeContext>, term: &mut Term, said: &mut Option<String>) {
    while !term.has_ended() {
        let (why, again) = match node.store.tap().await {
            Ok(TapOffer::Open(tap)) => {
                *said = None;
                let mut following = Following::new(node, tap);
                if !following.until_ended_or_lost(term).await {
                    return;
                }
                // The next offer names the missing setting or right.
                (None, if following.stood { LOOK } else { UNUSABLE })
            }
            Ok(TapOffer::NotSetUp(why)) if node.options.tap == TapMode::Auto => {
                tracing::debug!(why, "there is no commit tap");
                (None, NOT_SET_UP)
            }
            Ok(TapOffer::NotSetUp(why) | TapOffer::Unusable(why)) => (Some(why), UNUSABLE),
            Err(error) => (Some(error.to_string()), UNUSABLE),
        };
        if why.is_some() && why != *said {
            tracing::warn!(
                why = why.as_deref().unwrap_or_default(),
                "the commit tap cannot be used; jobs of plain SQL wait for the leader"
            );
            *said = why;
        }
        let until = Instant::now() + again;
        while Instant::now() < until && !term.has_ended() {
            let looks = node.options.tap == TapMode::On;
            let next = if looks { Instant::now() + LOOK } else { until };
            tokio::select! {
                biased;
                () = term.ended() => return,
                () = sleep_until(next.min(until)) => {}
            }
            if looks {
                look(node).await;
            }
        }
    }
}

/// Hints a page of unhinted jobs. Returns whether there may be more.
async fn look(node: &NodeContext) -> bool {
    match node.store.unhinted(PAGE).await {
        Ok(found) => {
            let count = found.len();
            if count > 0 {
                counter!(m::SWEPT, "class" => "unhinted").increment(count as u64);
                node.hook.publish(Cause::Sweep, found);
            }
            i64::try_from(count).is_ok_and(|count| count >= PAGE)
        }
        Err(error) => {
            if let Some(more) = node.reports.throttled_lines.now("tap: look") {
                tracing::warn!(%error, more, "could not look for jobs without a hint");
            }
            false
        }
    }
}

/// A tap that is open.
struct Following {
    node: Arc<NodeContext>,
    tap: Box<dyn CommitTap>,
    stands: bool,
    /// Whether the tap has stood before.
    stood: bool,
    early: Early,
    /// The time of the next look for unhinted jobs.
    next_look: Option<Instant>,
    /// The number of remaining looks, if the tap stands.
    looks: u32,
}

impl Following {
    fn new(node: &Arc<NodeContext>, tap: Box<dyn CommitTap>) -> Self {
        Self {
            node: node.clone(),
            tap,
            stands: false,
            stood: false,
            early: Early::default(),
            next_look: Some(Instant::now() + LOOK),
            looks: 0,
        }
    }

    /// Follows the tap. Returns false when the leadership has ended, and true when the tap will not
    /// stand until a setting or a right is changed. No statement is dropped before its end, so each
    /// marked job gets its hint.
    async fn until_ended_or_lost(&mut self, term: &mut Term) -> bool {
        loop {
            let (again, look) = (self.early.next(), self.next_look);
            tokio::select! {
                biased;
                () = term.ended() => return false,
                () = alarm::at(again) => {
                    let due = self.early.take_due();
                    self.hint(due).await;
                }
                () = alarm::at(look) => self.look().await,
                news = self.tap.next() => {
                    if self.hear(news).await {
                        return true;
                    }
                }
            }
            self.wait_for_room(term).await;
        }
    }

    /// Returns whether the tap will not stand.
    async fn hear(&mut self, news: TapNews) -> bool {
        let mut reported = Vec::new();
        let mut waiting = Some(news);
        let mut lost = false;
        while let Some(news) = waiting.take() {
            match news {
                TapNews::Committed(committed) => self.note(committed, &mut reported),
                TapNews::Standing => self.standing(),
                TapNews::Gap { why, lasts } => {
                    self.gap(&why);
                    lost |= lasts;
                }
            }
            if reported.len() < BATCH && !lost {
                waiting = self.tap.try_next();
            }
        }
        self.hint(reported).await;
        lost
    }

    fn note(&self, committed: Committed, reported: &mut Vec<Reported>) {
        let at = committed.at;
        let jobs = committed.jobs.into_iter();
        counter!(m::TAP_ROWS, "kind" => "job").increment(jobs.len() as u64);
        reported.extend(jobs.map(|id| Reported { id, at, tries: 0 }));
        counter!(m::TAP_ROWS, "kind" => "timer").increment(committed.timers as u64);
        if let Some(due) = committed.due {
            let next = &self.node.leadership.next_timer;
            next.earlier(committed.now, due);
        }
    }

    fn standing(&mut self) {
        tracing::info!("the commit tap stands: jobs of plain SQL get their hints when they commit");
        self.node.gauges.of_node(m::TAP_STANDING).set(1.0);
        self.stands = true;
        self.stood = true;
        // A transaction may have committed before the tap stood and become visible after the first
        // look.
        self.looks = 2;
        self.next_look = Some(Instant::now());
    }

    fn gap(&mut self, why: &str) {
        self.node.gauges.of_node(m::TAP_STANDING).set(0.0);
        if std::mem::take(&mut self.stands) {
            counter!(m::TAP_GAPS).increment(1);
        }
        let lines = &self.node.reports.throttled_lines;
        if let Some(more) = lines.now("tap: gap") {
            tracing::warn!(
                why,
                more,
                "the commit tap does not stand; until it does, the leader looks for jobs of plain \
                 SQL every second"
            );
        }
        if self.next_look.is_none() {
            self.next_look = Some(Instant::now() + LOOK);
        }
    }

    async fn look(&mut self) {
        let more = look(&self.node).await;
        if more {
            self.next_look = Some(Instant::now());
            return;
        }
        self.looks = self.looks.saturating_sub(1);
        let again = !self.stands || self.looks > 0;
        self.next_look = again.then(|| Instant::now() + LOOK);
    }

    /// Marks these jobs and publishes their hints.
    async fn hint(&mut self, reported: Vec<Reported>) {
        for batch in reported.chunks(BATCH) {
            let ids: Vec<JobId> = batch.iter().map(|job| job.id).collect();
            match self.node.store.mark_hinted(&ids).await {
                Ok(marked) => {
                    let mut ready = marked.ready;
                    let jobs: HashMap<JobId, &Reported> =
                        batch.iter().map(|job| (job.id, job)).collect();
                    let mut decided: HashSet<JobId> = marked.hinted.into_iter().collect();
                    let latency = histogram!(m::TAP_COMMIT_TO_HINT);
                    let now = Utc::now();
                    for job in &mut ready {
                        decided.insert(job.hint.id);
                        if let Some(reported) = jobs.get(&job.hint.id) {
                            reported.is_hinted(&latency, now);
                            job.hint.committed_at = Some(reported.at);
                        }
                    }
                    self.node.hook.publish(Cause::Tap, ready);
                    let rest = batch.iter().filter(|job| !decided.contains(&job.id));
                    self.early.add(rest.copied());
                }
                Err(error) => {
                    if let Some(more) = self.node.reports.throttled_lines.now("tap: mark") {
                        tracing::warn!(
                            %error, jobs = batch.len(), more,
                            "jobs of plain SQL could not be marked as hinted; the leader cycle finds \
                             them, or the sweeper, if they were marked all the same"
                        );
                    }
                }
            }
        }
    }

    /// Waits while the commit hook has no room: it would drop hints that do not fit.
    async fn wait_for_room(&mut self, term: &mut Term) {
        let most = self.node.options.hook.buffer / 2;
        while self.node.hook.buffered() > most {
            tokio::select! {
                biased;
                () = term.ended() => return,
                () = sleep(FULL) => {}
            }
        }
    }
}

impl Reported {
    /// Records the time from the commit to the hint.
    fn is_hinted(&self, latency: &metrics::Histogram, now: DateTime<Utc>) {
        m::latency(latency, "tap", self.at, now);
        if self.tries > 0 {
            counter!(m::TAP_EARLY, "outcome" => "hinted").increment(1);
        }
    }
}
