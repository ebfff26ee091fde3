//! The account of a run: the jobs that were created, their outcomes, and the results of the checks.

use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::output;

/// See the [module](self).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Account {
    /// `permits` or `replay`.
    pub(super) run: &'static str,
    pub(super) database: String,
    pub(super) broker: String,
    /// Nodes that were started for this run.
    pub(super) nodes: usize,
    /// Nodes that ran its jobs, including those of a fleet that served this database already.
    pub(super) nodes_at_work: usize,
    /// Time from the first job to the last.
    pub(super) seconds: f64,
    pub(super) cases: usize,
    /// Jobs whose transaction committed.
    pub(super) created: u64,
    /// Jobs whose transaction was rolled back.
    pub(super) rolled_back: u64,
    /// Jobs that ended, each counted once.
    pub(super) executed: u64,
    /// Attempts that failed and were retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retried: Option<u64>,
    /// Jobs that waited for their due date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timers: Option<u64>,
    pub(super) dead_lettered: u64,
    /// Jobs that have not run yet.
    pub(super) left: u64,
    /// Time from the return of COMMIT to the start of the job.
    pub(super) commit_to_start: Latency,
    /// Time from the due date to the start of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timer_lateness: Option<Latency>,
    pub(super) checks: Vec<Check>,
}

/// A distribution, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Latency {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

impl Latency {
    pub(super) fn of(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        // Nearest rank.
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            let value = values.get(rank - 1).copied().unwrap_or_default();
            (value.as_secs_f64() * 1e6).round() / 1e3
        };
        Self {
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
        }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {} ms, p99 {} ms, max {} ms",
            self.p50_ms, self.p99_ms, self.max_ms
        )
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

impl Check {
    /// Creates a check that passes if there are no problems.
    pub(super) fn of(what: &'static str, problems: Vec<String>) -> Self {
        const SHOWN: usize = 3;
        let more = problems.len().saturating_sub(SHOWN);
        let mut shown = problems
            .iter()
            .take(SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if more > 0 {
            shown.push_str(&format!(" and {more} more"));
        }
        Self {
            what,
            holds: problems.is_empty(),
            problem: (!problems.is_empty()).then_some(shown),
        }
    }

    /// Creates a check that passes if both numbers are equal.
    pub(super) fn equal(what: &'static str, left: (&str, u64), right: (&str, u64)) -> Self {
        let problem =
            (left.1 != right.1).then(|| format!("{} {}, {} {}", left.1, left.0, right.1, right.0));
        Self::of(what, problem.into_iter().collect())
    }
}

impl Account {
    pub(super) fn adds_up(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let failed = self.checks.iter().filter(|check| !check.holds);
        failed
            .map(|c| {
                format!(
                    "check failed: {} ({})",
                    c.what,
                    c.problem.as_deref().unwrap_or("")
                )
            })
            .collect()
    }

    fn rows(&self) -> Vec<[String; 2]> {
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let rate = self.executed as f64 / self.seconds.max(0.001);
        let mut rows = vec![
            ("database", self.database.clone()),
            ("broker", self.broker.clone()),
            (
                "nodes",
                format!("{} started, {} at work", self.nodes, self.nodes_at_work),
            ),
            ("cases", self.cases.to_string()),
            ("created", self.created.to_string()),
            ("rolled back", self.rolled_back.to_string()),
            (
                "executed",
                match self.run {
                    "permits" => format!("{} in {:.1} s (paced)", self.executed, self.seconds),
                    _ => format!(
                        "{} in {:.1} s: {rate:.0} jobs/s",
                        self.executed, self.seconds
                    ),
                },
            ),
        ];
        if let Some(retried) = self.retried {
            rows.push(("retried", retried.to_string()));
        }
        if let Some(timers) = self.timers {
            rows.push(("timers", timers.to_string()));
        }
        rows.push(("dead-lettered", self.dead_lettered.to_string()));
        rows.push(("left", self.left.to_string()));
        rows.push(("commit to start", self.commit_to_start.to_string()));
        if let Some(lateness) = &self.timer_lateness {
            rows.push(("due to start", lateness.to_string()));
        }
        rows.into_iter()
            .map(|(name, value)| [name.to_owned(), value])
            .collect()
    }

    /// Prints the account as text.
    pub(super) fn print(&self) -> Result<(), Error> {
        output::table(["account", ""], &self.rows())?;
        output::line("")?;
        for check in &self.checks {
            match &check.problem {
                None => output::line(format_args!("  ok      {}", check.what))?,
                Some(problem) => output::line(format_args!("  FAILED  {}: {problem}", check.what))?,
            }
        }
        let verdict = if self.adds_up() {
            "the account adds up"
        } else {
            "the account does NOT add up"
        };
        output::line(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let latency = Latency::of((1..=100).map(Duration::from_millis).collect());
        assert_eq!(
            (latency.p50_ms, latency.p99_ms, latency.max_ms),
            (50.0, 99.0, 100.0)
        );
        assert_eq!(Latency::of(Vec::new()).p99_ms, 0.0);
    }

    #[test]
    fn a_failed_check_says_what_and_how_often() {
        let check = Check::of("it holds", (1..=5).map(|n| n.to_string()).collect());
        assert_eq!(check.problem.as_deref(), Some("1, 2, 3 and 2 more"));
        assert!(Check::equal("same", ("a", 1), ("b", 1)).holds);
        assert_eq!(
            Check::equal("same", ("a", 1), ("b", 2)).problem.as_deref(),
            Some("1 a, 2 b")
        );
    }
}
