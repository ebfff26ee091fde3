//! `jobwire suspend`, `activate`, `pause` and `resume`, at once or at a date; `jobwire suspensions`.

use chrono::{DateTime, SecondsFormat, SubsecRound, Utc};
use clap::Args;
use jobwire_core::producer::gate_change::{GateChange, GateChanged};
use jobwire_core::store::{Gate, PauseScope, SuspensionScope};
use jobwire_core::telemetry::plain;
use jobwire_core::{CommitHook, JobId, JobQuery, Lane, Store, StoreError};
use serde::Serialize;

use super::definition_key;
use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum number of refused jobs that are named; `--json` has all.
const NAMED: usize = 20;

/// Arguments of `suspend` and `activate`.
#[derive(Debug, Args)]
pub struct SuspensionArgs {
    /// The scope.
    #[command(flatten)]
    pub scope: SuspensionScopeArgs,
    /// The date and the form of the output.
    #[command(flatten)]
    pub how: HowArgs,
}

/// One scope of a suspension.
#[derive(Debug, Args)]
#[group(required = true)]
pub struct SuspensionScopeArgs {
    /// The jobs of this process instance
    #[arg(long, value_name = "NAME", visible_alias = "process-instance",
        conflicts_with_all = ["definition", "definition_key", "element", "job_type", "tenant"])]
    pub instance: Option<String>,
    /// The jobs of all instances of this process definition, by its exact id (invoice:3:4711)
    #[arg(long, value_name = "NAME", visible_alias = "process-definition",
        conflicts_with_all = ["definition_key", "job_type", "tenant"])]
    pub definition: Option<String>,
    /// The jobs of all versions of this process definition (invoice), of the tenant of --tenant or without
    /// one
    #[arg(long, value_name = "KEY", conflicts_with_all = ["element", "job_type"])]
    pub definition_key: Option<String>,
    /// With --definition: only the jobs of this element of it, such as an activity
    #[arg(long, value_name = "ELEMENT", conflicts_with_all = ["job_type", "tenant"])]
    pub element: Option<String>,
    /// The jobs of this handler type
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "tenant")]
    pub job_type: Option<String>,
    /// The jobs of this tenant; with --definition-key, those of the key only
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The scope.
    #[command(flatten)]
    pub scope: PauseScopeArgs,
    /// The date and the form of the output.
    #[command(flatten)]
    pub how: HowArgs,
}

/// One scope of a pause.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct PauseScopeArgs {
    /// The jobs of this handler type
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: Option<String>,
    /// The jobs of this category
    #[arg(long, value_name = "NAME")]
    pub category: Option<String>,
    /// The jobs of this lane
    #[arg(long, value_name = "LANE")]
    pub lane: Option<String>,
    /// All jobs
    #[arg(long)]
    pub all: bool,
}

/// When to make the change, and how to tell its result.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// Make the change at this date, for example 2027-01-31T08:00:00Z; a timer job does it, at once
    /// if the date has passed
    #[arg(long, value_name = "DATE", value_parser = super::date)]
    pub at: Option<DateTime<Utc>>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `suspensions`.
#[derive(Debug, Args)]
pub struct SuspensionsArgs {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

impl SuspensionScopeArgs {
    fn gate(self) -> Result<Gate, Error> {
        let scope = if let Some(value) = self.instance {
            SuspensionScope::ProcessInstance(value)
        } else if let Some(element) = self.element {
            let definition = self.definition.ok_or_else(|| {
                Error::Usage(
                    "--element needs --definition, because an element belongs to one process \
                     definition; give both: --definition NAME --element ELEMENT"
                        .to_owned(),
                )
            })?;
            SuspensionScope::Element {
                definition,
                element,
            }
        } else if let Some(value) = self.definition {
            SuspensionScope::ProcessDefinition(value)
        } else if let Some(key) = self.definition_key {
            let key = definition_key::given("definition-key", key, self.tenant)?;
            SuspensionScope::DefinitionKey(key)
        } else if let Some(value) = self.job_type {
            SuspensionScope::Type(value)
        } else {
            SuspensionScope::Tenant(self.tenant.unwrap_or_default())
        };
        checked(scope.into())
    }
}

impl PauseScopeArgs {
    fn gate(self) -> Result<Gate, Error> {
        let scope = if self.all {
            return Ok(PauseScope::All.into());
        } else if let Some(value) = self.job_type {
            PauseScope::Type(value)
        } else if let Some(value) = self.category {
            PauseScope::Category(value)
        } else {
            let lane = Lane::new(self.lane.unwrap_or_default());
            PauseScope::Lane(lane.map_err(|bad| Error::Usage(format!("--lane: {bad}")))?)
        };
        checked(scope.into())
    }
}

fn checked(gate: Gate) -> Result<Gate, Error> {
    let definition = gate.definition().map(|name| ("definition", name));
    for (flag, name) in definition.into_iter().chain([(gate.scope(), gate.value())]) {
        if name.is_empty() || name.len() > 1024 {
            return Err(Error::Usage(format!(
                "--{flag} has {} bytes; give a name of 1 to 1024",
                name.len()
            )));
        }
    }
    Ok(gate)
}

pub(crate) async fn suspend(settings: Settings, args: SuspensionArgs) -> Result<(), Error> {
    let change = GateChange::begin(args.scope.gate()?);
    run(&settings, &change, &args.how).await
}

pub(crate) async fn activate(settings: Settings, args: SuspensionArgs) -> Result<(), Error> {
    let change = GateChange::end(args.scope.gate()?);
    run(&settings, &change, &args.how).await
}

pub(crate) async fn pause(settings: Settings, args: PauseArgs) -> Result<(), Error> {
    let change = GateChange::begin(args.scope.gate()?);
    run(&settings, &change, &args.how).await
}

pub(crate) async fn resume(settings: Settings, args: PauseArgs) -> Result<(), Error> {
    let change = GateChange::end(args.scope.gate()?);
    run(&settings, &change, &args.how).await
}

/// The result of a change.
#[derive(Serialize)]
struct Report<'a> {
    action: &'static str,
    #[serde(flatten)]
    gate: &'a Gate,
    #[serde(flatten)]
    changed: GateChanged,
    /// Number of jobs of the scope that run now, and continue.
    running: i64,
    /// Whether there is a broker for hints.
    #[serde(skip)]
    hints: bool,
}

/// A change at a date.
#[derive(Serialize)]
struct Planned<'a> {
    action: &'static str,
    #[serde(flatten)]
    gate: &'a Gate,
    at: DateTime<Utc>,
    /// The timer job that makes the change.
    job: JobId,
}

async fn run(settings: &Settings, change: &GateChange, how: &HowArgs) -> Result<(), Error> {
    let database = Database::open_existing(settings).await?;
    let store = database.store();
    let outlet = Outlet::open(settings).await?;
    let result = match how.at {
        Some(date) => plan(&database, &outlet, change, date, how.json).await,
        None => make(&*store, &outlet, change, how.json).await,
    };
    outlet.close_and_tell().await;
    store.close().await;
    result
}

async fn plan(
    database: &Database,
    outlet: &Outlet,
    change: &GateChange,
    date: DateTime<Utc>,
    json: bool,
) -> Result<(), Error> {
    let job = change.at(date);
    let id = job.id();
    let creator = database.creator(outlet.hook());
    creator.create_all(vec![job]).await.map_err(|error| {
        let look = format!("look for the job (`jobwire jobs show {id}`)");
        told(error, &look)
    })?;
    if json {
        return output::json(&Planned {
            action: change.action(),
            gate: change.gate(),
            at: date,
            job: id,
        });
    }
    let (written, moment) = (written(change), moment(date));
    if date <= Utc::now() {
        return output::line(format_args!(
            "{written} at once, because {moment} has passed: the timer job {id} does it"
        ));
    }
    output::line(format_args!(
        "{written} at {moment}: the timer job {id} does it; delete that job to call it off"
    ))
}

async fn make(
    store: &dyn Store,
    outlet: &Outlet,
    change: &GateChange,
    json: bool,
) -> Result<(), Error> {
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    let changed = change
        .make(store, &hook)
        .await
        .map_err(|error| told(error, "look (`jobwire suspensions`)"))?;
    let begins = matches!(change.action(), "suspend" | "pause");
    // Counted after the change: from then on no job of the scope starts.
    let running = if begins {
        store.count(&running(change.gate())).await?
    } else {
        0
    };
    let report = Report {
        action: change.action(),
        gate: change.gate(),
        changed,
        running,
        hints: hook.is_connected(),
    };
    if json {
        return output::json(&report);
    }
    print(change, &report, begins)?;
    match change.gate() {
        Gate::Suspension(scope) if begins && report.changed.moved == 0 && running == 0 => {
            remark(store, scope).await
        }
        _ => Ok(()),
    }
}

/// Prints a remark if no job belongs to the scope: its name may be wrong.
async fn remark(store: &dyn Store, scope: &SuspensionScope) -> Result<(), Error> {
    let query = of_suspension(JobQuery::default(), scope);
    if store.count_at_most(&query, 1).await? > 0 {
        return Ok(());
    }
    output::line("remark: no job belongs to it now; jobs that are created later do not start")?;
    match scope {
        SuspensionScope::ProcessDefinition(definition)
        | SuspensionScope::Element { definition, .. } => exact_definition(store, definition).await,
        SuspensionScope::DefinitionKey(key) => definition_key::other_tenant(store, key).await,
        _ => Ok(()),
    }
}

/// Prints a remark if a scope that had no job is the key of definitions that have some.
pub(super) async fn exact_definition(store: &dyn Store, name: &str) -> Result<(), Error> {
    let versions = JobQuery::default().definition_key(name).limit(1);
    let found = store.find(&versions).await?;
    let Some(definition) = found
        .first()
        .and_then(|job| job.process_definition.as_deref())
        .filter(|definition| *definition != name)
    else {
        return Ok(());
    };
    let definition = plain::one_line(definition, 200);
    let name = plain::one_line(name, 200);
    output::line(format_args!(
        "remark: jobs of other versions exist, such as `{definition}`; the scope is the exact id, and \
         --definition-key {name} covers all versions of a tenant (`jobwire jobs list --definition-key \
         {name}` lists their jobs)"
    ))
}

/// Returns the error of a change. If its answer was lost, the change may have taken effect.
fn told(error: StoreError, look: &str) -> Error {
    if error.changed_nothing() {
        return error.into();
    }
    Error::Failed(format!(
        "{}; whether this took effect is unknown, since the answer was lost; {look}, then run this \
         again: it does no harm twice",
        Error::Store(error)
    ))
}

/// Returns the filter of the running jobs of a scope.
fn running(gate: &Gate) -> JobQuery {
    let all = JobQuery::default().locked(true);
    match gate {
        Gate::Suspension(scope) => of_suspension(all, scope),
        Gate::Pause(PauseScope::Type(name)) => all.job_type(name),
        Gate::Pause(PauseScope::Category(name)) => all.category(name),
        Gate::Pause(PauseScope::Lane(lane)) => all.lane(lane.as_str()),
        Gate::Pause(_) => all,
    }
}

fn of_suspension(query: JobQuery, scope: &SuspensionScope) -> JobQuery {
    match scope {
        SuspensionScope::ProcessInstance(name) => query.instance(name),
        SuspensionScope::ProcessDefinition(name) => query.process_definition(name),
        SuspensionScope::DefinitionKey(key) => definition_key::query(query, key),
        SuspensionScope::Element {
            definition,
            element,
        } => query.process_definition(definition).element(element),
        SuspensionScope::Tenant(name) => query.tenant(name),
        SuspensionScope::Type(name) => query.job_type(name),
    }
}

fn print(change: &GateChange, report: &Report<'_>, begins: bool) -> Result<(), Error> {
    let changed = &report.changed;
    let gate = plain::one_line(&change.gate().to_string(), 500);
    match (change.action(), changed.changed) {
        ("suspend", _) => output::line(format_args!(
            "{gate}: {} moved",
            output::count(changed.moved, "job")
        ))?,
        ("pause", true) => output::line(&gate)?,
        ("pause", false) => output::line(format_args!("{gate} already"))?,
        (_, true) => {
            let back = match change.gate() {
                Gate::Pause(_) => String::new(),
                _ => format!("{} came back, ", output::count(changed.moved, "job")),
            };
            let hinted = match (changed.hinted, report.hints) {
                (0, _) => "no waiting job is hinted".to_owned(),
                (jobs, hints) => {
                    let are = if jobs == 1 { "is" } else { "are" };
                    let how = match (hints, jobs) {
                        (true, _) => "hinted",
                        (false, 1) => "ready; without a broker, the running node finds it",
                        (false, _) => "ready; without a broker, the running node finds them",
                    };
                    format!("{} {are} {how}", output::count(jobs, "waiting job"))
                }
            };
            let (scope, state) = (scope(change.gate()), change.gate().state());
            output::line(format_args!("{scope} is no longer {state}: {back}{hinted}"))?;
        }
        (_, false) => {
            let kind = match change.gate() {
                Gate::Pause(_) => "pause",
                _ => "suspension",
            };
            output::line(format_args!(
                "nothing was changed: no {kind} of {} exists; `jobwire suspensions` lists all",
                scope(change.gate())
            ))?;
        }
    }
    if begins && report.running > 0 {
        let running = output::count(report.running.unsigned_abs(), "job");
        output::line(format_args!("{running} of it still running"))?;
    }
    for (id, why) in changed.refused.iter().take(NAMED) {
        let why = plain::one_line(why, 500);
        output::line(format_args!(
            "the database refused to move job {id}: {why}; it stays where it is and does not start"
        ))?;
    }
    let unnamed = changed.refused.len().saturating_sub(NAMED);
    if unnamed > 0 {
        output::line(format_args!("{unnamed} more refused; --json names all"))?;
    }
    Ok(())
}

/// Returns the change in words: `pause lane bulk`.
fn written(change: &GateChange) -> String {
    format!("{} {}", change.action(), scope(change.gate()))
}

/// Returns the scope in words: `lane bulk`.
fn scope(gate: &Gate) -> String {
    match gate {
        Gate::Pause(PauseScope::All) => "everything".to_owned(),
        gate => format!("{} {}", gate.scope(), plain::one_line(&gate.name(), 200)),
    }
}

fn moment(date: DateTime<Utc>) -> String {
    let date = date.trunc_subsecs(0);
    date.to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(crate) async fn list(settings: Settings, args: SuspensionsArgs) -> Result<(), Error> {
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let found = store.suspensions().await;
    store.close().await;
    let found = found?;
    if args.json {
        return output::json(&found);
    }
    if found.is_empty() {
        return output::line("nothing is suspended or paused");
    }
    let rows: Vec<[String; 6]> = found
        .iter()
        .map(|view| {
            [
                view.gate.state().to_owned(),
                view.gate.scope().to_owned(),
                plain::one_line(&view.gate.name(), 80),
                moment(view.since),
                view.moved.to_string(),
                view.waiting.to_string(),
            ]
        })
        .collect();
    let head = [
        "state",
        "scope",
        "value",
        "since",
        "jobs moved",
        "jobs waiting",
    ];
    output::table(head, &rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_scope_without_a_name_is_refused_with_the_flag() {
        let scope = PauseScopeArgs {
            job_type: None,
            category: None,
            lane: Some(String::new()),
            all: false,
        };
        let error = scope.gate().expect_err("no name").to_string();
        assert!(error.contains("--lane: `` is not a lane's name"), "{error}");
        let scope = PauseScopeArgs {
            job_type: Some(String::new()),
            category: None,
            lane: None,
            all: false,
        };
        let error = scope.gate().expect_err("no name").to_string();
        assert!(error.contains("--type has 0 bytes"), "{error}");
    }

    #[test]
    fn a_lost_answer_is_told_as_unknown() {
        let lost = told(StoreError::Timeout(Duration::from_secs(1)), "look").to_string();
        assert!(lost.contains("unknown"), "{lost}");
        let refused = told(StoreError::Config("no".to_owned()), "look").to_string();
        assert!(!refused.contains("unknown"), "{refused}");
    }
}
