//! Several runs that differ in one parameter. Prints a line after each run, or a JSON array at the
//! end.

use super::report::Report;
use crate::error::Error;
use crate::output;

/// The parameter that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum By {
    Nodes,
    Waiting,
    Keys,
}

/// See the [module](self).
pub(super) struct Series {
    by: By,
    json: bool,
    reports: Vec<Report>,
}

impl Series {
    pub(super) fn new(by: By, json: bool) -> Self {
        Self {
            by,
            json,
            reports: Vec::new(),
        }
    }

    /// Adds a run.
    pub(super) fn add(&mut self, mut report: Report) -> Result<(), Error> {
        let first = self.reports.first().unwrap_or(&report).jobs_per_second;
        report.ratio = (first > 0.0).then(|| report.jobs_per_second / first);
        if !self.json {
            if self.reports.is_empty() {
                self.print_head(&report)?;
            }
            self.print(&report)?;
        }
        self.reports.push(report);
        Ok(())
    }

    fn print_head(&self, first: &Report) -> Result<(), Error> {
        output::line(format_args!(
            "{}; database {}, broker {}",
            first.workload, first.database, first.broker
        ))?;
        for note in &first.notes {
            output::line(format_args!("note: {note}"))?;
        }
        let by = match self.by {
            By::Nodes => "nodes",
            By::Waiting => "waiting",
            By::Keys => "keys",
        };
        output::line(format_args!(
            "{by:>10} {:>10} {:>8} {:>16} {:>14} {:>17} {:>16}",
            "jobs/s",
            "ratio",
            "statements/job",
            "WAL bytes/job",
            "nodes' CPU µs/job",
            "node MiB (most)"
        ))
    }

    fn print(&self, report: &Report) -> Result<(), Error> {
        let by = match self.by {
            By::Nodes => report.nodes.to_string(),
            By::Waiting => report.waiting.unwrap_or(report.jobs).to_string(),
            By::Keys => report
                .keys
                .map_or("no limit".to_owned(), |keys| keys.to_string()),
        };
        let cost = &report.cost;
        let figure = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        output::line(format_args!(
            "{by:>10} {:>10.0} {:>8} {:>16} {:>14} {:>17} {:>16}",
            report.jobs_per_second,
            figure(report.ratio, 2),
            figure(cost.statements_per_job_after_creation, 4),
            figure(cost.wal_bytes_per_job, 0),
            figure(cost.nodes_cpu_micros_per_job, 1),
            figure(cost.node_peak_memory_mib, 1),
        ))
    }

    /// Prints all reports, if JSON was requested.
    pub(super) fn close(self) -> Result<(), Error> {
        if self.json {
            output::json(&self.reports)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_compared_with_the_first() {
        let mut series = Series::new(By::Nodes, true);
        for jobs_per_second in [200.0, 150.0, 300.0] {
            let report = Report {
                jobs_per_second,
                ..Report::default()
            };
            series.add(report).unwrap();
        }
        let ratios: Vec<_> = series.reports.iter().filter_map(|r| r.ratio).collect();
        assert_eq!(ratios, [1.0, 0.75, 1.5]);
    }
}
