//! The report of a run, as a page.

use super::faults::Injected;
use super::options::{Broker, Options};
use super::reader::Kinds;
use super::world::clock_library;
use crate::history::Report;
use std::fmt::Write;
use std::time::Duration;

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The options of the run.
    pub options: Options,
    /// The verdict on the history.
    pub verdict: Report,
    /// Jobs by type.
    pub kinds: Kinds,
    /// Hints that the last nodes received, each decided or returned.
    pub hints: u64,
    /// Faults by kind.
    pub faults: Injected,
    /// Events that no fault explains: nodes that ended by themselves, a backlog that did not drain.
    pub surprises: Vec<String>,
    /// Raw histories of the jobs in violations.
    pub evidence: Vec<String>,
    /// The end of the output of the last processes of the nodes.
    pub outputs: Vec<String>,
    /// The time during which jobs were created.
    pub ran: Duration,
    /// The time that it then took until all jobs were done.
    pub drained: Duration,
    /// Rows of the history.
    pub rows: i64,
    /// The number of starts of nodes.
    pub starts: u64,
    /// The longest time for which the whole machine stood still.
    pub longest_stall: Duration,
}

impl Outcome {
    /// Returns whether every promise was kept.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdict.holds() && self.surprises.is_empty()
    }

    /// Returns the violations and surprises in short, without histories: one line, because the end
    /// of a long log may be cut.
    #[must_use]
    pub fn wrongs(&self) -> String {
        let violations = (self.verdict.kept.iter())
            .map(|violation| format!("{:?}: {}", violation.invariant, violation.what));
        let surprises = self.surprises.iter().filter_map(|text| text.lines().next());
        let wrongs: Vec<String> = violations.chain(surprises.map(str::to_owned)).collect();
        wrongs.join("; ")
    }

    /// Returns the page, in Markdown.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn page(&self) -> String {
        let counts = &self.verdict.counts;
        let broker = match self.options.broker {
            Broker::RabbitMq => "RabbitMQ",
            Broker::Kafka => "Kafka",
        };
        let mut page = String::new();
        let finished = counts.completed + counts.dead;
        let hours = self.ran.as_secs_f64() / 3600.0;
        let share = |part: u64| 100.0 * part as f64 / counts.committed.max(1) as f64;
        let verdict = if self.holds() {
            "every promise was kept"
        } else {
            "**PROMISES WERE BROKEN**"
        };
        let _ = writeln!(
            page,
            "# Chaos with {broker}, seed {}: {verdict}\n",
            self.options.seed
        );
        let mean = counts.takeover_total as f64 / counts.takeovers.max(1) as f64 / 1e6;
        let rows: [(&str, String); 28] = [
            (
                "nodes, starts of nodes",
                format!("{}, {}", self.options.nodes, self.starts),
            ),
            (
                "lease, sweep interval",
                format!("{:?}, 1s", self.options.lease),
            ),
            (
                "jobs that a node runs at once; durable locks",
                format!(
                    "{}; {}",
                    self.options.concurrency, self.options.durable_locks
                ),
            ),
            (
                "maximum hints per message",
                self.options.hints_per_message.to_string(),
            ),
            (
                "time during which jobs were created",
                format!("{:.0} s", self.ran.as_secs_f64()),
            ),
            (
                "time until drained",
                format!("{:.0} s", self.drained.as_secs_f64()),
            ),
            (
                "jobs committed",
                format!(
                    "{} ({:.0} an hour)",
                    counts.committed,
                    counts.committed as f64 / hours
                ),
            ),
            (
                "jobs rolled back: none was hinted, locked or run",
                counts.rolled_back.to_string(),
            ),
            (
                "jobs whose COMMIT had no answer and did not take effect",
                counts.unknown.to_string(),
            ),
            ("jobs completed", counts.completed.to_string()),
            ("dead letters, all expected", counts.dead.to_string()),
            (
                "jobs lost",
                (counts.committed - finished.min(counts.committed)).to_string(),
            ),
            (
                "locks granted, of these with the move of a timer; leases renewed",
                format!(
                    "{}, {}; {}",
                    counts.locks, counts.timer_locks, counts.renewals
                ),
            ),
            (
                "jobs held by row locks: started, completed",
                format!("{}, {}", counts.row_locks, counts.row_completions),
            ),
            ("handlers run", counts.runs.to_string()),
            (
                "attempts that failed, attempts that did not count",
                format!("{}, {}", counts.failures, counts.free_attempts),
            ),
            ("jobs released", counts.releases.to_string()),
            (
                "locks taken over after their lease had expired",
                counts.takeovers.to_string(),
            ),
            (
                "runs concurrent with a run of the same job whose lease had expired",
                counts.duplicate_runs.to_string(),
            ),
            (
                "time from the end of a lease to the takeover: mean, longest",
                format!("{mean:.2} s, {:.2} s", counts.slowest_takeover as f64 / 1e6),
            ),
            (
                "the same at p99; takeovers in the calm; takeovers not judged (during an outage, a jump of the clock or a second fault of a node)",
                format!(
                    "{:.2} s; {}; {}",
                    counts.takeover_p99 as f64 / 1e6,
                    counts.calm_takeovers,
                    counts.disturbed_takeovers
                ),
            ),
            (
                "exclusive locks, checked for overlap and order",
                counts.exclusive_locks.to_string(),
            ),
            (
                "hints received by the last nodes, each decided or returned",
                self.hints.to_string(),
            ),
            (
                "jobs hinted again by the sweeper; of these of the type that one node serves; of \
                 the others after the end of a lease",
                format!(
                    "{} ({:.2} %); {}; {}",
                    counts.rehints,
                    share(counts.rehints),
                    counts.rare_rehints,
                    counts.takeover_rehints
                ),
            ),
            (
                "runs of jobs with a limit, if locks are durable; the most of a key at once, or in a \
                 period",
                format!("{}; {}", counts.limited_runs, counts.most_limited),
            ),
            ("rows of history checked", self.rows.to_string()),
            ("violations", self.verdict.violations.to_string()),
            (
                "events that no fault explains",
                self.surprises.len().to_string(),
            ),
        ];
        let _ = writeln!(page, "| | |\n| --- | --- |");
        for (what, value) in rows {
            let _ = writeln!(page, "| {what} | {value} |");
        }
        let _ = writeln!(page, "\n| jobs of type | |\n| --- | --- |");
        for (kind, count) in &self.kinds.0 {
            let _ = writeln!(page, "| {kind} | {count} |");
        }
        let _ = writeln!(page, "\n| fault | |\n| --- | --- |");
        for (fault, count) in &self.faults {
            let _ = writeln!(page, "| {fault:?} | {count} |");
        }
        if clock_library(self.options.broker).is_none() {
            let _ = writeln!(
                page,
                "\nNo clock was shifted: `libfaketime` is not installed, or the broker is Kafka, whose client does not work with it."
            );
        }
        if !self.longest_stall.is_zero() {
            let _ = writeln!(
                page,
                "\nThe machine stood still for up to {:?}; takeovers of that time are not judged.",
                self.longest_stall
            );
        }
        for surprise in &self.surprises {
            let _ = writeln!(page, "\n## Unexplained\n```text\n{surprise}\n```");
        }
        for violation in &self.verdict.kept {
            let _ = writeln!(page, "\n## Violation\n```text\n{violation}```");
        }
        if !self.holds() {
            let outputs = self.outputs.join("\n");
            let _ = writeln!(page, "\n## Output of the nodes\n```text\n{outputs}\n```");
        }
        if !self.evidence.is_empty() {
            let _ = writeln!(
                page,
                "\n## Evidence\n```json\n{}\n```",
                self.evidence.join("\n")
            );
        }
        page
    }
}
