//! Every metric, in one table: name, kind, unit, labels, meaning. Dashboards, alert rules and
//! docs/reference/metrics.md use these names and no others; a test compares them.
//!
//! Stage latencies add up: `commit_to_publish + publish_to_receive + receive_to_lock + lock_to_start`
//! is `commit_to_start` (up to clock skew between producer and worker, which is counted, not hidden).
//! Labels never hold ids: their number stays bounded.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, in [`SECONDS_BUCKETS`].
    Seconds,
    /// Counts, in [`COUNT_BUCKETS`].
    Count,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name, as scraped.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// Histogram bounds for latencies, in seconds: fine where targets are (milliseconds), up to an hour.
pub const SECONDS_BUCKETS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];
/// Histogram bounds for batch sizes.
pub const COUNT_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

macro_rules! metrics {
    ($($const:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)+) => {
        $(#[doc = $help] pub const $const: &str = $name;)+
        /// The table.
        pub const ALL: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help }),+
        ];
    };
}

metrics! {
    COMMIT_TO_PUBLISH = "jobwire_commit_to_publish_seconds" Seconds ["lane"]
        "From COMMIT's return to the broker's confirm, on the producer.";
    PUBLISH_TO_RECEIVE = "jobwire_publish_to_receive_seconds" Seconds ["lane"]
        "From publishing a hint to its arrival at a worker.";
    RECEIVE_TO_LOCK = "jobwire_receive_to_lock_seconds" Seconds ["lane"]
        "From a hint's arrival to the committed lock.";
    LOCK_TO_START = "jobwire_lock_to_start_seconds" Seconds ["lane"]
        "From the committed lock to the start of the handler.";
    COMMIT_TO_START = "jobwire_commit_to_start_seconds" Seconds ["lane"]
        "From COMMIT's return (or, where unknown, from when the job became ready) to the start of the handler.";
    QUEUE_WAIT = "jobwire_queue_wait_seconds" Seconds ["type"]
        "Start minus the later of due date and commit: what a job's user waited for.";
    EXECUTION = "jobwire_execution_seconds" Seconds ["type", "outcome"]
        "How long the handler ran.";
    FINISH_TO_COMPLETE = "jobwire_finish_to_complete_seconds" Seconds []
        "From the handler's end to the committed outcome.";
    NEGATIVE_LATENCY = "jobwire_negative_latency_total" Counter ["stage"]
        "Latencies below zero: the producer's and the worker's clocks differ.";

    JOBS_CREATED = "jobwire_jobs_created_total" Counter ["lane"]
        "Jobs that were ready when their creating transaction committed in this process; timers are not among them.";
    JOBS_FINISHED = "jobwire_jobs_finished_total" Counter ["type", "outcome"]
        "Attempts by outcome: done, retry, snooze, dead-letter, conflict, panic, timeout, quarantined, interrupted, lost-lock, unknown.";
    JOBS_LOCKED = "jobwire_jobs_locked_total" Counter ["source"]
        "Jobs locked by this node, by source: hint, hand-over, claim, timer.";
    CLAIMING = "jobwire_claiming" Gauge ["lane"]
        "1 while this node takes the lane's jobs from the database, because hints can't be received or not be published, or don't come yet.";
    JOBS_IN_FLIGHT = "jobwire_jobs_in_flight" Gauge []
        "Jobs that this node holds.";
    SLOTS = "jobwire_slots" Gauge []
        "Jobs that this node may run at once.";

    HINTS_PUBLISHED = "jobwire_hints_published_total" Counter ["lane", "cause"]
        "Hints confirmed by the broker, by cause: commit, timer, hand-over, sweep, give-back, operator.";
    HINTS_DROPPED = "jobwire_hints_dropped_total" Counter ["lane", "reason"]
        "Hints left to the sweeper, by reason: full, stale, failed, closed.";
    HINTS_BUFFERED = "jobwire_hints_buffered" Gauge []
        "Hints that wait to be published.";
    HINTS_RECEIVED = "jobwire_hints_received_total" Counter ["lane"]
        "Hints that this node took from its broker. Each of them is decided or returned in the end, while the node lives.";
    HINTS_DECIDED = "jobwire_hints_decided_total" Counter ["lane"]
        "Hints whose job was locked, or refused for good; a message is settled with the last of its hints.";
    HINTS_RETURNED = "jobwire_hints_returned_total" Counter ["lane"]
        "Hints given back to the broker undecided: no slot was free for long, better lanes had them all, leases could not be renewed, the node stopped.";
    HINTS_REFUSED = "jobwire_hints_refused_total" Counter ["reason"]
        "Hints whose job was not locked, by reason: gone, locked, instance-held, suspended, unserved (by this node and all that it has heard), refused (by the database, which locks others), busy.";
    HINTS_FORWARDED = "jobwire_hints_forwarded_total" Counter []
        "Jobs of types that this node does not serve, passed on to a node that does.";
    HINTS_UNREADABLE = "jobwire_hints_unreadable_total" Counter ["lane"]
        "Messages on a lane that are no hints; settled and logged.";
    HINTS_REDELIVERED = "jobwire_hints_redelivered_total" Counter ["lane"]
        "Hints that the broker says somebody had before.";

    LOCK_BATCH = "jobwire_lock_batch_size" Count []
        "Hints asked for in one lock statement.";
    COMPLETE_BATCH = "jobwire_complete_batch_size" Count []
        "Jobs completed in one statement.";
    STATEMENT = "jobwire_statement_seconds" Seconds ["statement"]
        "How long the store took, by statement: lock, claim, renew, complete, fail, release, move_due_timers, run_leader_cycle, orphans, insert.";
    STATEMENT_ERRORS = "jobwire_statement_errors_total" Counter ["statement", "class"]
        "Failed statements by class: conflict, transient, permanent.";

    SET_ASIDE = "jobwire_jobs_set_aside_total" Counter ["operation"]
        "Jobs that became dead letters because the database refused their rows and took the others of the same batch, or because their rows can't be read.";
    STUCK_BATCHES = "jobwire_stuck_batches" Gauge ["operation"]
        "1 while the database refuses a batch of this operation, or rows of one that could not be set aside; this node tries again and again.";

    TYPES_CLOSED = "jobwire_types_closed" Gauge []
        "Types with a handler of which this node locks no jobs, since the database refuses too many of their outcomes.";

    LEASES_RENEWED = "jobwire_leases_renewed_total" Counter []
        "Leases renewed.";
    LEASES_RECONCILED = "jobwire_leases_reconciled_total" Counter ["how"]
        "Leases that named this node although no answer had told it of them, since an answer was lost: adopted or released.";
    LEASES_LOST = "jobwire_leases_lost_total" Counter []
        "Leases that this node lost while it held them.";
    FENCED = "jobwire_fenced_total" Counter ["operation"]
        "Completions, failures and releases refused because the lock was lost.";

    EXECUTABLE = "jobwire_executable_jobs" Gauge []
        "Executable jobs, exact up to 10,000, estimated beyond; reported by the leader.";
    TIMERS = "jobwire_timer_jobs" Gauge []
        "Timers and waiting retries; reported by the leader.";
    DEAD_LETTERS = "jobwire_dead_letter_jobs" Gauge []
        "Dead letters; reported by the leader.";
    LEASED = "jobwire_leased_jobs" Gauge []
        "Jobs with a living lock, fleet-wide; reported by the leader.";
    OLDEST_AGE = "jobwire_oldest_executable_age_seconds" Gauge []
        "How long the oldest executable job has been ready; reported by the leader.";
    UNRECEIVED = "jobwire_unreceived_jobs" Gauge ["lane"]
        "Executable jobs that wait in a lane which no living node receives, as far as the leader hears over its broker; reported by the leader.";
    TIMER_LATENESS = "jobwire_timer_lateness_seconds" Seconds []
        "How late due timers were made executable.";

    LEADER = "jobwire_leader" Gauge []
        "1 on the leading node.";
    CLOCK_JUMPS = "jobwire_database_clock_jumps_total" Counter []
        "Jumps of the database's clock that the leader saw: it then took no locks off anybody for one lease.";
    SWEPT = "jobwire_swept_total" Counter ["class"]
        "What the sweeper healed, by class: expired, unhinted, orphan, instance.";
    MARKER_ROUND_TRIP = "jobwire_marker_round_trip_seconds" Seconds ["lane"]
        "From sending a marker down a lane to its return.";
    BROKER_UP = "jobwire_broker_up" Gauge ["direction"]
        "1 while messages can go this way: publish, receive.";
    BROKER_BLOCKED = "jobwire_broker_blocked" Gauge []
        "1 while the broker takes no messages (memory or disk alarm).";
    BROKER_RECONNECTS = "jobwire_broker_reconnects_total" Counter ["direction"]
        "Connections to the broker made anew.";
    BROKER_ROUND_TRIP = "jobwire_broker_round_trip_seconds" Seconds ["direction"]
        "How long the broker takes to answer when it is asked for nothing, one sample an interval: publish, receive.";
    BROKER_UNCONFIRMED = "jobwire_broker_unconfirmed_messages" Gauge []
        "Messages that this process has handed to the broker's client and that the broker has not confirmed yet.";
    LANE_WAITING = "jobwire_lane_waiting_messages" Gauge ["lane"]
        "Messages of the lane that wait in the broker (RabbitMQ: ready; Kafka: the group's lag). Every node says the same of a lane: take the maximum.";
    LANE_UNSETTLED = "jobwire_lane_unsettled_messages" Gauge ["lane"]
        "Messages of the lane that this node has taken and not settled yet.";
    LANE_CONSUMERS = "jobwire_lane_consumers" Gauge ["lane"]
        "Consumers of the lane over all nodes, where the broker tells (RabbitMQ): take the maximum.";
    TASK_RESTARTS = "jobwire_task_restarts_total" Counter ["task"]
        "Background tasks that died and were started again.";
    POOL_CONNECTIONS = "jobwire_pool_connections" Gauge ["state"]
        "Database connections of this process: idle, used.";
    BUILD_INFO = "jobwire_build_info" Gauge ["version", "store", "transport"]
        "Always 1.";
}

/// Register units and help texts with the installed recorder, once, at start.
pub fn describe() {
    use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    for metric in ALL {
        match metric.kind {
            Kind::Counter => {
                describe_counter!(metric.name, metric.help);
                if metric.labels.is_empty() {
                    // Seen from its first scrape on: what is missing can't be told from zero, and
                    // nothing can grow from missing to one.
                    ::metrics::counter!(metric.name).increment(0);
                }
            }
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Seconds => describe_histogram!(metric.name, Unit::Seconds, metric.help),
            Kind::Count => describe_histogram!(metric.name, Unit::Count, metric.help),
        }
    }
}

/// Record a latency between two moments of possibly different clocks: below zero it is counted as skew
/// and recorded as zero.
pub(crate) fn latency(
    histogram: &::metrics::Histogram,
    stage: &'static str,
    from: chrono::DateTime<chrono::Utc>,
    to: chrono::DateTime<chrono::Utc>,
) {
    let micros = (to - from).num_microseconds().unwrap_or(i64::MAX);
    if micros < 0 {
        ::metrics::counter!(NEGATIVE_LATENCY, "stage" => stage).increment(1);
    }
    #[allow(clippy::cast_precision_loss, reason = "a latency needs no 53 bits")]
    let seconds = micros.max(0) as f64 / 1e6;
    histogram.record(seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for metric in ALL {
            assert!(metric.name.starts_with("jobwire_"), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{}",
                metric.name
            );
            if metric.kind == Kind::Seconds {
                assert!(metric.name.ends_with("_seconds"), "{}", metric.name);
            }
        }
        let mut names: Vec<_> = ALL.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
