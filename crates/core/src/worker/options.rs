//! The options of a node, with their meanings, defaults and effects.

use std::time::Duration;

use crate::job::Lane;
use crate::job::retry::{RetryFrom, RetryPolicy};
use crate::job::scope::Scope;
use crate::job::sealed::Encryption;
use crate::lane::order::{self, LaneOrder, LaneShare};
use crate::lane::start_order::StartOrder;
use crate::producer::commit_hook::HookOptions;
use crate::store::{RowTerms, TapMode};
use crate::worker::elastic::Elastic;
use crate::worker::slot_limit::SlotLimit;

/// The longest lease and the longest intervals.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Options of a node, with their defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// The maximum number of jobs that run at once. Nodes that share a
    /// [`SlotPool`](crate::SlotPool) run at most as many as it has slots. Default
    /// 64.
    pub concurrency: usize,
    /// A lower number of slots that changes while the node runs. Default: none, the node uses
    /// `concurrency` slots.
    pub slot_limit: Option<SlotLimit>,
    /// The bounds of a number of slots that follows the load, up to `concurrency`; not together with
    /// `slot_limit`. Default: none, the node always has `concurrency` slots.
    pub elastic: Option<Elastic>,
    /// The time that a lock lasts without a renewal. The jobs of a dead node are taken over after
    /// this time and one sweep. Default 30 s, 1 s to 24 h.
    pub lease: Duration,
    /// The time between two searches of the leader for expired leases while jobs wait or run. If it
    /// is longer than half a lease, half a lease is used. It is twice as long while the fleet is
    /// idle, so that the leader's lease does not end between two cycles. Default 10 s, 100 ms to
    /// 24 h.
    pub sweep_interval: Duration,
    /// The time for which a job must have been ready before the marker left, to be suspected of a
    /// lost hint. If it is shorter than the hook's maximum hint age plus the broker's confirm
    /// timeout, that sum is used (protocol rule 16). Default 15 s.
    pub suspect_after: Duration,
    /// The time without receiving or publishing hints after which the node takes jobs from the
    /// database until the broker works again. `None` means never: jobs then wait for the broker.
    /// Default 5 s.
    pub claim_after: Option<Duration>,
    /// The longest time for which jobs wait after a wake was lost, over a transport without a
    /// broker ([`PgTransport`](crate::PgTransport)): the leader looks for waiting jobs at this
    /// interval and wakes their lanes, and a node that hears no leader for this time claims. Jobs of
    /// plain SQL without a commit tap wait as long. Has no effect with a broker. Default 10 s,
    /// 100 ms to 24 h.
    pub claim_interval: Duration,
    /// The number of holders in a row whose death makes the job a dead letter. From the second
    /// death on the job runs alone on its node, and only deaths while it runs alone count (protocol
    /// rule 26). 0 means never. Default 3, at least 3.
    pub quarantine_after: u32,
    /// The smallest batch of hints whose jobs are held by row locks, if their handlers allow it.
    /// The jobs of smaller batches get leases
    /// ([`HandlerOptions::row_lock`](crate::HandlerOptions::row_lock)). Default 32.
    pub row_lock_from: usize,
    /// The waits between attempts of all jobs but history jobs, for jobs without a policy of their
    /// own and handlers without one ([`HandlerOptions::retry`]). Default 10 s.
    ///
    /// [`HandlerOptions::retry`]: crate::HandlerOptions::retry
    pub retry: RetryPolicy,
    /// The time from which the waits of retry policies count: the failure, or the old due date.
    /// Default: the failure.
    pub retry_from: RetryFrom,
    /// The waits between attempts of [history jobs](crate::NewJob::history), for jobs without a
    /// policy of their own and handlers without one ([`HandlerOptions::retry`]). Default 10 s.
    ///
    /// [`HandlerOptions::retry`]: crate::HandlerOptions::retry
    pub history_retry: RetryPolicy,
    /// The time for which resolved [incidents](crate::store::attempts) are kept. Default 30 days.
    pub incidents_kept: Duration,
    /// The time that running jobs have to end at shutdown before they are released. Default 60 s.
    pub shutdown_timeout: Duration,
    /// The lanes that the node receives, in their order. Default: `default`.
    pub lanes: Vec<LaneShare>,
    /// The way in which the lanes share the slots: by weight, strictly in their order, or in their
    /// order with a share for old hints. Default: weighted.
    pub lane_order: LaneOrder,
    /// The time after which a waiting hint counts as old, under [`LaneOrder::Aging`]. It counts from
    /// the publication of the hint, by the clocks of the nodes. Default 60 s, at least 1 s.
    pub lane_aging: Duration,
    /// The order in which the jobs of a lane start, among those whose hints the node holds. Lanes
    /// come first: the order never decides between jobs of two lanes. Default: the order in which
    /// their hints arrive.
    pub start_order: StartOrder,
    /// The deployments, categories, tenants and priorities whose jobs the node takes. Default: all.
    pub scope: Scope,
    /// The cipher that opens the payloads of jobs before their handlers, and seals their checkpoints
    /// and the jobs that they create in the completing transaction. A job that can't be opened fails,
    /// and is retried like any other. Default: none, jobs are plaintext.
    pub encryption: Option<Encryption>,
    /// The name of the machine in the node's row in the table `node`. Default: its host name.
    pub host: String,
    /// The name of the database, for a process with nodes of several databases. It becomes the
    /// label `database` of the node's gauges. Without it, two nodes of a process overwrite each
    /// other's gauges. Default: none.
    pub database: Option<String>,
    /// The use of the store's commit tap while this node leads. With the tap, jobs that other
    /// programs create by plain SQL start within milliseconds of their commit. Default:
    /// [`TapMode::Auto`].
    pub tap: TapMode,
    /// The options of the commit hook.
    pub hook: HookOptions,
}

crate::setters! {
    NodeOptions {
        concurrency: usize,
        slot_limit: Option<SlotLimit>,
        elastic: Option<Elastic>,
        lease: Duration,
        sweep_interval: Duration,
        suspect_after: Duration,
        claim_after: Option<Duration>,
        claim_interval: Duration,
        quarantine_after: u32,
        row_lock_from: usize,
        retry: RetryPolicy,
        retry_from: RetryFrom,
        history_retry: RetryPolicy,
        incidents_kept: Duration,
        shutdown_timeout: Duration,
        lanes: Vec<LaneShare>,
        lane_order: LaneOrder,
        lane_aging: Duration,
        start_order: StartOrder,
        scope: Scope,
        encryption: Option<Encryption>,
        host: String,
        database: Option<String>,
        tap: TapMode,
        hook: HookOptions,
    }
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            concurrency: 64,
            slot_limit: None,
            elastic: None,
            lease: Duration::from_secs(30),
            sweep_interval: Duration::from_secs(10),
            suspect_after: Duration::from_secs(15),
            claim_after: Some(Duration::from_secs(5)),
            claim_interval: Duration::from_secs(10),
            quarantine_after: 3,
            row_lock_from: RowTerms::default().from,
            retry: RetryPolicy::default(),
            retry_from: RetryFrom::default(),
            history_retry: RetryPolicy::default(),
            incidents_kept: Duration::from_secs(30 * 24 * 3_600),
            shutdown_timeout: Duration::from_secs(60),
            lanes: vec![Lane::default().into()],
            lane_order: LaneOrder::default(),
            lane_aging: Duration::from_secs(60),
            start_order: StartOrder::default(),
            scope: Scope::default(),
            encryption: None,
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            database: None,
            tap: TapMode::Auto,
            hook: HookOptions::default(),
        }
    }
}

/// An invalid option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option `{option}` {problem}")]
pub struct BadOption {
    /// The name of the option.
    pub option: &'static str,
    /// The problem and the remedy.
    pub problem: String,
}

impl NodeOptions {
    /// Checks every option.
    ///
    /// # Errors
    /// All invalid options at once.
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
            self.lease <= LONGEST,
            "lease",
            "must be at most 24h: a dead node's jobs wait that long",
        );
        check(
            self.sweep_interval >= Duration::from_millis(100),
            "sweep_interval",
            "must be at least 100ms",
        );
        check(
            self.sweep_interval <= LONGEST,
            "sweep_interval",
            "must be at most 24h: jobs whose hints were lost wait that long",
        );
        check(
            self.suspect_after >= self.hook.max_age,
            "suspect_after",
            "must not be shorter than `hook.max_age` (setting `hint_max_age`): hints that still \
             wait to be published would be doubled; raise this one as well",
        );
        check(
            self.claim_after
                .is_none_or(|after| after >= Duration::from_millis(100)),
            "claim_after",
            "must be at least 100ms, so that a connection can break and come back, or `off` to \
             never claim",
        );
        check(
            self.claim_interval >= Duration::from_millis(100),
            "claim_interval",
            "must be at least 100ms: each costs a statement of the leader",
        );
        check(
            self.claim_interval <= LONGEST,
            "claim_interval",
            "must be at most 24h: a node whose connection is lost in silence claims nothing for so \
             long",
        );
        check(
            self.quarantine_after == 0 || self.quarantine_after >= 3,
            "quarantine_after",
            "must be at least 3 (or 0 for never)",
        );
        check(
            self.row_lock_from >= 1,
            "row_lock_from",
            "must be at least 1",
        );
        check(
            self.lane_aging >= Duration::from_secs(1),
            "lane_aging",
            "must be at least 1s: younger hints than that come in the order of the lanes",
        );
        if let Some(elastic) = &self.elastic {
            if let Some((option, problem)) = elastic.mistake(self.concurrency) {
                check(false, option, &problem);
            }
            check(
                self.slot_limit.is_none(),
                "elastic",
                "can't be used together with `slot_limit`, which sets the number of slots, too",
            );
        }
        let (min, max) = (self.scope.min_priority, self.scope.max_priority);
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let problem = format!("is {min}, more than `max_priority` {max}; swap them");
            check(false, "min_priority", &problem);
        }
        for problem in order::problems(&self.lanes, self.lane_order) {
            check(false, "lanes", &problem);
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Returns the time that a leader leads without a leader cycle. It is at most the lease of a
    /// job, so that a dead leader delays no takeover.
    pub(crate) fn leader_lease(&self) -> Duration {
        self.lease.min(self.sweep_interval * 5 / 2)
    }

    /// Returns the age from which a job is suspected of a lost hint, over a broker with this
    /// confirm timeout. Until that age its hint may still be published (protocol rule 16).
    #[must_use]
    pub fn suspected_after(&self, confirm_timeout: Duration) -> Duration {
        self.suspect_after
            .max(self.hook.max_age.saturating_add(confirm_timeout))
    }

    /// Returns the time within which every living node has renewed its leases. They are due after a
    /// third of the lease, and attempts are a twelfth of it apart.
    pub(crate) fn renewal_period(&self) -> Duration {
        self.lease / 2
    }

    /// Returns the time from one leader cycle to the next while jobs wait or run. Leases end after
    /// an outage of two thirds of a lease. At least one cycle falls into such an outage, so the
    /// leader notices it (protocol rule 25).
    pub(crate) fn busy_interval(&self) -> Duration {
        self.sweep_interval.min(self.renewal_period())
    }

    /// Returns the number of slots that rescued jobs may take. It does not follow the slots of an
    /// elastic node: a node with few slots would never grow for them.
    pub(crate) fn struck_slots(&self) -> usize {
        (self.concurrency / 4).max(1)
    }

    /// Returns whether the node receives hints of this lane.
    pub(crate) fn receives(&self, lane: &Lane) -> bool {
        self.lanes.iter().any(|share| share.lane == *lane)
    }

    /// Returns the time of silence after which a node gets no jobs.
    pub(crate) fn heard_within(&self) -> Duration {
        (self.sweep_interval * 3 / 2).max(Duration::from_secs(2))
    }

    /// Returns the number of slots at the start.
    pub(crate) fn first_slots(&self) -> usize {
        let first = self.elastic.map_or(self.concurrency, |elastic| elastic.min);
        first.min(self.concurrency)
    }

    /// Returns the lanes without their weights.
    pub(crate) fn lane_names(&self) -> Vec<Lane> {
        self.lanes.iter().map(|share| share.lane.clone()).collect()
    }

    /// Returns the maximum number of unsettled messages: enough to fill these slots twice, and at
    /// least two for each lane, so that no lane blocks another.
    pub(crate) fn prefetch(&self, slots: usize) -> u16 {
        let wanted = slots.max(self.lanes.len()).saturating_mul(2);
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
    fn the_leaders_lease_is_at_most_a_jobs_and_outlasts_two_sweeps() {
        let seconds = Duration::from_secs;
        for (lease, sweep, leader) in [(30, 10, 25), (30, 20, 30), (600, 10, 25), (2, 1, 2)] {
            let mut options = NodeOptions::default();
            (options.lease, options.sweep_interval) = (seconds(lease), seconds(sweep));
            assert_eq!(options.leader_lease(), seconds(leader));
        }
    }

    #[test]
    fn intervals_have_bounds() {
        type Set = fn(&mut NodeOptions, Duration);
        let settings: [(&str, Set, Duration); 3] = [
            ("lease", |of, to| of.lease = to, Duration::from_secs(1)),
            (
                "sweep_interval",
                |of, to| of.sweep_interval = to,
                Duration::from_millis(100),
            ),
            (
                "claim_interval",
                |of, to| of.claim_interval = to,
                Duration::from_millis(100),
            ),
        ];
        let nano = Duration::from_nanos(1);
        for (name, set, least) in settings {
            let wrong = |to| {
                let mut options = NodeOptions::default();
                set(&mut options, to);
                let wrong = options.validate().err().unwrap_or_default();
                wrong.iter().any(|bad| bad.option == name)
            };
            assert!(!wrong(least) && !wrong(LONGEST), "{name}");
            assert!(wrong(least - nano) && wrong(LONGEST + nano), "{name}");
            assert!(wrong(Duration::MAX), "{name}");
        }
    }

    #[test]
    fn an_empty_range_of_priorities_is_refused() {
        let range = |min, max| {
            let scope = Scope::default().min_priority(min).max_priority(max);
            NodeOptions::default().scope(scope).validate()
        };
        assert!(range(5, 5).is_ok());
        let said = range(6, 5).expect_err("empty")[0].to_string();
        assert!(said.contains("`min_priority` is 6, more than"), "{said}");
    }

    #[test]
    fn an_outage_in_which_leases_end_meets_a_turn() {
        let mut options = NodeOptions::default();
        assert_eq!(options.busy_interval(), options.sweep_interval);
        options.sweep_interval = Duration::from_secs(300);
        // A lease is renewed after a third of it, so an outage of two thirds ends it.
        assert!(options.busy_interval() < options.lease * 2 / 3);
    }
}
