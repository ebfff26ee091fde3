//! The leader's statements: the leader cycle, due timers, unhinted jobs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::hint::{Hint, Ready};
use jobwire_core::store::{
    ClockWindow, CycleOutcome, CycleReport, LeaderCycle, LockTerms, MovedTimers, Rescued,
};
use jobwire_core::{JobId, Lane, NodeId};

use super::{Bug, Database, Leader, Lease, Row, span};
use crate::history::Event;

impl Database {
    pub(in crate::simulation) fn run_leader_cycle(&mut self, turn: &LeaderCycle) -> CycleOutcome {
        let now = self.now();
        let expires_at = now + span(turn.lease);
        let term = match &self.leader {
            None => 1,
            Some(leader) if leader.node == turn.node => leader.term,
            Some(leader) if leader.expires_at <= now => leader.term + 1,
            Some(leader) => {
                return CycleOutcome::Follows {
                    leader: leader.node,
                    transport: leader.transport.clone(),
                    remaining: (leader.expires_at - now).to_std().unwrap_or_default(),
                    now,
                };
            }
        };
        self.leader = Some(Leader {
            node: turn.node,
            term,
            transport: turn.transport.to_owned(),
            expires_at,
        });
        let left_over = self.left_over(turn);
        let mut found = self.reset(turn);
        found.extend(left_over.into_iter().map(|id| (id, None)));
        let mut rescued: Vec<(i64, Rescued)> = Vec::new();
        for (id, owner) in found {
            let known = self.executable.get(&id);
            let known = known.map(|row| (row.job.seq, row.job.needs()));
            let strikes = self.leases.get(&id).map_or(0, |lease| lease.strikes);
            if let Some((seq, needs)) = known
                && let Some(ready) = self.mark(id)
            {
                self.record(id, Event::Rehinted);
                let rescue = Rescued {
                    ready,
                    needs,
                    strikes,
                    owner,
                };
                rescued.push((seq, rescue));
            }
        }
        rescued.sort_unstable_by_key(|(seq, _)| *seq);
        let unhinted = self.unhinted(turn.hint_at_most);
        let living = |lease: &&Lease| lease.owner.is_some() && lease.expires_at > now;
        let leased = self.leases.values().filter(living);
        CycleOutcome::Leads(Box::new(CycleReport {
            horizon: None,
            has_batches: false,
            has_noted: false,
            has_more: false,
            clock_outside: Self::is_outside(turn, now),
            freed_permits: false,
            term,
            now,
            rescued: rescued.into_iter().map(|(_, rescued)| rescued).collect(),
            unhinted,
            cancelled: Vec::new(),
            freed: Vec::new(),
            next_due: self.next_due(),
            next_periodic: self.next_periodic(),
            leased: number(leased.count()),
            executable: number(self.executable.len()),
            timers: number(self.timers.len()),
            dead_letters: number(self.dead.len()),
            suspensions: std::collections::BTreeMap::new(),
            oldest_ready_at: self.executable.values().next().map(|row| row.job.ready_at),
        }))
    }

    /// Returns jobs whose lease lost its owner in an earlier cycle and that were not locked since.
    fn left_over(&mut self, turn: &LeaderCycle) -> Vec<JobId> {
        let now = self.now();
        let at_most = usize::try_from(turn.reset_at_most).unwrap_or(0);
        let waited = |row: &Row| {
            let doublings = (row.hints - 2).clamp(0, 6);
            row.job.ready_at <= now - span(turn.again_after) * (1 << doublings)
        };
        let ownerless = self.leases.iter().filter(|(_, l)| l.owner.is_none());
        let left = ownerless.filter_map(|(id, _)| {
            let row = self.executable.get(id)?;
            let open = turn.services.serve(&row.job.needs())
                && !self.is_suspended(&row.job)
                // The hint lets a node lock an elder sibling, too.
                && !row.job.exclusive_instance().is_some_and(|instance| self.is_held(instance));
            (open && waited(row)).then_some(*id)
        });
        left.take(at_most).collect()
    }

    /// Returns whether the clock is outside of the window in which the leader expects it.
    fn is_outside(turn: &LeaderCycle, now: DateTime<Utc>) -> bool {
        let outside = |clock: &ClockWindow| now < clock.from || now > clock.until;
        turn.clock.as_ref().is_some_and(outside)
    }

    /// Resets expired leases. Returns each job with its former holder.
    fn reset(&mut self, turn: &LeaderCycle) -> Vec<(JobId, Option<NodeId>)> {
        let now = self.now();
        if Self::is_outside(turn, now) {
            return Vec::new();
        }
        let unguarded = self.has(Bug::SweepsLivingLeases);
        let at_most = usize::try_from(turn.reset_at_most).unwrap_or(0);
        let late = self.leases.iter().filter(|(id, lease)| {
            let length = lease.expires_at - lease.locked_at;
            let ended =
                lease.expires_at <= now || (unguarded && lease.locked_at + length / 2 < now);
            lease.owner.is_some() && ended && self.executable.contains_key(id)
        });
        let late = late.map(|(id, lease)| (*id, lease.owner)).take(at_most);
        let late: Vec<(JobId, Option<NodeId>)> = late.collect();
        for (id, _) in &late {
            let Some(lease) = self.leases.get_mut(id) else {
                continue;
            };
            lease.clear();
            let fence = lease.fence;
            if let Some(row) = self.executable.get_mut(id) {
                row.hints = 1;
            }
            self.record(*id, Event::TakenOff { fence });
        }
        late
    }

    pub(in crate::simulation) fn unhinted(&mut self, at_most: i64) -> Vec<Ready> {
        let at_most = usize::try_from(at_most).unwrap_or(0);
        let unhinted = self.executable.values().filter(|row| row.hints == 0);
        let mut ids: Vec<(i64, JobId)> = unhinted.map(|row| (row.job.seq, row.job.id)).collect();
        ids.sort_unstable();
        ids.truncate(at_most);
        ids.into_iter()
            .filter_map(|(_, id)| self.mark(id))
            .collect()
    }

    fn next_due(&self) -> Option<chrono::DateTime<chrono::Utc>> {
        self.timers.values().filter_map(|row| row.job.due_at).min()
    }

    pub(in crate::simulation) fn resign(&mut self, node: NodeId) {
        let now = self.now();
        let leader = self.leader.as_mut().filter(|leader| leader.node == node);
        if let Some(leader) = leader.filter(|leader| leader.expires_at > now) {
            leader.expires_at = now - span(Duration::from_secs(1));
        }
    }

    pub(in crate::simulation) fn move_due_timers(&mut self, at_most: i64) -> MovedTimers {
        let now = self.now();
        let until = if self.has(Bug::MovesTimersEarly) {
            now + span(Duration::from_secs(1))
        } else {
            now
        };
        let due = self.timers.values().filter_map(|row| {
            let due = row.job.due_at.filter(|due| *due <= until)?;
            Some((due, row.job.seq, row.job.id))
        });
        let mut due: Vec<_> = due.collect();
        due.sort_unstable();
        due.truncate(usize::try_from(at_most).unwrap_or(0));
        let mut moved = MovedTimers::default();
        for (_, _, id) in due {
            if let Some(row) = self.timers.remove(&id) {
                self.record(id, Event::Ready);
                moved.ready.push(self.make_executable(row, 1));
            }
        }
        moved.next_due = self.next_due();
        moved.now = self.now();
        moved
    }

    pub(in crate::simulation) fn take_due_timers(
        &mut self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> MovedTimers {
        let mut moved = self.move_due_timers(at_most);
        let plain = |ready: &&Ready| ready.hint.instance.is_none() && lanes.contains(&ready.lane);
        let hints = moved.ready.iter().filter(plain);
        let hints: Vec<Hint> = hints.map(|ready| ready.hint.clone()).collect();
        let (locked, _) = self.lock_plain(terms, &hints);
        moved.locked = locked.jobs;
        let taken = |id| moved.locked.iter().any(|locked| locked.job.id == id);
        moved.ready.retain(|ready| !taken(ready.hint.id));
        moved
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
