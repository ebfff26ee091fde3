//! Every metric, in one table: name, kind, unit, labels, meaning. Dashboards, alert rules and
//! docs/reference/metrics.md use these names and no others; a test compares them.
//!
//! Stage latencies add up: `commit_to_publish + publish_to_receive + receive_to_lock +
//! lock_to_start` is `commit_to_start`, up to the clock skew between producer and worker, which is
//! counted. Labels never hold ids, so their number stays bounded.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A histogram of seconds, in [`SECONDS_BUCKETS`].
    Seconds,
    /// A histogram of counts, in [`COUNT_BUCKETS`].
    Count,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name, as scraped.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// Histogram bounds for latencies, in seconds: fine around the targets (milliseconds), up to an
/// hour.
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
        /// All metrics.
        pub const ALL: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help }),+
        ];
    };
}

metrics! {
    COMMIT_TO_PUBLISH = "jobwire_commit_to_publish_seconds" Seconds ["lane"]
        "From COMMIT's return to the broker's confirm, on the producer.";
    PUBLISH_TO_RECEIVE = "jobwire_publish_to_receive_seconds" Seconds ["lane"]
        "From publishing a hint to its arrival at a node.";
    RECEIVE_TO_LOCK = "jobwire_receive_to_lock_seconds" Seconds ["lane"]
        "From a hint's arrival to the committed lock.";
    LOCK_TO_START = "jobwire_lock_to_start_seconds" Seconds ["lane"]
        "From the committed lock to the start of the handler.";
    COMMIT_TO_START = "jobwire_commit_to_start_seconds" Seconds ["lane"]
        "From COMMIT's return, or if it is unknown from when the job became ready, to the start \
         of the handler.";
    QUEUE_WAIT = "jobwire_queue_wait_seconds" Seconds ["type"]
        "From the later of due date and commit to the start: the waiting time of the job's user.";
    EXECUTION = "jobwire_execution_seconds" Seconds ["type", "outcome"]
        "Duration of the handler's run.";
    FINISH_TO_COMPLETE = "jobwire_finish_to_complete_seconds" Seconds []
        "From the handler's end to the committed outcome.";
    NEGATIVE_LATENCY = "jobwire_negative_latency_total" Counter ["stage"]
        "Latencies below zero: the clocks of producer and worker differ.";

    JOBS_CREATED = "jobwire_jobs_created_total" Counter ["lane"]
        "Jobs that were ready when their creating transaction committed in this process, without \
         timers.";
    JOBS_FINISHED = "jobwire_jobs_finished_total" Counter ["type", "outcome"]
        "Attempts by outcome: done, retry, snooze, dead-letter, conflict, panic, timeout, cancelled, \
         quarantined, interrupted, lost-lock, unknown.";
    JOBS_LOCKED = "jobwire_jobs_locked_total" Counter ["source"]
        "Jobs locked by this node, by source: hint, hand-over, claim, timer.";
    JOBS_PARKED = "jobwire_jobs_parked_total" Counter ["type"]
        "Jobs that this node locked and that wait for a permit now, because the limit of their key is \
         reached.";
    JOBS_WAITING = "jobwire_jobs_waiting_for_permit" Gauge ["type"]
        "Jobs that wait for a permit of a limit, for the 20 types with most of them; reported by the \
         leader.";
    CLAIMING = "jobwire_claiming" Gauge ["lane"]
        "1 while this node claims the lane's jobs from the database, because hints cannot be \
         received or published, or do not arrive yet.";
    JOBS_IN_FLIGHT = "jobwire_jobs_in_flight" Gauge []
        "Jobs that this node holds.";
    SLOTS = "jobwire_slots" Gauge []
        "Jobs that this node may run at once.";
    ELASTIC_SLOTS = "jobwire_elastic_slots" Gauge []
        "Slots that a node with elastic concurrency uses now.";

    HINTS_PUBLISHED = "jobwire_hints_published_total" Counter ["lane", "cause"]
        "Hints that the broker confirmed, by cause: commit, timer, hand-over, sweep, tap, \
         give-back, operator.";
    HINTS_DROPPED = "jobwire_hints_dropped_total" Counter ["lane", "reason"]
        "Hints that were dropped, by reason: full, stale, failed, closed. The sweeper finds their \
         jobs.";
    HINTS_BUFFERED = "jobwire_hints_buffered" Gauge []
        "Hints that wait to be published.";
    HINTS_RECEIVED = "jobwire_hints_received_total" Counter ["lane"]
        "Hints that this node received from its broker. Each is decided or returned later, while \
         the node lives.";
    HINTS_DECIDED = "jobwire_hints_decided_total" Counter ["lane"]
        "Hints whose job was locked, or finally refused; a message is settled with the last of its \
         hints.";
    HINTS_RETURNED = "jobwire_hints_returned_total" Counter ["lane"]
        "Hints requeued undecided: no slot became free in time, better lanes took all slots, \
         leases could not be renewed, or the node stopped.";
    HINTS_REFUSED = "jobwire_hints_refused_total" Counter ["reason"]
        "Hints whose job was not locked, by reason: gone, locked, instance-held, suspended, \
         unserved (by this node and all others that it knows), refused (by the database, which \
         locks other jobs), busy.";
    HINTS_FORWARDED = "jobwire_hints_forwarded_total" Counter []
        "Jobs that this node does not serve, forwarded to a node that does.";
    HINTS_UNREADABLE = "jobwire_hints_unreadable_total" Counter ["lane"]
        "Messages in a lane that are not hints; they are settled and logged.";
    HINTS_REDELIVERED = "jobwire_hints_redelivered_total" Counter ["lane"]
        "Hints that the broker marks as delivered before.";

    EVENTS_DROPPED = "jobwire_events_dropped_total" Counter ["reason"]
        "Events that a listener of this process was not told, or not to its end, by reason: full (it \
         is too slow), panicked, no-thread.";

    STREAM_PUBLISHED = "jobwire_event_stream_published_total" Counter ["kind"]
        "Events of the event stream that the broker has confirmed to this leader, by kind. An event \
         that is published again after a failure counts again.";
    STREAM_FAILURES = "jobwire_event_stream_failures_total" Counter []
        "Attempts of this leader to publish waiting events after which some of them were unconfirmed.";
    STREAM_DROPPED = "jobwire_event_stream_dropped_total" Counter []
        "Events of the event stream that were dropped, because they had waited for longer than the \
         stream keeps them, or could not be read.";
    STREAM_WAITING = "jobwire_event_stream_waiting" Gauge []
        "Events that wait to be published, counted up to 100,000; on the leader only, while the \
         stream is switched on.";
    STREAM_OLDEST = "jobwire_event_stream_oldest_seconds" Gauge []
        "Age of the oldest event that waits to be published; on the leader only, while the stream is \
         switched on.";

    OPEN_BATCHES = "jobwire_open_batches" Gauge []
        "Batches of jobs whose members have not all ended, as of the last look of the leader at all of \
         them; reported by the leader.";
    BATCHES_ENDED = "jobwire_batches_ended_total" Counter ["outcome"]
        "Batches of jobs that this process has ended, by outcome: done, dead-letters (at least one \
         member was a dead letter), cancelled (by a client of this process).";

    LOCK_BATCH = "jobwire_lock_batch_size" Count []
        "Hints in one lock statement.";
    COMPLETE_BATCH = "jobwire_complete_batch_size" Count []
        "Jobs completed in one statement.";
    STATEMENT = "jobwire_statement_seconds" Seconds ["statement"]
        "Duration of a call of the store, by statement: lock, claim, renew, complete, fail, \
         release, move_due_timers, take_turn, orphans, insert.";
    STATEMENT_ERRORS = "jobwire_statement_errors_total" Counter ["statement", "class"]
        "Failed statements by class: conflict, transient, permanent.";

    SET_ASIDE = "jobwire_jobs_set_aside_total" Counter ["operation"]
        "Jobs that became dead letters because the database refused their rows and accepted the \
         rest of the batch, or because their rows cannot be read.";
    STUCK_BATCHES = "jobwire_stuck_batches" Gauge ["operation"]
        "1 while the database refuses a batch of this operation, or rows that could not be set \
         aside; the node keeps trying.";

    TYPES_CLOSED = "jobwire_types_closed" Gauge []
        "Types with a handler whose jobs this node does not lock, because the database refuses \
         too many of their outcomes.";

    LEASES_RENEWED = "jobwire_leases_renewed_total" Counter []
        "Leases renewed.";
    LEASES_RECONCILED = "jobwire_leases_reconciled_total" Counter ["how"]
        "Lost leases that this node found after a database answer was lost, by outcome: adopted, \
         released.";
    LEASES_LOST = "jobwire_leases_lost_total" Counter []
        "Leases that this node lost before the outcomes of their jobs were committed.";
    FENCED = "jobwire_fenced_total" Counter ["operation"]
        "Completions, failures and releases that were refused because the lock was lost.";

    EXECUTABLE = "jobwire_executable_jobs" Gauge []
        "Executable jobs, exact up to 10,000, estimated beyond; reported by the leader.";
    TIMERS = "jobwire_timer_jobs" Gauge []
        "Timers and waiting retries; reported by the leader.";
    DEAD_LETTERS = "jobwire_dead_letter_jobs" Gauge []
        "Dead letters; reported by the leader.";
    SUSPENSIONS = "jobwire_suspensions" Gauge ["scope"]
        "Suspensions and pauses, by scope: process_instance, process_definition, definition_key, element, \
         type, tenant, pause_type, pause_category, pause_lane, pause_all; reported by the leader.";
    LEASED = "jobwire_leased_jobs" Gauge []
        "Jobs that a node holds by a lease, fleet-wide; reported by the leader.";
    OLDEST_AGE = "jobwire_oldest_executable_age_seconds" Gauge []
        "Time for which the oldest executable job has been ready; reported by the leader.";
    UNRECEIVED = "jobwire_unreceived_jobs" Gauge ["lane"]
        "Executable jobs in a lane that no living node receives, as far as the leader knows from \
         beats; reported by the leader.";
    UNSERVED_JOBS = "jobwire_unserved_jobs" Gauge ["type"]
        "Unlocked executable jobs that no living node takes: none serves their type, or none of the type \
         takes their tenant, category, deployment or priority. For the 20 types with most of them; \
         reported by the leader while jobs wait.";
    PRIORITY_GAPS = "jobwire_priority_gaps" Gauge []
        "Ranges of priorities that no living node takes, although one takes other priorities of the \
         same types; reported by the leader while jobs wait.";
    TIMER_LATENESS = "jobwire_timer_lateness_seconds" Seconds []
        "From the due date of a timer to when it became executable.";

    LEADER = "jobwire_leader" Gauge []
        "1 on the leading node.";
    CLOCK_JUMPS = "jobwire_database_clock_jumps_total" Counter []
        "Jumps of the database's clock that the leader saw; after each it ends no lease for the \
         length of one lease.";
    SWEPT = "jobwire_swept_total" Counter ["class"]
        "Jobs that the sweeper hinted, by class: expired, unhinted, orphan, instance.";
    TAP_STANDING = "jobwire_tap_standing" Gauge []
        "1 while this node leads and its commit tap reports the commits of other programs.";
    TAP_ROWS = "jobwire_tap_rows_total" Counter ["kind"]
        "Jobs and timers of plain SQL that the commit tap reported, by kind: job, timer.";
    TAP_GAPS = "jobwire_tap_gaps_total" Counter []
        "Losses of a standing commit tap. The leader finds the missed jobs within a second.";
    TAP_EARLY = "jobwire_tap_early_jobs_total" Counter ["outcome"]
        "Jobs that the commit tap reported before their rows were visible, by outcome: hinted \
         (within milliseconds), left (to the leader cycle).";
    TAP_COMMIT_TO_HINT = "jobwire_tap_commit_to_hint_seconds" Seconds []
        "From the commit of a job of plain SQL, by the database's clock, to its hint being given \
         to the broker's client.";
    ENGINE_OUTCOMES = "jobwire_engine_outcomes_total" Counter ["engine", "outcome"]
        "Executed jobs of a process engine by outcome, as its rows show it: done, retry, \
         dead-letter, suspended, released (rolled back without a trace), unknown (the lock stays \
         until it expires), lost-lock, busy (tried again).";
    ENGINE_EXECUTION = "jobwire_engine_execution_seconds" Seconds ["engine", "answer"]
        "Time to the process engine's answer to a request to execute a job, without the wait of a \
         job of a list, by answer: executed, refused, given-back, unrecorded (the engine could not \
         record a failure), not-begun (a job of a list that would have begun too late), missing, \
         unusable, unsent, unanswered.";
    ENGINE_EXECUTIONS = "jobwire_engine_executions" Gauge ["engine"]
        "Jobs sent to the process engine by this node, and not answered yet: at most \
         `engine_concurrency`. Over an execution endpoint that takes lists at most three times as \
         many, since jobs of lists may wait within the engine.";
    ENGINE_UNANSWERED = "jobwire_engine_unanswered_executions" Gauge ["engine"]
        "Executions that gave no answer and may still run. Their jobs stay locked meanwhile.";
    ENGINE_FAILURES = "jobwire_engine_failed_executions_total" Counter ["engine", "class"]
        "Executions that the process engine ended with an error, by outcome, as its rows show it: \
         counted (an attempt), conflict (rolled back, no attempt), suspended, gone, unseen (the \
         rows could not be read).";
    ENGINE_BREAKER = "jobwire_engine_breaker_open" Gauge ["engine"]
        "1 while this node sends the process engine nothing but trials, because none of its addresses \
         can be reached or can execute anything.";
    ENGINE_ADDRESSES_AWAY = "jobwire_engine_addresses_away" Gauge ["engine"]
        "Addresses of the process engine to which this node sends nothing but trials, because they \
         can't be reached or can't execute anything.";
    ENGINE_UNSERVED = "jobwire_engine_unserved_jobs" Gauge ["engine", "why"]
        "Jobs of the process engine that no living node can let it execute, by the reason: reach (no \
         address has their deployment or category; they wait, and no attempt is spent), scope (they are \
         not of processes, such as those of cases). Counted by the leader, up to 100,000 jobs.";
    ENGINE_ZONE = "jobwire_engine_zone_wrong" Gauge ["engine"]
        "1 while the process engine's newest rows show that its clock differs from `engine_zone`, as this \
         node has read them at its start and once a minute in the leader's cycles.";
    ENGINE_RESCUED = "jobwire_engine_rescued_total" Counter ["engine", "class"]
        "Expired locks in a process engine's tables that the leader cleared, by class: \
         job-of-jobwire, job-of-engine, timer-of-engine, instance.";
    ENGINE_CANCELLED = "jobwire_engine_cancelled_statements_total" Counter ["engine"]
        "Statements of the process engine that the watchdog cancelled, because they waited for the \
         engine's own idle transactions.";
    ENGINE_UNKNOWN_IDS = "jobwire_engine_unknown_ids_total" Counter ["kind"]
        "Rows of process engines that were left alone, because the id of the job has an unknown \
         form, by kind of engine.";
    MARKER_ROUND_TRIP = "jobwire_marker_round_trip_seconds" Seconds ["lane"]
        "From sending a marker down a lane to its return.";
    BROKER_UP = "jobwire_broker_up" Gauge ["direction"]
        "1 while the broker can be used in this direction: publish, receive.";
    BROKER_BLOCKED = "jobwire_broker_blocked" Gauge []
        "1 while the broker accepts no messages (memory or disk alarm).";
    BROKER_RECONNECTS = "jobwire_broker_reconnects_total" Counter ["direction"]
        "Reconnections to the broker.";
    BROKER_ROUND_TRIP = "jobwire_broker_round_trip_seconds" Seconds ["direction"]
        "Duration of an empty request to the broker, one sample per interval: publish, receive.";
    BROKER_UNCONFIRMED = "jobwire_broker_unconfirmed_messages" Gauge []
        "Messages that this process has passed to the broker's client and that the broker has not \
         confirmed yet.";
    LANE_WAITING = "jobwire_lane_waiting_messages" Gauge ["lane"]
        "Messages of the lane that wait in the broker (RabbitMQ: ready; Kafka: the group's lag). \
         Every node reports the same value: take the maximum.";
    LANE_UNSETTLED = "jobwire_lane_unsettled_messages" Gauge ["lane"]
        "Messages of the lane that this node has received and not settled yet.";
    LANE_CONSUMERS = "jobwire_lane_consumers" Gauge ["lane"]
        "Consumers of the lane on all nodes, if the broker reports them (RabbitMQ): take the \
         maximum.";
    TASK_RESTARTS = "jobwire_task_restarts_total" Counter ["task"]
        "Background tasks that died and were started again.";
    POOL_CONNECTIONS = "jobwire_pool_connections" Gauge ["state"]
        "Database connections of this process: idle, used.";
    BUILD_INFO = "jobwire_build_info" Gauge ["version", "store", "transport"]
        "Always 1.";
}

/// Registers units and help texts with the installed recorder. Called once, at start.
pub fn describe() {
    use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    for metric in ALL {
        match metric.kind {
            Kind::Counter => {
                describe_counter!(metric.name, metric.help);
                if metric.labels.is_empty() {
                    // Present from the first scrape on: a missing series looks the same as zero,
                    // and no growth is seen from missing to one.
                    ::metrics::counter!(metric.name).increment(0);
                }
            }
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Seconds => describe_histogram!(metric.name, Unit::Seconds, metric.help),
            Kind::Count => describe_histogram!(metric.name, Unit::Count, metric.help),
        }
    }
}

/// Records a latency between two times, which may come from different clocks. A negative latency is
/// counted as skew and recorded as zero.
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
