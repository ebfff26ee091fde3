//! The triggers of the event stream. They exist while the stream is switched on.
//!
//! A job moves by an insertion into its new table and a deletion from its old one, in this order. So
//! the insertion of a job that is in another table is told as its move, and the deletion of a job that
//! is in no other table as its end. While a lease with an owner exists, a deletion without a
//! [`Cause`](super::event_stream::Cause) is the completion of the job.

/// The names of the triggers.
pub(super) const NAMES: [&str; 13] = [
    "event_job_added",
    "event_timer_added",
    "event_suspended_added",
    "event_letter_added",
    "event_job_removed",
    "event_timer_removed",
    "event_suspended_removed",
    "event_letter_removed",
    "event_job_changed",
    "event_timer_changed",
    "event_suspended_changed",
    "event_leased",
    "event_leased_again",
];

const CAUSE: &str = "(SELECT cause FROM event_cause)";

/// A trigger that writes events of a job.
struct Trigger {
    name: &'static str,
    /// Its moment and condition.
    when: String,
    /// The row of the job: `NEW`, `OLD` or the name of a table in `from`.
    job: &'static str,
    /// An array of kinds, as an expression.
    kinds: String,
    /// Expressions of these columns, in terms of the kind `k.value`.
    attempt: String,
    due_at: &'static str,
    message: &'static str,
    node: &'static str,
    fence: &'static str,
    from: &'static str,
}

impl Trigger {
    fn new(name: &'static str, when: impl Into<String>, kinds: impl Into<String>) -> Self {
        Self {
            name,
            when: when.into(),
            job: "NEW",
            kinds: kinds.into(),
            attempt: "NULL".to_owned(),
            due_at: "NULL",
            message: "NULL",
            node: "NULL",
            fence: "NULL",
            from: "",
        }
    }

    fn sql(&self) -> String {
        let Self {
            name,
            when,
            job,
            kinds,
            attempt,
            due_at,
            message,
            node,
            fence,
            from,
        } = self;
        format!(
            "CREATE TRIGGER {name} {when} BEGIN
    INSERT INTO event (kind, job_id, type, process_instance, process_definition, element, tenant, category, correlation_id,
        trace_parent, attempt, retries, due_at, message, node, fence)
    SELECT k.value, {job}.id, {job}.type, {job}.process_instance, {job}.process_definition, {job}.element, {job}.tenant,
        {job}.category, {job}.correlation_id, {job}.trace_parent, {attempt}, {job}.retries, {due_at}, {message}, {node}, {fence}
    FROM json_each({kinds}) AS k, event_stream AS s{from}
    WHERE k.value IN (SELECT value FROM json_each(s.kinds))
        AND (s.types IS NULL OR {job}.type IN (SELECT value FROM json_each(s.types)))
    ORDER BY k.key;
END"
        )
    }
}

/// The kinds of a failure, which ends with these.
fn failed(then: &str) -> String {
    format!(
        "CASE WHEN NEW.retries < (SELECT retries FROM job WHERE id = NEW.id)
            THEN '[\"failed\",\"retries_decremented\",{then}]' ELSE '[\"failed\",{then}]' END"
    )
}

const FAILED_ATTEMPT: &str = "CASE k.value WHEN 'failed' THEN (SELECT min(failures, 2147483646) + 1 FROM job WHERE id = NEW.id) END";
const DUE: &str =
    "CASE WHEN k.value IN ('created', 'timer_scheduled', 'rescheduled') THEN NEW.due_at END";
const MESSAGE: &str = "CASE WHEN k.value IN ('failed', 'incident_opened') THEN
        CASE WHEN length(CAST(NEW.exception_message AS BLOB)) <= 4000 THEN NEW.exception_message
             ELSE substr(NEW.exception_message, 1, 1000) END END";

const LETTER: &str = "\"dead_lettered\",\"incident_opened\"";

fn moves() -> [Trigger; 4] {
    [
        Trigger {
            due_at: "CASE k.value WHEN 'created' THEN NEW.due_at END",
            ..Trigger::new(
                "event_job_added",
                "AFTER INSERT ON job",
                format!(
                    "CASE
        WHEN EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id)
            THEN iif({CAUSE} = 'retried', '[\"rescheduled\"]', '[\"timer_fired\"]')
        WHEN EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id)
            THEN iif({CAUSE} = 'retried', '[\"rescheduled\"]', '[]')
        WHEN EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id) THEN '[\"rescheduled\",\"incident_closed\"]'
        ELSE '[\"created\"]' END"
                ),
            )
        },
        Trigger {
            attempt: FAILED_ATTEMPT.to_owned(),
            due_at: DUE,
            message: MESSAGE,
            ..Trigger::new(
                "event_timer_added",
                "AFTER INSERT ON timer_job",
                format!(
                    "CASE
        WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id)
            THEN CASE WHEN {CAUSE} IN ('snoozed', 'rescheduled') THEN '[\"rescheduled\"]' ELSE {} END
        WHEN EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) THEN '[]'
        ELSE '[\"created\",\"timer_scheduled\"]' END",
                    failed("\"timer_scheduled\"")
                ),
            )
        },
        Trigger {
            attempt: FAILED_ATTEMPT.to_owned(),
            due_at: DUE,
            message: MESSAGE,
            ..Trigger::new(
                "event_suspended_added",
                "AFTER INSERT ON suspended_job WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id)",
                format!(
                    "CASE {CAUSE} WHEN 'suspended' THEN '[]' WHEN 'snoozed' THEN '[\"rescheduled\"]' ELSE {} END",
                    failed("\"timer_scheduled\"")
                ),
            )
        },
        Trigger {
            attempt: FAILED_ATTEMPT.to_owned(),
            message: MESSAGE,
            ..Trigger::new(
                "event_letter_added",
                "AFTER INSERT ON dead_letter_job",
                format!(
                    "CASE
        WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) AND {CAUSE} IS NULL THEN {}
        WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id)
            OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) THEN '[{LETTER}]'
        ELSE '[]' END",
                    failed(LETTER)
                ),
            )
        },
    ]
}

fn ends() -> [Trigger; 4] {
    const TABLES: [&str; 4] = ["job", "timer_job", "suspended_job", "dead_letter_job"];
    let removed = |name, table: &str, kinds: &str| {
        let elsewhere: Vec<String> = TABLES
            .iter()
            .filter(|other| **other != table)
            .map(|other| format!("NOT EXISTS (SELECT 1 FROM {other} WHERE id = OLD.id)"))
            .collect();
        let when = format!("AFTER DELETE ON {table} WHEN {}", elsewhere.join(" AND "));
        Trigger {
            job: "OLD",
            attempt: "CASE k.value WHEN 'succeeded' THEN min(OLD.failures, 2147483646) + 1 END"
                .to_owned(),
            ..Trigger::new(name, when, kinds)
        }
    };
    let done = format!(
        "CASE WHEN {CAUSE} IS NULL AND EXISTS (SELECT 1 FROM job_lease WHERE job_id = OLD.id AND owner IS NOT NULL)
        THEN '[\"succeeded\"]' ELSE '[\"cancelled\"]' END"
    );
    let cancelled = "'[\"cancelled\"]'";
    [
        removed("event_job_removed", "job", &done),
        removed("event_timer_removed", "timer_job", cancelled),
        removed("event_suspended_removed", "suspended_job", cancelled),
        removed(
            "event_letter_removed",
            "dead_letter_job",
            "'[\"cancelled\",\"incident_closed\"]'",
        ),
    ]
}

fn changes() -> [Trigger; 5] {
    let rescheduled = |name, when: String, due_at| Trigger {
        due_at,
        ..Trigger::new(name, when, "'[\"rescheduled\"]'")
    };
    let dated = |table| {
        format!(
            "AFTER UPDATE OF due_at ON {table} WHEN {CAUSE} = 'rescheduled' OR OLD.due_at IS NOT NEW.due_at"
        )
    };
    let leased = |name, when: &str| Trigger {
        job: "j",
        attempt: "min(j.failures, 2147483646) + 1".to_owned(),
        node: "NEW.owner",
        fence: "NEW.fence",
        from: ", job AS j ON j.id = NEW.job_id",
        ..Trigger::new(name, when, "'[\"locked\"]'")
    };
    [
        rescheduled(
            "event_job_changed",
            format!("AFTER UPDATE OF retries ON job WHEN {CAUSE} = 'retried'"),
            "NULL",
        ),
        rescheduled("event_timer_changed", dated("timer_job"), "NEW.due_at"),
        rescheduled(
            "event_suspended_changed",
            dated("suspended_job"),
            "NEW.due_at",
        ),
        leased(
            "event_leased",
            "AFTER INSERT ON job_lease WHEN NEW.owner IS NOT NULL",
        ),
        leased(
            "event_leased_again",
            "AFTER UPDATE OF fence ON job_lease WHEN NEW.owner IS NOT NULL AND OLD.fence <> NEW.fence",
        ),
    ]
}

/// Returns the statements that make the triggers.
pub(super) fn triggers() -> Vec<String> {
    let all = moves().into_iter().chain(ends()).chain(changes());
    all.map(|trigger| trigger.sql()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trigger_has_a_name_by_which_it_is_dropped() {
        let triggers = triggers();
        assert_eq!(triggers.len(), NAMES.len());
        for (name, sql) in NAMES.iter().zip(triggers) {
            assert!(sql.starts_with(&format!("CREATE TRIGGER {name} ")), "{sql}");
        }
    }
}
