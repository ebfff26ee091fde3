//! Options of a node: each with its meaning, default and what changing it does.

use std::time::Duration;

use crate::job::Lane;
use crate::job::scope::Scope;
use crate::lane::order::{self, LaneOrder, LaneShare};
use crate::producer::commit_hook::HookOptions;
use crate::store::RowTerms;

/// Options of a node, with their defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// Jobs that run at once. Default 64.
    pub concurrency: usize,
    /// How long a lock lasts without being renewed; a dead node's jobs are taken over that much later,
    /// plus one sweep. Default 30 s, at least 1 s.
    pub lease: Duration,
    /// How often the leader looks for expired locks while anything waits or runs, but at least twice a lease;
    /// a third as often when idle. Default 10 s.
    pub sweep_interval: Duration,
    /// A job is suspected to have lost its hint only when it was ready so long before the marker left. Not less than
    /// the hook's largest hint age plus the broker's confirm timeout, which stand in for it where it is shorter
    /// (protocol rule 16). Default 15 s.
    pub suspect_after: Duration,
    /// When hints could not be received or not be published for so long, take jobs from the database until
    /// they can; `None` for never: then jobs wait for the broker. Default 5 s.
    pub claim_after: Option<Duration>,
    /// A job at whose hands so many nodes in a row have died goes to the dead letters. From the second death
    /// on it runs alone on its node, and only deaths while alone count further (protocol rule 26). 0: never.
    /// Default 3, at least 3.
    pub quarantine_after: u32,
    /// The smallest batch of hints of which jobs are held by row locks, where their handlers allow it; the jobs of a
    /// smaller batch get leases ([`HandlerOptions::row_lock`](crate::HandlerOptions::row_lock)). Default 32.
    pub row_lock_from: usize,
    /// How long running jobs may take to end at shutdown before they are given back. Default 60 s.
    pub shutdown_timeout: Duration,
    /// The lanes to receive, in their order. Default: `default`.
    pub lanes: Vec<LaneShare>,
    /// How they share the slots: by their weights, or strictly in their order. Default: weighted.
    pub lane_order: LaneOrder,
    /// Which jobs of its types the node takes: those of some deployments, categories or tenants. Default: all.
    pub scope: Scope,
    /// How the node's row in the table `node` names the machine. Default: its host name.
    pub host: String,
    /// How hints leave.
    pub hook: HookOptions,
}

crate::setters! {
    NodeOptions {
        concurrency: usize,
        lease: Duration,
        sweep_interval: Duration,
        suspect_after: Duration,
        claim_after: Option<Duration>,
        quarantine_after: u32,
        row_lock_from: usize,
        shutdown_timeout: Duration,
        lanes: Vec<LaneShare>,
        lane_order: LaneOrder,
        scope: Scope,
        host: String,
        hook: HookOptions,
    }
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            concurrency: 64,
            lease: Duration::from_secs(30),
            sweep_interval: Duration::from_secs(10),
            suspect_after: Duration::from_secs(15),
            claim_after: Some(Duration::from_secs(5)),
            quarantine_after: 3,
            row_lock_from: RowTerms::default().from,
            shutdown_timeout: Duration::from_secs(60),
            lanes: vec![Lane::default().into()],
            lane_order: LaneOrder::default(),
            scope: Scope::default(),
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            hook: HookOptions::default(),
        }
    }
}

/// An option that can't work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option `{option}` {problem}")]
pub struct BadOption {
    /// The option.
    pub option: &'static str,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl NodeOptions {
    /// Check every option.
    ///
    /// # Errors
    /// All that can't work, at once.
    pub fn validate(&self) -> Result<(), Vec<BadOption>> {
        let mut wrong = Vec::new();
        let mut check = |ok: bool, option, problem: &str| {
            if !ok {
                wrong.push(BadOption {
                    option,
                    problem: problem.to_owned(),
                });
            }
        };
        check(
            (1..=100_000).contains(&self.concurrency),
            "concurrency",
            "must be 1 to 100000 jobs at once",
        );
        check(
            self.lease >= Duration::from_secs(1),
            "lease",
            "must be at least 1s: it is renewed every third of it",
        );
        check(
            self.lease <= Duration::from_secs(24 * 3600),
            "lease",
            "must be at most 24h: a dead node's jobs wait that long",
        );
        check(
            self.sweep_interval >= Duration::from_millis(100),
            "sweep_interval",
            "must be at least 100ms",
        );
        check(
            self.suspect_after >= self.hook.max_age,
            "suspect_after",
            "must not be shorter than `hint_max_age`: hints that still wait to be published would be doubled",
        );
        check(
            self.claim_after
                .is_none_or(|after| after >= Duration::from_millis(100)),
            "claim_after",
            "must be at least 100ms, so that a connection may break and come back; `off` never claims",
        );
        check(
            self.quarantine_after == 0 || self.quarantine_after >= 3,
            "quarantine_after",
            "must be at least 3, the last of them alone on its node, or 0 for never",
        );
        check(
            self.row_lock_from >= 1,
            "row_lock_from",
            "must be at least 1",
        );
        for problem in order::problems(&self.lanes, self.lane_order) {
            check(false, "lanes", &problem);
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// How long a leader leads without a turn: no longer than a job's lease, so that a dead leader delays no takeover.
    pub(crate) fn leader_lease(&self) -> Duration {
        self.lease.min(self.sweep_interval * 5 / 2)
    }

    /// The age from which a job is suspected to have lost its hint, over a broker with this confirm timeout: a hint may
    /// be published that late (protocol rule 16).
    #[must_use]
    pub fn suspected_after(&self, confirm_timeout: Duration) -> Duration {
        self.suspect_after
            .max(self.hook.max_age.saturating_add(confirm_timeout))
    }

    /// Every living node has renewed its leases within this time: they are due at a third, and tried every twelfth.
    pub(crate) fn renewal_period(&self) -> Duration {
        self.lease / 2
    }

    /// From one turn of the leader to the next while anything waits or runs. Leases end after an outage
    /// of two thirds of a lease, so at least one turn falls into it, and the leader knows of it
    /// (protocol rule 25).
    pub(crate) fn busy_interval(&self) -> Duration {
        self.sweep_interval.min(self.renewal_period())
    }

    /// Slots that jobs with a strike may take.
    pub(crate) fn struck_slots(&self) -> usize {
        (self.concurrency / 4).max(1)
    }

    /// Hints of this lane are received.
    pub(crate) fn receives(&self, lane: &Lane) -> bool {
        self.lanes.iter().any(|share| share.lane == *lane)
    }

    /// A node that was silent for so long is given no jobs.
    pub(crate) fn heard_within(&self) -> Duration {
        (self.sweep_interval * 3 / 2).max(Duration::from_secs(2))
    }

    /// The lanes without their weights.
    pub(crate) fn lane_names(&self) -> Vec<Lane> {
        self.lanes.iter().map(|share| share.lane.clone()).collect()
    }

    /// Messages that may be unsettled: enough to fill every slot, and as many again on their way; and for
    /// each lane two, so that none is kept from arriving by the others.
    pub(crate) fn prefetch(&self) -> u16 {
        let wanted = self.concurrency.max(self.lanes.len()).saturating_mul(2);
        u16::try_from(wanted.clamp(2, 4_096)).unwrap_or(4_096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_suspected_before_its_hint_can_no_longer_come() {
        let options = NodeOptions::default();
        let seconds = Duration::from_secs;
        assert_eq!(options.suspected_after(seconds(0)), seconds(15));
        assert_eq!(options.suspected_after(seconds(60)), seconds(70));
    }

    #[test]
    fn an_outage_in_which_leases_end_meets_a_turn() {
        let mut options = NodeOptions::default();
        assert_eq!(options.busy_interval(), options.sweep_interval);
        options.sweep_interval = Duration::from_secs(300);
        // A lease is renewed when a third of it has passed: the rest ends in the outage.
        assert!(options.busy_interval() < options.lease * 2 / 3);
    }
}
