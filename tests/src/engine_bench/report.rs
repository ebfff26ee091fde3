//! The report of a run, as tables for a document and as JSON.

use std::fmt;

use serde::Serialize;

use crate::engine_bench::contender::Contender;
use crate::engine_bench::cost::Cost;
use crate::engine_bench::options::EngineBenchOptions;
use crate::engine_bench::percentiles::Percentiles;

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of PostgreSQL.
    pub postgresql: String,
    /// The pause of tuned executors between two acquisitions, in milliseconds.
    pub acquire_wait: u32,
    /// `engine_concurrency` of Jobwire.
    pub concurrency: usize,
    /// The results of each engine.
    pub engines: Vec<EngineReport>,
}

/// The results of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// The engine's name and version.
    pub version: String,
    /// How long jobs waited.
    pub latency: Vec<Latency>,
    /// How fast waiting jobs were run.
    pub drains: Vec<Drain>,
}

/// How long jobs waited that arrived at a rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// What ran the jobs.
    pub contender: Contender,
    /// Jobs a second.
    pub rate: u32,
    /// The number of jobs.
    pub jobs: usize,
    /// From the commit to the start; of the bare execution from its request.
    #[serde(flatten)]
    pub times: Percentiles,
}

/// How fast waiting jobs were run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Drain {
    /// What ran the jobs.
    pub contender: Contender,
    /// The number of its turn.
    pub round: u32,
    /// The number of jobs.
    pub jobs: usize,
    /// From the first start to the last.
    pub seconds: f64,
    /// Jobs a second.
    pub jobs_per_second: f64,
    /// What a job took.
    pub cost: Cost,
}

/// The median of some values, with the least and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Middle {
    median: f64,
    least: f64,
    most: f64,
}

impl Middle {
    fn of(mut values: Vec<f64>) -> Option<Middle> {
        values.sort_unstable_by(f64::total_cmp);
        Some(Middle {
            median: *values.get(values.len().checked_sub(1)? / 2)?,
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}

impl Report {
    pub(super) fn new(options: &EngineBenchOptions, postgresql: String) -> Report {
        Report {
            postgresql,
            acquire_wait: options.acquire_wait,
            concurrency: options.concurrency,
            engines: Vec::new(),
        }
    }
}

impl EngineReport {
    pub(super) fn new(version: String) -> EngineReport {
        EngineReport {
            version,
            latency: Vec::new(),
            drains: Vec::new(),
        }
    }

    /// Returns the drains of a contender, in the order of their rounds.
    fn of(&self, contender: Contender) -> impl Iterator<Item = &Drain> {
        let all = self.drains.iter();
        all.filter(move |drain| drain.contender == contender)
    }

    fn contenders(&self) -> Vec<Contender> {
        let mut found = Vec::new();
        let latency = self.latency.iter().map(|it| it.contender);
        for contender in latency.chain(self.drains.iter().map(|it| it.contender)) {
            if !found.contains(&contender) {
                found.push(contender);
            }
        }
        found
    }

    /// Writes what a job of each contender took: the median of each figure.
    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| ms of processor a job | engine | database for it | node | database for it | transactions | WAL, bytes |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for contender in self.contenders() {
            let costs: Vec<Cost> = self.of(contender).map(|drain| drain.cost).collect();
            let middle = |figure: fn(&Cost) -> f64| {
                Middle::of(costs.iter().map(figure).collect()).map_or(0.0, |it| it.median)
            };
            writeln!(
                f,
                "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.0} |",
                contender.name(),
                middle(|it| it.engine),
                middle(|it| it.engine_database),
                middle(|it| it.node),
                middle(|it| it.node_database),
                middle(|it| it.transactions),
                middle(|it| it.wal)
            )?;
        }
        Ok(())
    }

    /// Returns the speed of `one` divided by that of `other`, round by round.
    fn ratio(&self, one: Contender, other: Contender) -> Option<Middle> {
        let pairs = self.of(one).zip(self.of(other));
        Middle::of(
            pairs
                .map(|(one, other)| one.jobs_per_second / other.jobs_per_second)
                .collect(),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "PostgreSQL {}; tuned executors wait {} ms; engine_concurrency {}",
            self.postgresql, self.acquire_wait, self.concurrency
        )?;
        for engine in &self.engines {
            write!(f, "\n{engine}")?;
        }
        Ok(())
    }
}

impl fmt::Display for EngineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: commit to start in ms (rest: request to start), each job run once\n",
            self.version
        )?;
        writeln!(f, "| | jobs/s | jobs | p50 | p95 | p99 | max |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for contender in self.contenders() {
            let own = self.latency.iter().filter(|it| it.contender == contender);
            for Latency {
                rate, jobs, times, ..
            } in own
            {
                writeln!(
                    f,
                    "| {} | {rate} | {jobs} | {:.2} | {:.2} | {:.2} | {:.2} |",
                    contender.name(),
                    times.p50,
                    times.p95,
                    times.p99,
                    times.max
                )?;
            }
        }
        if self.drains.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n| drain | jobs | jobs/s: median, range | to own | to own-tuned |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- |")?;
        for contender in self.contenders() {
            let speeds = self.of(contender).map(|drain| drain.jobs_per_second);
            let Some(speed) = Middle::of(speeds.collect()) else {
                continue;
            };
            let jobs = self.of(contender).next().map_or(0, |drain| drain.jobs);
            write!(
                f,
                "| {} | {jobs} | {:.0}, {:.0} to {:.0} |",
                contender.name(),
                speed.median,
                speed.least,
                speed.most
            )?;
            for other in [Contender::Own, Contender::OwnTuned] {
                match self.ratio(contender, other).filter(|_| other != contender) {
                    Some(Middle {
                        median,
                        least,
                        most,
                    }) => write!(f, " {median:.2} ({least:.2} to {most:.2}) |")?,
                    None => write!(f, " – |")?,
                }
            }
            writeln!(f)?;
        }
        self.costs(f)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.contender.name();
        write!(f, "{name}, {} jobs/s: {}", self.rate, self.times)
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, jobs) = (self.contender.name(), self.jobs);
        write!(
            f,
            "{name}, drain of {jobs}: {:.0} jobs/s; a job: {}",
            self.jobs_per_second, self.cost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(contender: Contender, jobs_per_second: f64) -> Drain {
        Drain {
            contender,
            round: 1,
            jobs: 100,
            seconds: 1.0,
            jobs_per_second,
            cost: Cost::default(),
        }
    }

    #[test]
    fn a_drain_is_compared_round_by_round() {
        let mut report = EngineReport::new("an engine".to_owned());
        for (jobwire, own) in [(50.0, 100.0), (90.0, 100.0), (400.0, 500.0)] {
            report.drains.push(drain(Contender::Jobwire, jobwire));
            report.drains.push(drain(Contender::OwnTuned, own));
        }
        let ratio = report.ratio(Contender::Jobwire, Contender::OwnTuned);
        let expected = Middle {
            median: 0.8,
            least: 0.5,
            most: 0.9,
        };
        assert_eq!(ratio, Some(expected));
        let table = report.to_string();
        let line = "| jobwire | 100 | 90, 50 to 400 | – | 0.80 (0.50 to 0.90) |";
        assert!(table.contains(line), "{table}");
    }
}
