//! What a chaos run is told.

use std::path::PathBuf;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;

/// Which broker carries the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// RabbitMQ.
    RabbitMq,
    /// Kafka.
    Kafka,
}

/// What a chaos run is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything that is drawn by lot is drawn from this.
    pub seed: u64,
    /// How long jobs are created and faults injected.
    pub time: Duration,
    /// Which broker.
    pub broker: Broker,
    /// How many nodes.
    pub nodes: usize,
    /// Jobs created in a second.
    pub rate: u32,
    /// The lease of the nodes.
    pub lease: Duration,
    /// A job is locked again so soon after the lease of its dead holder ended, at p99. Rule 24 counts from the death, at
    /// most a lease earlier, so a sweep interval and two seconds are left.
    pub takeover: Duration,
    /// How many jobs a node runs at once.
    pub concurrency: usize,
    /// Whether locks wait for the database's disk.
    pub durable_locks: bool,
    /// How many hints leave in one message at most; now and then that many jobs and more are created in one
    /// transaction.
    pub hints_per_message: usize,
    /// Nodes differ and are deployed every few seconds, and creators are slow: see [`super::deploys`].
    pub deploys: bool,
    /// Faults are injected, and producers die. Without them each job leaves a hint, once.
    pub faults: bool,
    /// From one fault to the next, on average.
    pub pace: Duration,
    /// Give up when nothing was finished for so long after all was healed.
    pub patience: Duration,
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// The program that nodes run; `None` builds it.
    pub node: Option<PathBuf>,
    /// Another version of that program. Every node but the first runs the one and the other in turn, from one start to the
    /// next.
    pub other_node: Option<PathBuf>,
    /// Say what happens on standard error.
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

/// More a node refuses.
const MOST_SLOTS: usize = 100_000;

/// What the command line says.
///
/// # Errors
/// What can't be read, for people.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        talk: true,
        ..Options::default()
    };
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value"))?;
        let bad = |_| format!("{name} {value}: not a number");
        let switch = || {
            let switch = value.parse::<bool>();
            switch.map_err(|_| format!("{name} {value}: true or false"))
        };
        match &*name {
            "--seed" => options.seed = value.parse().map_err(bad)?,
            "--minutes" => {
                let minutes: f64 = value
                    .parse()
                    .map_err(|_| format!("{name} {value}: not a number"))?;
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
                    _ => return Err(format!("{name} {value}: rabbitmq or kafka")),
                }
            }
            _ => return Err(format!("{name}: unknown; there are {USAGE}")),
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

/// The arguments there are.
pub const USAGE: &str = "--minutes M --seed N --broker rabbitmq|kafka --nodes N --rate JOBS_PER_SECOND --lease SECONDS --concurrency N --durable-locks true|false --hints-per-message N --deploys true|false --faults true|false --report FILE --node PROGRAM --other-node PROGRAM";
