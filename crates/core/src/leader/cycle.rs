//! The leader cycle and its consequences: the leader addresses rescued jobs, hints unhinted ones,
//! and lets its [searches](super::searches) begin.

use std::collections::HashSet;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use super::clock::log_jump;
use super::{Leader, REST, SHORTEST_REST, rescue};
use crate::hint::Ready;
use crate::job::NodeId;
use crate::producer::commit_hook::Cause;
use crate::store::{Announced, COUNT_LIMIT, CycleOutcome, CycleReport, Gate, LeaderCycle, Rescued};
use crate::telemetry::metrics as m;
use crate::worker::leadership::LastCycle;
use crate::worker::next_timer::Asker;

/// Maximum number of expired leases and of unhinted jobs in one cycle. A full cycle is followed by
/// another at once.
pub(super) const PAGE: i64 = 5_000;

/// The number of cycles that follow at once on one that came too late for its
/// [window](LeaderCycle::clock).
const AT_ONCE: u32 = 3;

/// The time after the end of the leader's lease at which a follower asks for the lead.
const SOON: Duration = Duration::from_millis(50);

/// The longest pause between two questions of a node while no node leads, since another transaction has
/// locked the leader's row.
const LONGEST_UNLED: Duration = Duration::from_secs(1);

/// The pause after which a leader whose row is locked asks again.
const ROW_LOCKED: Duration = Duration::from_millis(100);

impl Leader {
    pub(super) async fn run_cycle(&mut self) {
        let node = self.node.clone();
        if self.leads() {
            let health = node.transport.publisher().health();
            // The leader resigns only if another node lives; otherwise no node would lead.
            let others = node
                .fleet
                .hears_others(node.id, node.options.sweep_interval * 3);
            let unreachable = node.leadership.unreachable.borrow().clone();
            let makes_way = self.makes_way();
            let publishing = health.can_publish() && unreachable.is_none() && !makes_way;
            if self
                .publish_watch
                .makes_room(Instant::now(), publishing, others || makes_way)
            {
                if makes_way {
                    tracing::info!(
                        node = %node.id,
                        "living nodes use a broker, and this one does not; it resigns so that one \
                         of them may lead"
                    );
                } else if let Some(lane) = unreachable {
                    tracing::warn!(
                        node = %node.id, %lane,
                        "living nodes receive a lane that has no queue or topic on the broker of \
                         this node; it resigns so that another node may lead; give all nodes the \
                         same brokers (`second_broker_url`, `second_broker_lanes`)"
                    );
                } else {
                    tracing::warn!(
                        node = %node.id,
                        problem =
                            health.problem.as_deref().unwrap_or("the broker takes no messages"),
                        "this node cannot publish hints; it resigns so that another node may lead"
                    );
                }
                self.resign().await;
                let pause = if makes_way {
                    node.options.sweep_interval
                } else {
                    self.interval()
                };
                self.next_cycle = Instant::now() + pause * 3;
                return;
            }
            if node.transport.wakes().is_some() {
                // Nodes of another transport send no beats that this node hears.
                self.members.read_soon();
            }
        }
        let patience = node.options.renewal_period();
        // A leader hears nothing between its cycles. A late cycle counts as well: the whole machine
        // may have stalled, and no cycle failed.
        let late_after = if self.failed || !self.leads() {
            patience
        } else {
            patience + self.interval()
        };
        let away = self.clock.is_unanswered_for(late_after);
        let waits = self.clock.is_doubted() || away;
        let cycle = LeaderCycle {
            node: node.id,
            lease: node.options.leader_lease(),
            transport: node.transport.name(),
            reset_at_most: if waits { 0 } else { self.leases.get() },
            clock: self.clock.window(),
            // In a shorter outage no lease of a living node ends.
            may_wait: self
                .clock
                .age()
                .map_or(Duration::ZERO, |age| patience.saturating_sub(age)),
            grace: patience,
            services: node.fleet.services(),
            // A cycle whose answer was lost may have ended leases. Their jobs are addressed at once.
            again_after: if self.answer_lost {
                Duration::ZERO
            } else {
                node.options.sweep_interval
            },
            hint_at_most: self.unhinted.get(),
            attempts_kept: node.fleet.attempts_kept(),
        };
        node.leadership.next_timer.asks(Asker::LeaderCycle);
        node.leadership.next_periodic.asks(Asker::LeaderCycle);
        let sent = Instant::now();
        self.asked = sent;
        let taken = node.store.run_leader_cycle(&cycle).await;
        self.failed = taken.is_err();
        // Whether leases of living nodes may have ended while the database was away.
        let mut was_away = false;
        self.rested = Instant::now() + (sent.elapsed() * REST).max(SHORTEST_REST);
        if let Ok(outcome) = &taken {
            if let CycleOutcome::Follows { remaining, now, .. } = outcome {
                // The leader's last cycle was answered when its lease began.
                let age = cycle.lease.saturating_sub(*remaining);
                self.clock.answered_before(age);
                let jump = self.clock.saw(*now, sent, node.options.lease);
                log_jump("a question which node leads", jump);
            }
            if away && self.clock.is_unanswered_for(late_after) {
                // The outage may have lasted until leases expired, so living nodes renew first
                // (protocol rule 25).
                self.clock.doubt_for(patience);
            }
            was_away = self.clock.is_unanswered_for(patience);
            self.clock.answered();
        }
        match taken {
            Ok(CycleOutcome::Leads(report)) => {
                self.leads_until = sent + cycle.lease;
                self.unled_since = None;
                self.answer_lost &= cycle.reset_at_most == 0;
                (node.leadership.leads_until).send_replace(Some(self.leads_until));
                node.reports.part("leader", None);
                let was_late = report.clock_outside && !waits;
                self.led(*report, sent).await;
                // A late statement is no jump of the clock, so leases need not wait for an interval.
                self.late = if was_late { self.late + 1 } else { 0 };
                if was_late && !was_away && !self.clock.is_doubted() && self.late <= AT_ONCE {
                    self.next_cycle = Instant::now();
                }
                // The longer interval of an idle fleet must not outlast the leader's lease.
                self.next_cycle = self.next_cycle.min(sent + cycle.lease * 4 / 5);
                // Work that waits for the end of the doubt continues then.
                if let Some(end) = self.clock.doubted_until() {
                    self.next_cycle = self.next_cycle.min(end);
                }
            }
            Ok(CycleOutcome::Follows {
                leader, remaining, ..
            }) if leader == node.id && !remaining.is_zero() => {
                // Another node asks at this moment, or a transaction has locked the leader's row. A node
                // that has taken the lead at its start does not know it yet.
                node.reports.part("leader", None);
                if Instant::now() >= self.leads_until {
                    self.follow();
                }
                self.next_cycle = Instant::now() + ROW_LOCKED;
            }
            Ok(CycleOutcome::Follows { remaining, .. }) => {
                node.reports.part("leader", None);
                self.follow();
                let now = Instant::now();
                let wait = if remaining.is_zero() {
                    let since = self.unled_since.get_or_insert(now);
                    (now - *since).clamp(SOON, LONGEST_UNLED)
                } else {
                    self.unled_since = None;
                    remaining + SOON
                };
                self.next_cycle = now + wait.min(node.options.sweep_interval);
            }
            Err(error) => {
                let message = if self.term.is_some() {
                    "the leader cycle failed; trying again"
                } else {
                    "could not ask the database which node leads; trying again"
                };
                tracing::warn!(%error, "{message}");
                node.reports.part("leader", Some(error.to_string()));
                self.answer_lost |= !error.changed_nothing();
                self.leases.failed(&error);
                self.unhinted.failed(&error);
                if Instant::now() >= self.leads_until {
                    // Beats of a leader without a lease would keep other nodes from asking.
                    self.follow();
                }
                // Another node may lead soon; this node learns it in its next cycle.
                self.next_cycle = Instant::now() + Duration::from_secs(1).min(self.interval());
            }
        }
    }

    async fn led(&mut self, report: CycleReport, sent: Instant) {
        let node = self.node.clone();
        if self.term != Some(report.term) {
            tracing::info!(node = %node.id, term = report.term, "this node leads");
            crash_point!("term-begun");
            self.term = Some(report.term);
            node.gauges.of_node(m::LEADER).set(1.0);
            node.leadership.leads.send_replace(true);
            self.announce();
            self.free_instances().await;
        }
        if let Some(jump) = self.clock.saw(report.now, sent, node.options.lease) {
            counter!(m::CLOCK_JUMPS).increment(1);
            tracing::warn!(
                seconds = jump.num_milliseconds() as f64 / 1e3,
                wait = node.options.lease.as_secs_f64(),
                "the database's clock jumped, or its answer was late by as much; no job is taken \
                 over until all nodes have renewed their leases"
            );
        }
        node.leadership
            .next_timer
            .answered(Asker::LeaderCycle, sent, report.now, report.next_due);
        node.leadership.next_periodic.answered(
            Asker::LeaderCycle,
            sent,
            report.now,
            report.next_periodic,
        );
        if report.has_batches {
            node.leadership.open_batches.notify_one();
        } else {
            node.gauges.of_node(m::OPEN_BATCHES).set(0.0);
        }
        // Leases are counted exactly, but for an engine's beyond 100,000 jobs. Executable jobs are
        // counted up to a limit; beyond it their number is an estimate that may be too small, so
        // some jobs are assumed to wait.
        let jobs_wait = report.executable > report.leased.min(COUNT_LIMIT);
        self.busy = report.leased > 0 || report.executable > 0;
        self.next_cycle = Instant::now() + self.interval();
        let gauges = &node.gauges;
        gauges.of_node(m::EXECUTABLE).set(report.executable as f64);
        gauges.of_node(m::TIMERS).set(report.timers as f64);
        gauges
            .of_node(m::DEAD_LETTERS)
            .set(report.dead_letters as f64);
        gauges.of_node(m::LEASED).set(report.leased as f64);
        let oldest = report
            .oldest_ready_at
            .map_or(0.0, |at| (report.now - at).as_seconds_f64().max(0.0));
        gauges.of_node(m::OLDEST_AGE).set(oldest);
        for scope in Gate::WORDS {
            let count = report.suspensions.get(scope).copied().unwrap_or(0);
            gauges.of_scope(m::SUSPENSIONS, scope).set(count as f64);
        }

        let ended = report.rescued.len() + report.cancelled.len();
        let is_full = self.leases.came(ended) | self.unhinted.came(report.unhinted.len());
        if is_full || report.has_more {
            self.next_cycle = Instant::now();
        }
        for id in &report.cancelled {
            tracing::info!(
                job = %id,
                "the holder of this job died; an operator had cancelled the job, so it is deleted"
            );
            if let Some(teller) = node.teller() {
                teller.cancelled(*id);
            }
        }
        node.hook.publish(Cause::Handoff, report.freed);
        if report.freed_permits {
            node.permits.were_freed();
        }
        self.rescue(report.rescued);
        self.hint_new(report.unhinted);
        if report.has_noted {
            self.announce_noted().await;
        }
        node.leadership.last_cycle.send_replace(Some(LastCycle {
            term: report.term,
            now: report.now,
            horizon: report.horizon,
            jobs_wait,
        }));
    }

    /// Sends the jobs of dead holders to nodes that start them before waiting jobs.
    fn rescue(&mut self, rescued: Vec<Rescued>) {
        if rescued.is_empty() {
            return;
        }
        let node = &self.node;
        counter!(m::SWEPT, "class" => "expired").increment(rescued.len() as u64);
        let dead: HashSet<_> = rescued.iter().filter_map(|rescued| rescued.owner).collect();
        tracing::info!(
            jobs = rescued.len(),
            holders = list_of(&dead),
            "leases expired; other nodes take their jobs over"
        );
        crash_point!("turn-taken");
        node.fleet.note(node.id, node.beat());
        rescue::send(node, rescued, &dead, &mut self.last_nodes);
    }

    /// Hints jobs that were created without a hint.
    fn hint_new(&self, found: Vec<Ready>) {
        if found.is_empty() {
            return;
        }
        let node = &self.node;
        counter!(m::SWEPT, "class" => "unhinted").increment(found.len() as u64);
        tracing::info!(
            jobs = found.len(),
            "jobs were created without a hint; they are hinted"
        );
        crash_point!("turn-taken");
        // Hints of lanes that this node receives are tried here first, up to the number of free
        // slots.
        let mut room = node.free_slots();
        let try_here = |ready: Ready| {
            if room == 0 || !node.options.receives(&ready.lane) {
                return Some(ready);
            }
            room -= 1;
            node.inbox.try_here(ready)
        };
        let rest = found.into_iter().filter_map(try_here).collect();
        node.hook.publish(Cause::Sweep, rest);
    }

    /// Frees instances whose holder is gone, and hints their next jobs. Completions free their
    /// instance themselves; this finds instances that other programs left held.
    async fn free_instances(&self) {
        match self.node.store.free_instances().await {
            Ok(ready) if !ready.is_empty() => {
                counter!(m::SWEPT, "class" => "instance").increment(ready.len() as u64);
                tracing::warn!(
                    jobs = ready.len(),
                    "process instances were held by jobs that are gone; their next jobs are hinted"
                );
                self.node.hook.publish(Cause::Sweep, ready);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not look for leftover instance locks"),
        }
    }

    /// Looks for unhinted jobs and due timers after another process has written to the embedded
    /// database.
    pub(super) async fn look(&mut self, last: &mut Option<i64>) {
        let Ok(version) = self.node.store.data_version().await else {
            return;
        };
        if *last != version {
            *last = version;
            if self.leads() {
                self.hint_unhinted().await;
                self.announce_noted().await;
                // The timer task asks the database for the next due date.
                let now = self.clock.now();
                self.node.leadership.next_timer.earlier(now, now);
            }
        }
    }

    /// Hints jobs that operations made ready in processes without a transport.
    async fn announce_noted(&mut self) {
        match self.node.store.announce_noted(PAGE).await {
            Ok(Announced { ready, more }) => {
                if more {
                    self.next_cycle = Instant::now();
                }
                if !ready.is_empty() {
                    counter!(m::SWEPT, "class" => "unhinted").increment(ready.len() as u64);
                    self.node.hook.publish(Cause::Operator, ready);
                    self.busy = true;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not look for jobs that operations made ready");
            }
        }
    }

    pub(super) async fn hint_unhinted(&mut self) {
        match self.node.store.unhinted(PAGE).await {
            Ok(found) if !found.is_empty() => {
                counter!(m::SWEPT, "class" => "unhinted").increment(found.len() as u64);
                self.node.hook.publish(Cause::Sweep, found);
                self.busy = true;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not look for jobs without a hint"),
        }
    }
}

/// Formats node ids for the log.
fn list_of(nodes: &HashSet<NodeId>) -> String {
    let mut ids: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    ids.sort_unstable();
    ids.join(", ")
}
