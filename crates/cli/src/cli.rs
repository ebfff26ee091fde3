//! The command line.

mod mistaken;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    batches, bench, config, demo, doctor, engine, enqueue, events, jobs, lanes, migrate, nodes,
    order, periodic, priorities, purge, run, suspension, sweep, tap,
};
use crate::error::{self, Error};
use crate::logging;
use crate::settings::{Settings, Sources, flags};
use mistaken::Mistaken;

/// Jobs that live in your database, carried by your broker.
#[derive(Debug, Parser)]
#[command(name = "jobwire", version, propagate_version = true)]
pub struct Cli {
    /// Read settings from this file [default: jobwire.toml, if it is there] [env: JOBWIRE_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a node: run jobs, serve /metrics, /healthz and /readyz
    Run(run::RunArgs),
    /// Show the program at work, with an account that is checked against the database
    Demo(demo::DemoArgs),
    /// Create, update or remove the job tables
    Migrate(migrate::MigrateArgs),
    /// Check database, broker, rights, versions and clock, and show the remedies
    Doctor(doctor::DoctorArgs),
    /// Run the jobs of a process engine, such as Flowable, in its own database
    Engine(engine::EngineArgs),
    /// Create jobs from JSON lines
    Enqueue(enqueue::EnqueueArgs),
    /// Publish the events of jobs to the broker, or show how many wait
    Events(events::EventsArgs),
    /// List, show, change, retry, delete and execute jobs; show their history
    Jobs(Box<jobs::JobsArgs>),
    /// Show or set the rules for lanes, show the jobs of each, and drain one
    Lanes(lanes::LanesArgs),
    /// Show the nodes and the jobs that each takes
    Nodes(nodes::NodesArgs),
    /// Show or set whether exclusive jobs wait for an earlier one that failed
    Order(order::OrderArgs),
    /// List, show and cancel batches: jobs whose common end creates another job
    Batches(batches::BatchesArgs),
    /// Declare, list, pause, resume, run and remove periodic jobs
    Periodic(periodic::PeriodicArgs),
    /// Show, set, override and clear the rules for the priorities of jobs
    Priorities(priorities::PrioritiesArgs),
    /// Suspend a scope: move its waiting jobs aside, now or at a date
    Suspend(suspension::SuspensionArgs),
    /// End a suspension, now or at a date
    Activate(suspension::SuspensionArgs),
    /// Pause a scope: its jobs stay ready and do not start, now or from a date on
    Pause(suspension::PauseArgs),
    /// End a pause, now or at a date
    Resume(suspension::PauseArgs),
    /// List the suspensions and pauses, with the number of jobs of each
    Suspensions(suspension::SuspensionsArgs),
    /// Delete every trace of a process instance or a tenant
    Purge(purge::PurgeArgs),
    /// Show the work that the sweeper would do now, by class
    Sweep(sweep::SweepArgs),
    /// Set up the commit tap, which starts jobs of plain SQL without delay
    Tap(tap::TapArgs),
    /// Measure throughput and latency on this machine, database and broker
    Bench(bench::BenchArgs),
    /// Show the settings in effect and their sources
    Config(config::ConfigArgs),
}

/// Returns the command line, with the flags of the settings.
#[must_use]
pub fn command() -> clap::Command {
    flags::add_to(Cli::command())
}

/// Runs the program with the process's own arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    jobwire_core::runtime::crash_point::arm();
    let line: Vec<OsString> = std::env::args_os().collect();
    let matches = match mistaken::matches(&line) {
        Ok(matches) => matches,
        Err(Mistaken::Said(said)) => return report(&Error::Usage(said)),
        Err(Mistaken::Clap(error)) => {
            // Help goes to standard output, mistakes to standard error. Both may be closed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match start(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// Prints an error, and returns its exit code.
fn report(error: &Error) -> ExitCode {
    if !error.is_silent() {
        use std::io::Write;
        let said = error::with_settings_alone(&error.to_string());
        let said = jobwire_core::telemetry::plain::lines(&said);
        let _ = writeln!(std::io::stderr(), "jobwire: {said}");
    }
    ExitCode::from(error.exit_code())
}

fn start(matches: &ArgMatches) -> Result<(), Error> {
    let cli = Cli::from_arg_matches(matches).map_err(|e| Error::Usage(e.to_string()))?;
    if let Command::Config(args) = &cli.command
        && args.markdown
    {
        return config::markdown();
    }
    let settings = Settings::load(&Sources {
        file: cli.config,
        directory: PathBuf::new(),
        environment: std::env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .collect(),
        flags: flags::found(matches),
    })?;
    let filter = match &cli.command {
        Command::Run(_) => None,
        Command::Engine(args) if args.runs_a_node() => None,
        Command::Demo(_) => Some(logging::DEMO),
        _ => Some(logging::QUIET),
    };
    logging::start(&settings, filter);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::io("can't start the runtime"))?;
    let result = runtime.block_on(dispatch(cli.command, settings));
    // A blocked thread, such as one that resolves a name, must not keep the program alive.
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command, settings: Settings) -> Result<(), Error> {
    match command {
        Command::Run(args) => run::run(settings, args).await,
        Command::Demo(args) => demo::run(settings, args).await,
        Command::Migrate(args) => migrate::run(settings, args).await,
        Command::Doctor(args) => doctor::run(settings, args).await,
        Command::Engine(args) => engine::run(settings, args).await,
        Command::Enqueue(args) => enqueue::run(settings, args).await,
        Command::Jobs(args) => jobs::run(settings, *args).await,
        Command::Lanes(args) => lanes::run(settings, args).await,
        Command::Nodes(args) => nodes::run(settings, args).await,
        Command::Events(args) => events::run(settings, args).await,
        Command::Order(args) => order::run(settings, args).await,
        Command::Batches(args) => batches::run(settings, args).await,
        Command::Periodic(args) => periodic::run(settings, args).await,
        Command::Priorities(args) => priorities::run(settings, args).await,
        Command::Suspend(args) => suspension::suspend(settings, args).await,
        Command::Activate(args) => suspension::activate(settings, args).await,
        Command::Pause(args) => suspension::pause(settings, args).await,
        Command::Resume(args) => suspension::resume(settings, args).await,
        Command::Suspensions(args) => suspension::list(settings, args).await,
        Command::Purge(args) => purge::run(settings, args).await,
        Command::Sweep(args) => sweep::run(settings, args).await,
        Command::Tap(args) => tap::run(settings, args).await,
        Command::Bench(args) => bench::run(settings, args).await,
        Command::Config(_) => config::show(&settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// Returns the help of a command.
    fn help(line: &[&str]) -> String {
        let line = ["jobwire"].iter().chain(line).chain(&["--help"]);
        let help = command().try_get_matches_from(line).expect_err("help");
        help.to_string()
    }

    #[test]
    fn the_help_of_a_command_has_its_options_and_that_of_config_all_settings() {
        for line in [&["jobs", "retry"][..], &["run"], &["bench", "drain"], &[]] {
            let help = help(line);
            assert!(!help.contains("--kafka-linger"), "{help}");
            assert!(help.contains("jobwire config --help"), "{help}");
        }
        assert!(help(&["jobs", "retry"]).contains("--with-exception"));
        let config = help(&["config"]);
        for setting in crate::settings::TABLE {
            assert!(
                config.contains(&format!("--{} <", setting.flag)),
                "{}",
                setting.key
            );
        }
    }

    #[test]
    fn setting_flags_stand_before_and_behind_the_command() {
        for line in [
            ["jobwire", "--database", "sqlite:x.db", "run"],
            ["jobwire", "run", "--database", "sqlite:x.db"],
        ] {
            let matches = command().try_get_matches_from(line).expect("parses");
            assert_eq!(
                flags::found(&matches),
                [("database_url", "sqlite:x.db".to_owned())]
            );
        }
        for line in [
            &["jobwire", "--lanes", "bulk", "run"][..],
            &["jobwire", "run", "--lanes", "bulk"],
            &["jobwire", "bench", "drain", "--lanes", "bulk"],
            &["jobwire", "bench", "--lanes", "bulk", "drain"],
            &["jobwire", "engine", "run", "--lanes", "bulk"],
            &["jobwire", "lanes", "list", "--lanes", "bulk"],
        ] {
            let line: Vec<OsString> = line.iter().map(OsString::from).collect();
            let matches = mistaken::matches(&line).expect("parses");
            let lanes = ("lanes", "bulk".to_owned());
            assert_eq!(flags::found(&matches), [lanes], "{line:?}");
        }
    }
}
