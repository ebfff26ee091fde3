//! Work of the leader: its lease, rescue, timers, lost hints and job counts.

use std::sync::PoisonError;

use jobwire_core::job::scope::{Needs, Services};
use jobwire_core::store::{
    CycleOutcome, CycleReport, LeaderCycle, MovedTimers, OrphanPage, OrphanQuery, Rescued,
};
use jobwire_core::{NodeId, StoreError};
use std::time::Duration;

use super::suspects::Seen;
use super::wire::{
    self, AtMost, Lead, Leads, Nothing, OfNode, Orphans, Page, Timers, Waiting, millis,
};
use super::{EndpointStore, Result};
use crate::backlog::Backlog;
use crate::id::engine_id;
use crate::meter::{Rescue, Unrun};
use crate::owner::parse;
use crate::unserved::Unserved;

/// Maximum number of locks that one request clears, and of timers that one request moves.
const MOST: i64 = 1_000;

impl EndpointStore {
    /// Runs the leader cycle if this node leads.
    pub(super) async fn run_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome> {
        let lead = Lead {
            node: cycle.node.to_string(),
            transport: cycle.transport,
            lease: millis(cycle.lease),
        };
        let client = &self.0.client;
        let leads: Leads = client.ask("take_turn", "lead", &lead).await?;
        if !leads.leads {
            self.0.parts.meter.unrun(Unrun::Reach, 0);
            self.0.parts.meter.unrun(Unrun::Scope, 0);
            return Ok(CycleOutcome::Follows {
                leader: leads.node.parse().unwrap_or_else(|_| no_node()),
                transport: leads.transport,
                remaining: Duration::from_millis(leads.remaining),
                now: leads.now,
            });
        }
        let mut report = CycleReport {
            term: leads.term,
            now: leads.now,
            ..CycleReport::default()
        };
        let may_rescue = cycle
            .clock
            .is_none_or(|clock| (clock.from..=clock.until).contains(&leads.now));
        report.clock_outside = !may_rescue;
        if may_rescue && cycle.reset_at_most > 0 {
            self.rescue(cycle, &mut report).await?;
        }
        let backlog = self
            .0
            .parts
            .numbers
            .enter(self.backlog().await, &mut report)?;
        if backlog.executable <= backlog.leased {
            // The leader asks only while jobs wait.
            self.0.parts.meter.unrun(Unrun::Reach, 0);
        }
        self.tell_other_scopes().await;
        Ok(CycleOutcome::Leads(Box::new(report)))
    }

    pub(super) async fn backlog(&self) -> Result<Backlog> {
        self.0.client.ask("backlog", "backlog", &Nothing {}).await
    }

    /// Counts the unlocked jobs that none of these services takes.
    pub(super) async fn unserved(&self, services: &Services) -> Result<Unserved> {
        let mut unserved = Unserved::default();
        if services.groups.is_empty() {
            return Ok(unserved);
        }
        let asked = self.0.client.ask("unserved_types", "waiting", &Nothing {});
        let waiting: Waiting = match asked.await {
            Ok(waiting) => waiting,
            // An endpoint of an older artefact does not count them.
            Err(StoreError::Config(_)) => return Ok(unserved),
            Err(error) => return Err(error),
        };
        for kind in waiting.kinds {
            let job_type = self.0.decoder.type_of(kind.handler.as_deref());
            let needs = Needs {
                tenant: kind.tenant,
                category: kind.category,
                ..Needs::of(job_type)
            };
            if !services.serve(&needs) {
                unserved.add(job_type, needs.category.or(needs.tenant), kind.jobs);
            }
        }
        Ok(unserved)
    }

    /// Clears the locks of dead holders.
    async fn rescue(&self, cycle: &LeaderCycle, report: &mut CycleReport) -> Result<()> {
        let at_most = cycle.reset_at_most.min(MOST);
        let asked = AtMost { at_most };
        let freed: wire::Rescued = self.0.client.ask("rescue", "rescue", &asked).await?;
        let meter = &self.0.parts.meter;
        meter.rescued(Rescue::TimerOfEngine, freed.timers);
        meter.rescued(Rescue::Instance, freed.ready.len() as u64);
        let holder = |owner: &Option<String>| owner.as_deref().and_then(parse).map(|of| of.0);
        let ours = freed.jobs.iter().filter(|row| holder(&row.owner).is_some());
        let ours = ours.count();
        meter.rescued(Rescue::JobOfJobwire, ours as u64);
        meter.rescued(Rescue::JobOfEngine, (freed.jobs.len() - ours) as u64);
        report.has_more = i64::try_from(freed.jobs.len()).is_ok_and(|n| n >= at_most);
        let rescued = freed.jobs.iter().filter_map(|row| {
            Some(Rescued {
                needs: Needs::of(self.0.decoder.type_of(row.handler.as_deref())),
                ready: self.ready(row)?,
                strikes: 0,
                owner: holder(&row.owner),
            })
        });
        report.rescued.extend(rescued);
        let ready = freed.ready.iter().filter_map(|row| self.ready(row));
        report.unhinted.extend(ready);
        Ok(())
    }

    /// Makes the engine move due timers to its executable jobs.
    pub(super) async fn move_timers(&self, at_most: i64) -> Result<MovedTimers> {
        let at_most = at_most.clamp(1, MOST);
        let asked = AtMost { at_most };
        let client = &self.0.client;
        let moved: Timers = client.ask("move_due_timers", "timers", &asked).await?;
        Ok(MovedTimers {
            ready: moved.ready.iter().filter_map(|r| self.ready(r)).collect(),
            locked: Vec::new(),
            next_due: moved.next_due,
            now: moved.now,
        })
    }

    /// Returns jobs whose hint was lost.
    pub(super) async fn lost_hints(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        if query.lane != self.0.parts.options.lane {
            return Ok(OrphanPage::default());
        }
        let asked = Orphans {
            after: query.after.and_then(engine_id),
            // Younger ones are recorded for the next search.
            created_before: None,
            limit: query.limit.clamp(1, MOST),
        };
        let page: Page = self.0.client.ask("orphans", "orphans", &asked).await?;
        let suspects = self.0.suspects.lock();
        let mut suspects = suspects.unwrap_or_else(PoisonError::into_inner);
        if query.after.is_none() {
            suspects.begin(page.now);
        }
        let mut found = OrphanPage {
            next: page
                .next
                .as_deref()
                .and_then(|id| self.0.decoder.job_id(id)),
            ..OrphanPage::default()
        };
        for row in &page.jobs {
            let Some(ready) = self.ready(row) else {
                continue;
            };
            if !query.services.serve(&self.needs(row)) {
                continue;
            }
            let id = ready.hint.id;
            let seen = Seen {
                // A job of Camunda becomes due in its row, maybe long after its creation.
                created: row.created.max(row.due),
                // A lock raises the revision of a new row.
                was_locked: row.revision > 1,
                now: page.now,
            };
            let is_orphan = suspects.is_orphan(id, seen, query.ready_before, query.mark);
            if is_orphan && !query.held.contains(&id) {
                found.ready.push(ready);
            }
        }
        Ok(found)
    }

    /// Releases the lead.
    pub(super) async fn stop_leading(&self, node: NodeId) -> Result<()> {
        let node = OfNode {
            node: node.to_string(),
        };
        let _: wire::Done = self.0.client.ask("resign", "resign", &node).await?;
        Ok(())
    }
}

/// A leader whose row is unreadable.
fn no_node() -> NodeId {
    NodeId::from_uuid(uuid::Uuid::nil())
}
