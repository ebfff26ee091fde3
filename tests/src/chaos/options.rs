//! The options of a chaos run.

use std::path::PathBuf;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;

/// The broker that carries the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// RabbitMQ.
    RabbitMq,
    /// Kafka.
    Kafka,
}

/// The options of a chaos run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of all random choices.
    pub seed: u64,
    /// The time during which jobs are created and faults injected.
    pub time: Duration,
    /// The broker.
    pub broker: Broker,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of jobs created per second.
    pub rate: u32,
    /// The lease of the nodes.
    pub lease: Duration,
    /// The maximum time, at p99, from the end of a dead holder's lease until the job is locked
    /// again. Rule 24 counts from the death, which is at most a lease earlier, so a sweep interval
    /// and two seconds are left.
    pub takeover: Duration,
    /// The number of jobs that a node runs at once.
    pub concurrency: usize,
    /// Whether locks wait for the database's disk.
    pub durable_locks: bool,
    /// The maximum number of hints in one message. Now and then a transaction creates up to twice
    /// as many jobs.
    pub hints_per_message: usize,
    /// Whether nodes differ and are deployed every few seconds, and some creators are slow: see
    /// [`super::deploys`].
    pub deploys: bool,
    /// Whether faults are injected and producers die. Without them each job has one hint, which is
    /// published once.
    pub faults: bool,
    /// The average time from one fault to the next.
    pub pace: Duration,
    /// The time without progress, after all was healed, after which the run gives up.
    pub patience: Duration,
    /// The file for the report.
    pub report: Option<PathBuf>,
    /// The program that nodes run; `None` builds it.
    pub node: Option<PathBuf>,
    /// Another version of that program. Every node but the first alternates between the two
    /// versions from one start to the next.
    pub other_node: Option<PathBuf>,
    /// Whether events are printed to standard error.
    pub talk: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            time: Duration::from_secs(60),
            broker: Broker::RabbitMq,
            nodes: 3,
            rate: 150,
            lease: Duration::from_secs(3),
            takeover: Duration::from_secs(3),
            concurrency: 32,
            durable_locks: true,
            hints_per_message: 16,
            deploys: false,
            faults: true,
            pace: Duration::from_secs(3),
            patience: Duration::from_secs(240),
            report: None,
            node: None,
            other_node: None,
            talk: false,
        }
    }
}

/// The maximum that a node accepts.
const MOST_SLOTS: usize = 100_000;

/// Parses the command line.
///
/// # Errors
/// The first argument that can't be read, as text for people.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        talk: true,
        ..Options::default()
    };
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value"))?;
        let bad = |_| format!("{name} {value}: must be a number");
        let switch = || {
            let switch = value.parse::<bool>();
            switch.map_err(|_| format!("{name} {value}: must be true or false"))
        };
        match &*name {
            "--seed" => options.seed = value.parse().map_err(bad)?,
            "--minutes" => {
                let minutes: f64 = value
                    .parse()
                    .map_err(|_| format!("{name} {value}: must be a number"))?;
                options.time = Duration::try_from_secs_f64(minutes * 60.0)
                    .map_err(|error| format!("{name} {value}: {error}"))?;
            }
            "--nodes" => options.nodes = value.parse().map_err(bad)?,
            "--rate" => options.rate = value.parse().map_err(bad)?,
            "--lease" => options.lease = Duration::from_secs(value.parse().map_err(bad)?),
            "--concurrency" => options.concurrency = value.parse().map_err(bad)?,
            "--durable-locks" => options.durable_locks = switch()?,
            "--deploys" => options.deploys = switch()?,
            "--faults" => options.faults = switch()?,
            "--hints-per-message" => options.hints_per_message = value.parse().map_err(bad)?,
            "--node" => options.node = Some(value.into()),
            "--other-node" => options.other_node = Some(value.into()),
            "--report" => options.report = Some(value.into()),
            "--broker" => {
                options.broker = match &*value {
                    "rabbitmq" => Broker::RabbitMq,
                    "kafka" => Broker::Kafka,
                    _ => return Err(format!("{name} {value}: must be rabbitmq or kafka")),
                }
            }
            _ => return Err(format!("{name}: unknown option; use {USAGE}")),
        }
    }
    if options.deploys && options.nodes < 2 {
        return Err("--deploys needs --nodes of 2 or more".to_owned());
    }
    if options.nodes == 0 || options.rate == 0 || options.lease < Duration::from_secs(1) {
        return Err("--nodes, --rate and --lease must be 1 or more".to_owned());
    }
    if !(1..=MOST_SLOTS).contains(&options.concurrency) {
        return Err(format!("--concurrency must be 1 to {MOST_SLOTS}"));
    }
    if !(1..=MAX_HINTS_PER_MESSAGE).contains(&options.hints_per_message) {
        return Err(format!(
            "--hints-per-message must be 1 to {MAX_HINTS_PER_MESSAGE}"
        ));
    }
    Ok(options)
}

/// The arguments.
pub const USAGE: &str = "--minutes M --seed N --broker rabbitmq|kafka --nodes N --rate JOBS_PER_SECOND --lease SECONDS --concurrency N --durable-locks true|false --hints-per-message N --deploys true|false --faults true|false --report FILE --node PROGRAM --other-node PROGRAM";
