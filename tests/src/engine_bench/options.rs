//! The options of the bench.

use std::path::PathBuf;
use std::str::FromStr;

use crate::engine_bench::contender::Contender;
use crate::{EngineProgram, EngineSettings};

/// An engine that a node of Jobwire can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchedEngine {
    /// Flowable 7.
    Flowable,
    /// Camunda 7.
    Camunda,
    /// Activiti 7.
    Activiti,
}

impl BenchedEngine {
    /// Returns its name, as the setting `engine_type` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BenchedEngine::Flowable => "flowable",
            BenchedEngine::Camunda => "camunda",
            BenchedEngine::Activiti => "activiti",
        }
    }

    pub(super) fn settings(self, database: &str) -> EngineSettings {
        match self {
            BenchedEngine::Flowable => EngineSettings::flowable7(database),
            BenchedEngine::Camunda => {
                EngineSettings::camunda7(database).property("jobwire.engine-endpoint", "true")
            }
            BenchedEngine::Activiti => EngineSettings::activiti7(database),
        }
    }

    /// Returns the path and the body of the request that executes a job over REST, which stands
    /// below `rest`, or over the endpoint.
    pub(super) fn execution(
        program: EngineProgram,
        by_endpoint: bool,
        job: &str,
    ) -> (String, &'static str) {
        let rest = program.rest().unwrap_or_default();
        match program {
            _ if by_endpoint => (format!("/jobwire/jobs/{job}/execute"), "{}"),
            EngineProgram::Camunda7 => (format!("{rest}/job/{job}/execute"), "{}"),
            _ => (
                format!("{rest}/management/jobs/{job}"),
                r#"{"action":"execute"}"#,
            ),
        }
    }
}

/// The options of the bench. The default is the run of docs/internals/performance.md.
#[derive(Clone, Debug)]
pub struct EngineBenchOptions {
    /// The engines, one after the other.
    pub engines: Vec<BenchedEngine>,
    /// What runs the jobs, in the order of the turns.
    pub contenders: Vec<Contender>,
    /// The numbers of jobs that are created in a second.
    pub rates: Vec<u32>,
    /// How long each contender is measured at each rate, in seconds.
    pub seconds: u32,
    /// The number of jobs of a drain.
    pub jobs: usize,
    /// The number of drains of each contender, by turns.
    pub drains: u32,
    /// How long the tuned executor of an engine waits between two acquisitions, in milliseconds.
    pub acquire_wait: u32,
    /// `engine_concurrency` of Jobwire.
    pub concurrency: usize,
    /// The processor of Jobwire's node, as `taskset -c` numbers it; `None` leaves it those of the
    /// bench. `taskset -c 0` before the bench keeps the engine and its database off it.
    pub node_processor: Option<u32>,
    /// The program `jobwire`; `None` builds it in the profile of the bench.
    pub program: Option<PathBuf>,
    /// Whether each result is printed to standard error at once.
    pub talk: bool,
    /// Whether the report is printed as JSON.
    pub json: bool,
}

impl Default for EngineBenchOptions {
    fn default() -> EngineBenchOptions {
        EngineBenchOptions {
            engines: vec![BenchedEngine::Flowable, BenchedEngine::Camunda],
            contenders: vec![
                Contender::Rest,
                Contender::Endpoint,
                Contender::Jobwire,
                Contender::JobwireEndpoint,
                Contender::OwnTuned,
                Contender::Own,
            ],
            rates: vec![20, 50, 100],
            seconds: 10,
            jobs: 1_000,
            drains: 3,
            acquire_wait: 100,
            concurrency: 8,
            node_processor: None,
            program: None,
            talk: false,
            json: false,
        }
    }
}

impl EngineBenchOptions {
    /// Returns the contenders that can run the jobs of an engine.
    pub(super) fn of(&self, engine: BenchedEngine) -> impl Iterator<Item = Contender> {
        let all = self.contenders.iter().copied();
        all.filter(move |contender| contender.runs(engine))
    }

    #[allow(clippy::print_stderr, reason = "the progress of a program")]
    pub(super) fn say(&self, line: &str) {
        if self.talk {
            eprintln!("{line}");
        }
    }
}

/// The arguments.
pub const USAGE: &str = "--engines flowable,camunda,activiti --contenders rest,endpoint,jobwire,jobwire-endpoint,jobwire-rabbitmq,own-tuned,own --rates 20,50,100|none --seconds N --jobs N --drains N --acquire-wait MILLISECONDS --concurrency N --node-processor N --program FILE --json";

/// Parses the command line.
///
/// # Errors
/// The first argument that can't be read, as text for people.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<EngineBenchOptions, String> {
    let mut options = EngineBenchOptions {
        talk: true,
        ..EngineBenchOptions::default()
    };
    while let Some(name) = arguments.next() {
        if name == "--json" {
            options.json = true;
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value"))?;
        let wrong = |what: &str| format!("{name} {value}: {what}");
        match &*name {
            "--engines" => {
                options.engines = list(&value, |part| match part {
                    "flowable" => Some(BenchedEngine::Flowable),
                    "camunda" => Some(BenchedEngine::Camunda),
                    "activiti" => Some(BenchedEngine::Activiti),
                    _ => None,
                })
                .ok_or_else(|| {
                    wrong("must be flowable, camunda or activiti, or several with commas")
                })?;
            }
            "--contenders" => {
                options.contenders =
                    list(&value, Contender::named).ok_or_else(|| wrong("see the usage"))?;
            }
            "--rates" if value == "none" => options.rates = Vec::new(),
            "--rates" => {
                options.rates = list(&value, |part| positive(part, 10_000))
                    .ok_or_else(|| wrong("must be numbers from 1 to 10000 with commas, or none"))?;
            }
            "--seconds" => options.seconds = number(&value, 3_600).map_err(|it| wrong(&it))?,
            "--jobs" => options.jobs = number(&value, 100_000).map_err(|it| wrong(&it))?,
            "--drains" => options.drains = number(&value, 100).map_err(|it| wrong(&it))?,
            "--acquire-wait" => {
                options.acquire_wait = number(&value, 60_000).map_err(|it| wrong(&it))?;
            }
            "--concurrency" => {
                options.concurrency = number(&value, 100).map_err(|it| wrong(&it))?
            }
            "--node-processor" => {
                let processor = value.parse().map_err(|_| wrong("must be a number"))?;
                options.node_processor = Some(processor);
            }
            "--program" => {
                // It is started in other directories.
                let program = std::path::absolute(&value).map_err(|e| wrong(&e.to_string()))?;
                options.program = Some(program);
            }
            _ => return Err(format!("{name}: unknown option; use {USAGE}")),
        }
    }
    Ok(options)
}

/// Reads a list without repetitions.
fn list<T: PartialEq>(value: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let mut parts = Vec::new();
    for part in value.split(',') {
        let part = read(part)?;
        if parts.contains(&part) {
            return None;
        }
        parts.push(part);
    }
    Some(parts)
}

fn positive<T: FromStr + PartialOrd + From<u8>>(value: &str, most: T) -> Option<T> {
    let number: T = value.parse().ok()?;
    (number >= T::from(1) && number <= most).then_some(number)
}

fn number<T>(value: &str, most: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + From<u8> + std::fmt::Display + Copy,
{
    positive(value, most).ok_or_else(|| format!("must be a number from 1 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<EngineBenchOptions, String> {
        parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn every_argument_of_the_usage_is_read() {
        let options = parsed(&[
            "--engines",
            "camunda,activiti",
            "--contenders",
            "jobwire-rabbitmq,jobwire-endpoint,own",
            "--rates",
            "5,7",
            "--seconds",
            "3",
            "--jobs",
            "40",
            "--drains",
            "2",
            "--acquire-wait",
            "50",
            "--concurrency",
            "4",
            "--node-processor",
            "1",
            "--program",
            "jobwire",
            "--json",
        ])
        .unwrap();
        assert_eq!(
            options.engines,
            [BenchedEngine::Camunda, BenchedEngine::Activiti]
        );
        assert_eq!(
            options.contenders,
            [
                Contender::JobwireRabbitMq,
                Contender::JobwireEndpoint,
                Contender::Own
            ]
        );
        let activiti: Vec<Contender> = options.of(BenchedEngine::Activiti).collect();
        assert_eq!(activiti, [Contender::JobwireEndpoint, Contender::Own]);
        let camunda: Vec<Contender> = options.of(BenchedEngine::Camunda).collect();
        assert_eq!(camunda, options.contenders);
        assert_eq!((options.rates, options.seconds), (vec![5, 7], 3));
        assert_eq!((options.jobs, options.drains), (40, 2));
        assert_eq!((options.acquire_wait, options.concurrency), (50, 4));
        assert_eq!(options.node_processor, Some(1));
        assert!(options.json && options.program.is_some());
    }

    #[test]
    fn an_argument_that_cannot_be_used_is_named() {
        for (arguments, said) in [
            (&["--rates", "0"][..], "--rates 0"),
            (&["--rates", "20,20"], "--rates 20,20"),
            (&["--contenders", "nobody"], "--contenders nobody"),
            (&["--seconds"], "needs a value"),
            (&["--second", "1"], "unknown option"),
        ] {
            let problem = parsed(arguments).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
    }
}
