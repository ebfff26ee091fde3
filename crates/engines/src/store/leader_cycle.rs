//! The leader cycle: rescue, new jobs, the watchdog and the numbers of jobs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::NodeId;
use jobwire_core::hint::Ready;
use jobwire_core::job::scope::Needs;
use jobwire_core::store::{CycleOutcome, CycleReport, LeaderCycle, Rescued};
use jobwire_core::telemetry::log_throttle::LogThrottle;
use tokio::time::Instant;

use super::{EngineStore, Inner, Result};
use crate::backlog::Backlog;
use crate::coordination::leader::{self, Lead};
use crate::meter::{Rescue, Unrun};
use crate::walk::Walk;
use crate::{sweep, walk};

/// The time for which looks still report jobs after a tap stands. Jobs that committed before may
/// become visible a moment later.
const TAP_SETTLES: Duration = Duration::from_secs(5);
/// The time for which a cycle reads the pages of a large table for rescue, and the same time for
/// new jobs. The next cycle continues.
const READS: Duration = Duration::from_secs(2);

static HUNG: Mutex<Option<LogThrottle>> = Mutex::new(None);

impl EngineStore {
    /// Records whether a tap stands.
    pub(crate) fn tap_stands(&self, stands: bool) {
        let mut tapped = self.0.tapped.lock().unwrap_or_else(PoisonError::into_inner);
        *tapped = stands.then(Instant::now);
    }

    /// Returns whether tap and looks have together reported all jobs. The tap reports new ones. The
    /// looks have reported the older ones when a walk through the table has ended that began after
    /// the tap had settled.
    fn is_tapped(&self) -> bool {
        let tapped = *self.0.tapped.lock().unwrap_or_else(PoisonError::into_inner);
        tapped.is_some_and(|since| self.0.dialect.looks().is_whole_since(since + TAP_SETTLES))
    }

    /// Returns the node of this process that leads now.
    pub(crate) fn leading(&self) -> Option<NodeId> {
        let leads = self.0.leads.lock();
        let leads = *leads.unwrap_or_else(PoisonError::into_inner);
        leads
            .filter(|(_, until)| Instant::now() < *until)
            .map(|(node, _)| node)
    }

    pub(super) fn set_leading(&self, leads: Option<(NodeId, Instant)>) {
        let mut known = self.0.leads.lock().unwrap_or_else(PoisonError::into_inner);
        *known = leads;
    }

    /// Returns the jobs that became visible since the last look of this process's leader.
    pub(super) async fn look(&self, node: NodeId, report: bool) -> Result<Vec<Ready>> {
        let Inner { dialect, parts, .. } = &*self.0;
        self.run("unhinted", &self.0.connections.rest, || {
            dialect.new_jobs(self.pool(), &parts.options.name, node, report)
        })
        .await
    }

    /// Runs the watchdog, if it is allowed.
    async fn cancel_hung(&self) {
        if !self.0.parts.options.watchdog {
            return;
        }
        let (dialect, rest) = (self.dialect(), &self.0.connections.rest);
        let cancelled = self.run("cancel_hung", rest, || dialect.cancel_hung(&rest.inner));
        match cancelled.await {
            Ok(0) => {}
            Ok(statements) => {
                self.0.parts.meter.cancelled(statements);
                tracing::warn!(
                    statements,
                    "cancelled statements of the engine that waited for its own idle transactions; \
                     set `lock_timeout` for the engine's connections"
                );
            }
            Err(error) => {
                let mut throttle = HUNG.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(more) = throttle.get_or_insert_default().now() {
                    tracing::warn!(
                        %error, more,
                        "the watchdog failed; to cancel statements of the engine, it needs the role \
                         `pg_signal_backend` or the engine's own role"
                    );
                }
            }
        }
    }

    /// Returns the numbers of jobs.
    pub(super) async fn backlog(&self) -> Result<Backlog> {
        let pool = &self.0.connections.rest;
        self.run("backlog", pool, || {
            sweep::backlog(self.dialect(), &pool.inner)
        })
        .await
    }

    /// Runs the cycle, if this node leads.
    pub(super) async fn run_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome> {
        let Inner {
            connections, parts, ..
        } = &*self.0;
        let options = &parts.options;
        let (rest, pool) = (&connections.rest, &connections.rest.inner);
        if self.0.dialect.zone().begins_read() {
            self.check_zone().await;
        }
        let sent = Instant::now();
        let lead = self
            .run("take_turn", rest, || {
                leader::take(pool, &options.name, cycle)
            })
            .await?;
        let (term, now, horizon, may_rescue, clock_outside) = match lead {
            Lead::Ours {
                term,
                now,
                horizon,
                may_rescue,
                clock_outside,
            } => (term, now, horizon, may_rescue, clock_outside),
            Lead::Theirs {
                leader,
                transport,
                remaining,
                now,
            } => {
                // The row names this node while one of its own statements has locked it.
                if leader != cycle.node {
                    self.set_leading(None);
                    self.0.parts.meter.unrun(Unrun::Reach, 0);
                    self.0.parts.meter.unrun(Unrun::Scope, 0);
                }
                return Ok(CycleOutcome::Follows {
                    leader,
                    transport,
                    remaining,
                    now,
                });
            }
        };
        self.set_leading(Some((cycle.node, sent + cycle.lease)));
        let mut report = CycleReport {
            term,
            now,
            horizon,
            clock_outside,
            ..CycleReport::default()
        };
        let may_rescue = may_rescue && cycle.reset_at_most > 0;
        let numbers = match self.rescue_and_look(cycle, may_rescue, &mut report).await {
            Ok(()) => self.backlog().await,
            Err(error) => {
                // The next cycle continues.
                report.has_more = true;
                Err(error)
            }
        };
        // The jobs that a part has found need their hints, although another part failed.
        let backlog = self.0.parts.numbers.enter(numbers, &mut report)?;
        if backlog.executable <= backlog.leased {
            // The leader asks only while jobs wait.
            self.0.parts.meter.unrun(Unrun::Reach, 0);
        }
        self.tell_foreign().await;
        Ok(CycleOutcome::Leads(Box::new(report)))
    }

    /// Clears the locks of dead holders, and looks for new jobs. After an error, the report has the
    /// jobs that were found before.
    async fn rescue_and_look(
        &self,
        cycle: &LeaderCycle,
        may_rescue: bool,
        report: &mut CycleReport,
    ) -> Result<()> {
        if may_rescue {
            self.rescue(cycle, report).await?;
        }
        if cycle.hint_at_most == 0 {
            return Ok(());
        }
        let until = Instant::now() + READS;
        loop {
            let new = self.look(cycle.node, !self.is_tapped()).await?;
            report.unhinted.extend(new);
            let is_full = report.unhinted.len() as i64 >= walk::MOST;
            let is_under_way = self.0.dialect.looks().is_under_way();
            if is_full || !is_under_way || Instant::now() >= until {
                break;
            }
        }
        self.cancel_hung().await;
        Ok(())
    }

    /// Clears the locks of dead holders, page by page.
    async fn rescue(&self, cycle: &LeaderCycle, report: &mut CycleReport) -> Result<()> {
        let (dialect, meter) = (&self.0.dialect, &self.0.parts.meter);
        let rest = &self.0.connections.rest;
        let pool = &rest.inner;
        let until = Instant::now() + READS;
        let timers = self.run("free_timers", rest, || dialect.free_timers(pool));
        meter.rescued(Rescue::TimerOfEngine, timers.await?);
        loop {
            let freed = self.run("rescue", rest, || {
                dialect.free_expired(pool, cycle.reset_at_most)
            });
            let freed = freed.await?;
            let is_full = i64::try_from(freed.len()).is_ok_and(|n| n >= cycle.reset_at_most);
            let ours = freed.iter().filter(|freed| freed.owner.is_some()).count();
            meter.rescued(Rescue::JobOfJobwire, ours as u64);
            meter.rescued(Rescue::JobOfEngine, (freed.len() - ours) as u64);
            report
                .rescued
                .extend(freed.into_iter().map(|freed| Rescued {
                    needs: Needs::of(freed.job_type),
                    ready: freed.ready,
                    strikes: 0,
                    owner: freed.owner,
                }));
            report.has_more = is_full || dialect.rescues().is_under_way();
            if is_full || !report.has_more || Instant::now() >= until {
                break;
            }
        }
        // Each table has its own walk, because their sizes differ.
        loop {
            let left = self.run("free_instances", rest, || dialect.free_instances(pool));
            let left = left.await?;
            meter.rescued(Rescue::Instance, left.count);
            if left.count > 0 {
                // The end of the cycle reads the next due date, which wakes the timer task.
                tracing::info!(
                    instances = left.count,
                    "cleared the expired locks of instances for which jobs or timers wait"
                );
            }
            report.unhinted.extend(left.ready);
            let is_under_way = dialect.instances().is_some_and(Walk::is_under_way);
            if !is_under_way || Instant::now() >= until {
                report.has_more |= is_under_way;
                return Ok(());
            }
        }
    }
}
